package control_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor"
	"github.com/dreamlab-ai/agentinit/supervisor/control"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/controltest"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// xmlCall is an XML-RPC call with strings, numbers and truth values.
func xmlCall(method string, params ...any) string {
	out := "<methodCall><methodName>" + method + "</methodName><params>"
	for _, p := range params {
		out += "<param>" + xmlValue(p) + "</param>"
	}
	return out + "</params></methodCall>"
}

func xmlValue(p any) string {
	switch p := p.(type) {
	case int:
		return fmt.Sprintf("<value><int>%d</int></value>", p)
	case bool:
		if p {
			return "<value><boolean>1</boolean></value>"
		}
		return "<value><boolean>0</boolean></value>"
	case []any:
		out := "<value><array><data>"
		for _, item := range p {
			out += xmlValue(item)
		}
		return out + "</data></array></value>"
	case map[string]any:
		out := "<value><struct>"
		for name, item := range p {
			out += "<member><name>" + name + "</name>" + xmlValue(item) + "</member>"
		}
		return out + "</struct></value>"
	}
	return fmt.Sprintf("<value><string>%v</string></value>", p)
}

// flat leaves out the frame and the white space of an answer.
func flat(answer string) string {
	for _, frame := range []string{
		"\n", "<?xml version='1.0'?>", "<methodResponse>", "</methodResponse>", "<params>", "</params>", "<param>", "</param>",
		"<value>", "</value>", "<data>", "</data>", "<name>", "</name>", "<member>", "</member>",
	} {
		answer = strings.ReplaceAll(answer, frame, "")
	}
	return answer
}

func faultOf(code int, text string) string {
	return fmt.Sprintf("<fault><struct>faultCode<int>%d</int>faultString<string>%s</string></struct></fault>", code, text)
}

func truth(b bool) string {
	if b {
		return "<boolean>1</boolean>"
	}
	return "<boolean>0</boolean>"
}

func outcome(name, group string) string {
	return "<struct>description<string>OK</string>group<string>" + group + "</string>name<string>" + name + "</string>status<int>80</int></struct>"
}

// tailOf is the result of a tailProcess…Log.
func tailOf(text string, offset int, overflow bool) string {
	return fmt.Sprintf("<string>%s</string><int>%d</int>%s", text, offset, truth(overflow))
}

func rpcBox() *controltest.Box {
	instance := func(name string) supervisor.Status {
		p := stoppedProgram(name)
		p.Group = "worker"
		return p
	}
	dead := stoppedProgram("dead")
	dead.State, dead.Reason = program.Fatal, "cannot start: no such file"
	b := controltest.New(controltest.Program("web"), stoppedProgram("db"), instance("worker:0"), instance("worker:1"), dead)
	b.Fails = []string{"dead"}
	b.Lines = []logs.Line{
		{Seq: 1, Time: controltest.Epoch, Program: "web", Stream: logs.Stdout, Text: "one"},
		{Seq: 2, Time: controltest.Epoch, Program: "web", Stream: logs.Stderr, Text: "oh"},
		{Seq: 3, Time: controltest.Epoch, Program: "web", Stream: logs.Stdout, Text: "two"},
	}
	return b
}

