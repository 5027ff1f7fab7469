// Package foreign owns how tests and benchmarks run servers of other projects: it finds an
// installed server, starts it on a scratch directory, waits until it answers, and stops it. It does
// not know the requests that the tests send, and must never be part of a box's binaries.
package foreign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// MissingError means that a server is not installed on this machine. Its text begins with "needs",
// like the message of a skipped test.
type MissingError struct{ What string }

func (e *MissingError) Error() string { return "needs " + e.What }

// SkipOrFail ends a test whose server could not be started. It skips the test if the server is not
// installed.
func SkipOrFail(t testing.TB, err error) {
	t.Helper()
	if missing, ok := errors.AsType[*MissingError](err); ok {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
}

const (
	startLimit = 3 * time.Minute // a node process that shares its processors with other tests is slow
	stopLimit  = 10 * time.Second
	askEvery   = 50 * time.Millisecond
	askLimit   = 5 * time.Second
)

// Server is a running server.
type Server struct {
	// Address is where the server answers: a base URL, or a conninfo of libpq.
	Address string

	quit    os.Signal
	dir     string // scratch directory, removed by Stop; "": none
	prints  string // the directory for the server's output
	answers func(context.Context) error

	cmd   *exec.Cmd // the latest process
	ended chan struct{}
	end   error // how that process ended; valid once ended is closed
}

// endedError means that a server ended before it answered.
type endedError struct {
	name string
	end  error
	said []byte
}

func (e *endedError) Error() string {
	return fmt.Sprintf("%s ended before it answered (%v) and said: %.2000s", e.name, e.end, e.said)
}

// Start runs cmd and calls answers again and again. It returns when answers returns nil. The output
// of cmd goes to a file below dir.
func Start(ctx context.Context, cmd *exec.Cmd, dir string, answers func(context.Context) error) (*Server, error) {
	s := &Server{quit: syscall.SIGTERM, prints: dir, answers: answers}
	if err := s.run(ctx, cmd); err != nil {
		return nil, err
	}
	return s, nil
}

// Restart stops the server and starts it again on the same data. If that fails, no server runs, and
// Stop still removes the files. Restart must not be called concurrently with other methods.
func (s *Server) Restart(ctx context.Context) error {
	s.halt()
	return s.run(ctx, &exec.Cmd{Path: s.cmd.Path, Args: s.cmd.Args, Env: s.cmd.Env, Dir: s.cmd.Dir, SysProcAttr: s.cmd.SysProcAttr})
}

func (s *Server) run(ctx context.Context, cmd *exec.Cmd) error {
	name := filepath.Base(cmd.Path)
	log, err := os.CreateTemp(s.prints, name+"-*.log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.cmd, s.ended = cmd, ended
	go func() {
		s.end = cmd.Wait()
		close(ended)
	}()
	if err := s.await(ctx); err != nil {
		s.halt()
		if errors.Is(err, errEnded) {
			said, readErr := os.ReadFile(log.Name())
			return &endedError{name, errors.Join(s.end, readErr), said}
		}
		return fmt.Errorf("%s does not answer: %w", name, err)
	}
	return nil
}

var errEnded = errors.New("ended")

func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		one, done := context.WithTimeout(ctx, askLimit)
		err := s.answers(one)
		done()
		select {
		case <-s.ended:
			return errEnded // another process has answered on this address
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return errEnded
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Stop stops the server and removes its files. Further calls do nothing.
func (s *Server) Stop() {
	s.halt()
	if s.dir != "" {
		// Remaining files are in the directory for scratch files.
		_ = os.RemoveAll(s.dir)
	}
}

func (s *Server) halt() {
	_ = s.cmd.Process.Signal(s.quit) // fails if the process has ended by itself
	select {
	case <-s.ended:
	case <-time.After(stopLimit):
		_ = s.cmd.Process.Kill() // as above
		<-s.ended
	}
}

// Answers returns a function that checks that a URL answers with status 200.
func Answers(url string) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, resp.Status)
		}
		return nil
	}
}

// The ports that FreePort gives. They lie below the range from which Linux takes the local ports of
// outgoing connections (ip(7), ip_local_port_range: from 32768), so no connection takes one before its
// server opens it.
const firstPort, endPort = 10_000, 32_768

// A process begins with a port of its own choice, because others look for ports at the same time.
var (
	firstTry   = rand.Uint32N(endPort - firstPort)
	portsTried atomic.Uint32
)

// FreePort returns a TCP port of the loopback interface that was free a moment ago. It does not return
// the same port again before it has tried all others.
func FreePort() (int, error) {
	var err error
	for range endPort - firstPort {
		port := firstPort + int((firstTry+portsTried.Add(1))%(endPort-firstPort))
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return 0, err
}

// portTries is how often to start a server that needs a port number in advance. Another process may
// take the port before the server opens it.
const portTries = 3

func onFreePort(start func(port int) (*Server, error)) (*Server, error) {
	for try := 1; ; try++ {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		s, err := start(port)
		if _, ok := errors.AsType[*endedError](err); try == portTries || !ok {
			return s, err
		}
	}
}

// inScratch starts a server in a new scratch directory, which Stop removes.
func inScratch(name string, start func(dir string) (*Server, error)) (*Server, error) {
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return nil, err
	}
	s, err := start(dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.dir = dir
	return s, nil
}
