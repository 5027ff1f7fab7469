package supervisord

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// versionOfInterface is what supervisorctl compares with its own version of the interface.
const versionOfInterface = "3.0"

// serverName is the name of the supervisor, in calls and in events.
const serverName = "agentinit"

// Limits of one request. The caller bounds its body.
const (
	maxCalls  = 100       // in a system.multicall
	maxAnswer = 256 << 10 // bytes of the answers to its calls together, but for the last one
	maxLog    = 256 << 10 // bytes of a log in an answer
)

// Answer reads one XML-RPC call from body, carries it out in the box and returns the document to
// answer. It returns an *api.Error if the body is no call, and if the control API refuses the request
// to the peer; every other failure is a fault in the document.
func Answer(ctx context.Context, box *api.Client, body io.Reader) ([]byte, error) {
	c, err := readCall(body)
	if err != nil {
		return nil, api.Errorf(api.CodeBadRequest, "cannot read the request's body as XML-RPC: %v", err)
	}
	s := session{ctx, box, methods()}
	v, err := s.call(c)
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == api.CodeForbidden {
		return nil, refused
	}
	if err != nil {
		return asFault(err).response(), nil
	}
	return response(v), nil
}

// session is one request of a client.
type session struct {
	ctx     context.Context
	box     *api.Client
	methods map[string]method
}

// method is one method of the interface. Its signature is the type of the result, then those of the
// parameters; the last optional ones may be left out.
type method struct {
	signature []string
	optional  int
	doc       string
	run       func(s session, args []any) (any, error)
}

// methods are the methods of the interface by name.
func methods() map[string]method {
	const text, number, flag, list, record = "string", "int", "boolean", "array", "struct"
	table := map[string]method{
		"supervisor.getAPIVersion":        {[]string{text}, 0, "The version of this interface.", apiVersion},
		"supervisor.getSupervisorVersion": {[]string{text}, 0, "The version of agentinit.", session.version},
		"supervisor.getIdentification":    {[]string{text}, 0, "The name of the supervisor: agentinit.", identification},
		"supervisor.getState":             {[]string{record}, 0, "The state of the supervisor: RUNNING or SHUTDOWN.", session.state},
		"supervisor.getPID":               {[]string{number}, 0, "The pid of agentinit.", session.pid},
		"supervisor.shutdown":             {[]string{flag}, 0, "Stop all programs and end agentinit.", session.shutdown},
		"supervisor.getProcessInfo":       {[]string{record, text}, 0, "The state of one process.", session.processInfo},
		"supervisor.getAllProcessInfo":    {[]string{list}, 0, "The state of every process.", session.allProcessInfo},
		"supervisor.getAllConfigInfo":     {[]string{list}, 0, "The configuration of every process.", session.allConfigInfo},
		"system.listMethods":              {[]string{list}, 0, "The names of all methods.", session.listMethods},
		"system.methodHelp":               {[]string{text, text}, 0, "What a method does.", session.methodHelp},
		"system.methodSignature":          {[]string{list, text}, 0, "The types of a method's result and parameters.", session.methodSignature},
		"system.multicall":                {[]string{list, list}, 0, "Carry out up to 100 calls.", session.multicall},
	}
	for verb, request := range map[string]action{"Start": start, "Stop": stop} {
		prefix := "supervisor." + strings.ToLower(verb)
		table[prefix+"Process"] = method{[]string{flag, text, flag}, 1, verb + " a process, and wait for the outcome unless the second parameter is false.", request.one}
		table[prefix+"ProcessGroup"] = method{[]string{list, text, flag}, 1, verb + " the processes of a group.", request.group}
		table[prefix+"AllProcesses"] = method{[]string{list, flag}, 1, verb + " every process.", request.all}
	}
	table["supervisor.signalProcess"] = method{[]string{flag, text, text}, 0, "Send a signal to a process.", signal.one}
	table["supervisor.signalProcessGroup"] = method{[]string{list, text, text}, 0, "Send a signal to the processes of a group.", signal.group}
	table["supervisor.signalAllProcesses"] = method{[]string{list, text}, 0, "Send a signal to every process.", signal.all}
	for _, stream := range []string{"Stdout", "Stderr"} {
		table["supervisor.readProcess"+stream+"Log"] = method{[]string{text, text, number, number}, 0, "Bytes of the output that agentinit holds in memory.", readLog(strings.ToLower(stream))}
		table["supervisor.tailProcess"+stream+"Log"] = method{[]string{list, text, number, number}, 0, "The end of the output that agentinit holds in memory, the size of that output, and whether it exceeds the offset and the length together.", tailLog(strings.ToLower(stream))}
	}
	for alias, name := range map[string]string{
		"supervisor.getVersion": "supervisor.getAPIVersion", "supervisor.readProcessLog": "supervisor.readProcessStdoutLog",
		"supervisor.tailProcessLog": "supervisor.tailProcessStdoutLog",
	} {
		table[alias] = table[name]
	}
	return table
}

