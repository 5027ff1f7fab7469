package proc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// StartError says why a process could not be started.
type StartError struct {
	Op   string // what failed: "command", "directory", "credential", "umask"…
	Path string // the file or directory that caused the failure, if any
	Hint string // what to do about it, may be empty
	Err  error  // the cause; errors.Is finds it
}

// Error says what failed, with what, why, and what to do.
func (e *StartError) Error() string {
	s := "cannot start: " + e.Op
	if e.Path != "" {
		s += " " + e.Path
	}
	s += ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Starved tells whether a start failed because all processes together use what the box or the machine has:
// processes, memory, open files or terminals, or the threads of agentinit for starts that hang. A limit of
// the command's own is not meant, and neither is a program file that hangs itself.
func Starved(err error) bool {
	if errors.Is(err, unix.ENFILE) {
		return true
	}
	e, ok := errors.AsType[*StartError](err)
	switch {
	case !ok:
		return false
	case e.Op == opTerminal:
		return errors.Is(err, unix.ENOSPC) // kernel.pty.max of pty(7) is reached
	}
	return e.Op == opFork && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) || errors.Is(err, errHang))
}

// ShellStatus is what a shell exits with: 127 when the command was not found,
// 126 when it cannot be run.
func (e *StartError) ShellStatus() int {
	if e.Op == opCommand && (errors.Is(e.Err, errNotFound) || errors.Is(e.Err, fs.ErrNotExist)) {
		return 127
	}
	return 126
}

const (
	opCommand    = "command"
	opDirectory  = "directory"
	opCredential = "credential"
)

var (
	errNotFound = errors.New("command not found")
	errIsDir    = errors.New("is a directory")
	errNotExec  = fmt.Errorf("not executable: %w", fs.ErrPermission)
)

// defaultPath is searched if the environment has no PATH, as a shell does.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds the file to execute. It searches the program's PATH, not agentinit's.
func lookPath(c *Command) (string, error) {
	if c.Path == "" {
		return "", &StartError{Op: opCommand, Err: errors.New("no command given")}
	}
	if strings.Contains(c.Path, "/") {
		return c.Path, nil
	}
	path := defaultPath
	for _, kv := range c.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v // as in execvp(3), the last PATH entry counts
		}
	}
	var denied string
	for dir := range strings.SplitSeq(path, ":") {
		dir = cmp.Or(dir, ".")
		file := dir + "/" + c.Path
		st, err := os.Stat(inDir(c.Dir, file))
		if err != nil || st.IsDir() {
			continue
		}
		if st.Mode()&0o111 != 0 {
			return file, nil
		}
		denied = file
	}
	if denied != "" {
		return "", &StartError{Op: opCommand, Path: denied, Err: errNotExec, Hint: "chmod +x it"}
	}
	return "", &StartError{Op: opCommand, Path: c.Path, Err: errNotFound, Hint: "searched in PATH=" + path}
}

// inDir returns where the kernel will look for path after a chdir to dir.
func inDir(dir, path string) string {
	if dir == "" || strings.HasPrefix(path, "/") {
		return path
	}
	return dir + "/" + path
}

// String returns "uid:gid".
func (cr *Credential) String() string { return fmt.Sprintf("%d:%d", cr.UID, cr.GID) }

func explainDir(dir string, errno syscall.Errno) error {
	if dir == "" {
		return nil
	}
	st, err := os.Stat(dir)
	switch {
	case err != nil && errors.Is(err, errno):
		return &StartError{Op: opDirectory, Path: dir, Err: errno}
	case err == nil && !st.IsDir():
		return &StartError{Op: opDirectory, Path: dir, Err: syscall.ENOTDIR}
	case err == nil && errno == syscall.EACCES && st.Mode()&0o001 == 0:
		return &StartError{Op: opDirectory, Path: dir, Err: errno, Hint: "the program's user may not enter it"}
	}
	return nil
}

func explainFile(path string, errno syscall.Errno) error {
	st, err := os.Stat(path)
	e := &StartError{Op: opCommand, Path: path, Err: errno}
	switch {
	case err != nil:
		if errors.Is(err, fs.ErrNotExist) {
			e.Err = fs.ErrNotExist
		}
	case st.IsDir():
		e.Err = errIsDir
	case st.Mode()&0o111 == 0:
		e.Err, e.Hint = errNotExec, "chmod +x it"
	case errno == syscall.ENOENT || errno == syscall.ENOTDIR:
		name := interpreter(path)
		if text, windows := strings.CutSuffix(name, "\r"); windows {
			name, e.Hint = text+`\r`, "the lines of the script end in CR LF, as on Windows; convert them to LF"
		}
		e.Err = noInterpreter(name)
	case errno == syscall.E2BIG:
		e.Hint = "its arguments and variables are too large for the kernel: each may have 128 KiB, all together a quarter of the stack limit"
	case errno == syscall.EACCES:
		e.Hint = "its user may not execute it, or its file system is mounted noexec"
	case errno == syscall.ENOEXEC:
		e.Hint = "not for this machine, or a script without a #! line"
	}
	return e
}

// noInterpreter says that the file exists, but its interpreter does not; name may be empty. That is
// not "command not found": a shell reports 126 here. So the error does not wrap ENOENT.
func noInterpreter(name string) error {
	if name == "" {
		return errors.New("its interpreter does not exist")
	}
	return fmt.Errorf("its interpreter %s does not exist", name)
}

// interpreter returns what the file's #! line or ELF header names.
func interpreter(path string) string {
	fd, err := openFlags(path, unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var head [256]byte
	n, err := unix.Pread(fd, head[:], 0)
	if err != nil {
		return ""
	}
	if bytes.HasPrefix(head[:n], []byte("\x7fELF")) {
		return "(ELF dynamic loader)"
	}
	return scriptInterpreter(head[:n])
}

// scriptInterpreter returns what a #! line names, or "" if there is no such line.
func scriptInterpreter(head []byte) string {
	line, ok := strings.CutPrefix(string(head), "#!")
	if !ok {
		return ""
	}
	line, _, _ = strings.Cut(line, "\n")
	// A carriage return is part of the name (binfmt_script.c of Linux).
	if words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' }); len(words) > 0 {
		return words[0]
	}
	return ""
}
