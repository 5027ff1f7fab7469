package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/internal/lateclose"
	"github.com/dreamlab-ai/agentinit/internal/sleep"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// PathWatch tells when a path may have begun to name another file. A caller that arms it before
// checking the path misses no change. After an error of Wait, the watch is over; context.Canceled
// means that the box ends.
type PathWatch interface {
	Arm() error
	Wait(ctx context.Context) error
	Close()
}

const (
	// keepPause is the least time between two checks, even if programs change the directory all the
	// time.
	keepPause = 250 * time.Millisecond
	// keepBlind is the time between two checks while the path cannot be watched: any user can use
	// up all inotify instances of its own uid (inotify(7)).
	keepBlind = time.Second
	// keepAgain is the time before the next attempt after a failed one.
	keepAgain = 5 * time.Second
	// keepLocked is that time if another process holds the lock on the directory.
	keepLocked = time.Second
	// farewell is how long a listener whose file is gone still accepts clients that connected
	// before.
	farewell = time.Second
)

// keep publishes the socket again whenever its file is no longer at the path. A program of
// agentinit's uid can unlink the file. Without the file, no status, stop or health check would
// work.
func (s *Server) keep(ctx context.Context, socket *Socket, a *admission) {
	if s.cfg.Watch == nil || socket.Abstract() {
		return
	}
	w := s.cfg.Watch(socket.Name())
	defer w.Close()
	refused, blindness := "", "" // what was published last; "" while there is nothing to say
	for ctx.Err() == nil {
		unarmed := w.Arm() // before the path is checked
		if found, lost := socket.lost(); lost {
			refused = s.restore(ctx, socket, a, found, refused)
		} else {
			refused, blindness = "", s.awaitChange(ctx, w, unarmed, blindness)
		}
	}
}

// restore makes the file of the socket again, and returns the reason if it cannot. It publishes a reason
// that is not the same as before.
func (s *Server) restore(ctx context.Context, socket *Socket, a *admission, found, before string) (refused string) {
	err := socket.renew(ctx, a, s.cfg.Owner)
	fields := map[string]any{"socket": socket.Name(), "found": found, "restored": err == nil}
	again := keepPause
	if err != nil {
		refused = err.Error()
		fields["reason"] = refused
		if again = keepAgain; errors.Is(err, errLocked) {
			again = keepLocked
		}
	}
	if err == nil || refused != before {
		if n, ok := s.lost.Pass(time.Now()); ok {
			fields["suppressed"] = n
			s.publish(event.Warn, EventSocketLost, fields)
		}
	}
	sleep.For(ctx, again)
	return refused
}

// awaitChange returns when the path may name another file. If it cannot be watched, awaitChange returns
// the reason after a while, and publishes it unless it is the same as before.
func (s *Server) awaitChange(ctx context.Context, w PathWatch, unarmed error, before string) (blindness string) {
	err := unarmed
	if err == nil {
		before = ""
		sleep.For(ctx, keepPause)
		err = w.Wait(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return ""
	}
	if blindness = err.Error(); blindness != before && !errors.Is(err, context.Canceled) {
		s.trouble(fmt.Sprintf("the control socket cannot be watched (%s): looking at it every %s", blindness, keepBlind))
	}
	sleep.For(ctx, keepBlind)
	return blindness
}

// lost tells whether the path no longer names the socket's file, and what it names instead. The
// kernel keeps the inode of a bound socket as long as the socket exists, so no other file can have
// its number.
func (s *Socket) lost() (found string, lost bool) {
	now, err := os.Lstat(s.name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "nothing", true
	case err != nil:
		return err.Error(), true
	case os.SameFile(now, s.file):
		return "", false
	case now.Mode().Type() == fs.ModeSocket:
		return "another socket", true
	}
	return "another file", true
}

// renew listens again and replaces whatever is at the path, except a listener from outside the box.
// Such a listener is another agentinit that started while the file was gone, and the two would
// replace each other's socket for ever.
func (s *Socket) renew(ctx context.Context, a *admission, owner func(int) (string, bool)) error {
	if err := restoreDir(filepath.Dir(s.name)); err != nil {
		return err
	}
	switch unlock, err := lockDir(filepath.Dir(s.name)); {
	case err == nil:
		s.locked = false
		defer unlock()
	case !errors.Is(err, errLocked):
		return err
	case !s.locked:
		// An agentinit that starts holds the lock for a moment. Any process that can read the
		// directory can hold it for ever, so the next attempt does without.
		s.locked = true
		return err
	}
	if pid, there := listenerAt(ctx, s.name, a.strays); there && outsider(pid, owner) {
		return fmt.Errorf("cannot listen on %s: process %d, which does not belong to this box, listens there", s.name, pid)
	}
	for _, name := range []string{s.name, tempName(s.name)} {
		if err := moveAside(name); err != nil {
			return err
		}
	}
	fresh, err := bind(s.cfg)
	if err != nil {
		return err
	}
	s.file, s.listener = fresh.file, fresh.listener
	a.turnTo(fresh.listener)
	return nil
}

// outsider tells whether a listener does not belong to the box. The kernel names the process that
// called listen(2). If that process has ended, nothing tells whose it was: then it was one of a
// program that has passed the socket on, because another agentinit listens itself.
func outsider(pid int, owner func(int) (string, bool)) bool {
	if pid == os.Getpid() {
		return false
	}
	if _, ours := owner(pid); ours {
		return false
	}
	return pid == 0 || startTime(pid) != ""
}

// moveAside renames a directory that is in the way: a socket cannot replace it, and it may hold
// files of others. bind replaces everything else.
func moveAside(name string) error {
	if now, err := os.Lstat(name); err != nil || !now.IsDir() {
		return nil
	}
	return os.Rename(name, name+".moved-"+rand.Text())
}

// restoreDir makes the directory of the socket again if another file is in its place.
func restoreDir(dir string) error {
	if now, err := os.Stat(dir); err != nil || now.IsDir() {
		return nil // renew reports the error
	}
	if err := os.Rename(dir, dir+".moved-"+rand.Text()); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o755)
}

// listenerAt returns the process that listens at the path. The pid is 0 if the process is in
// another pid namespace or not known. A listener whose queue stays full does not count: nothing tells
// whose it is, and an agentinit would accept.
func listenerAt(ctx context.Context, path string, strays *lateclose.Strays) (pid int, there bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := api.DialSocket(ctx, path)
	if err != nil {
		return 0, false
	}
	// The listener may have passed descriptors already.
	defer strays.Interrupt(func() { _ = conn.Close() })
	cred, err := api.Listener(conn)
	if err != nil {
		return 0, true
	}
	return int(cred.Pid), true
}
