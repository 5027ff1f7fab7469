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
	// Name is what the kernel calls it, at most 15 bytes that it chose itself
	// (proc_pid_comm(5)). Its arguments are not read: that can wait for its memory.
	Name    string
	State   byte          // proc_pid_stat(5): R, S, D, T, Z
	CPU     time.Duration // without its children
	RSS     int64         // bytes
	Threads int
}

// Tree lists what is alive of a started process, itself first while it lives. It
// reads /proc at the call, some microseconds for each member.
func (o *Owner) Tree(id uint64) ([]Member, error) {
	p, err := o.lookup(id)
	if err != nil {
		return nil, err
	}
	page := int64(os.Getpagesize())
	var out []Member
	for _, t := range o.tree(p) {
		out = append(out, Member{
			PID: t.pid, PPID: t.ppid, Name: nameOf(t.pid), State: t.state,
			CPU: ticks(t.utime + t.stime), RSS: t.rssPages * page, Threads: t.threads,
		})
	}
	return out, nil
}

// nameOf is empty for a process that has gone.
func nameOf(pid int) string {
	var buf [64]byte
	n, err := readProc("/proc/"+strconv.Itoa(pid)+"/comm", buf[:])
	if err != nil {
		return ""
	}
	return string(bytes.TrimSuffix(buf[:n], []byte("\n")))
}
