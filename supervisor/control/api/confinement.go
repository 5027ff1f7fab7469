package api

import (
	"context"
	"net/http"
	"net/url"
)

// Confinement is what bounds a running program: its first process as the kernel shows
// it (proc_pid_status(5)), and what its specification adds. Without a process the
// fields of the kernel are zero and PID is 0.
type Confinement struct {
	Program string `json:"program"`
	PID     int    `json:"pid"`
	UID     uint32 `json:"uid"` // effective
	// BoxUID is agentinit's own.
	BoxUID uint32 `json:"box_uid"`
	// Capabilities are the effective ones, Bounding those that an exec could give, as
	// bit masks in hexadecimal.
	Capabilities string `json:"capabilities"`
	Bounding     string `json:"bounding"`
	NoNewPrivs   bool   `json:"no_new_privs"`
	// Seccomp is 0 for none, 1 strict, 2 a filter.
	Seccomp int `json:"seccomp"`
	// Paths and Ports: the sandbox allows only some (Landlock).
	Paths bool `json:"paths"`
	Ports bool `json:"ports"`
	// Limited are the resources that the specification limits.
	Limited []string `json:"limited"`
	// Control: it may change the box.
	Control bool `json:"control"`
	// Refused are the kinds of system calls that were refused, the most frequent first.
	Refused []Refusal `json:"refused,omitempty"`
}

// SandboxTest asks for a command to be run exactly as a program would be run: as its user, with
// its environment, limits, guard and sandbox.
type SandboxTest struct {
	Program   string   `json:"program"`
	Command   []string `json:"command"`
	TimeoutMS int64    `json:"timeout_ms,omitempty"` // default 60,000, at most 600,000
}

// SandboxTestResult is how that command ended.
type SandboxTestResult struct {
	Program string `json:"program"`
	Status  int    `json:"status"` // as a shell reports it: 128 + n for signal n
	// Output is the first 256 KiB of standard output and error. It is the command's own
	// words: escape it before printing it on a terminal.
	Output    string `json:"output"`
	Truncated bool   `json:"truncated,omitempty"` // there was more
	// Skipped is what of the sandbox was not in force; empty for nothing.
	Skipped string    `json:"skipped,omitempty"`
	Refused []Refusal `json:"refused,omitempty"`
}

// SandboxTest runs a command within the bounds of a program.
func (c *Client) SandboxTest(ctx context.Context, req SandboxTest) (SandboxTestResult, error) {
	var out SandboxTestResult
	err := c.do(ctx, http.MethodPost, "/v1/sandbox/test", nil, req, &out)
	return out, err
}

// Confinement returns what bounds one program.
func (c *Client) Confinement(ctx context.Context, name string) (Confinement, error) {
	var out Confinement
	err := c.quick(ctx, http.MethodGet, "/v1/confinement", url.Values{"name": {name}}, nil, &out)
	return out, err
}