// instead says what to use in place of a method that agentinit has not. supervisorctl's update makes one
// change of a group after the other, and its first step asks for the differences. agentinit applies a
// manifest as a whole, so already that step must fail: the second one stops programs.
func instead(method string) string {
	switch method {
	case "supervisor.reloadConfig", "supervisor.addProcessGroup", "supervisor.removeProcessGroup":
		return "use agentctl apply, or agentctl apply --dry-run"
	case "supervisor.restart":
		return "agentinit cannot restart within a box: restart the container"
	case "supervisor.readLog", "supervisor.readMainLog":
		return "agentinit writes its own log to its output, which is the log of the container; agentctl events shows it too"
	case "supervisor.clearProcessLogs", "supervisor.clearProcessLog", "supervisor.clearAllProcessLogs", "supervisor.clearLog":
		return "agentinit clears no log: it forgets the oldest output in memory, and rotates log files"
	case "supervisor.sendProcessStdin":
		return "agentinit does not write to the standard input of a program"
	case "supervisor.sendRemoteCommEvent":
		return "agentinit has no REMOTE_COMMUNICATION events"
	}
	return ""
}

func (s session) call(c call) (any, error) {
	m, known := s.methods[c.method]
	if !known {
		return nil, newFault(unknownMethod, instead(c.method))
	}
	params := m.signature[1:]
	if len(c.params) > len(params) || len(c.params) < len(params)-m.optional {
		return nil, newFault(incorrectParameters, "")
	}
	for i, v := range c.params {
		if n, ok := v.(int); ok && i == len(params)-1 && strings.HasPrefix(c.method, "supervisor.signal") {
			c.params[i] = strconv.Itoa(n) // supervisord takes the number of a signal too
			continue
		}
		if typeOf(v) != params[i] {
			return nil, newFault(incorrectParameters, fmt.Sprintf("parameter %d must be of the type %s", i+1, params[i]))
		}
	}
	return m.run(s, c.params)
}

// typeOf is the name of a value's type in XML-RPC; "" for a type that no parameter has.
func typeOf(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case int:
		return "int"
	case bool:
		return "boolean"
	case []any:
		return "array"
	}
	return ""
}

func apiVersion(session, []any) (any, error) { return versionOfInterface, nil }

func identification(session, []any) (any, error) { return serverName, nil }

func (s session) version([]any) (any, error) {
	v, err := s.box.Version(s.ctx)
	return v.Version, err
}

func (s session) pid([]any) (any, error) {
	v, err := s.box.Version(s.ctx)
	return v.PID, err
}

func (s session) state([]any) (any, error) {
	status, err := s.box.Status(s.ctx)
	code, name := 1, "RUNNING"
	if slices.Contains([]string{"draining", "stopping", "done"}, status.Phase) {
		code, name = -1, "SHUTDOWN"
	}
	return map[string]any{"statecode": code, "statename": name}, err
}

func (s session) shutdown([]any) (any, error) {
	return true, s.box.Shutdown(s.ctx, api.ShutdownRequest{Reason: "asked for over XML-RPC"})
}

// read returns the programs in supervisord's order.
func (s session) read() (api.Status, error) {
	status, err := s.box.Status(s.ctx)
	Sort(status.Programs)
	return status, err
}

// process returns the program of that name, and the time of the box.
func (s session) process(name string) (api.Program, time.Time, error) {
	status, err := s.read()
	if err != nil {
		return api.Program{}, time.Time{}, err
	}
	c := Choose(status.Programs, name)
	if c.Group || len(c.Programs) == 0 {
		return api.Program{}, time.Time{}, newFault(badName, name)
	}
	return c.Programs[0], status.Time, nil
}

func (s session) processInfo(args []any) (any, error) {
	p, now, err := s.process(args[0].(string))
	if err != nil {
		return nil, err
	}
	return info(p, now), nil
}

func (s session) allProcessInfo([]any) (any, error) {
	status, err := s.read()
	out := []any{}
	for _, p := range status.Programs {
		out = append(out, info(p, status.Time))
	}
	return out, err
}

