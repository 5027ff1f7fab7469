package proc

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The exec shim. Between fork and exec Go runs no code of ours, but umask,
// limits and priorities must be set exactly there. So the program is started as
// this very binary under another argv[0]; what runs then does what is asked, tells
// the parent through a close-on-exec pipe what failed, and execs the program. Its
// arguments are: the name below, a shimSpec, the file to execute, and the
// program's own arguments. Nothing of it remains visible after the exec.

// ShimArg0 is what the shim is called by. Whoever calls the binary so gains
// nothing: it does only what its caller could do.
const ShimArg0 = "agentinit: exec"

// shimPatience bounds the life of a shim: a program of the same uid may stop it,
// or hold up its exec.
const shimPatience = 10 * time.Second

type shimSpec struct {
	Status      int // descriptor of the pipe
	Dir         string
	Credential  *syscall.Credential
	Umask       *int
	Rlimits     map[string]Rlimit
	Nice        *int
	IONice      int // 0: none, as ioprio_set(2) has it
	OOMScoreAdj *int
	CPUs        []int
	NoNewPrivs  bool
}

// shimFailure is what comes through the pipe.
type shimFailure struct {
	Op    string
	Path  string
	Errno syscall.Errno
}

func (o *Owner) startShim(c *Command, p *process, path string, env []string, io *childIO) error {
	spec, err := newShimSpec(c, len(io.fds))
	if err != nil {
		return err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return &StartError{Op: "exec helper", Err: err}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return &StartError{Op: "exec helper", Err: err}
	}
	defer r.Close()

	// What happens before the program is exec'ed is nobody's business: an exit
	// is held back until the shim has told how it went.
	deliver := p.deliver
	var held []Exit
	p.deliver = func(e Exit) { held = append(held, e) }

	sys := sysProcAttr(c, p, io)
	sys.Credential = nil
	err = o.fork(p, "/proc/self/exe", append([]string{ShimArg0, string(text), path}, c.argv()...), &syscall.ProcAttr{
		Env: env, Sys: sys, Files: append(slices.Clone(io.fds), w.Fd()),
	})
	w.Close()
	if err != nil {
		return &StartError{Op: "exec helper", Path: "/proc/self/exe", Err: err}
	}
	err = o.readShim(c, path, r)
	o.mu.Lock()
	if err != nil {
		p.deliver = func(Exit) {}
	} else {
		p.deliver = deliver
		for _, e := range held {
			deliver(e)
		}
	}
	o.mu.Unlock()
	if err != nil {
		// It is ours to end, if it has not ended: Start has failed, so nobody else
		// knows of it. What came through the pipe need not be the truth: the
		// program's user can open it.
		if killErr := o.Kill(p.id); killErr != nil && !errors.Is(killErr, ErrNoProcess) {
			err = errors.Join(err, killErr)
		}
	}
	return err
}

// readShim waits for the end of the pipe: empty means that the exec closed it.
func (o *Owner) readShim(c *Command, path string, r *os.File) error {
	if err := r.SetReadDeadline(time.Now().Add(o.shimPatience)); err != nil {
		return &StartError{Op: "exec helper", Err: err}
	}
	b, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.New("it did not get to the program within " + o.shimPatience.String())
	}
	if err != nil {
		return &StartError{Op: "exec helper", Err: err}
	}
	if len(b) == 0 {
		return nil
	}
	var f shimFailure
	if err := json.Unmarshal(b, &f); err != nil {
		return &StartError{Op: "exec helper", Err: err}
	}
	if f.Op == opCommand {
		bare := *c
		bare.Credential = nil // that step is behind us
		return explain(&bare, path, f.Errno)
	}
	if f.Op == opDirectory {
		if e := explainDir(c.Dir, f.Errno); e != nil {
			return e
		}
	}
	return &StartError{Op: f.Op, Path: f.Path, Err: f.Errno, Hint: shimHints[f.Op]}
}

var shimHints = map[string]string{
	opCredential:    "changing the user needs CAP_SETUID and CAP_SETGID",
	"nice":          "below the present value needs CAP_SYS_NICE",
	"ionice":        "the realtime class needs CAP_SYS_ADMIN or CAP_SYS_NICE",
	"oom_score_adj": "below the present value needs CAP_SYS_RESOURCE",
	"cpus":          "at least one of them must be among the processors of the box",
}

func newShimSpec(c *Command, status int) (*shimSpec, error) {
	s := &shimSpec{
		Status: status, Dir: c.Dir, Credential: c.Credential.sys(), Umask: c.Umask, Rlimits: c.Rlimits,
		Nice: c.Nice, OOMScoreAdj: c.OOMScoreAdj, CPUs: c.CPUs, NoNewPrivs: c.NoNewPrivs,
	}
	if c.IONice != "" {
		n, err := ParseIONice(c.IONice)
		if err != nil {
			return nil, &StartError{Op: "ionice", Err: err}
		}
		s.IONice = n
	}
	for name := range c.Rlimits {
		if _, ok := rlimits[name]; !ok {
			return nil, &StartError{Op: "limit " + name, Err: errors.New("no such limit")}
		}
	}
	return s, nil
}

