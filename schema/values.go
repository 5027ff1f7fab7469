package schema

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// Duration is a length of time. It is written as a string in Go's syntax ("1m30s") or as a number
// of seconds. It is never negative and at most MaxDuration.
type Duration time.Duration

// MaxDuration is the longest duration in a manifest: ten years. A longer one is a mistake. The sum
// of a few durations cannot overflow.
const MaxDuration = 10 * 365 * 24 * time.Hour

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes d in the form of the manifest: 1m30s, 500ms, 0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes d in the form of the manifest.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

var errDuration = errors.New(`a duration such as "10s", "1m30s" or "168h" for 7 days, or a number of seconds, at most ten years`)

// ParseDuration reads a duration in Go's syntax without a sign.
func ParseDuration(s string) (Duration, error) {
	if s == "" || s[0] == '-' || s[0] == '+' {
		return 0, errDuration
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > MaxDuration {
		return 0, errDuration
	}
	return Duration(d), nil
}

func (d *Duration) fromTOML(v any) (err error) {
	switch v := v.(type) {
	case string:
		*d, err = ParseDuration(v)
		return err
	case int64:
		if v < 0 || v > int64(MaxDuration/time.Second) {
			return errDuration
		}
		*d = Duration(time.Duration(v) * time.Second)
	case float64:
		if math.IsNaN(v) || v < 0 || v > MaxDuration.Seconds() {
			return errDuration
		}
		*d = Duration(v * float64(time.Second))
	default:
		return errDuration
	}
	return nil
}

// budget is a Duration greater than 0. A shutdown needs some time, and the supervisor reads 0 as
// its own default.
type budget struct{ Duration }

func (b *budget) fromTOML(v any) error {
	if err := b.Duration.fromTOML(v); err != nil {
		return err
	}
	if b.Duration == 0 {
		return errors.New(`a duration of more than 0, such as "25s"`)
	}
	return nil
}

// Size is a number of bytes. It is written as an integer or as a string with a unit: "50MB" (powers
// of 1000), "64MiB" or "64M" (powers of 1024).
type Size int64

var errSize = errors.New(`a number of bytes or a string such as "64MiB" or "50MB"`)

// lineSize is the maximum Size of a line. A small limit would split every line. A large limit needs
// memory, because a line is held in memory as a whole.
type lineSize struct{ Size }

func (l *lineSize) fromTOML(v any) error {
	if err := l.Size.fromTOML(v); err != nil || l.Size < 1<<10 || l.Size > 16<<20 {
		return errors.New("a size from 1KiB to 16MiB")
	}
	return nil
}

// storeSize is the maximum Size of a database that untrusted clients can write to. It always has a
// limit. A database below the minimum has hardly room for more than empty tables.
type storeSize struct{ Size }

func (s *storeSize) fromTOML(v any) error {
	if err := s.Size.fromTOML(v); err != nil || s.Size < 1<<20 {
		return errors.New("a size of at least 1MiB")
	}
	return nil
}

// flushTime is the Duration after which an unfinished line is shown. 0 means never.
type flushTime struct{ Duration }

func (f *flushTime) fromTOML(v any) error {
	err := f.Duration.fromTOML(v)
	if d := f.Duration.Std(); err != nil || d != 0 && (d < 10*time.Millisecond || d > time.Hour) {
		return errors.New("0 or a duration from 10ms to 1h")
	}
	return nil
}

// sizeUnits is sorted from the longest suffix to the shortest, because "MiB" also ends in "B".
var sizeUnits = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40},
	{"B", 1}, {"", 1},
}

// ParseSize reads a size with an optional unit.
func ParseSize(s string) (Size, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimRight(digits, " "), 10, 63)
		if err != nil || n > math.MaxInt64/uint64(u.factor) {
			return 0, errSize
		}
		return Size(int64(n) * u.factor), nil
	}
	return 0, errSize
}

func (s *Size) fromTOML(v any) (err error) {
	switch v := v.(type) {
	case string:
		*s, err = ParseSize(v)
		return err
	case int64:
		if v < 0 {
			return errSize
		}
		*s = Size(v)
		return nil
	}
	return errSize
}

// Mode is permission bits. They are written as an octal string ("0660") or an integer (0o660).
type Mode uint32

var errMode = errors.New(`octal permission bits such as "0660" or 0o660`)

func (m Mode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// MarshalText writes the bits as an octal string.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m *Mode) fromTOML(v any) error {
	switch v := v.(type) {
	case string:
		n, err := strconv.ParseUint(v, 8, 12)
		if err != nil {
			return errMode
		}
		*m = Mode(n)
		return nil
	case int64:
		if v < 0 || v > 0o7777 {
			return errMode
		}
		*m = Mode(v)
		return nil
	}
	return errMode
}

