package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// 20,000 orphans end while 50 programs restart. No zombie remains and no exit status is lost.
func TestOrphanStorm(t *testing.T) {
	b := boot(t, asPID1, header+`
[supervisor.defaults]
restart = "always"
backoff = { initial = "0s" }
restart_limit = { count = 0, window = "1m" }
logs = { to = "none" }
start_seconds = 0
[programs.storm]
command = ["TESTPROG", "fork-orphans", "20000"]
type = "oneshot"
restart = "never"
[programs.churn]
command = ["TESTPROG", "trap-and-exit-after", "0", "3"]
instances = 50
`)
	b.sealed()
	for i := range 200 {
		b.mustCtl("signal", "TERM", fmt.Sprintf("churn:%d", i%50))
	}
	b.mustCtl("wait", "storm", "--for", "completed", "--timeout", patience.String())
	init, err := b.initPID()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); zombies(descendants(init)) > 0; {
		if time.Now().After(end) {
			t.Fatalf("%d zombies left", zombies(descendants(init)))
		}
	}
	var orphans int
	_, body := b.get("/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, `agentinit_reaped_processes_total{kind="orphan"} `); ok {
			fmt.Sscan(value, &orphans)
		}
	}
	if orphans < 20_000 {
		t.Errorf("%d orphans counted, want at least 20000", orphans)
	}
	exits := b.countExits(3)
	if exits != 200 {
		t.Errorf("%d of 200 exit statuses seen", exits)
	}
	b.stopsWell()
}

// countExits counts the exits of the churn programs with that code until it has 200 or time is
// over.
func (b *box) countExits(code int) int {
	b.t.Helper()
	n := 0
	for end := time.After(patience); n < 200; {
		select {
		case e := <-b.events:
			if strings.Contains(fmt.Sprint(e["change"]), fmt.Sprintf("exited with code %d", code)) {
				n++
			}
		case <-end:
			return n
		}
	}
	return n
}

// restarts records the reason of each restart by program and number of the new run.
type restarts map[string]map[float64]string

// read processes all events that the box has published so far.
func (r restarts) read(b *box) {
	for {
		select {
		case e, ok := <-b.events:
			if !ok {
				b.t.Fatal("the box has ended")
			}
			change, _ := e["change"].(map[string]any)
			why, again := strings.CutPrefix(fmt.Sprint(change["reason"]), "starting again: ")
			if !again || strings.Contains(why, "waits until") {
				continue // this event announces the restart; the next one starts the run
			}
			name := fmt.Sprint(e["program"])
			if r[name] == nil {
				r[name] = map[float64]string{}
			}
			run, _ := e["run"].(float64)
			r[name][run] = why
		default:
			return
		}
	}
}

// killed counts the restarts that followed a KILL. On a machine with few processes or little
// memory, starts and programs may fail for other reasons, which is no fault of the box.
func (r restarts) killed(program string) (n int) {
	for _, why := range r[program] {
		if why == "ended by signal KILL" {
			n++
		}
	}
	return n
}

// Programs get 2,000 kill -9 in total. Each program is restarted once per kill, and every restart
// is counted once.
func TestKillStorm(t *testing.T) {
	const instances, rounds = 50, 40
	b := boot(t, asPID1, header+`
[supervisor.defaults]
restart = "always"
backoff = { initial = "0s" }
restart_limit = { count = 0, window = "1m" }
start_seconds = 0
[programs.victim]
command = ["TESTPROG", "sleep"]
instances = 50
`)
	b.sealed()
	b.mustCtl("wait", "victim:49", "--for", "running")
	told := restarts{}
	for round := range rounds {
		host := b.hostPIDs()
		for name, p := range b.programs() {
			pid, ok := host[p.PID]
			if !ok {
				t.Fatalf("round %d: %s has no process: %+v", round, name, p)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		for end := time.Now().Add(patience); ; {
			settled := 0
			all := b.programs()
			told.read(b)
			for name, p := range all {
				killed := told.killed(name)
				if killed > round+1 {
					t.Fatalf("round %d: %s says that it restarted for %v", round, name, told[name])
				}
				if killed == round+1 && p.Restarts == uint64(len(told[name])) && p.State == "RUNNING" && p.PID != 0 {
					settled++
				}
			}
			if settled == instances {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("round %d: only %d of %d run again and are counted: %+v\n%v", round, settled, instances, all, told)
			}
		}
	}
	for name, runs := range told {
		if others := len(runs) - told.killed(name); others > 0 {
			t.Logf("%s: %d restarts that were not asked for: %v", name, others, runs)
		}
	}
	b.stopsWell()
}

func TestStatusStorm(t *testing.T) {
	b := boot(t, asPID1, header+`
[programs.p]
command = ["TESTPROG", "sleep"]
instances = 20
`)
	b.sealed()
	b.mustCtl("wait", "p", "--for", "running")
	var wg sync.WaitGroup
	errs := make(chan string, 500)
	for range 500 {
		wg.Go(func() {
			if out, code := b.ctl("status"); code != 0 || strings.Count(out, "p:") != 20 {
				errs <- fmt.Sprintf("status %d: %.300s", code, out)
			}
		})
	}
	wg.Wait()
	close(errs)
	for e := range errs {
		t.Error(e)
	}
}

// Garbage, huge requests and slow requests on the socket and the ports do not disturb the box.
func TestGarbage(t *testing.T) {
	b := boot(t, asPID1, header+`
[programs.p]
command = ["TESTPROG", "sleep"]
required = true
`)
	b.sealed()
	pid := b.programs()["p"].PID
	noise := make([]byte, 1<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	huge := []byte("GET /" + strings.Repeat("a", 4<<20) + " HTTP/1.1\r\n\r\n")
	endless := append([]byte("POST /v1/start HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"), bytes.Repeat([]byte("{"), 1<<20)...)
	var slow []net.Conn
	for _, address := range [][2]string{
		{"unix", b.socket()},
		{"tcp", fmt.Sprintf("127.0.0.1:%d", b.port)},
		{"tcp", fmt.Sprintf("127.0.0.1:%d", b.metrics)},
	} {
		for _, bytes := range [][]byte{noise, huge, endless, nil} {
			c, err := net.Dial(address[0], address[1])
			if err != nil {
				t.Fatal(err)
			}
			// The server may close the connection early.
			_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
			_, _ = c.Write(bytes)
			c.Close()
		}
		for range 50 {
			c, err := net.Dial(address[0], address[1])
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte("GET /livez HT"))
			slow = append(slow, c)
		}
	}
	if status, _ := b.get("/livez"); status != 200 {
		t.Errorf("/livez: %d", status)
	}
	if p := b.programs()["p"]; p.State != "RUNNING" || p.PID != pid {
		t.Errorf("disturbed: %+v, pid was %d", p, pid)
	}
	for _, c := range slow {
		c.Close()
	}
	b.stopsWell()
}