// This is an init function so that no binary that creates an Owner can forget it,
// and so that what is initialised after this package costs the start of a program
// nothing: that is most of what a box is made of.
func init() {
	if len(os.Args) >= 4 && os.Args[0] == ShimArg0 {
		beShim()
	}
}

// beShim becomes the program or exits.
func beShim() {
	// All that follows is about the one thread that will exec.
	runtime.LockOSThread()
	var s shimSpec
	if err := json.Unmarshal([]byte(os.Args[1]), &s); err != nil {
		os.Exit(127)
	}
	unix.CloseOnExec(s.Status)
	f := s.apply()
	if f == nil {
		f = s.exec(os.Args[2], os.Args[3:])
	}
	s.tell(f)
	os.Exit(127)
}

func (s *shimSpec) tell(f *shimFailure) {
	b, err := json.Marshal(f)
	if err != nil {
		return
	}
	// The parent reads to the end; if it is gone, nobody is left to tell.
	_, _ = unix.Write(s.Status, b)
}

// step is one thing to do before the exec.
type step struct {
	op   string
	path string
	do   func() error
}

// apply does what needs privilege first, then gives the privilege up.
func (s *shimSpec) apply() *shimFailure {
	steps := []step{{op: "signal mask", do: func() error {
		return unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
	}}}
	steps = append(steps, s.prioritySteps()...)
	steps = append(steps, s.limitSteps()...)
	steps = append(steps, s.identitySteps()...)
	for _, st := range steps {
		if err := st.do(); err != nil {
			errno := syscall.EINVAL
			errors.As(err, &errno)
			return &shimFailure{Op: st.op, Path: st.path, Errno: errno}
		}
	}
	return nil
}

func (s *shimSpec) prioritySteps() []step {
	var steps []step
	if s.OOMScoreAdj != nil {
		steps = append(steps, step{op: "oom_score_adj", do: func() error {
			return os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*s.OOMScoreAdj)), 0)
		}})
	}
	if s.Nice != nil {
		steps = append(steps, step{op: "nice", do: func() error {
			return unix.Setpriority(unix.PRIO_PROCESS, 0, *s.Nice)
		}})
	}
	if s.IONice != 0 {
		steps = append(steps, step{op: "ionice", do: func() error {
			const whoProcess = 1
			_, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, uintptr(s.IONice))
			if errno != 0 {
				return errno
			}
			return nil
		}})
	}
	if len(s.CPUs) > 0 {
		steps = append(steps, step{op: "cpus", do: func() error {
			var set unix.CPUSet
			for _, n := range s.CPUs {
				set.Set(n)
			}
			return unix.SchedSetaffinity(0, &set)
		}})
	}
	if s.Umask != nil {
		steps = append(steps, step{op: "umask", do: func() error {
			unix.Umask(*s.Umask)
			return nil
		}})
	}
	return steps
}

func (s *shimSpec) limitSteps() []step {
	var steps []step
	for name, lim := range s.Rlimits {
		st := step{op: "limit " + name, do: func() error {
			// Package syscall's, not unix.Prlimit: the Go runtime raised nofile
			// for itself and would otherwise restore the old value at exec.
			return syscall.Setrlimit(rlimits[name], &syscall.Rlimit{Cur: lim.Soft, Max: lim.Hard})
		}}
		if name == "as" {
			steps = append(steps, st) // last: it may leave no room for more memory
		} else {
			steps = slices.Insert(steps, 0, st)
		}
	}
	return steps
}

func (s *shimSpec) identitySteps() []step {
	var steps []step
	if cr := s.Credential; cr != nil {
		path := strconv.Itoa(int(cr.Uid)) + ":" + strconv.Itoa(int(cr.Gid))
		steps = append(steps, step{op: opCredential, path: path, do: func() error {
			groups := make([]int, len(cr.Groups))
			for i, g := range cr.Groups {
				groups[i] = int(g)
			}
			if err := syscall.Setgroups(groups); err != nil {
				return err
			}
			if err := syscall.Setgid(int(cr.Gid)); err != nil {
				return err
			}
			return syscall.Setuid(int(cr.Uid))
		}})
	}
	if s.Dir != "" {
		steps = append(steps, step{op: opDirectory, path: s.Dir, do: func() error { return os.Chdir(s.Dir) }})
	}
	if s.NoNewPrivs {
		steps = append(steps, step{op: "no_new_privs", do: func() error {
			return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		}})
	}
	// A sandbox (Landlock, seccomp) belongs here, as the last step: after
	// no_new_privs, without which the kernel refuses both to the unprivileged,
	// and after everything that it might forbid.
	return steps
}

func (s *shimSpec) exec(path string, argv []string) *shimFailure {
	err := syscall.Exec(path, argv, os.Environ())
	errno := syscall.EINVAL
	errors.As(err, &errno)
	return &shimFailure{Op: opCommand, Path: path, Errno: errno}
}