// Command is an argument vector. If it is written as one string, it is split like in a shell, but
// no shell runs it.
type Command []string

func (c *Command) fromTOML(v any) (err error) {
	switch v := v.(type) {
	case string:
		*c, err = SplitCommand(v)
		return err
	case []any:
		argv, err := stringSlice(v)
		if err != nil {
			return err
		}
		*c = argv
		return nil
	}
	return errors.New("an array of strings or one string")
}

// Strings is one string or an array of them.
type Strings []string

func (s *Strings) fromTOML(v any) error {
	switch v := v.(type) {
	case string:
		*s = Strings{v}
		return nil
	case []any:
		list, err := stringSlice(v)
		*s = list
		return err
	}
	return errors.New("a string or an array of strings")
}

// Need is one edge of the dependency graph. It is written as "db" or "migrate:completed".
type Need struct {
	Program   string // as in the manifest; may name one instance, "worker:2"
	Condition string // started, ready, completed
}

// needConditions are the words that are allowed behind the last colon of a need.
var needConditions = []string{"started", "ready", "completed"}

// parseNeed reads one entry of needs. If the text behind a colon is not a condition, it belongs to
// the name, because instances have names such as worker:2.
func parseNeed(s string) (Need, error) {
	name, cond := s, "ready"
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !isDigits(s[i+1:]) {
		name, cond = s[:i], s[i+1:]
	}
	if name != "" && slices.Contains(needConditions, cond) {
		return Need{Program: name, Condition: cond}, nil
	}
	return Need{}, errors.New(`a program name, alone or followed by ":started", ":ready" or ":completed"`)
}

// String writes the need in the form of the manifest.
func (n Need) String() string {
	if n.Condition == "ready" {
		return n.Program
	}
	return n.Program + ":" + n.Condition
}

