package proc

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// Member is one living member of a started process's tree.
type Member struct {
	PID, PPID int
	Name      string        // see Name, the function
	State     byte          // proc_pid_stat(5): R, S, D, T, Z
	CPU       time.Duration // without its children
	RSS       int64         // bytes
	Threads   int
}

// Tree lists the living members of a started process, the process itself first if it lives. Each
// call reads /proc, which takes some microseconds for each member. For since see Usage.
func (o *Owner) Tree(id uint64, since time.Time) ([]Member, error) {
	p, err := o.lookup(id)
	if err != nil {
		return nil, err
	}
	page := int64(os.Getpagesize())
	var out []Member
	for _, t := range o.treeSince(p, since) {
		out = append(out, Member{
			PID: t.pid, PPID: t.ppid, Name: Name(t.pid), State: t.state,
			CPU: ticks(t.utime + t.stime), RSS: t.rssPages * page, Threads: t.threads,
		})
	}
	return out, nil
}

// Name is the name of a process in the kernel, at most 15 bytes, which the process can choose itself
// (proc_pid_comm(5)). It is "" for a process that has ended. The arguments (/proc/PID/cmdline) say
// more, but for them the kernel takes the lock of the process's memory, which the process can hold
// for as long as it likes.
func Name(pid int) string {
	var buf [64]byte
	n, err := readProc("/proc/"+strconv.Itoa(pid)+"/comm", buf[:])
	if err != nil {
		return ""
	}
	return string(bytes.TrimSuffix(buf[:n], []byte("\n")))
}
