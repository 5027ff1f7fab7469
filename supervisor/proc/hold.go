package proc

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Who could hang an exec. A child that package syscall forks shares our memory
// until its exec is done (CLONE_VFORK, clone(2)), and until then the thread that
// forked it cannot be stopped: the next garbage collection waits for it, and
// everything else for the collection. Whoever makes one exec hang so stops PID 1.
// The simplest way is a lease (fcntl(2), F_SETLEASE) on a file of one's own that
// is somebody's program: it holds up every exec for 45 seconds.
//
// So a program is only exec'ed that way when nobody in the box can hold it up:
// its file, its interpreter and all directories above them belong to root and are
// not for others to write, and no lease is on it. Everything else starts through
// the shim, which hangs alone and not for long. A program that runs as root itself
// can still win a race against the look; it has other ways.

// execHold keeps open what an exec will read: nobody gets a lease on a file that
// others have open.
type execHold []int

func (h execHold) close() {
	for _, fd := range h {
		unix.Close(fd)
	}
}

// maxInterpreters is how deep the kernel follows #! lines (fs/exec.c).
const maxInterpreters = 5

// holdExec makes sure that the exec will not hang; ok is false when somebody could
// see to it that it does, or when it would fail anyway.
func holdExec(c *Command, file string) (h execHold, ok bool) {
	if c.Dir != "" {
		if _, err := os.Stat(c.Dir); err != nil { // may hang, and hangs nobody else
			return nil, false
		}
	}
	file = inDir(c.Dir, file)
	for range maxInterpreters {
		if !steady(file) {
			break
		}
		fd, err := openFlags(file, unix.O_NONBLOCK|unix.O_NOCTTY) // EWOULDBLOCK: a lease
		if err != nil {
			break
		}
		h = append(h, fd)
		var head [256]byte // the kernel looks no further either
		n, err := unix.Pread(fd, head[:], 0)
		if err != nil {
			break
		}
		if file = scriptInterpreter(head[:n]); file == "" {
			return h, true
		}
	}
	h.close()
	return nil, false
}

// scriptInterpreter is what a #! line names, "" without one.
func scriptInterpreter(head []byte) string {
	line, ok := strings.CutPrefix(string(head), "#!")
	if !ok {
		return ""
	}
	line, _, _ = strings.Cut(line, "\n")
	if words := strings.Fields(line); len(words) > 0 {
		return words[0]
	}
	return ""
}

// maxLinks is how many symbolic links the kernel follows (path_resolution(7)).
const maxLinks = 40

// steady tells whether only root can make an absolute path lead elsewhere or change
// the file at its end.
func steady(file string) bool {
	if !strings.HasPrefix(file, "/") {
		return false
	}
	at, rest, links := "/", "."+file, 0 // from the root itself on
	for done := false; !done; {
		var name string
		name, rest, _ = strings.Cut(strings.TrimLeft(rest, "/"), "/")
		done = name == ""
		next := path.Join(at, name)
		var st unix.Stat_t
		if err := unix.Lstat(next, &st); err != nil || st.Uid != 0 {
			return false
		}
		others := st.Mode&0o022 != 0
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := os.Readlink(next)
			if links++; err != nil || links > maxLinks {
				return false
			}
			if strings.HasPrefix(target, "/") {
				at = "/"
			}
			rest = target + "/" + rest
		case unix.S_IFDIR:
			// In a sticky one, others cannot touch what is root's (unlink(2)).
			if others && st.Mode&unix.S_ISVTX == 0 {
				return false
			}
			at = next
		default:
			return !others && strings.Trim(rest, "/") == ""
		}
	}
	return false // a directory
}
