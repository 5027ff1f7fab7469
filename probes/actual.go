package probes

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/capability"
)

// parseStatus reads the effective capabilities and no_new_privs out of the text
// of /proc/PID/status (proc(5)).
func parseStatus(text []byte) (capabilities []string, noNewPrivs bool, err error) {
	var sawCaps, sawPrivs bool
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "CapEff":
			mask, perr := strconv.ParseUint(value, 16, 64)
			if perr != nil {
				return nil, false, fmt.Errorf("cannot read CapEff %q: %w", value, perr)
			}
			capabilities, sawCaps = capabilityList(mask), true
		case "NoNewPrivs":
			noNewPrivs, sawPrivs = value == "1", true
		}
	}
	if !sawCaps || !sawPrivs {
		return nil, false, fmt.Errorf("no CapEff or no NoNewPrivs line in the process status")
	}
	return capabilities, noNewPrivs, lines.Err()
}

func capabilityList(mask uint64) []string {
	var out []string
	for bit := range 64 {
		if mask&(1<<bit) != 0 {
			out = append(out, cmp.Or(capability.Name(bit), "CAP_"+strconv.Itoa(bit)))
		}
	}
	slices.Sort(out)
	return out
}

// Reality reads the present values in this box. A zero field is not compared if Declared does not
// set it either.
type Reality struct {
	StatusFile string                   // /proc/self/status
	Root       string                   // the directory whose file system should be read-only
	Metrics    func() string            // where the metrics listener is bound, "" when it is not
	LookupEnv  func(string) string      // agentinit's environment
	ImageRef   func() string            // the reference the running image was made as, "" when unknown
	Mounts     func() map[string]string // path → why not writable; from the mount requirements
}

// Read collects the actual state. It reads two small files of the kernel and memory. It does not
// touch a mount, because a mount may hang; FollowMounts checks mounts.
func (r Reality) Read(_ context.Context, want Declared) Actual {
	a := Actual{Unknown: make(map[string]string), Environment: make(map[string]string)}
	if r.Metrics != nil {
		a.MetricsAddress = r.Metrics()
	}
	if r.ImageRef != nil {
		a.ImageRef = r.ImageRef()
	}
	if r.Mounts != nil {
		a.Mounts = r.Mounts()
	}
	for name := range want.Environment {
		if v := r.LookupEnv(name); v != "" {
			a.Environment[name] = v
		}
	}
	if want.Profile != nil {
		a.Security = r.security(a.Unknown)
	}
	return a
}

func (r Reality) security(unknown map[string]string) *Security {
	s := &Security{}
	text, err := os.ReadFile(r.StatusFile)
	if err == nil {
		s.Capabilities, s.NoNewPrivs, err = parseStatus(text)
	}
	if err != nil {
		unknown["capabilities"], unknown["no_new_privs"] = err.Error(), err.Error()
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.Root, &fs); err != nil {
		unknown["root_filesystem"] = err.Error()
	}
	s.ReadOnlyRoot = fs.Flags&unix.ST_RDONLY != 0
	return s
}

// MountFaults lists the unmet mount requirements with reasons, for Reality.Mounts. A mount that was
// not checked yet is not a fault.
func (r *Readiness) MountFaults() map[string]string {
	faults := make(map[string]string)
	for _, q := range r.Verdict().Missing {
		if q.Kind == KindMount && q.Reason != notChecked {
			faults[strings.TrimPrefix(q.ID, "mount:")] = q.Reason
		}
	}
	return faults
}
