package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/listing"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// pageLines is how many lines of output a page about a program shows.
const pageLines = 10

// page holds everything for a page about one program.
type page struct {
	listing.Program
	spec program.Spec
	why  api.Why
	tree api.Processes
	logs []api.LogLine
}

func (c *cli) statusPage(ctx context.Context, client *api.Client, p listing.Program) error {
	pg := page{Program: p, spec: program.Spec{StartRetries: -1}} // as in a manifest that does not set it
	detail, err := client.Program(ctx, p.Name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(detail.Spec, &pg.spec); err != nil {
		return fmt.Errorf("cannot read the specification of %s: %w", p.Name, err)
	}
	if pg.why, err = client.Why(ctx, p.Name); err != nil {
		return err
	}
	if pg.tree, err = client.Processes(ctx, p.Name); err != nil && !unaccounted(err) {
		return err
	}
	err = client.Logs(ctx, api.LogQuery{Names: []string{p.Name}, Lines: pageLines}, func(l api.LogLine) error {
		pg.logs = append(pg.logs, l)
		return nil
	})
	if err != nil && !unaccounted(err) {
		return err
	}
	c.printPage(pg)
	return nil
}

func (c *cli) printPage(pg page) {
	state, colour := listing.State(pg.Program.Program)
	line(c.stdout, "%s: %s", printable(pg.Name), style(colour, state, c.colours()))
	row := func(name, text string) {
		if text != "" {
			c.cutLine(fmt.Sprintf("  %-10s %s", name+":", printable(text)))
		}
	}
	row("state", pg.why.Summary)
	row("next", pg.why.Next)
	row("command", escape.Shell(pg.spec.Argv...))
	row("runs as", identityText(pg.spec))
	row("ready", readyText(pg))
	row("health", healthText(pg))
	row("use", useText(pg.Program))
	row("limits", limitsText(pg.spec.Limits, pg.Limits))
	row("sandbox", sandboxText(pg.spec.Sandbox))
	for _, r := range pg.why.Refused {
		row("refused", r.String())
	}
	row("restarts", restartText(pg))
	row("ended", pg.why.Ending)
	row("says", pg.Text)
	row("logs", pg.why.LogTrouble)
	for _, text := range needTexts(pg.why.Needs) {
		row("needs", text)
	}
	row("needed by", strings.Join(pg.why.Dependents, ", "))
	c.printProcesses(pg.tree)
	c.printRuns(pg.why.Recent)
	if len(pg.logs) > 0 {
		line(c.stdout, "\nlast output:")
		c.printOutput(pg.logs)
	}
	c.printAdvice(pg.why.Do, "\n")
}

// cutLine prints a line that is already printable. On a terminal, it is cut at the width.
func (c *cli) cutLine(text string) {
	width, _ := terminal(c.stdout)
	line(c.stdout, "%s", cut(text, width))
}

func identityText(s program.Spec) string {
	who := ""
	if k := s.Credential; k != nil {
		who = fmt.Sprintf("user %d, group %d", k.UID, k.GID)
	}
	if s.Directory == "" {
		return who
	}
	return cmp.Or(who, "agentinit's user") + ", in " + s.Directory
}

// readyText says whether the program is ready, and by what. A job, such as a oneshot, is ready when it has
// completed.
func readyText(pg page) string {
	how := "when it runs"
	switch {
	case pg.why.Ready != "":
		how = "by: " + pg.why.Ready
	case pg.Type == string(program.Oneshot) || pg.Type == string(program.Schedule):
		how = "when it has completed"
	}
	switch {
	case pg.Ready || pg.Completed:
		return "yes, " + how
	case pg.PID == 0:
		return how
	case pg.Reason != "":
		return "no, " + pg.Reason + "; " + how
	}
	return "no; " + how
}

// healthText says what is checked while the program is RUNNING, and what follows a failure.
func healthText(pg page) string {
	h := pg.spec.Health
	if !h.On() {
		return ""
	}
	var checks []string
	for _, p := range h.Probes {
		text := p.String() + " every " + api.Duration(p.Interval)
		if h.Failures > 1 {
			text += fmt.Sprintf(" (%d failures in a row)", h.Failures)
		}
		checks = append(checks, text)
	}
	for _, rule := range []struct {
		key  string
		time time.Duration
	}{
		{"watchdog", h.Watchdog}, {"no_output", h.Wedge.NoOutput}, {"spinning", h.Wedge.Spinning}, {"blocked", h.Wedge.Blocked},
	} {
		if rule.time > 0 {
			checks = append(checks, rule.key+" "+api.Duration(rule.time))
		}
	}
	return strings.Join(checks, "; ") + "; action " + string(h.Action)
}

func useText(p listing.Program) string {
	if p.Usage == nil || p.PID == 0 && p.CPU() <= 0 {
		return ""
	}
	u := p.Usage
	if p.PID == 0 {
		return fmt.Sprintf("CPU %.2fs in all runs", u.CPUSeconds)
	}
	text := fmt.Sprintf("CPU %.2fs in all runs, memory %s, processes %d, threads %d, open files %d", u.CPUSeconds, listing.Bytes(u.MemoryBytes), u.Processes, u.Threads, u.OpenFiles)
	if u.Zombies > 0 {
		text += fmt.Sprintf(", zombies %d", u.Zombies)
	}
	return text
}

// limitsText lists the limits of the specification. Those that the box reports as in force replace
// the limits of the same name.
func limitsText(l program.Limits, inForce []api.ProgramLimit) string {
	var parts []string
	for _, f := range inForce {
		parts = append(parts, inForceText(f))
	}
	for _, name := range slices.Sorted(maps.Keys(l.Rlimits)) {
		if !slices.ContainsFunc(inForce, func(f api.ProgramLimit) bool { return f.Name == name }) {
			parts = append(parts, name+"="+limitText(l.Rlimits[name]))
		}
	}
	if l.Nice != nil {
		parts = append(parts, "nice="+strconv.Itoa(*l.Nice))
	}
	if l.IONice != "" {
		parts = append(parts, "ionice="+l.IONice)
	}
	if l.OOMScoreAdj != nil {
		parts = append(parts, "oom_score_adj="+strconv.Itoa(*l.OOMScoreAdj))
	}
	if len(l.CPUs) > 0 {
		parts = append(parts, fmt.Sprintf("cpus=%d", l.CPUs))
	}
	return strings.Join(parts, ", ")
}

// inForceText is a limit, where it comes from, and what it counts unless that is the program.
func inForceText(l api.ProgramLimit) string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	if l.Name == "memory" {
		number = func(n uint64) string { return listing.Bytes(int64(min(n, math.MaxInt64))) }
	}
	text := "unlimited"
	if l.Max > 0 {
		text = number(l.Max)
	}
	if l.Soft > 0 {
		text = number(l.Soft) + ":" + text
	}
	return fmt.Sprintf("%s=%s (%s)", l.Name, text, joinedBy(l.Source, ", ", limitOf[l.Counts]))
}