// info is a program as supervisord describes a process. Times are seconds since 1970; the paths of log
// files are empty, because a program's output may have any number of places.
func info(p api.Program, now time.Time) map[string]any {
	var state program.State
	_ = state.UnmarshalText([]byte(p.State)) // the API has only the names of this table
	why := ""
	if At(p, program.Backoff, program.Fatal) {
		why = escape.Text(p.Reason)
	}
	status := 0
	if p.LastExit != nil {
		status = p.LastExit.Code
	}
	return map[string]any{
		"name": processName(p), "group": p.Group, "pid": p.PID, "state": int(state), "statename": p.State,
		"start": seconds(p.StartedAt), "stop": seconds(p.EndedAt), "now": int(now.Unix()),
		"description": Description(p, now, time.Local), "spawnerr": why, "exitstatus": status,
		"logfile": "", "stdout_logfile": "", "stderr_logfile": "",
	}
}

func seconds(t *time.Time) int {
	if t == nil {
		return 0
	}
	return int(t.Unix())
}

func (s session) allConfigInfo([]any) (any, error) {
	status, err := s.read()
	if err != nil {
		return nil, err
	}
	SortByProcess(status.Programs)
	out := []any{}
	for _, p := range status.Programs {
		detail, err := s.box.Program(s.ctx, p.Name)
		if err != nil {
			return nil, err
		}
		mode, err := ModeOf(detail)
		if err != nil {
			return nil, err
		}
		out = append(out, map[string]any{
			"name": processName(p), "group": p.Group, "inuse": true,
			"autostart": mode.Autostart, "group_prio": mode.Priority, "process_prio": mode.Priority,
		})
	}
	return out, nil
}

// SortByProcess puts programs into the order in which supervisord lists their configuration.
func SortByProcess(programs []api.Program) {
	slices.SortStableFunc(programs, func(a, b api.Program) int { return cmp.Compare(processName(a), processName(b)) })
}

// Mode is the part of a program's specification that supervisorctl's avail shows.
type Mode struct {
	Priority  int  `json:"priority"`
	Autostart bool `json:"autostart"`
}

// ModeOf reads it.
func ModeOf(detail api.ProgramDetail) (m Mode, err error) {
	err = json.Unmarshal(detail.Spec, &m)
	return m, err
}

// readLog returns the method that reads a stream. A negative offset counts from the end and allows no
// length; a length of 0 means all from the offset on.
func readLog(stream string) func(session, []any) (any, error) {
	return func(s session, args []any) (any, error) {
		name, offset, length := args[0].(string), args[1].(int), args[2].(int)
		if length < 0 || offset < 0 && length != 0 {
			return nil, newFault(badArguments, "")
		}
		p, _, err := s.process(name)
		if err != nil {
			return nil, err
		}
		q := api.LogQuery{Names: []string{p.Name}, Stream: stream}
		if offset < 0 {
			offset = max(offset, -maxLog)
			q.Lines = -offset // a line has at least its newline
		}
		if length == 0 || length > maxLog {
			length = maxLog
		}
		text := excerpt{offset: offset, length: length}
		if err := s.box.Logs(s.ctx, q, text.add); err != nil && !errors.Is(err, errEnough) {
			return nil, err
		}
		return string(text.kept), nil
	}
}

// tailLog returns the method that reads the end of a stream, as supervisord does (options.py, tailFile):
// the result has the last bytes of the given length if there is output behind the offset, however much
// that is; then the offset for the next call, and whether the call before was so long ago that bytes
// were left out.
func tailLog(stream string) func(session, []any) (any, error) {
	return func(s session, args []any) (any, error) {
		number := func(v any) int { return max(math.MinInt32, min(v.(int), math.MaxInt32)) } // of which sums are exact
		offset, length := number(args[1]), number(args[2])
		p, _, err := s.process(args[0].(string))
		if err != nil {
			return nil, err
		}
		size, text := 0, []byte{}
		if err := s.box.Logs(s.ctx, api.LogQuery{Names: []string{p.Name}, Stream: stream}, func(l api.LogLine) error {
			size += len(Raw(l))
			text = AppendTail(text, l, max(0, min(length, maxLog)))
			return nil
		}); err != nil {
			return nil, err
		}
		if offset >= size {
			text = nil
		}
		return []any{string(text), size, size > offset+length}, nil
	}
}

// excerpt is a part of a log: length bytes from an offset on, or the last bytes if the offset is
// negative. It keeps no more than that of the lines that are added.
type excerpt struct {
	offset, length int
	kept           []byte
}

// errEnough ends the reading of the log when the part is complete.
var errEnough = errors.New("enough")

func (e *excerpt) add(l api.LogLine) error {
	if e.offset < 0 {
		e.kept = AppendTail(e.kept, l, -e.offset)
		return nil
	}
	e.kept = append(e.kept, Raw(l)...)
	before := min(e.offset, len(e.kept))
	e.offset -= before
	e.kept = e.kept[before:]
	if len(e.kept) < e.length {
		return nil
	}
	e.kept = e.kept[:e.length]
	return errEnough
}
