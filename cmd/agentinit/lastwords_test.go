package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipe is a stderr that completes a write only when it is read.
type pipe struct {
	read chan struct{}
	got  bytes.Buffer
}

func (p *pipe) Write(b []byte) (int, error) {
	<-p.read
	return p.got.Write(b)
}

// If stderr has no reader, a last message blocks no other work, and delays the end of the box only
// for the permitted time.
func TestLastWordsWaitForNobody(t *testing.T) {
	for name, read := range map[string]time.Duration{"never": 0, "late": 3 * time.Second, "in time": time.Second / 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pipe{read: make(chan struct{})}
				w := lastWords{to: p}
				w.say([]byte("farewell"), nil)
				if read > 0 {
					time.AfterFunc(read, func() { close(p.read) })
				}
				begin := time.Now()
				w.wait(flushWait)
				want := flushWait
				if name == "in time" {
					want = read
				}
				if took := time.Since(begin); took != want {
					t.Errorf("waited %s, want %s", took, want)
				}
				if name == "never" {
					close(p.read) // all goroutines of the bubble must end first
				}
				w.pending.Wait()
				if p.got.String() != "farewell" {
					t.Errorf("wrote %q", p.got.String())
				}
			})
		})
	}
}

// A second dump does not wait behind a dump that has no reader.
func TestOneDumpAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipe{read: make(chan struct{})}
		b := &box{stderr: &lastWords{to: p}}
		for range 3 {
			b.dumpGoroutines()
		}
		close(p.read)
		b.stderr.wait(flushWait)
		if n := strings.Count(p.got.String(), "TestOneDumpAtATime("); n != 1 || b.dumping.Load() {
			t.Errorf("%d dumps, dumping %v", n, b.dumping.Load())
		}
	})
}
