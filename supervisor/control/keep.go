package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// PathWatch tells when a path may have begun to name another file. Whoever arms
// it before a look misses nothing. An error of Wait is its end; context.Canceled is
// the end that comes with that of the box.
type PathWatch interface {
	Arm() error
	Wait(ctx context.Context) error
	Close()
}

const (
	// keepPause is the least time between two looks, however often programs
	// change what is watched.
	keepPause = 250 * time.Millisecond
	// keepBlind is the time between two looks while the path cannot be watched: any
	// user can take all the inotify instances of its own uid (inotify(7)).
	keepBlind = time.Second
	// keepAgain is the time until the next attempt where one has failed.
	keepAgain = 5 * time.Second
	// farewell is how long a listener whose file is gone still accepts who has
	// found it before.
	farewell = time.Second
)

// keep publishes the socket anew whenever its file is no longer at the path: a
// program of agentinit's uid can unlink it, and a box that nobody can ask would
// be the end of every status, stop and health check.
func (s *Server) keep(ctx context.Context, socket *Socket, a *admission) {
	if s.cfg.Watch == nil || socket.Abstract() {
		return
	}
	w := s.cfg.Watch(socket.Name())
	defer w.Close()
	said, blindness := "", ""
	for ctx.Err() == nil {
		blind := w.Arm()
		found, lost := socket.lost()
		if !lost {
			said = ""
			if blind == nil {
				blindness = ""
				pause(ctx, keepPause)
				blind = w.Wait(ctx)
			}
			if blind != nil && ctx.Err() == nil {
				if why := blind.Error(); why != blindness && !errors.Is(blind, context.Canceled) {
					blindness = why
					s.trouble(fmt.Sprintf("the control socket cannot be watched (%s): looking at it every %s", why, keepBlind))
				}
				pause(ctx, keepBlind)
			}
			continue
		}
		err := socket.renew(ctx, a, s.cfg.Owner)
		fields := map[string]any{"socket": socket.Name(), "found": found, "restored": err == nil}
		if err == nil {
			pause(ctx, keepPause)
		} else {
			fields["reason"] = err.Error()
		}
		if err == nil || err.Error() != said {
			if n, ok := s.lost.pass(time.Now()); ok {
				fields["suppressed"] = n
				s.publish(event.Warn, EventSocketLost, fields)
			}
		}
		if said = ""; err != nil {
			said = err.Error()
			pause(ctx, keepAgain)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// lost reports whether the path does not name the socket's file any more, and
// what it names. The kernel keeps the file of a bound socket as long as the
// socket, so that no other can have its number meanwhile.
func (s *Socket) lost() (found string, lost bool) {
	now, err := os.Lstat(s.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
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

// renew listens anew and takes the path back from whatever is there, but for a
// listener from outside the box: that is another agentinit, which must have
// started while the file was gone, and two would take it from each other for ever.
func (s *Socket) renew(ctx context.Context, a *admission, owner func(int) (string, bool)) error {
	unlock, err := lockDir(filepath.Dir(s.name))
	if err != nil {
		return err
	}
	defer unlock()
	if pid, there := listenerAt(ctx, s.name); there {
		if _, ours := owner(pid); !ours && pid != os.Getpid() {
			return fmt.Errorf("cannot listen on %s: process %d listens there, which is none of this box's", s.name, pid)
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

// listenerAt returns the process that listens at the path, 0 if it is of another
// pid namespace or cannot be known.
func listenerAt(ctx context.Context, path string) (pid int, there bool) {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		// EAGAIN and the timeout: somebody is there who accepts nobody.
		return 0, errors.Is(err, unix.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded)
	}
	defer conn.Close()
	cred, err := api.Listener(conn.(*net.UnixConn))
	if err != nil {
		return 0, true
	}
	return int(cred.Pid), true
}