var limitOf = map[string]string{
	api.LimitOfPrograms: "all programs together",
	api.LimitOfUser:     "all processes of its user, unless that is root",
	api.LimitOfProcess:  "data of each process",
}

// limitText is "soft" or "soft:hard".
func limitText(l program.Limit) string {
	text := func(n uint64) string {
		if n == program.Infinity {
			return "unlimited"
		}
		return strconv.FormatUint(n, 10)
	}
	if l.Soft == l.Hard {
		return text(l.Soft)
	}
	return text(l.Soft) + ":" + text(l.Hard)
}

func sandboxText(s *program.Sandbox) string {
	if s == nil {
		return "none"
	}
	var parts []string
	add := func(name string, list []string) {
		if list != nil { // an empty list forbids all
			parts = append(parts, name+" "+cmp.Or(strings.Join(list, " "), "none"))
		}
	}
	if s.Mode != "" {
		parts = append(parts, s.Mode)
	}
	if s.NoNewPrivileges {
		parts = append(parts, "no_new_privileges")
	}
	if s.Seccomp != "" {
		parts = append(parts, "seccomp "+s.Seccomp)
	}
	add("capabilities", s.Capabilities)
	add("read", s.Read)
	add("write", s.Write)
	add("execute", s.Execute)
	if s.TCPBind != nil {
		parts = append(parts, fmt.Sprintf("tcp_bind %d", s.TCPBind))
	}
	if s.TCPConnect != nil {
		parts = append(parts, fmt.Sprintf("tcp_connect %d", s.TCPConnect))
	}
	return dash(strings.Join(parts, ", "))
}

