package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/internal/signame"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// client returns a client of the socket: the one on the command line, otherwise the one in the
// environment, otherwise the default. A socket on the command line is trusted. In a box, any other
// socket must belong to PID 1.
func (c *cli) client() *api.Client {
	if c.socket != "" {
		return api.NewClient(c.socket)
	}
	if s, ok := c.lookupEnv(api.EnvSocket); ok && s != "" {
		return api.NewClient(s).ExpectInit(c.proc)
	}
	return api.NewClient("").ExpectInit(c.proc)
}

// failed is the one place that gives a failed request its exit status. An error that has one keeps it.
func failed(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*exitError](err); ok {
		return err
	}
	if _, ok := errors.AsType[*api.UnreachableError](err); ok {
		return &exitError{exitUnreachable, err}
	}
	if refused, ok := errors.AsType[*api.Error](err); ok {
		return &exitError{exitOf(refused.Code), &refusal{refused}}
	}
	return &exitError{exitFailure, err}
}

func exitOf(code api.Code) int {
	switch code {
	case api.CodeUnknownProgram:
		return exitUnreachable
	case api.CodeBadRequest, api.CodeAmbiguous:
		return exitUsage
	}
	return exitFailure
}

// refusal is an error of the box as describe writes it.
type refusal struct{ of *api.Error }

func (r *refusal) Error() string { return describe(r.of) }
func (r *refusal) Unwrap() error { return r.of }

func describe(e *api.Error) string {
	text := printable(e.Error())
	for _, f := range e.Findings {
		text += "\n" + printable(f.String())
	}
	return text
}

// usageError is an error on the command line that cobra does not detect.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// printJSON writes one value, indented.
func (c *cli) printJSON(v any) error {
	return c.encode(v, "  ")
}

// printJSONLine writes one value of a stream on a line of its own.
func (c *cli) printJSONLine(v any) error {
	return c.encode(v, "")
}

// encode writes all JSON of agentctl. It escapes the characters that a terminal would act on:
// programs choose parts of many values.
func (c *cli) encode(v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := c.stdout.Write(escape.JSON(b.Bytes()))
	return err
}

// copyJSONLines writes the lines of a stream as encode does.
func (c *cli) copyJSONLines(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if _, err := c.stdout.Write(escape.JSON(line)); err != nil {
			return err
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// quietEnd returns nil if the user's own interrupt ended a followed stream.
func quietEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return failed(err)
}

// completeNames offers the running box's programs, and the sets that have several instances.
func (c *cli) completeNames(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return c.complete(cmd, prefix, true)
}

// completeOne is completeNames for a command that takes one program, and no set.
func (c *cli) completeOne(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return c.complete(cmd, prefix, false)
}

func (c *cli) complete(cmd *cobra.Command, prefix string, sets bool) ([]string, cobra.ShellCompDirective) {
	status, err := c.client().Status(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	instances := map[string]int{}
	for _, p := range status.Programs {
		instances[p.Group]++
	}
	var names []string
	offer := func(name, description string) {
		if strings.HasPrefix(name, prefix) {
			names = append(names, cobra.CompletionWithDesc(name, description))
		}
	}
	for _, p := range status.Programs {
		if n := instances[p.Group]; sets && n > 1 {
			offer(p.Group, plural.Of(n, "instance"))
			instances[p.Group] = 1 // it is offered
		}
		offer(p.Name, p.Display())
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSignal offers the signals of the kernel, then programs.
func (c *cli) completeSignal(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return c.completeNames(cmd, args, prefix)
	}
	// Shells compare letters exactly, so the offer has the same prefix as the word.
	short := !strings.HasPrefix(prefix, "SIG")
	var names []string
	for n := syscall.Signal(1); n < 32; n++ {
		name := signame.Of(n)
		if !short {
			name = "SIG" + name
		}
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// noFiles is the completion for commands without arguments.
func noFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// line writes one line. stdout remembers its own error; an error of stderr cannot be reported
// anywhere.
func line(w io.Writer, format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
