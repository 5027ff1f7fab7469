// Package quick answers `agentctl status` into a pipe or a file, the command of health checks and
// scripts. The packages of agentctl take several times as long to initialise as the request takes.
// This package runs when it is initialised and ends the process. It imports very little: by the
// language specification's order, Go then initialises it before nearly all other packages.
//
// It prints only a complete and successful answer. In every other case it returns, and main does
// what was asked: so there is one implementation of all options, failures and messages. It must not
// import anything that would make Go initialise it later, accept a server that main would refuse, or
// change anything. A binary gets it by importing it; the import has no other use.
package quick

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// The values of package api, which is initialised too late to be imported.
const (
	defaultSocket    = "/run/agentbox/agentinit.sock"
	envSocket        = "AGENTCTL_SOCKET"
	headerAllRunning = "Agentinit-All-Running"
)

const (
	// patience bounds the connection, and the answer. After that, main asks again and waits longer.
	patience = 3 * time.Second
	// maxAnswer is the table of more than five thousand programs. main prints a larger one.
	maxAnswer = 1 << 20

	exitFailure    = 1
	exitNotRunning = 3
)

const request = "GET /v1/status?text=true HTTP/1.1\r\nHost: agentinit\r\nConnection: close\r\n\r\n"

// An init function, for the reason in the package comment; see ARCHITECTURE.md, decision 6.
func init() {
	where, ok := parse(os.Args[1:], os.Getenv)
	if !ok || isSupervisorctl(os.Args[0]) || isTerminal(syscall.Stdout) {
		return
	}
	if a, ok := ask(where, patience); ok {
		os.Exit(tell(a))
	}
}

// place is the socket to ask. trusted says that the user named it on the command line.
type place struct {
	path    string
	trusted bool
}

// parse accepts `status`, with no option but --socket before it. Abstract names are left to main.
func parse(args []string, getenv func(string) string) (place, bool) {
	var p place
	switch {
	case len(args) == 1 && args[0] == "status":
		if p.path = getenv(envSocket); p.path == "" {
			p.path = defaultSocket
		}
	case len(args) == 3 && args[0] == "--socket" && args[2] == "status":
		p = place{args[1], true}
	}
	return p, p.path != "" && p.path[0] != '@'
}

// isSupervisorctl tells whether main answers in the words of supervisorctl, because the command is
// called by that name.
func isSupervisorctl(argv0 string) bool {
	const name = "supervisorctl"
	return len(argv0) >= len(name) && argv0[len(argv0)-len(name):] == name
}

// isTerminal tells whether a table would be cut and coloured.
func isTerminal(fd int) bool {
	var t syscall.Termios
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TCGETS, uintptr(unsafe.Pointer(&t)))
	return errno == 0
}

// answer is a complete answer of the server.
type answer struct {
	text       []byte
	allRunning bool
}

// ask requests the table. The system calls are made directly: package net is initialised late.
func ask(where place, patience time.Duration) (answer, bool) {
	deadline := time.Now().Add(patience)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return answer{}, false
	}
	defer syscall.Close(fd)
	// Both bound one system call, also connect(2) while the queue of the listener is full (socket(7)).
	limit := syscall.NsecToTimeval(int64(patience))
	if syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit) != nil ||
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &limit) != nil ||
		syscall.Connect(fd, &syscall.SockaddrUnix{Name: where.path}) != nil ||
		!where.trusted && !isInit(fd) {
		return answer{}, false
	}
	if n, err := syscall.Write(fd, []byte(request)); err != nil || n != len(request) {
		return answer{}, false
	}
	return receive(fd, deadline)
}

// isInit tells whether PID 1 listens. In a box that is agentinit, and another process at its socket
// is an impostor. Outside a box the listener may be another process: main knows the difference.
func isInit(fd int) bool {
	cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	return err == nil && cred.Pid == 1
}

// receive reads until the answer is complete or cannot be used.
func receive(fd int, deadline time.Time) (answer, bool) {
	data := make([]byte, 0, 16<<10)
	for len(data) < maxAnswer && time.Now().Before(deadline) {
		if len(data) == cap(data) {
			data = append(make([]byte, 0, 2*len(data)), data...)
		}
		n, err := syscall.Read(fd, data[len(data):cap(data)])
		if errors.Is(err, syscall.EINTR) { // with a timeout, SA_RESTART does not apply (signal(7))
			continue
		}
		if err != nil || n == 0 {
			return answer{}, false
		}
		data = data[:len(data)+n]
		switch a, is := decode(data); is {
		case complete:
			return a, true
		case unusable:
			return answer{}, false
		}
	}
	return answer{}, false
}

// verdict is about the part of an answer that has arrived.
type verdict int

const (
	partial verdict = iota
	complete
	unusable
)

// decode reads an answer of HTTP/1.1, in the form in which Go's server writes it. An answer in
// another form is unusable.
func decode(data []byte) (answer, verdict) {
	const success = "HTTP/1.1 200 OK\r\n"
	if begun := min(len(data), len(success)); string(data[:begun]) != success[:begun] {
		return answer{}, unusable
	}
	head, text, found := cut(data, "\r\n\r\n")
	if !found {
		return answer{}, partial
	}
	plain, allRunning, length := false, "", -1
	for len(head) > 0 {
		var line []byte
		line, head, _ = cut(head, "\r\n")
		name, value, _ := cut(line, ": ")
		switch string(name) {
		case "Content-Type":
			plain = string(value) == "text/plain; charset=utf-8"
		case "Content-Length":
			n, err := strconv.Atoi(string(value))
			if err != nil || n < 0 {
				return answer{}, unusable
			}
			length = n
		case "Transfer-Encoding":
			return answer{}, unusable
		case headerAllRunning:
			allRunning = string(value)
		}
	}
	switch {
	case !plain || len(text) > length || allRunning != "true" && allRunning != "false":
		return answer{}, unusable
	case len(text) < length:
		return answer{}, partial
	}
	return answer{text, allRunning == "true"}, complete
}

// cut is bytes.Cut; package bytes needs package unicode, which is initialised late.
func cut(s []byte, sep string) (before, after []byte, found bool) {
	for i := 0; i+len(sep) <= len(s); i++ {
		if string(s[i:i+len(sep)]) == sep {
			return s[:i], s[i+len(sep):], true
		}
	}
	return s, nil, false
}

// tell prints the table and returns the exit status. After a failed write it does not leave the rest
// to main: main would print again what may have been written in part.
func tell(a answer) int {
	if _, err := os.Stdout.Write(a.text); err != nil {
		os.Stderr.WriteString("agentctl: cannot write the output: " + err.Error() + "\n")
		return exitFailure
	}
	if !a.allRunning {
		return exitNotRunning
	}
	return 0
}
