package api

import (
	"context"
	"net/url"
	"time"
)

// Crashes are the latest crash of each program that had one, by name.
type Crashes struct {
	Crashes []Crash `json:"crashes"` // never null
}

// Crash is the latest end of a run of a program that was not expected.
type Crash struct {
	Program  string    `json:"program"`
	Run      uint64    `json:"run"`
	PID      int       `json:"pid"`
	Time     time.Time `json:"time"` // when the run ended
	UptimeMS int64     `json:"uptime_ms"`
	Exit     Exit      `json:"exit"`
	// Killed says that agentinit sent the SIGKILL.
	Killed bool `json:"killed,omitempty"`
	// CoreAt is the path of the core file, or the program that received the core, by core_pattern
	// (core(5)).
	CoreAt string `json:"core_at,omitempty"`
	// What its processes used: CPU time, and the largest resident size of a single process. At the
	// start of a program, the kernel counts agentinit's memory too. So MaxRSSBytes is 0, unknown,
	// if the program never used clearly more memory than agentinit.
	UserMS      int64 `json:"user_ms"`
	SystemMS    int64 `json:"system_ms"`
	MaxRSSBytes int64 `json:"max_rss_bytes"`
	// Output is the last lines of its output, the newest last. The program wrote them: escape them
	// before printing them on a terminal.
	Output []LogLine `json:"output,omitempty"`
}

// Crash returns the crash of one program. With "", it returns those of all programs.
func (c *Client) Crash(ctx context.Context, name string) (Crashes, error) {
	q := url.Values{}
	if name != "" {
		q.Set("name", name)
	}
	return get[Crashes](ctx, c, "/v1/crash", q)
}
