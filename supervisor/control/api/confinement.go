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

// Confinement returns what bounds one program.
func (c *Client) Confinement(ctx context.Context, name string) (Confinement, error) {
	var out Confinement
	err := c.quick(ctx, http.MethodGet, "/v1/confinement", url.Values{"name": {name}}, nil, &out)
	return out, err
}
