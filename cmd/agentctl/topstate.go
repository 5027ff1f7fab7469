package main

import (
	"slices"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/listing"
)

// The views of top.
const (
	viewPrograms = iota
	viewLogs
	viewBoot
	viewGraph
	viewHelp
)

// topAction is an action for a program.
type topAction struct{ verb, program, signal string }

// topState is everything that top shows. It does no I/O: its requests to agentinit are in the want
// fields and in act, and topRunner carries them out.
type topState struct {
	width, height   int
	colours, blocks bool // blocks: the terminal shows block characters
	now             time.Time
	phase           string

	programs []api.Program
	index    map[string]int
	usage    map[string]api.ProgramUsage
	usageAt  time.Time
	shares   map[string][]float64 // newest last; 1 is a whole processor

	view     int
	order    int // index in topOrders
	filter   string
	selected string // program
	offset   int    // first visible row, in every view but programs

	lines   []api.LogLine
	logsOf  []string
	pending string // text typed after prompt
	prompt  rune   // '/' '&' 'k' or 0
	search  string
	only    string
	back    int // how many matching lines are below the visible logs

	boot     *api.Boot
	confirm  *topAction
	message  string
	stale    bool
	wantBoot bool
	wantLogs *[]string
	act      *topAction
}

// topOrders are the sort orders of the list of programs, as in status.
var topOrders = []string{"", "cpu", "memory", "restarts", "state", "name"}

const (
	shareCount = 10   // length of the sparkline
	maxTopLogs = 5000 // how many lines are kept
)

func newTopState(width, height int) *topState {
	return &topState{width: width, height: height, usage: map[string]api.ProgramUsage{}, shares: map[string][]float64{}}
}

// took shows an error, or runs f with the answer.
func (t *topState) took(err error, f func()) {
	if err != nil {
		t.message = printable(err.Error())
		return
	}
	f()
}

func (t *topState) setStatus(s api.Status) {
	t.programs, t.now, t.phase = s.Programs, s.Time, s.Phase
	t.index = make(map[string]int, len(s.Programs))
	for i, p := range s.Programs {
		t.index[p.Name] = i
	}
	if _, there := t.index[t.selected]; !there && len(s.Programs) > 0 {
		t.selected = s.Programs[0].Name
	}
	for name := range t.shares {
		if _, there := t.index[name]; !there {
			delete(t.shares, name)
			delete(t.usage, name)
		}
	}
}

func (t *topState) setUsage(u api.Usage) {
	span := u.Time.Sub(t.usageAt).Seconds()
	for _, p := range u.Programs {
		if before, known := t.usage[p.Name]; known && span > 0 {
			list := append(t.shares[p.Name], max(0, p.CPUSeconds-before.CPUSeconds)/span)
			t.shares[p.Name] = list[max(0, len(list)-shareCount):]
		}
		t.usage[p.Name] = p
	}
	t.usageAt = u.Time
}

// event applies the data of an event about a program. The rest (counts, deadlines) comes with the
// next status.
func (t *topState) event(e api.Event) {
	if !ofPrograms(e) {
		return
	}
	t.stale = true
	i, known := t.index[e.Program]
	if !known || e.Change == nil {
		return
	}
	p := &t.programs[i]
	if e.Change.From != e.Change.To {
		p.Since = e.Time
	}
	p.State, p.Shown, p.PID, p.Ready, p.Completed, p.Reason = e.Change.To, "", e.Change.PID, e.Change.Ready, e.Change.Completed, e.Change.Reason
}

func (t *topState) addLine(l api.LogLine, of []string) {
	if !slices.Equal(of, t.logsOf) {
		return // it belongs to a program that is not shown any more
	}
	t.lines = append(t.lines, l)
	if len(t.lines) > maxTopLogs {
		t.lines = append([]api.LogLine(nil), t.lines[len(t.lines)-maxTopLogs/2:]...)
	}
}

// shown are the programs that pass the filter, in the chosen order.
func (t *topState) shown() []listing.Program {
	var out []listing.Program
	for _, p := range t.programs {
		if t.filter != "" && !strings.Contains(strings.ToLower(p.Name+" "+p.Display()), strings.ToLower(t.filter)) {
			continue
		}
		view := listing.Program{Program: p, Share: -1}
		if u, known := t.usage[p.Name]; known {
			view.Usage = &u
		}
		if s := t.shares[p.Name]; len(s) > 0 {
			view.Share = s[len(s)-1]
		}
		out = append(out, view)
	}
	if less := statusOrders[topOrders[t.order]]; less != nil {
		slices.SortStableFunc(out, less)
	}
	return out
}

// at is the index of the selected program.
func (t *topState) at(list []listing.Program) int {
	return max(0, slices.IndexFunc(list, func(p listing.Program) bool { return p.Name == t.selected }))
}

// shownLines are the lines that pass the filter of the logs.
func (t *topState) shownLines() []api.LogLine {
	if t.only == "" {
		return t.lines
	}
	var out []api.LogLine
	for _, l := range t.lines {
		if contains(l, t.only) {
			out = append(out, l)
		}
	}
	return out
}