func restartText(pg page) string {
	text := fmt.Sprintf("%s, restarted %s", dash(string(pg.spec.Restart)), times(pg.Restarts))
	l := pg.spec.RestartLimit
	switch n := pg.spec.StartRetries; {
	case n == 0:
		return text + ", FATAL after one failed start"
	case n > 0:
		return text + fmt.Sprintf(", FATAL after %d failed starts in a row", n+1)
	case l.Count > 0 && pg.spec.Restart != program.RestartNever:
		return text + fmt.Sprintf(", FATAL after %d within %s", l.Count, api.Duration(l.Window))
	}
	return text
}

// needTexts are the needs, each followed by what an unmet need waits for.
func needTexts(needs []api.WhyNeed) []string {
	var out []string
	for _, n := range needs {
		holds := "holds"
		if !n.Met {
			holds = "does not hold"
		}
		text := fmt.Sprintf("%s:%s %s, %s is %s", n.Program, n.Condition, holds, n.Program, n.State)
		out = append(out, joinedBy(text, ": ", n.Reason))
		for _, below := range needTexts(n.Needs) {
			out = append(out, "  "+below)
		}
	}
	return out
}

// printProcesses prints the processes as a tree, at most maxTree of them.
func (c *cli) printProcesses(t api.Processes) {
	if len(t.Processes) == 0 {
		return
	}
	depth := make(map[int]int, len(t.Processes))
	line(c.stdout, "\nprocesses:")
	c.cutLine(fmt.Sprintf("  %7s %c %9s %7s %4s  %s", "PID", 'S', "CPU", "MEMORY", "THR", "NAME"))
	const maxTree = 40
	for i, p := range treeOrder(t.Processes) {
		if i == maxTree {
			line(c.stdout, "  … and %d more", len(t.Processes)-maxTree)
			return
		}
		if d, below := depth[p.PPID]; below {
			depth[p.PID] = d + 1
		} else {
			depth[p.PID] = 0
		}
		branch := ""
		if d := depth[p.PID]; d > 0 {
			branch = strings.Repeat("  ", min(d, 12)-1) + "└ "
		}
		c.cutLine(fmt.Sprintf("  %7d %s %8.2fs %7s %4d  %s", p.PID, printable(p.State), p.CPUSeconds, listing.Bytes(p.MemoryBytes), p.Threads, branch+printable(p.Name)))
	}
}

// treeOrder puts the children of each process directly after it.
func treeOrder(list []api.Process) []api.Process {
	known, kids := make(map[int]bool, len(list)), make(map[int][]api.Process)
	for _, p := range list {
		known[p.PID] = true
	}
	var roots []api.Process
	for _, p := range list {
		if known[p.PPID] && p.PPID != p.PID {
			kids[p.PPID] = append(kids[p.PPID], p)
		} else {
			roots = append(roots, p)
		}
	}
	out := make([]api.Process, 0, len(list))
	for stack := roots; len(stack) > 0; {
		p := stack[0]
		out = append(out, p)
		stack = append(slices.Clone(kids[p.PID]), stack[1:]...)
		delete(kids, p.PID)
	}
	return out
}

// printRuns prints how the latest runs ended, as far as the newest events contain it.
func (c *cli) printRuns(events []api.Event) {
	var rows []string
	for _, e := range events {
		if ch := e.Change; ch != nil && ch.From != ch.To {
			rows = append(rows, fmt.Sprintf("  %s  run %d  %s", e.Time.UTC().Format(event.TimeFormat), e.Run, changeText(*ch)))
		}
	}
	if len(rows) == 0 {
		return
	}
	line(c.stdout, "\nlast changes:")
	for _, text := range rows {
		c.cutLine(text)
	}
}

// printOutput prints lines of one program; standard error is marked.
func (c *cli) printOutput(lines []api.LogLine) {
	for _, l := range lines {
		c.cutLine(outputText(l))
	}
}

// outputText is a line of a program's output for the page; "!" marks stderr.
func outputText(l api.LogLine) string {
	mark := " "
	if l.Stream == "stderr" {
		mark = "!"
	}
	return fmt.Sprintf("  %s %s %s", l.Time.UTC().Format(time.TimeOnly), mark, printable(string(l.Bytes())))
}

// printAdvice prints commands to type next. They are never cut, so that they can be copied.
func (c *cli) printAdvice(do []string, before string) {
	for i, command := range do {
		label := "         "
		if i == 0 {
			label = before + "try:     "
		}
		line(c.stdout, "%s%s", label, style(cyan, printable(command), c.colours()))
	}
}
