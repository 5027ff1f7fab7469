package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Crashes are the latest crash of each program that had one, by name.
type Crashes struct {
	Crashes []Crash `json:"crashes"` // never null
}

// Crash is how the latest run of a program ended that did not end as expected.
type Crash struct {
	Program  string    `json:"program"`
	Run      uint64    `json:"run"`
	PID      int       `json:"pid"`
	Time     time.Time `json:"time"` // of the end
	UptimeMS int64     `json:"uptime_ms"`
	Exit     Exit      `json:"exit"`
	// Killed: the KILL was agentinit's own.
	Killed bool `json:"killed,omitempty"`
	// CoreAt is where the core lies, or which program got it, by core_pattern (core(5)).
	CoreAt string `json:"core_at,omitempty"`
	// What its processes used: CPU time, and the resident memory of the largest. The
	// kernel counts agentinit's own memory at the start of a program as its: MaxRSSBytes is
	// 0, not known, for one that never had clearly more than agentinit.
	UserMS      int64 `json:"user_ms"`
	SystemMS    int64 `json:"system_ms"`
	MaxRSSBytes int64 `json:"max_rss_bytes"`
	// Output is the last lines that it wrote, the newest last. They are the program's
	// own words: escape them before printing them on a terminal.
	Output []LogLine `json:"output,omitempty"`
}

// Crash returns the crash of one program, or with "" those of all.
func (c *Client) Crash(ctx context.Context, name string) (Crashes, error) {
	q := url.Values{}
	if name != "" {
		q.Set("name", name)
	}
	var out Crashes
	err := c.quick(ctx, http.MethodGet, "/v1/crash", q, nil, &out)
	return out, err
}
