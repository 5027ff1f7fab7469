package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
)

// How many bytes supervisorctl shows of a log.
const (
	tailBytes   = 1600
	followBytes = 1024 // of the past, with -f
)

// tail shows the end of what a program printed, with control characters escaped.
func (s *supervisorctl) tail(ctx context.Context, args []string) error {
	name, stream, bytes, follow, err := tailArguments(args)
	if err != nil {
		s.fail(exitFailure, "Error: %s", printable(err.Error()))
		return nil
	}
	status, err := s.box.Status(ctx)
	if err != nil {
		return err
	}
	c := choose(status.Programs, []string{name})[0]
	if c.Group || len(c.Programs) == 0 {
		s.fail(exitFailure, "%s: ERROR (no such process name)", printable(name))
		return nil
	}
	q := api.LogQuery{Names: []string{c.Programs[0].Name}, Stream: stream, Lines: bytes} // a line has at least its newline
	kept := bytes
	if kept == 0 {
		kept = math.MaxInt // -0: all
	}
	var past []byte
	cursor := ""
	if err := s.box.Logs(ctx, q, func(l api.LogLine) error {
		past = supervisord.AppendTail(past, l, kept)
		cursor = cmp.Or(l.Cursor, cursor)
		return nil
	}); err != nil {
		return err
	}
	text := string(past)
	if !follow {
		line(s.stdout, "%s", printableLines(text))
		return nil
	}
	fmt.Fprintf(s.stdout, "==> Press Ctrl-C to exit <==\n%s", printableLines(text))
	q.Lines, q.After, q.Follow = 0, cursor, true
	err = s.box.Logs(ctx, q, func(l api.LogLine) error {
		_, err := fmt.Fprint(s.stdout, printableLines(supervisord.Raw(l)))
		return err
	})
	if ctx.Err() != nil {
		line(s.stdout, "")
		return nil
	}
	return err
}

// tailArguments reads [-f|-N] NAME [stdout|stderr].
func tailArguments(args []string) (name, stream string, bytes int, follow bool, err error) {
	modifier, modified := strings.CutPrefix(args[0], "-")
	if modified {
		args = args[1:]
	}
	if len(args) == 0 {
		return "", "", 0, false, errors.New("tail requires process name")
	}
	name, stream, bytes, follow = args[0], "stdout", tailBytes, modifier == "f"
	if len(args) > 1 {
		stream = strings.ToLower(args[len(args)-1])
	}
	switch {
	case follow:
		bytes = followBytes
	case modified:
		if bytes, err = strconv.Atoi(modifier); err != nil || bytes < 0 {
			return "", "", 0, false, fmt.Errorf("bad argument -%s", modifier)
		}
	}
	if stream != "stdout" && stream != "stderr" {
		return "", "", 0, false, fmt.Errorf("bad channel '%s'", stream)
	}
	return name, stream, bytes, follow, nil
}
