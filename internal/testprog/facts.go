package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func env(args []string) error {
	if len(args) == 0 {
		for _, kv := range os.Environ() {
			fmt.Println(kv)
		}
	}
	for _, name := range args {
		fmt.Printf("%s=%s\n", name, os.Getenv(name))
	}
	return nil
}

// fds checks every descriptor number, so that it opens no file itself. A descriptor with
// close-on-exec was not inherited: the Go runtime opened it.
func fds([]string) error {
	for fd := range 1024 {
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if errno == 0 && flags&syscall.FD_CLOEXEC == 0 {
			fmt.Println(fd)
		}
	}
	return nil
}

func status(names ...string) error {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		name, value, _ := strings.Cut(s.Text(), ":")
		if slices.Contains(names, name) {
			fmt.Println(name, strings.TrimSpace(value))
		}
	}
	return s.Err()
}

// internalSignals are 32 and 33, which belong to the C library. glibc's posix_spawn ignores them in
// the programs that it starts, for example in the children of GNU make. The Go runtime does not
// change them.
const internalSignals = 1<<31 | 1<<32

// signals prints the masks of blocked and ignored signals in the form of proc(5), without the C
// library's own signals.
func signals([]string) error {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for _, field := range []string{"SigBlk", "SigIgn"} {
		_, rest, _ := strings.Cut(string(text), "\n"+field+":")
		value, _, _ := strings.Cut(rest, "\n")
		mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return err
		}
		fmt.Printf("%s %016x\n", field, mask&^internalSignals)
	}
	return nil
}

func reportSignals([]string) error {
	c := make(chan os.Signal, 256)
	signal.Notify(c)
	fmt.Println("ready")
	for sig := range c {
		n, ok := sig.(syscall.Signal)
		if !ok || n == syscall.SIGURG || n == syscall.SIGCHLD {
			continue
		}
		fmt.Println(int(n))
		if n == syscall.SIGTERM {
			return nil
		}
	}
	return nil
}

func limits([]string) error {
	b, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		return err
	}
	old := syscall.Umask(0)
	prio, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return err
	}
	oom, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	// getpriority(2): the system call returns 20 - nice.
	fmt.Printf("%sumask %03o\nnice %d\noom_score_adj %s", b, old, 20-prio, oom)
	return status("NoNewPrivs", "Cpus_allowed_list")
}

func ids([]string) error {
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	pgrp := syscall.Getpgrp()
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	fmt.Printf("uid %d\ngid %d\ngroups %v\npid %d\nppid %d\npgrp %d\nsid %d\n",
		os.Getuid(), os.Getgid(), groups, os.Getpid(), os.Getppid(), pgrp, sid)
	return nil
}

func notify(args []string) error {
	c, err := dialNotify()
	if err != nil {
		return err
	}
	if _, err := c.Write([]byte(strings.Join(args, "\n"))); err != nil {
		return err
	}
	return forever()
}

func notifyFD(args []string) error {
	n, err := number(args, 0, 3)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(n), "notify")
	if f == nil {
		return fmt.Errorf("descriptor %d is not open", n)
	}
	if _, err := f.WriteString("\n"); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return forever()
}

func listen(args []string) error {
	network, address := "tcp", ":0"
	if len(args) > 0 && strings.HasPrefix(args[0], "/") {
		network, address = "unix", args[0]
	} else if len(args) > 0 {
		address = ":" + args[0]
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		c.Close()
	}
}

func cpu(args []string) error {
	s, err := number(args, 0, 1<<30)
	if err != nil {
		return err
	}
	for end := time.Now().Add(time.Duration(s) * time.Second); time.Now().Before(end); {
	}
	return nil
}

func memory(args []string) error {
	n, err := number(args, 0, 1)
	if err != nil {
		return err
	}
	b := make([]byte, n<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
		b[0]++
	}
}
