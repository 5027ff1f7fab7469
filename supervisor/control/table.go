package control

import (
	"net/http"
	"strconv"
	"time"

	layout "github.com/dreamlab-ai/agentinit/internal/table"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/listing"
)

// table is a smaller api.Status for clients that print a table of all programs, as health checks
// often do. A reader of api.Status understands it. Writing, sending and reading it takes a third of
// the time.
type table struct {
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"time"`
	Phase    string    `json:"phase"`
	Programs []row     `json:"programs"`
}

// row has those fields of api.Program that a table shows.
type row struct {
	Name     string        `json:"name"`
	State    string        `json:"state"`
	Shown    string        `json:"shown,omitempty"`
	Ready    bool          `json:"ready,omitempty"`
	Healthy  bool          `json:"healthy,omitempty"`
	Reason   string        `json:"reason,omitempty"`
	Text     string        `json:"text,omitempty"`
	PID      int           `json:"pid,omitempty"`
	Restarts uint64        `json:"restarts,omitempty"`
	Since    time.Time     `json:"since"`
	Deadline *time.Time    `json:"deadline,omitempty"`
	LastExit *api.Exit     `json:"last_exit,omitempty"`
	Schedule *api.Schedule `json:"schedule,omitempty"`
	Usage    *rowUsage     `json:"usage,omitempty"`

	LogTrouble string `json:"log_trouble,omitempty"`
}

type rowUsage struct {
	CPUSeconds  float64 `json:"cpu_seconds,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
}

// addUsage adds to each program what its processes use.
func addUsage(programs []api.Program, usage []api.ProgramUsage) {
	used := make(map[string]*api.ProgramUsage, len(usage))
	for i := range usage {
		used[usage[i].Name] = &usage[i]
	}
	for i := range programs {
		programs[i].Usage = used[programs[i].Name]
	}
}

func toTable(s api.Status) table {
	out := table{Seq: s.Seq, Time: s.Time, Phase: s.Phase, Programs: make([]row, len(s.Programs))}
	for i, p := range s.Programs {
		out.Programs[i] = row{
			Name: p.Name, State: p.State, Shown: p.Shown, Ready: p.Ready, Healthy: p.Healthy, Reason: p.Reason, Text: p.Text,
			PID: p.PID, Restarts: p.Restarts, Since: p.Since, Deadline: p.Deadline, LastExit: p.LastExit, Schedule: p.Schedule,
			LogTrouble: p.LogTrouble,
		}
		if u := p.Usage; u != nil {
			out.Programs[i].Usage = &rowUsage{CPUSeconds: u.CPUSeconds, MemoryBytes: u.MemoryBytes}
		}
	}
	return out
}

// toText is the table itself, for a client that only prints it: agentctl status then decodes no JSON
// and lays out nothing. The header tells the exit status.
func toText(s api.Status) document {
	programs := make([]listing.Program, len(s.Programs))
	for i, p := range s.Programs {
		programs[i] = listing.Program{Program: p, Share: -1}
	}
	return document{
		contentType: plainText,
		body:        []byte(listing.Table(programs, s.Time, false, layout.Terminal{})),
		header:      http.Header{api.HeaderAllRunning: {strconv.FormatBool(listing.AllRunning(programs))}},
	}
}
