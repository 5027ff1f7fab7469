package main

import (
	"context"
	"errors"
	"io"
)

// output is agentctl's stdout. It remembers the first write that failed, so that
// no command can end with 0 having said nothing: a full disk behind `>` would
// else look like an empty answer. Nothing is written after a failure, and end
// ends a stream that has lost its reader.
//
// A reader that has gone (`| head`) is no failure of ours: the write raises
// SIGPIPE, as it does for every other tool. Who has SIGPIPE ignored gets the
// error, as from coreutils.
type output struct {
	io.Writer
	end context.CancelFunc
	err error
}

func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.Writer.Write(p)
	if err != nil {
		o.err = err
		o.end()
	}
	return n, err
}

// reason is why a command failed beside its output, nil if that alone is it.
func (o *output) reason(err error) error {
	if o.err != nil && (errors.Is(err, o.err) || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}
