package control

import (
	"maps"
	"net/http"
	"slices"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func getCrash(s *Server, r *http.Request) (any, error) {
	crashes := s.cfg.Crashes()
	names := slices.Sorted(maps.Keys(crashes))
	if asked := r.URL.Query()["name"]; len(asked) > 0 {
		programs, err := resolve(asked, s.cfg.Supervisor.Snapshot().Programs)
		if err != nil {
			return nil, err
		}
		names = slices.DeleteFunc(namesOf(programs), func(name string) bool {
			_, crashed := crashes[name]
			return !crashed
		})
	}
	out := api.Crashes{Crashes: []api.Crash{}}
	for _, name := range names {
		out.Crashes = append(out.Crashes, toCrash(crashes[name], s.cfg.Version.BootID))
	}
	return out, nil
}

func toCrash(c supervisor.Crash, boot string) api.Crash {
	out := api.Crash{
		Program: c.Program, Run: c.Run, PID: c.PID, Time: c.Time, UptimeMS: c.Uptime.Milliseconds(),
		Exit:   toExit(c.Exit),
		Killed: c.Killed, CoreAt: c.CoreAt, UserMS: c.Rusage.User.Milliseconds(), SystemMS: c.Rusage.System.Milliseconds(),
		MaxRSSBytes: c.Rusage.MaxRSS,
	}
	for _, l := range c.Output {
		out.Output = append(out.Output, toLogLine(l, boot))
	}
	return out
}
