package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// However much a library prints, events are few, on one line and short.
func TestLibraryMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := event.NewBus(64)
		l := &libraryLog{bus: bus}
		for range 1000 {
			if n, err := fmt.Fprint(l, "first\n{\x1b[31m"+strings.Repeat("x", 4096)); err != nil || n < 4096 {
				t.Fatal(n, err)
			}
		}
		if n := bus.Seq(); n != 10 {
			t.Fatalf("%d events", n)
		}
		e, err := bus.Watch(0).Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text := e.Fields["message"].(string)
		if len(text) > maxLibraryMessage || !strings.HasPrefix(text, "first {") {
			t.Errorf("the message is %q", text)
		}
	})
}

// answersTwice is an HTTP server that sends each answer twice, so the second one belongs to no request. The program's
// argument names the file into which it writes its address.
func answersTwice() {
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		err = os.WriteFile(os.Args[1], []byte(l.Addr().String()+"\n"), 0o644)
	}
	if err == nil {
		err = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, answer+answer)
		}))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