// TestXMLRPC: the calls of supervisorctl and the answers of supervisord 4.
func TestXMLRPC(t *testing.T) {
	for _, test := range []struct {
		method string
		params []any
		want   string
	}{
		{"supervisor.getVersion", nil, "<string>3.0</string>"},
		{"supervisor.getAPIVersion", nil, "<string>3.0</string>"},
		{"supervisor.getSupervisorVersion", nil, "<string>1.2.3</string>"},
		{"supervisor.getIdentification", nil, "<string>agentinit</string>"},
		{"supervisor.getState", nil, "<struct>statecode<int>1</int>statename<string>RUNNING</string></struct>"},
		{"supervisor.getPID", nil, "<int>1</int>"},
		{"supervisor.shutdown", nil, truth(true)},

		{"supervisor.getProcessInfo", []any{"dead"}, "statename<string>FATAL</string>"},
		{"supervisor.getProcessInfo", []any{"dead"}, "description<string>cannot start: no such file</string>"},
		{"supervisor.getProcessInfo", []any{"web"}, "description<string>pid 103, uptime 0:03:12</string>"},
		{"supervisor.getProcessInfo", []any{"worker:1"}, "group<string>worker</string>logfile<string></string>name<string>1</string>"},
		{"supervisor.getProcessInfo", []any{"worker"}, faultOf(10, "BAD_NAME: worker")},
		{"supervisor.getProcessInfo", []any{"we"}, faultOf(10, "BAD_NAME: we")},
		{"supervisor.getProcessInfo", []any{"worker:*"}, faultOf(10, "BAD_NAME: worker:*")},
		{"supervisor.getAllConfigInfo", nil, "autostart<boolean>1</boolean>group<string>web</string>"},
		{"supervisor.getAllConfigInfo", nil, "<array><struct>autostart<boolean>1</boolean>group<string>worker</string>"}, // 0, 1, db, dead, web

		{"supervisor.startProcess", []any{"db"}, truth(true)},
		{"supervisor.startProcess", []any{"db", false}, truth(true)},
		{"supervisor.startProcess", []any{"web"}, faultOf(60, "ALREADY_STARTED: web")},
		{"supervisor.startProcess", []any{"dead"}, faultOf(50, "SPAWN_ERROR: dead")},
		{"supervisor.startProcess", []any{"nosuch"}, faultOf(10, "BAD_NAME: nosuch")},
		{"supervisor.startProcess", []any{"worker:*"}, "<array>" + outcome("0", "worker") + outcome("1", "worker") + "</array>"},
		{"supervisor.startProcessGroup", []any{"worker"}, "<array>" + outcome("0", "worker") + outcome("1", "worker") + "</array>"},
		{"supervisor.startProcessGroup", []any{"nosuch"}, faultOf(10, "BAD_NAME: nosuch")},
		{"supervisor.startAllProcesses", nil, outcome("db", "db")},
		{"supervisor.stopProcess", []any{"web"}, truth(true)},
		{"supervisor.stopProcess", []any{"db"}, faultOf(70, "NOT_RUNNING: db")},
		{"supervisor.stopProcessGroup", []any{"web"}, "<array>" + outcome("web", "web") + "</array>"},
		{"supervisor.stopAllProcesses", []any{true}, "<array>" + outcome("web", "web") + "</array>"},
		{"supervisor.signalProcess", []any{"web", "HUP"}, truth(true)},
		{"supervisor.signalProcess", []any{"web", "1"}, truth(true)},
		{"supervisor.signalProcess", []any{"web", 1}, truth(true)},
		{"supervisor.signalProcess", []any{"web", 99}, faultOf(11, "BAD_SIGNAL: 99")},
		{"supervisor.signalProcess", []any{1, "HUP"}, faultOf(2, "INCORRECT_PARAMETERS: parameter 1 must be of the type string")},
		{"supervisor.signalAllProcesses", []any{1}, "<array>" + outcome("web", "web") + "</array>"},
		{"supervisor.signalProcess", []any{"web", "BOGUS"}, faultOf(11, "BAD_SIGNAL: BOGUS")},
		{"supervisor.signalProcess", []any{"web", "99"}, faultOf(11, "BAD_SIGNAL: 99")},
		{"supervisor.signalProcess", []any{"web", "IOT"}, truth(true)},
		{"supervisor.signalProcess", []any{"db", "BOGUS"}, faultOf(11, "BAD_SIGNAL: BOGUS")},
		{"supervisor.signalProcessGroup", []any{"web", "BOGUS"}, "<array><struct>description<string>BAD_SIGNAL: BOGUS</string>group<string>web</string>name<string>web</string>status<int>11</int></struct></array>"},
		{"supervisor.signalProcessGroup", []any{"worker", "BOGUS"}, "<array></array>"},
		{"supervisor.signalProcess", []any{"db", "HUP"}, faultOf(70, "NOT_RUNNING: db")},
		{"supervisor.signalProcessGroup", []any{"worker", "HUP"}, "<array></array>"},
		{"supervisor.signalAllProcesses", []any{"SIGHUP"}, "<array>" + outcome("web", "web") + "</array>"},

		{"supervisor.readProcessLog", []any{"web", 0, 0}, "<string>one&#xA;two&#xA;</string>"},
		{"supervisor.readProcessStdoutLog", []any{"web", 2, 3}, "<string>e&#xA;t</string>"},
		{"supervisor.readProcessStdoutLog", []any{"web", 99, 3}, "<string></string>"},
		{"supervisor.readProcessStdoutLog", []any{"web", -3, 0}, "<string>wo&#xA;</string>"},
		{"supervisor.readProcessStdoutLog", []any{"web", math.MinInt, 0}, "<string>one&#xA;two&#xA;</string>"},
		{"supervisor.readProcessStdoutLog", []any{"web", 1, math.MaxInt}, "<string>ne&#xA;two&#xA;</string>"},
		{"supervisor.readProcessStdoutLog", []any{"web", -3, 1}, faultOf(3, "BAD_ARGUMENTS")},
		{"supervisor.readProcessStdoutLog", []any{"web", 0, -1}, faultOf(3, "BAD_ARGUMENTS")},
		{"supervisor.readProcessStderrLog", []any{"web", -1600, 0}, "<string>oh&#xA;</string>"},
		{"supervisor.readProcessStderrLog", []any{"nosuch", 0, 0}, faultOf(10, "BAD_NAME: nosuch")},

		{"supervisor.tailProcessStdoutLog", []any{"web", 0, 0}, "<array>" + tailOf("", 8, true) + "</array>"},
		{"supervisor.tailProcessLog", []any{"web", 0, 100}, "<array>" + tailOf("one&#xA;two&#xA;", 8, false) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", 0, 3}, "<array>" + tailOf("wo&#xA;", 8, true) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", 5, 3}, "<array>" + tailOf("wo&#xA;", 8, false) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", 7, 3}, "<array>" + tailOf("wo&#xA;", 8, false) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", 8, 3}, "<array>" + tailOf("", 8, false) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", 99, 3}, "<array>" + tailOf("", 8, false) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", -9, 3}, "<array>" + tailOf("wo&#xA;", 8, true) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", math.MinInt, 3}, "<array>" + tailOf("wo&#xA;", 8, true) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", 0, math.MaxInt}, "<array>" + tailOf("one&#xA;two&#xA;", 8, false) + "</array>"},
		{"supervisor.tailProcessStdoutLog", []any{"web", math.MaxInt, math.MaxInt}, "<array>" + tailOf("", 8, false) + "</array>"},
		{"supervisor.tailProcessStderrLog", []any{"web", 0, 1600}, "<array>" + tailOf("oh&#xA;", 3, false) + "</array>"},
		{"supervisor.tailProcessStderrLog", []any{"db", 0, 1600}, "<array>" + tailOf("", 0, false) + "</array>"},
		{"supervisor.tailProcessStderrLog", []any{"nosuch", 0, 0}, faultOf(10, "BAD_NAME: nosuch")},

		{"supervisor.clearProcessLogs", []any{"web"}, faultOf(1, "UNKNOWN_METHOD: agentinit clears no log: it forgets the oldest output in memory, and rotates log files")},
		{"supervisor.sendProcessStdin", []any{"web", "x"}, faultOf(1, "UNKNOWN_METHOD: agentinit does not write to the standard input of a program")},
		{"supervisor.nosuch", nil, faultOf(1, "UNKNOWN_METHOD")},
		{"supervisor.reloadConfig", nil, faultOf(1, "UNKNOWN_METHOD: use agentctl apply, or agentctl apply --dry-run")},
		{"supervisor.readLog", []any{0, 0}, faultOf(1, "UNKNOWN_METHOD: agentinit writes its own log to its output, which is the log of the container; agentctl events shows it too")},
		{"supervisor.startProcess", nil, faultOf(2, "INCORRECT_PARAMETERS")},
		{"supervisor.startProcess", []any{"a", true, true}, faultOf(2, "INCORRECT_PARAMETERS")},
		{"supervisor.startProcess", []any{1}, faultOf(2, "INCORRECT_PARAMETERS: parameter 1 must be of the type string")},

		{"system.listMethods", nil, "<string>supervisor.getVersion</string>"},
		{"system.methodHelp", []any{"supervisor.getPID"}, "<string>The pid of agentinit.</string>"},
		{"system.methodHelp", []any{"nosuch"}, faultOf(4, "SIGNATURE_UNSUPPORTED")},
		{"system.methodSignature", []any{"supervisor.startProcess"}, "<array><string>boolean</string><string>string</string><string>boolean</string></array>"},
		{"system.methodSignature", []any{"nosuch"}, faultOf(4, "SIGNATURE_UNSUPPORTED")},
		{"system.multicall", []any{[]any{
			map[string]any{"methodName": "supervisor.stopProcess", "params": []any{"web"}},
			map[string]any{"methodName": "supervisor.nosuch"},
			map[string]any{"methodName": "system.multicall", "params": []any{[]any{}}},
			map[string]any{"params": []any{}}, "no struct",
			map[string]any{"methodName": "supervisor.getPID", "params": []any{}},
		}}, "<array><boolean>1</boolean>" +
			"<struct>faultCode<int>1</int>faultString<string>UNKNOWN_METHOD</string></struct>" +
			"<struct>faultCode<int>2</int>faultString<string>INCORRECT_PARAMETERS: a multicall within a multicall</string></struct>" +
			strings.Repeat("<struct>faultCode<int>2</int>faultString<string>INCORRECT_PARAMETERS</string></struct>", 2) +
			"<int>1</int></array>"},
		{"system.multicall", []any{slices.Repeat([]any{0}, 101)}, faultOf(3, "BAD_ARGUMENTS: more than 100 calls")},
	} {
		t.Run(test.method, func(t *testing.T) {
			socket := controltest.Serve(t, rpcBox().Own())
			status, answer := ask(t, socket, "POST", "/RPC2", xmlCall(test.method, test.params...))
			if got := flat(answer); status != http.StatusOK || !strings.Contains(got, test.want) {
				t.Errorf("%v: %d %s\nwant %s", test.params, status, got, test.want)
			}
		})
	}
}

// A call has the rights and the audit of the requests that it stands for.
func TestXMLRPCRights(t *testing.T) {
	b := rpcBox()
	b.Owners = func(int) (string, bool) { return "web", true } // the test is a program without control = true
	socket := controltest.Serve(t, b.Own())
	status, answer := ask(t, socket, "POST", "/RPC2", xmlCall("supervisor.stopProcess", "web"))
	if status != http.StatusForbidden || !strings.Contains(answer, "processes of program web may only read") {
		t.Errorf("%d %s", status, answer)
	}
	status, answer = ask(t, socket, "POST", "/RPC2", xmlCall("supervisor.getProcessInfo", "web"))
	if status != http.StatusOK || !strings.Contains(answer, "RUNNING") {
		t.Errorf("%d %s", status, answer)
	}
	several := []any{map[string]any{"methodName": "supervisor.stopAllProcesses", "params": []any{}}}
	_, answer = ask(t, socket, "POST", "/RPC2", xmlCall("system.multicall", several))
	if !strings.Contains(flat(answer), "faultCode<int>30</int>faultString<string>FAILED: refused") {
		t.Errorf("%s", flat(answer))
	}
}

// A program that calls again and again takes the places of programs, and no others.
func TestXMLRPCPlacesOfPrograms(t *testing.T) {
	web := controltest.Program("web")
	web.Spec.Control = true
	b := controltest.New(web, stoppedProgram("slow"))
	b.Hold = []string{"slow"}
	var guest atomic.Bool
	b.Owners = func(int) (string, bool) { return "web", guest.Load() }
	socket := controltest.Serve(t, b.Own())
	guest.Store(true)
	events := b.Bus.Watch(b.Bus.Seq())
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() { ask(t, socket, "POST", "/RPC2", xmlCall("supervisor.startProcess", "slow")) })
		for e, err := events.Next(t.Context()); e.Name != control.EventChange; e, err = events.Next(t.Context()) {
			must(t, err)
		}
	}
	status, answer := ask(t, socket, "POST", "/RPC2", xmlCall("supervisor.getPID"))
	if status != http.StatusServiceUnavailable || !strings.Contains(answer, "4 XML-RPC calls already") {
		t.Errorf("%d %s", status, answer)
	}
	guest.Store(false)
	if status, answer = ask(t, socket, "POST", "/RPC2", xmlCall("supervisor.getPID")); status != http.StatusOK {
		t.Errorf("from outside: %d %s", status, answer)
	}
	b.Release("slow")
	calls.Wait()
}