func contains(l api.LogLine, text string) bool {
	return strings.Contains(strings.ToLower(string(l.Bytes())), strings.ToLower(text))
}

// rows is the number of rows between the first and the last line of the screen.
func (t *topState) rows() int { return max(1, t.height-2) }

// key handles a key; true means to quit.
func (t *topState) key(key tcell.Key, ch rune) (quit bool) {
	if key == tcell.KeyCtrlC {
		return true
	}
	t.message = ""
	switch {
	case t.confirm != nil:
		if ch == 'y' || ch == 'Y' {
			t.act, t.message = t.confirm, t.confirm.verb+" "+t.confirm.program+" …"
		}
		t.confirm = nil
		return false
	case t.prompt != 0:
		t.typed(key, ch)
		return false
	}
	switch key {
	case tcell.KeyEscape:
		t.leave()
	case tcell.KeyEnter:
		if t.view == viewPrograms {
			t.openLogs([]string{t.selected})
		}
	case tcell.KeyUp:
		t.move(-1)
	case tcell.KeyDown:
		t.move(1)
	case tcell.KeyPgUp:
		t.move(-t.rows())
	case tcell.KeyPgDn:
		t.move(t.rows())
	case tcell.KeyHome:
		t.move(-1 << 30)
	case tcell.KeyEnd:
		t.move(1 << 30)
	case tcell.KeyRune:
		return t.rune(ch)
	}
	return false
}

func (t *topState) leave() {
	if t.view == viewPrograms {
		t.filter = ""
	}
	if t.view == viewLogs {
		t.logsOf, t.lines = nil, nil
	}
	t.view, t.offset = viewPrograms, 0
}

func (t *topState) rune(ch rune) (quit bool) {
	switch ch {
	case 'q':
		if t.view == viewPrograms {
			return true
		}
		t.leave()
	case 'g':
		t.move(-1 << 30)
	case 'G':
		t.move(1 << 30)
	case '?', 'h':
		t.view, t.offset = viewHelp, 0
	case 'b':
		t.view, t.offset, t.wantBoot = viewBoot, 0, true
	case 'd':
		t.view, t.offset, t.wantBoot = viewGraph, 0, true
	case 'l':
		t.openLogs([]string{t.selected})
	case 'L':
		t.openLogs(nil)
	case 'o':
		t.order = (t.order + 1) % len(topOrders)
	case 'n', 'N':
		if t.view == viewLogs {
			t.find(ch == 'N')
		}
	case '/', '&', 'k':
		if ch == '/' || ch == '&' && t.view == viewLogs || ch == 'k' && t.selected != "" {
			t.prompt, t.pending = ch, ""
		}
	case 's', 'x', 'r':
		verb := map[rune]string{'s': "start", 'x': "stop", 'r': "restart"}[ch]
		if t.selected != "" {
			t.confirm = &topAction{verb: verb, program: t.selected}
		}
	}
	return false
}

func (t *topState) openLogs(names []string) {
	t.view, t.offset, t.back, t.lines, t.logsOf = viewLogs, 0, 0, nil, names
	t.wantLogs = &names
}

// move goes so many rows down.
func (t *topState) move(n int) {
	switch t.view {
	case viewPrograms:
		if list := t.shown(); len(list) > 0 {
			t.selected = list[min(max(0, t.at(list)+n), len(list)-1)].Name
		}
	case viewLogs:
		t.back = min(max(0, t.back-n), max(0, len(t.shownLines())-t.rows()))
	default:
		t.offset = max(0, t.offset+min(n, 1<<20))
	}
}

// typed handles a key of the prompt.
func (t *topState) typed(key tcell.Key, ch rune) {
	switch key {
	case tcell.KeyEscape:
		t.prompt = 0
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		if r := []rune(t.pending); len(r) > 0 {
			t.pending = string(r[:len(r)-1])
		}
	case tcell.KeyEnter:
		t.entered()
	case tcell.KeyRune:
		if len(t.pending) < 200 {
			t.pending += string(ch)
		}
	}
}

func (t *topState) entered() {
	prompt, text := t.prompt, t.pending
	t.prompt, t.pending = 0, ""
	switch {
	case prompt == 'k':
		if text != "" {
			t.confirm = &topAction{verb: "signal", program: t.selected, signal: text}
		}
	case prompt == '&':
		t.only, t.back = text, 0
	case t.view == viewLogs:
		t.search = text
		t.find(false)
	default:
		t.filter = text
		if list := t.shown(); len(list) > 0 && !slices.ContainsFunc(list, func(p listing.Program) bool { return p.Name == t.selected }) {
			t.selected = list[0].Name
		}
	}
}

// find goes to the next older line with the searched text, or to the next newer one.
func (t *topState) find(newer bool) {
	lines := t.shownLines()
	if t.search == "" || len(lines) == 0 {
		return
	}
	step := -1
	if newer {
		step = 1
	}
	for i := len(lines) - 1 - t.back + step; i >= 0 && i < len(lines); i += step {
		if contains(lines[i], t.search) {
			t.back = len(lines) - 1 - i
			return
		}
	}
	t.message = "no other line has " + printable(t.search)
}
