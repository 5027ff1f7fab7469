package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func dialNotify() (*net.UnixConn, error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil, errors.New("no NOTIFY_SOCKET")
	}
	return net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
}

// sendWith sends control data with a message. The net package cannot do that on a connected
// datagram socket.
func sendWith(c *net.UnixConn, text string, control []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), []byte(text), control, nil, 0)
		return sent != unix.EAGAIN
	})
	return errors.Join(err, sent)
}

// notifyFDs sends N messages, each with the maximum number of descriptors (SCM_MAX_FD), like
// FDSTORE=1 of systemd, then READY=1.
func notifyFDs(args []string) error {
	n, err := number(args, 0, 100)
	if err != nil {
		return err
	}
	c, err := dialNotify()
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	const most = 253
	fds := make([]int, most)
	for i := range fds {
		fds[i] = int(null.Fd())
	}
	for range n {
		if err := sendWith(c, "FDSTORE=1\nFDNAME=x", unix.UnixRights(fds...)); err != nil {
			return err
		}
	}
	return sayReady(c)
}

// notifyFlood sends N invalid messages, some longer than agentinit reads, then READY=1. agentinit
// limits the messages of one process, so it may drop READY=1.
func notifyFlood(args []string) error {
	n, err := number(args, 0, 10_000)
	if err != nil {
		return err
	}
	c, err := dialNotify()
	if err != nil {
		return err
	}
	nonsense := [][]byte{nil, {0}, []byte("\n\n=\n=x\nREADY"), bytes.Repeat([]byte("X"), 60_000), []byte("MAINPID=1\nWATCHDOG_USEC=-1"), []byte("STATUS=\xff\x1b[2J")}
	for i := range n {
		// For an empty message, the net package does not wait but returns EAGAIN.
		if _, err := c.Write(nonsense[i%len(nonsense)]); err != nil && !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return sayReady(c)
}

func sayReady(c *net.UnixConn) error {
	if _, err := c.Write([]byte("READY=1")); err != nil {
		return err
	}
	fmt.Println("sent")
	return forever()
}

// notifyAs pretends to be the process whose command line contains a word. It sends that process's
// pid in the credentials, which the kernel refuses to an unprivileged sender, and as MAINPID.
func notifyAs(args []string) error {
	if len(args) != 1 {
		return errors.New("want a word of the victim's command line")
	}
	victim, err := findProcess(args[0])
	if err != nil {
		return err
	}
	c, err := dialNotify()
	if err != nil {
		return err
	}
	credentials := unix.UnixCredentials(&unix.Ucred{Pid: int32(victim), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())})
	fmt.Println("forged credentials:", sendWith(c, "READY=1\nSTATUS=forged", credentials))
	if _, err := fmt.Fprintf(c, "MAINPID=%d\nSTATUS=mine", victim); err != nil {
		return err
	}
	return sayReady(c)
}

func findProcess(word string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if line, err := os.ReadFile(f); err == nil && strings.Contains(string(line), word) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process has %q in its command line", word)
}
