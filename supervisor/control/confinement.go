package control

import (
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func getConfinement(s *Server, r *http.Request) (any, error) {
	p, err := resolveOne(r.URL.Query().Get("name"), s.cfg.Supervisor.Snapshot().Programs)
	if err != nil {
		return nil, err
	}
	c := declared(p.Spec)
	c.Program, c.BoxUID, c.UID = p.Name, s.cfg.UID, s.cfg.UID
	if p.Spec.Credential != nil {
		c.UID = p.Spec.Credential.UID
	}
	c.Refused, c.Limits = s.refusals(p.Name), s.bounds(p)
	if p.PID != 0 {
		if text, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status"); err == nil {
			c.PID = p.PID
			measured(&c, string(text))
		}
	}
	return c, nil
}

// refusals are the system calls that were refused to a program.
func (s *Server) refusals(name string) []api.Refusal {
	return toRefusals(s.cfg.Refusals(name))
}

// refusedCalls is the number of system calls that were refused to a program.
func (s *Server) refusedCalls(name string) (n uint64) {
	for _, r := range s.refusals(name) {
		n += r.Count
	}
	return n
}

// bounds are the limits in force for the present run of a program.
func (s *Server) bounds(p supervisor.Status) []api.ProgramLimit {
	if p.PID == 0 {
		return nil
	}
	return s.cfg.Bounds(p.Name, p.Run)
}

// declared is the part that the specification gives.
func declared(spec *program.Spec) api.Confinement {
	c := api.Confinement{Control: spec.Control, Limited: slices.Sorted(maps.Keys(spec.Limits.Rlimits))}
	if c.Limited == nil {
		c.Limited = []string{}
	}
	if b := spec.Sandbox; b != nil && b.Mode != "off" && b.Mode != "audit" {
		c.Paths = b.Read != nil || b.Write != nil || b.Execute != nil
		c.Ports = b.TCPBind != nil || b.TCPConnect != nil
	}
	return c
}

// measured fills in the part that the kernel shows in /proc/PID/status.
func measured(c *api.Confinement, status string) {
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "Uid": // real, effective, saved, of the file system
			if f := strings.Fields(value); len(f) > 1 {
				if uid, err := strconv.ParseUint(f[1], 10, 32); err == nil {
					c.UID = uint32(uid)
				}
			}
		case "CapEff":
			c.Capabilities = value
		case "CapBnd":
			c.Bounding = value
		case "NoNewPrivs":
			c.NoNewPrivs = value == "1"
		case "Seccomp":
			c.Seccomp, _ = strconv.Atoi(value) // the kernel writes a digit
		}
	}
}
