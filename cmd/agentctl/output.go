package main

import (
	"context"
	"errors"
	"io"
)

// output is agentctl's stdout. It remembers the first write that failed. So no command can exit
// with 0 after its output was lost: with a full disk behind `>`, the file would otherwise look like
// an empty answer. After a failure nothing more is written, and end ends a stream without a reader.
//
// A reader that has ended (`| head`) is not an error: the write raises SIGPIPE, as in other tools.
// If SIGPIPE is ignored, the error is reported, as coreutils do.
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

// reason is the reason why a command failed in addition to its output; nil if only the output
// failed.
func (o *output) reason(err error) error {
	if o.err != nil && (errors.Is(err, o.err) || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}
