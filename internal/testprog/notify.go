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

// sendWith sends control data along; the net package does not, on a connected
// socket of datagrams.
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

// notifyFDs sends N messages that each carry as many descriptors as one may
// (SCM_MAX_FD), as FDSTORE=1 would, then READY=1.
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

// notifyFlood sends N messages of nonsense, some longer than is read, then
// READY=1, which may come to nothing: a flood costs its sender its turn.
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
		// The net package does not wait with an empty message (EAGAIN).
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

// notifyAs speaks for the process whose command line holds a word: with its pid
// in the credentials, which the kernel refuses to whoever is not privileged, and
// as its MAINPID.
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