func (n *Need) fromTOML(v any) (err error) {
	s, ok := v.(string)
	if !ok {
		return errors.New("a string")
	}
	*n, err = parseNeed(s)
	return err
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// StopStep is one step of a stop ladder: send Signal, then wait at most Wait.
type StopStep struct {
	Signal string // without SIG: TERM, INT, RTMIN+3, or a number
	Wait   Duration
}

// String writes the step in the form of the manifest.
func (s StopStep) String() string {
	if s.Wait == 0 {
		return s.Signal
	}
	return s.Signal + " " + s.Wait.String()
}

// ParseStopStep reads "TERM 10s" or "KILL". It checks only the form. A separate rule checks whether
// the signal exists.
func ParseStopStep(s string) (StopStep, error) {
	fields := strings.Fields(s)
	if len(fields) == 0 || len(fields) > 2 {
		return StopStep{}, errors.New(`a signal and a wait, such as "TERM 10s" or "KILL"`)
	}
	step := StopStep{Signal: strings.TrimPrefix(strings.ToUpper(fields[0]), "SIG")}
	if len(fields) == 1 {
		return step, nil
	}
	wait, err := ParseDuration(fields[1])
	if err != nil {
		return step, errors.New(`a signal, a blank and a duration such as "TERM 10s"`)
	}
	step.Wait = wait
	return step, nil
}

// StopLadder is the key stop.
type StopLadder []StopStep

func (l *StopLadder) fromTOML(v any) error {
	var texts Strings
	if err := texts.fromTOML(v); err != nil {
		return err
	}
	*l = make(StopLadder, 0, len(texts))
	for _, t := range texts {
		step, err := ParseStopStep(t)
		if err != nil {
			return err
		}
		*l = append(*l, step)
	}
	return nil
}

// PassEnvironment says which variables a program inherits from agentinit's own environment: all
// except secrets (the default), all, none, or the names that match a pattern. A name without * and
// ? is passed even if it is a secret.
type PassEnvironment struct {
	Mode  string   // safe, all, none, list
	Names []string // only with Mode list; * and ? are wildcards
}

func (p *PassEnvironment) fromTOML(v any) error {
	switch v := v.(type) {
	case string:
		p.Mode = v
		return nil
	case bool:
		p.Mode = "none"
		if v {
			p.Mode = "safe"
		}
		return nil
	case []any:
		names, err := stringSlice(v)
		*p = PassEnvironment{Mode: "list", Names: names}
		return err
	}
	return errors.New(`"safe", "all", "none", a boolean or an array of names`)
}

// ConsoleMode is supervisor.console: false, true or "read-only".
type ConsoleMode string

// The modes of the web console.
const (
	ConsoleOff      ConsoleMode = "off"
	ConsoleOn       ConsoleMode = "on"
	ConsoleReadOnly ConsoleMode = "read-only"
)

func (c *ConsoleMode) fromTOML(v any) error {
	switch v {
	case true:
		*c = ConsoleOn
	case false:
		*c = ConsoleOff
	case "read-only":
		*c = ConsoleReadOnly
	default:
		return errors.New(`true, false or "read-only"`)
	}
	return nil
}

// Infinity means that there is no limit (RLIM_INFINITY of getrlimit(2)).
const Infinity = ^uint64(0)

// Limit is a soft and a hard resource limit. It is written as 1024, "1024:4096" or "64M:unlimited".
type Limit struct{ Soft, Hard uint64 }

var errLimit = errors.New(`a number, a size such as "64MiB", "soft:hard" or "unlimited"`)

func parseRlim(s string) (uint64, error) {
	if s == "unlimited" || s == "infinity" {
		return Infinity, nil
	}
	n, err := ParseSize(s)
	if err != nil {
		return 0, errLimit
	}
	return uint64(n), nil
}

func (l *Limit) fromTOML(v any) (err error) {
	switch v := v.(type) {
	case int64:
		if v < 0 {
			return errLimit
		}
		*l = Limit{uint64(v), uint64(v)}
		return nil
	case string:
		soft, hard, two := strings.Cut(v, ":")
		if l.Soft, err = parseRlim(soft); err != nil {
			return err
		}
		if l.Hard = l.Soft; two {
			if l.Hard, err = parseRlim(hard); err != nil {
				return err
			}
		}
		if l.Soft > l.Hard {
			return errors.New("a soft limit of at most the hard one")
		}
		return nil
	}
	return errLimit
}

// minMemory is the size that the kernel maps for the stack of every new program (setup_arg_pages in
// fs/exec.c, Linux 6.1). If its address space is limited to less, the kernel kills the program before
// its first instruction. With less data (RLIMIT_DATA), the dynamic loader and libc cannot start.
const minMemory = 128 << 10

// memoryLimit is the Limit of a program's memory or address space. A value below minMemory is most
// often a number of MiB without its unit.
type memoryLimit struct{ Limit }

func (m *memoryLimit) fromTOML(v any) error {
	if err := m.Limit.fromTOML(v); err != nil {
		return err
	}
	if m.Soft < minMemory {
		return errors.New(`at least 128KiB, such as "512MiB": with less, no program can start`)
	}
	return nil
}

// Rlimits returns the limits that are written, by their name in the manifest.
func (l Limits) Rlimits() map[string]Limit {
	out := map[string]Limit{}
	for name, v := range map[string]*Limit{
		"nofile": l.NoFile, "nproc": l.NProc, "core": l.Core, "as": l.AS,
		"cpu": l.CPU, "fsize": l.FSize, "memlock": l.MemLock, "stack": l.Stack,
		"pids": l.PIDs, "memory": l.Memory,
	} {
		if v != nil {
			out[name] = *v
		}
	}
	return out
}

// CPUList is a set of processor numbers. It is written as [0, 1] or "0-3,6". Empty means that the
// set is inherited.
type CPUList []int

// maxCPU is the highest processor number in a manifest. The kernel supports at most 8192
// processors.
const maxCPU = 8191

func (c *CPUList) fromTOML(v any) error {
	bad := errors.New(`processor numbers from 0 to 8191: [0, 1] or "0-3,6"`)
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n, ok := e.(int64)
			if !ok || n < 0 || n > maxCPU {
				return bad
			}
			*c = append(*c, int(n))
		}
		return nil
	case string:
		for part := range strings.SplitSeq(v, ",") {
			lo, hi, ranged := strings.Cut(part, "-")
			if !ranged {
				hi = lo
			}
			from, err1 := strconv.Atoi(lo)
			to, err2 := strconv.Atoi(hi)
			if err1 != nil || err2 != nil || from < 0 || to < from || to > maxCPU {
				return bad
			}
			for n := from; n <= to; n++ {
				*c = append(*c, n)
			}
			if len(*c) > maxCPU+1 {
				return bad
			}
		}
		return nil
	}
	return bad
}

// Hook is a command that runs before or after an event of a program. It is written as an argument
// vector, a string, or a table with command and timeout.
type Hook struct {
	Command Command  `toml:"command"`
	Timeout Duration `toml:"timeout"`
}

func (h *Hook) fromTOML(v any) error {
	h.Timeout = Duration(program.DefaultHookTimeout)
	table, ok := v.(map[string]any)
	if !ok {
		return h.Command.fromTOML(v)
	}
	if t, ok := table["timeout"]; ok {
		if err := h.Timeout.fromTOML(t); err != nil {
			return err
		}
	}
	return h.Command.fromTOML(table["command"])
}

func stringSlice(v []any) ([]string, error) {
	out := make([]string, 0, len(v))
	for _, e := range v {
		s, ok := e.(string)
		if !ok {
			return nil, errors.New("an array of strings")
		}
		out = append(out, s)
	}
	return out, nil
}
