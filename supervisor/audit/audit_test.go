package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

func open(t *testing.T, path string) *Log {
	t.Helper()
	return Open(path, func(err error) { t.Error(err) })
}

func fill(l *Log, n int) {
	for i := range n {
		l.Append(Entry{Via: "socket", Action: "stop", Peer: &Peer{PID: i, UID: 1000, Exe: "/bin/agentctl"}, Details: map[string]any{"programs": []string{"web"}}})
	}
	l.Flush()
}

func TestTheChainGoesOnAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "audit.jsonl")
	first := open(t, path)
	fill(first, 3)
	second := open(t, path)
	fill(second, 2)
	if r, err := second.Check(); err != nil || r.Problem != "" || r.Lines != 5 || r.First != 1 || r.Last != 5 {
		t.Errorf("%+v %v", r, err)
	}
	if n := len(second.Lines(0)); n != 2 {
		t.Errorf("%d lines in memory", n)
	}
	if lines := second.Lines(4); len(lines) != 1 || !bytes.Contains(lines[0], []byte(`"seq":5,`)) {
		t.Errorf("after 4: %s", lines)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// Check finds every change of the file.
func TestEveryChangeIsFound(t *testing.T) {
	for name, change := range map[string]func(lines []string) []string{
		"a line changed":  func(l []string) []string { l[1] = strings.Replace(l[1], `"uid":1000`, `"uid":0`, 1); return l },
		"a line removed":  func(l []string) []string { return append(l[:1:1], l[2:]...) },
		"lines swapped":   func(l []string) []string { l[1], l[2] = l[2], l[1]; return l },
		"the beginning":   func(l []string) []string { return l[2:] },
		"the end cut off": func(l []string) []string { return l[:3] },
		"a line cut":      func(l []string) []string { l[4] = l[4][:20]; return l },
		"a line doubled":  func(l []string) []string { return append(l, l[4]) },
		"all removed":     func([]string) []string { return nil },
		"not JSON":        func(l []string) []string { l[0] = "x"; return l },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			l := open(t, path)
			fill(l, 5)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			lines := change(strings.Split(strings.TrimSpace(string(text)), "\n"))
			if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if r, err := l.Check(); err != nil || r.Problem == "" {
				t.Errorf("not found: %+v %v", r, err)
			}
		})
	}
	// A complete chain of another log is valid, but it is not the chain of this box.
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path)
	fill(l, 5)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	fill(open(t, path), 5)
	if r, err := l.Check(); err != nil || r.Problem == "" {
		t.Errorf("another chain: %+v %v", r, err)
	}
}

// What was removed does not come back with the next entry, even if that is the remover's own.
// A request can name so much that its line is longer than readers take. The entry stays, without the
// details.
// An entry is written member by member. A new member of the type must not be forgotten there.
func TestEntryAsEncodingJSONWritesIt(t *testing.T) {
	full := Entry{
		Seq: 7, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Via: "http", Action: "POST /v1/<agents>", Outcome: "200",
		Principal: "operator:é\"", Remote: "127.0.0.1:1", Peer: &Peer{PID: 1, UID: 2, Exe: "/bin/sh", Program: "web"},
		Details: map[string]any{"programs": []string{"b", "a"}, "force": true}, Prev: "ab",
	}
	for field, v := range reflect.ValueOf(full).Fields() {
		if field.IsExported() && v.IsZero() {
			t.Errorf("%s is empty: it would not be seen if it were missing", field.Name)
		}
	}
	type plain Entry // without the method
	for _, e := range []Entry{{}, full} {
		got, err := e.MarshalJSON()
		want, wantErr := json.Marshal(plain(e))
		if err != nil || wantErr != nil || string(got) != string(want) {
			t.Errorf("%v %v\n got %s\nwant %s", err, wantErr, got, want)
		}
	}
	if _, err := (Entry{Details: map[string]any{"f": func() {}}}).MarshalJSON(); err == nil {
		t.Error("a function was written")
	}
}

