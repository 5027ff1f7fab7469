package main

import (
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// exposure is one row of the table: what is checked, what was found, and how much of the weight
// counts as exposed.
type exposure struct {
	Check   string  `json:"check"`
	Found   string  `json:"found"`
	Weight  float64 `json:"weight"`
	Exposed float64 `json:"exposed"` // from 0 to Weight
}

// exposures judges the restrictions of a program.
func exposures(c api.Confinement) []exposure {
	row := func(check string, weight float64, bad bool, good, poor string) exposure {
		e := exposure{Check: check, Found: good, Weight: weight}
		if bad {
			e.Found, e.Exposed = poor, weight
		}
		return e
	}
	user := row("user", 3, false, fmt.Sprintf("uid %d, its own", c.UID), "")
	switch {
	case c.UID == 0:
		user.Found, user.Exposed = "root", 3
	case c.UID == c.BoxUID:
		user.Found, user.Exposed = fmt.Sprintf("uid %d, that of agentinit", c.UID), 1.5
	}
	effective, bounding := capabilities(c.Capabilities), capabilities(c.Bounding)
	return []exposure{
		user,
		row("capabilities", 3, effective > 0, "none", fmt.Sprintf("%d in force", effective)),
		row("gain by exec", 1, !c.NoNewPrivs && bounding > 0, "none: no_new_privs, or no capability to gain", fmt.Sprintf("a set-uid file can give %d capabilities", bounding)),
		row("system calls", 2, c.Seccomp == 0, "filtered by seccomp", "all allowed"),
		row("files", 2, !c.Paths, "only the sandbox's paths", "whatever its user can reach"),
		row("TCP ports", 1, !c.Ports, "only the sandbox's", "all"),
		processes(c),
		row("control of the box", 2, c.Control, "none", "control = true"),
	}
}

// processes judges how many processes the program may have.
func processes(c api.Confinement) exposure {
	e := exposure{Check: "processes", Weight: 1}
	at := slices.IndexFunc(c.Limits, func(l api.ProgramLimit) bool { return l.Name == "pids" && l.Counts != api.LimitOfPrograms })
	switch {
	case at >= 0:
		e.Found = "limited by " + inForceText(c.Limits[at])
	case slices.Contains(c.Limited, "nproc"):
		e.Found = "limited by nproc"
	default:
		e.Found, e.Exposed = "as many as the box has", e.Weight
	}
	return e
}

// capabilities counts the bits of a hexadecimal mask.
func capabilities(mask string) int {
	n, err := strconv.ParseUint(mask, 16, 64)
	if err != nil {
		return 0
	}
	return bits.OnesCount64(n)
}

// score is from 0, confined, to 10, root without limits.
func score(rows []exposure) float64 {
	var all, exposed float64
	for _, e := range rows {
		all += e.Weight
		exposed += e.Exposed
	}
	return 10 * exposed / all
}

// verdicts are the words of systemd-analyze security, each with its lowest score.
var verdicts = []struct {
	from float64
	word string
}{{9, "UNSAFE"}, {7, "EXPOSED"}, {4, "MEDIUM"}, {1, "OK"}, {0, "SAFE"}}

func verdict(score float64) string {
	for _, v := range verdicts {
		if score >= v.from {
			return v.word
		}
	}
	return ""
}

func (c *cli) printExposure(x api.Confinement) error {
	rows := exposures(x)
	total := score(rows)
	if c.json {
		return c.printJSON(map[string]any{"confinement": x, "rows": rows, "score": total, "verdict": verdict(total)})
	}
	var b strings.Builder
	for _, e := range rows {
		mark := "+"
		if e.Exposed > 0 {
			mark = "-"
		}
		fmt.Fprintf(&b, "%s %-18s %-52s %.1f\n", mark, e.Check, printable(e.Found), e.Exposed)
	}
	for _, r := range x.Refused {
		fmt.Fprintf(&b, "  refused: %s\n", printable(r.String()))
	}
	measured := fmt.Sprintf("pid %d", x.PID)
	if x.PID == 0 {
		measured = "it does not run: only what its specification says"
	}
	fmt.Fprintf(&b, "%s: exposure %.1f of 10, %s (%s)\n", printable(x.Program), total, verdict(total), measured)
	return c.write([]byte(b.String()))
}

// isProgram tells whether arg is the name of a program or of a manifest. A directory is not a
// manifest.
func isProgram(arg string) bool {
	if arg == "-" || strings.ContainsRune(arg, '/') || strings.HasSuffix(arg, ".toml") {
		return false
	}
	info, err := os.Stat(arg)
	return err != nil || info.IsDir()
}