// A program that does not read its answers has them for no more than its places.
func TestXMLRPCUnreadAnswers(t *testing.T) {
	b := rpcBox()
	b.Owners = func(int) (string, bool) { return "web", true }
	b.Lines = []logs.Line{{Seq: 1, Time: controltest.Epoch, Program: "web", Stream: logs.Stdout, Text: strings.Repeat("<", 256<<10)}}
	socket := controltest.Serve(t, b.Own())
	body := xmlCall("supervisor.readProcessStdoutLog", "web", 0, 0)
	for range 4 {
		conn, err := net.Dial("unix", socket)
		must(t, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "POST /RPC2 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		must(t, err)
		_, err = io.ReadFull(conn, make([]byte, 100)) // the answer has begun, and is longer than a socket holds
		must(t, err)
	}
	status, answer := ask(t, socket, "POST", "/RPC2", body)
	if status != http.StatusServiceUnavailable {
		t.Errorf("%d %.100s", status, answer)
	}
}

func TestXMLRPCIsAudited(t *testing.T) {
	b := rpcBox()
	socket := controltest.Serve(t, b.Own())
	ask(t, socket, "POST", "/RPC2", xmlCall("supervisor.signalProcess", "web", "HUP"))
	var got []api.AuditEntry
	must(t, api.NewClient(socket).Audit(t.Context(), 0, func(e api.AuditEntry) error {
		got = append(got, e)
		return nil
	}))
	if len(got) != 1 || got[0].Action != "signal" || got[0].Peer == nil || got[0].Peer.PID != os.Getpid() {
		t.Errorf("%+v", got)
	}
}

// longLog is a log of 128 MiB. It counts the lines that were read, and what was in memory at the last
// one.
type longLog struct {
	*controltest.Box
	read int
	heap uint64
}

func (l *longLog) Read(context.Context, logs.Query) iter.Seq[logs.Line] {
	const lines = 128
	text := strings.Repeat("x", 1<<20)
	return func(yield func(logs.Line) bool) {
		for l.read < lines {
			l.read++
			if l.read == lines {
				l.heap = heap()
			}
			if !yield(logs.Line{Seq: uint64(l.read), Time: controltest.Epoch, Program: "web", Text: text}) {
				return
			}
		}
	}
}

// heap is how many bytes are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A program can make its log as long as it likes: agentinit has no more of it in memory than it answers
// with, and reads no further.
func TestXMLRPCOfALongLog(t *testing.T) {
	read := func(offset, length int) *longLog {
		b := rpcBox()
		log := &longLog{Box: b}
		cfg := b.Own()
		cfg.Logs = log
		socket := controltest.Serve(t, cfg)
		status, answer := ask(t, socket, "POST", "/RPC2", xmlCall("supervisor.readProcessStdoutLog", "web", offset, length))
		if status != http.StatusOK || !strings.Contains(flat(answer), "<string>xxx") {
			t.Errorf("%d %.500s", status, answer)
		}
		return log
	}
	if log := read(1<<20+1, 5); log.read != 2 {
		t.Errorf("read %d lines for a part of the second one", log.read)
	}
	before := heap()
	if log := read(-5, 0); log.heap > before+32<<20 {
		t.Errorf("%d MiB of a log are in memory", (log.heap-before)>>20)
	}
}

// A log tail is the text of a stream, and goes on.
func TestLogTail(t *testing.T) {
	socket := controltest.Serve(t, rpcBox().Own())
	conn, err := net.Dial("unix", socket)
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /logtail/web/stdout HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	equal(t, resp.Header.Get("Content-Type"), "text/plain; charset=utf-8")
	in := bufio.NewReader(resp.Body)
	for _, want := range []string{"one\n", "two\n"} {
		got, err := in.ReadString('\n')
		must(t, err)
		equal(t, got, want)
	}
}