// What a caller asks for may hold a secret. The record keeps the rest of the details in their form, if that is
// possible.
func TestSecretsAreMasked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path)
	l.SetMask(func(text string) string {
		return strings.NewReplacer("s3cret", "******", `nlong`, "*****").Replace(text)
	})
	details := map[string]any{"command": []string{"login", "s3cret"}, "rolling": true}
	l.Append(Entry{Via: "socket", Action: "test", Details: details})
	l.Append(Entry{Via: "http", Action: "POST /v1/s3cret", Outcome: "404"})
	l.Append(Entry{Via: "socket", Action: "shutdown", Details: map[string]any{"reason": "too\nlong"}})
	l.Flush()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"details":{"command":["login","******"],"rolling":true}`, `"action":"POST /v1/******"`, `"details":{"masked":"{\"reason\":\"too\\*****\"}"}`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "s3cret") {
		t.Errorf("a secret is in\n%s", text)
	}
	if got := details["command"].([]string)[1]; got != "s3cret" {
		t.Errorf("the caller's details became %q", got)
	}
	if r, err := l.Check(); err != nil || r.Problem != "" || r.Lines != 3 {
		t.Errorf("%+v %v", r, err)
	}
}

// counted counts how often it is encoded.
type counted struct{ times *int }

func (c counted) MarshalJSON() ([]byte, error) {
	*c.times++
	return []byte("1"), nil
}

func TestDetailsAreEncodedOnce(t *testing.T) {
	l := open(t, "")
	l.SetMask(func(text string) string { return text })
	times := 0
	l.Append(Entry{Via: "socket", Action: "stop", Details: map[string]any{"n": counted{&times}}})
	if line := string(l.Lines(0)[0]); times != 1 || !strings.Contains(line, `"details":{"n":1}`) {
		t.Errorf("encoded %d times: %s", times, line)
	}
}

func TestALineIsBounded(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "audit.jsonl"))
	for _, n := range []int{10, lineMost / 6, lineMost} {
		l.Append(Entry{Via: "socket", Action: "stop", Details: map[string]any{"programs": strings.Repeat("<", n)}})
	}
	fill(l, 1)
	if r, err := l.Check(); err != nil || r.Problem != "" || r.Lines != 4 {
		t.Errorf("%+v, %v", r, err)
	}
	for i, line := range l.Lines(0) {
		if cut := strings.Contains(string(line), "are too long"); len(line) > lineMost || cut != (i == 1 || i == 2) {
			t.Errorf("line %d has %d bytes: %.300s", i, len(line), line)
		}
	}
}

// The last line of a file can be longer than what Open reads at first.
func TestTheChainGoesOnAfterALineOfAnyLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	for _, n := range []int{0, 3 << 10, 4 << 10, 5 << 10, bodyMost / 2, lineMost, 0} {
		l := open(t, path)
		l.Append(Entry{Via: "socket", Action: "stop", Details: map[string]any{"programs": strings.Repeat("x", n)}})
		l.Flush()
	}
	if r, err := open(t, path).Check(); err != nil || r.Problem != "" || r.Lines != 7 || r.Last != 7 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRemovedLinesStayMissing(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"removed":  os.Remove,
		"emptied":  func(path string) error { return os.Truncate(path, 0) },
		"enlarged": func(path string) error { return os.Truncate(path, 2*fileMost) }, // to have it renamed
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			fill(open(t, path), 3)
			l := open(t, path) // a second boot
			fill(l, 2)
			if r, err := l.Check(); err != nil || r.Problem != "" || r.First != 1 {
				t.Fatalf("%+v %v", r, err)
			}
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			fill(l, 2)
			if _, err := os.Stat(path + ".1"); err == nil {
				t.Error("the file was renamed")
			}
			if r, err := l.Check(); err == nil && r.Problem == "" {
				t.Errorf("not found: %+v %v", r, err)
			}
		})
	}
}

// Entries that are recorded while the file is read are no change of it.
func TestCheckWhileEntriesArrive(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "audit.jsonl"))
	fill(l, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			fill(l, 1)
		}
	}()
	for range 20 {
		if r, err := l.Check(); err != nil || r.Problem != "" {
			t.Fatalf("%+v %v", r, err)
		}
	}
	<-done
	if r, err := l.Check(); err != nil || r.Problem != "" || r.Last != 3000 {
		t.Errorf("%+v %v", r, err)
	}
}

// An entry that waits for the disk does not hide what was removed before it.
func TestWaitingEntriesHideNothing(t *testing.T) {
	for _, removed := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		l := Open(path, func(error) {})
		fill(l, 3)
		if err := os.Rename(path, path+".kept"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(path, 0o755); err != nil { // the disk takes nothing
			t.Fatal(err)
		}
		fill(l, 2)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if !removed {
			if err := os.Rename(path+".kept", path); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := l.Check(); err != nil || (r.Problem != "") != removed {
			t.Errorf("removed %t: %+v %v", removed, r, err)
		}
		l.Flush()
	}
}

func TestTheFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path)
	big := map[string]any{"reason": strings.Repeat("x", 10_000)}
	for i := range 3 * fileMost / 10_000 {
		l.Append(Entry{Via: "http", Action: fmt.Sprint(i), Details: big})
		l.Flush()
	}
	for _, name := range []string{path, path + ".1"} {
		if info, err := os.Stat(name); err != nil || info.Size() > fileMost+20_000 {
			t.Errorf("%v %v", info, err)
		}
	}
	if r, err := l.Check(); err != nil || r.Problem != "" || r.First == 1 {
		t.Errorf("%+v %v", r, err)
	}
	if n := len(l.Lines(0)); n != keptLines {
		t.Errorf("%d lines in memory", n)
	}
}

func TestADiskThatTakesNothingHoldsNobodyUp(t *testing.T) {
	told := 0
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.Mkdir(path, 0o755); err != nil { // a directory in place of the file
		t.Fatal(err)
	}
	l := Open(path, func(error) { told++ })
	before := told
	for range pendingMost + 10 {
		l.Append(Entry{Via: "socket", Action: "stop"})
	}
	l.Flush()
	if told > before+1 {
		t.Errorf("told %d times", told-before)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l.Append(Entry{Via: "socket", Action: "stop"})
	l.Flush()
	if r, err := l.Check(); err != nil || !strings.Contains(r.Problem, "disk") {
		t.Errorf("%+v %v", r, err)
	}
}

// While entries cannot be written, the file is not the whole record.
func TestEntriesThatAreNotInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := Open(path, func(error) {})
	fill(l, 2)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// With this limit of the size of files, a write fails as on a full disk: after its first part.
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limit := func(to syscall.Rlimit) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &to); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(before)
	limit(syscall.Rlimit{Cur: uint64(info.Size()) + 10, Max: before.Max})
	fill(l, 3)
	if r, err := l.Check(); err != nil || !strings.Contains(r.Problem, "ends with entry 2, and agentinit has recorded 5") {
		t.Errorf("%+v, %v", r, err)
	}
	limit(before)
	if r, err := l.Check(); err != nil || r.Problem != "" || r.Last != 5 {
		t.Errorf("the disk has room again: %+v, %v", r, err)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte(`{"seq":1,"time":"2026-01-02T03:04:05Z","via":"socket","action":"stop","prev":"","hash":"00"}` + "\n"))
	f.Add([]byte(`,"hash":""}`))
	f.Add([]byte(`,"hash":"}`)) // the quotation mark both opens the hash and ends the line
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := verify(bytes.NewReader(text)); err == nil && r.Problem == "" && r.Lines > 0 && r.Head == "" {
			t.Errorf("%+v", r)
		}
	})
}
