package api

import (
	"context"
	"net/http"
	"net/url"
)

// Confinement is what restricts a running program: the state of its first process in the kernel
// (proc_pid_status(5)), and what its specification adds. If there is no process, PID and the
// kernel's fields are 0.
type Confinement struct {
	Program string `json:"program"`
	PID     int    `json:"pid"`
	UID     uint32 `json:"uid"` // effective
	// BoxUID is agentinit's own uid.
	BoxUID uint32 `json:"box_uid"`
	// Capabilities is the effective set and Bounding the bounding set, as bit masks in hexadecimal.
	Capabilities string `json:"capabilities"`
	Bounding     string `json:"bounding"`
	NoNewPrivs   bool   `json:"no_new_privs"`
	// Seccomp is 0 for none, 1 for strict mode, 2 for a filter.
	Seccomp int `json:"seccomp"`
	// Paths and Ports say that the sandbox allows only some paths or ports (Landlock).
	Paths bool `json:"paths"`
	Ports bool `json:"ports"`
	// Limited are the resources that the specification limits.
	Limited []string `json:"limited"`
	// Limits are those of processes and memory that are in force for the present run.
	Limits []ProgramLimit `json:"limits,omitempty"`
	// Control says that the program may change the box.
	Control bool `json:"control"`
	// Refused are the kinds of system calls that were refused, the most frequent first.
	Refused []Refusal `json:"refused,omitempty"`
}

// SandboxTest asks agentinit to run a command exactly as it would run a program: with its user,
// environment, limits, guard and sandbox.
type SandboxTest struct {
	Program   string   `json:"program"`
	Command   []string `json:"command"`
	TimeoutMS int64    `json:"timeout_ms,omitempty"` // default 60,000, at most 600,000
}

// SandboxTestResult is how that command ended.
type SandboxTestResult struct {
	Program string `json:"program"`
	Status  int    `json:"status"` // as a shell reports it: 128 + n for signal n
	// Output is the first 256 KiB of standard output and error. The command wrote it: escape it
	// before printing it on a terminal.
	Output    string `json:"output"`
	Truncated bool   `json:"truncated,omitempty"` // the command wrote more
	// Skipped names the parts of the sandbox that were not in force; empty means none.
	Skipped string    `json:"skipped,omitempty"`
	Refused []Refusal `json:"refused,omitempty"`
}

// SandboxTest runs a command with the restrictions of a program.
func (c *Client) SandboxTest(ctx context.Context, req SandboxTest) (SandboxTestResult, error) {
	var out SandboxTestResult
	err := c.do(ctx, http.MethodPost, "/v1/sandbox/test", nil, req, &out)
	return out, err
}

// Confinement returns what restricts one program.
func (c *Client) Confinement(ctx context.Context, name string) (Confinement, error) {
	return get[Confinement](ctx, c, "/v1/confinement", url.Values{"name": {name}})
}
