package supervisord

import (
	"errors"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/supervisor/control/supervisord"
)

// eventListener converts an event listener to a program, if agentinit makes one of its events.
func (c *converter) eventListener(s *section, name string) error {
	t := c.table(s)
	events, missing := t.events()
	switch {
	case t.err != nil:
		return t.err
	case len(events) == 0:
		c.out.WriteByte('\n')
		c.check("[%s] is not converted: %s", s.name, strings.Join(missing, "; "))
		c.quote(s)
		return nil
	}
	return c.program(s, name)
}

// events reads the events of a listener. missing says why some of them are left out.
func (t *table) events() (events, missing []string) {
	list, _ := t.plain("events")
	if t.variables {
		return nil, []string{"its events depend on a variable"}
	}
	for name := range strings.SplitSeq(strings.ToUpper(list), ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		err := supervisord.CheckEvent(name)
		none, isNone := errors.AsType[*supervisord.NoEquivalentError](err)
		switch {
		case err == nil:
			events = append(events, name)
		case isNone:
			missing = append(missing, none.Error())
		default:
			t.fail("events", err.Error(), "write names of supervisord's events with commas between them")
		}
	}
	if len(events)+len(missing) == 0 {
		t.fail("events", "the event listener names no event", "write events=PROCESS_STATE, or the events that it needs")
	}
	return events, missing
}

// listens are the words before the command of a listener: agentctl connects it to agentinit.
func (t *table) listens() []any {
	events, missing := t.events()
	for _, why := range missing {
		t.c.check("events: %s", why)
	}
	words := []any{"agentctl", "listen", "--events", strings.Join(events, ",")}
	size, sized := t.number("buffer_size")
	if sized && size < 1 {
		t.fail("buffer_size", "supervisord refuses it", "write a number of 1 or more")
	}
	if sized && size != supervisord.DefaultBuffer {
		if size > supervisord.MaxBuffer {
			t.c.check("buffer_size = %d: the most is %d", size, supervisord.MaxBuffer)
			size = supervisord.MaxBuffer
		}
		words = append(words, "--buffer", strconv.FormatInt(size, 10))
	}
	if handler, ok := t.plain("result_handler"); ok && handler != "supervisor.dispatchers:default_handler" {
		t.c.check("result_handler = %s: agentinit runs no Python code; each result but OK means that the event was rejected", handler)
	}
	if merged, _ := t.boolean("redirect_stderr"); merged {
		t.fail("redirect_stderr", "supervisord refuses it in an event listener", "drop it: standard output is for the protocol alone")
	}
	if to, _ := t.logFile("stdout_logfile"); to == file {
		t.c.check("stdout_logfile = %s: standard output of an event listener is for the protocol alone and goes to no log", t.byKey["stdout_logfile"].value)
	}
	t.c.check("if the event listener changes the box, as memmon does, it needs control = true; if it only ends the box, drop it: essential = true or on_fatal = \"shutdown\" in a program does that")
	return append(words, "--")
}
