// Package probes owns the answers of the box to the outside: liveness, readiness, health, metrics,
// and the management server that serves them.
//
// Readiness is evaluated in the background and kept in memory, so that an answer never waits for a
// disk, a network or a program. The package must never start, stop or signal a process, or know the
// manifest. The facts about programs, adapters and the boot come through the small types that are
// declared here.
package probes

import (
	"fmt"
	"strings"
)

// Kind says what a requirement is about.
type Kind string

// The kinds of requirement, in the order in which a report lists them.
const (
	KindSentinel Kind = "sentinel" // bootstrap has completed
	KindProgram  Kind = "program"  // a required program is RUNNING and ready
	KindSession  Kind = "session"  // the host of the federation has accepted the box
	KindAdapter  Kind = "adapter"  // a slot that is not off is connected and healthy
	KindMount    Kind = "mount"    // a directory is present and writable
	KindRelay    Kind = "relay"    // one relay answers
	KindContract Kind = "contract" // no fatal contract drift
)

var kindOrder = map[Kind]int{
	KindSentinel: 0, KindProgram: 1, KindSession: 2, KindAdapter: 3, KindMount: 4, KindRelay: 5, KindContract: 6,
}

// Requirement is one condition for the box to be ready.
type Requirement struct {
	ID   string `json:"id"` // bootstrap-sentinel, program:web, mount:/workspace
	Kind Kind   `json:"kind"`
	Met  bool   `json:"met"`
	// Reason says in words why it is not met; empty when it is.
	Reason string `json:"reason,omitempty"`
}

// Report is the verdict over a set of requirements.
type Report struct {
	Ready bool
	// Reason names what is missing, for a log line; empty when ready.
	Reason       string
	Requirements []Requirement
	Missing      []Requirement
}

// maxNamed bounds how many missing requirements a reason spells out.
const maxNamed = 5

// evaluate reports ready if every requirement is met, also if there is none. The slices of the
// report are in the order of reqs.
func evaluate(reqs []Requirement) Report {
	r := Report{Requirements: reqs, Missing: []Requirement{}}
	for _, q := range reqs {
		if !q.Met {
			r.Missing = append(r.Missing, q)
		}
	}
	r.Ready = len(r.Missing) == 0
	if !r.Ready {
		r.Reason = reasonFor(r.Missing)
	}
	return r
}

func reasonFor(missing []Requirement) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requirement", len(missing))
	if len(missing) != 1 {
		b.WriteByte('s')
	}
	b.WriteString(" not met: ")
	for i, q := range missing {
		if i == maxNamed {
			fmt.Fprintf(&b, " and %d more", len(missing)-maxNamed)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(q.ID)
		if q.Reason != "" {
			b.WriteString(" (" + q.Reason + ")")
		}
	}
	return b.String()
}
