package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newEvent(c *cli) *cobra.Command {
	return group("event", "Emit and follow the agents' events", newEventEmit(c), newEventTail(c))
}

func newEventEmit(c *cli) *cobra.Command {
	var in struct {
		Kind        string          `json:"kind"`
		Payload     json.RawMessage `json:"payload,omitempty"`
		SessionID   string          `json:"session_id,omitempty"`
		ExecutionID string          `json:"execution_id,omitempty"`
		Subject     string          `json:"subject,omitempty"`
	}
	cmd := &cobra.Command{
		Use: "emit KIND [PAYLOAD]", Short: "Record an event; PAYLOAD is a JSON object", Args: cobra.RangeArgs(1, 2), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Kind = args[0]
			if len(args) == 2 {
				if !json.Valid([]byte(args[1])) {
					return usageError("PAYLOAD must be a JSON object")
				}
				in.Payload = json.RawMessage(args[1])
			}
			raw, err := c.ask(cmd.Context(), http.MethodPost, "/v1/events", nil, in)
			return show(c, raw, err, func(r struct{ ID string }) { line(c.stdout, "%s", printable(r.ID)) })
		},
	}
	cmd.Flags().StringVar(&in.SessionID, "session", "", "session it belongs to")
	cmd.Flags().StringVar(&in.ExecutionID, "execution", "", "execution it belongs to")
	cmd.Flags().StringVar(&in.Subject, "subject", "", "what it is about")
	return cmd
}

func newEventTail(c *cli) *cobra.Command {
	var kinds []string
	var after uint64
	var count int
	cmd := &cobra.Command{
		Use: "tail", Short: "Follow events", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{"kind": kinds}
			if cmd.Flags().Changed("after") {
				q.Set("after", strconv.FormatUint(after, 10))
			}
			return c.events(cmd.Context(), "/v1/events/stream", q, func(e streamed) (bool, error) {
				count--
				return count == 0, c.printEvent(e)
			})
		},
	}
	cmd.Flags().StringSliceVar(&kinds, "kind", nil, "only of this kind; a dot at the end makes it a prefix")
	cmd.Flags().Uint64Var(&after, "after", 0, "begin after this number instead of now; 0 is the oldest kept")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many")
	return cmd
}

func (c *cli) printEvent(e streamed) error {
	if c.json {
		return c.printJSONLine(json.RawMessage(e.data))
	}
	var v struct {
		TS, Kind, Subject string
		Payload           json.RawMessage
	}
	if err := json.Unmarshal(e.data, &v); err != nil {
		return failed(fmt.Errorf("cannot read an event: %w", err))
	}
	if e.event == "lagged" {
		v.Kind, v.Payload = e.event, e.data
	}
	line(c.stdout, "%s", printable(strings.Join(strings.Fields(e.id+" "+v.TS+" "+v.Kind+" "+v.Subject), " ")+" "+string(v.Payload)))
	return nil
}

func newAgent(c *cli) *cobra.Command {
	return group("agent", "Start, follow and end agents", newAgentSpawn(c), newAgentList(c), newAgentLogs(c), newAgentKill(c), newAgentAttach(c))
}

type agent struct {
	AgentID  string   `json:"agentId"`
	Name     string   `json:"name"`
	Status   string   `json:"status"`
	PID      int      `json:"pid"`
	ExitCode *int     `json:"exit_code"`
	Signal   string   `json:"signal"`
	Command  []string `json:"command"`
	Refused  uint64   `json:"refused_calls"`
}

func newAgentSpawn(c *cli) *cobra.Command {
	var in struct {
		Command   string            `json:"command"`
		Args      []string          `json:"args,omitempty"`
		Env       map[string]string `json:"env,omitempty"`
		Cwd       string            `json:"cwd,omitempty"`
		Name      string            `json:"name,omitempty"`
		Labels    map[string]string `json:"labels,omitempty"`
		TimeoutS  int               `json:"timeout_s,omitempty"`
		StdinOpen bool              `json:"stdin_open,omitempty"`
	}
	cmd := &cobra.Command{
		Use: "spawn COMMAND [ARG...]", Short: "Start an agent", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Command, in.Args = args[0], args[1:]
			raw, err := c.ask(cmd.Context(), http.MethodPost, "/v1/agents", nil, in)
			return show(c, raw, err, func(a agent) { line(c.stdout, "%s", printable(a.AgentID)) })
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // flags after the command belong to the agent's command
	f.Var((*pairs)(&in.Env), "env", "variable; may be repeated")
	f.StringVar(&in.Cwd, "cwd", "", "working directory")
	f.StringVar(&in.Name, "name", "", "name for people; commands take the id")
	f.Var((*pairs)(&in.Labels), "label", "label; may be repeated")
	f.Var((*wholeSeconds)(&in.TimeoutS), "timeout", "end it after this long")
	f.BoolVar(&in.StdinOpen, "stdin", false, "keep its standard input open for attach")
	return cmd
}

func newAgentList(c *cli) *cobra.Command {
	var status string
	cmd := &cobra.Command{
		Use: "ps", Short: "List agents", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := c.ask(cmd.Context(), http.MethodGet, "/v1/agents", params("status", status), nil)
			return show(c, raw, err, func(l items[agent]) {
				rows := make([][]cell, len(l.Items))
				for i, a := range l.Items {
					state := a.Status
					if a.ExitCode != nil {
						state += " " + strconv.Itoa(*a.ExitCode)
					}
					rows[i] = texts(a.AgentID, a.Name, joinedBy(state, " ", a.Signal), strconv.Itoa(a.PID), strconv.FormatUint(a.Refused, 10),
						escape.Shell(a.Command...))
				}
				c.table([]column{{Title: "ID"}, {Title: "NAME"}, {Title: "STATUS"}, {Title: "PID"}, {Title: "REFUSED"}, {Title: "COMMAND", Max: 60}}, rows)
			})
		},
	}
	cmd.Flags().StringVar(&status, "status", "", "only running, exited, failed or terminated")
	return cmd
}

func agentPath(id, action string) string { return "/v1/agents/" + segment(id) + action }

func newAgentLogs(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "logs ID", Short: "Print the output of an agent until it ends", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error { return c.followAgent(cmd.Context(), args[0]) },
	}
}

// followAgent copies an agent's output to stdout, and ends when the agent ends.
func (c *cli) followAgent(ctx context.Context, id string) error {
	ended := false
	err := c.events(ctx, agentPath(id, "/events"), nil, func(e streamed) (bool, error) {
		var v struct {
			Payload struct {
				Data, Encoding, Signal string
				Code                   *int
			}
		}
		if err := json.Unmarshal(e.data, &v); err != nil {
			return true, failed(fmt.Errorf("cannot read an event: %w", err))
		}
		if c.json {
			if err := c.printJSONLine(json.RawMessage(e.data)); err != nil {
				return true, err
			}
		}
		p := v.Payload
		switch {
		case e.event == "exit":
			ended = true
			if p.Code != nil && *p.Code == 0 {
				return true, nil
			}
			return true, &exitError{exitFailure, fmt.Errorf("the agent ended: %s", ending(p.Code, p.Signal))}
		case c.json:
		case e.event == "lagged":
			line(c.stderr, "some output is lost")
		case e.event == "stdout", e.event == "stderr":
			text := p.Data
			if p.Encoding == "base64" {
				raw, err := base64.StdEncoding.DecodeString(p.Data)
				if err != nil {
					return true, failed(fmt.Errorf("cannot read an event: %w", err))
				}
				text = string(raw)
			}
			w := c.stdout
			if e.event == "stderr" {
				w = c.stderr
			}
			fmt.Fprint(w, c.tidy(text))
		}
		return false, nil
	})
	if err == nil && !ended && ctx.Err() == nil {
		return failed(errors.New("the box ended the stream before the agent ended"))
	}
	return err
}

func ending(code *int, signal string) string {
	if code != nil {
		return "exit status " + strconv.Itoa(*code)
	}
	return printable(signal)
}

func newAgentKill(c *cli) *cobra.Command {
	grace := 10
	cmd := &cobra.Command{
		Use: "kill ID...", Short: "Kill agents and every process that they started", Args: cobra.MinimumNArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{}
			if cmd.Flags().Changed("grace") {
				q.Set("grace_s", strconv.Itoa(grace))
			}
			for _, id := range args {
				raw, err := c.ask(cmd.Context(), http.MethodDelete, agentPath(id, ""), q, nil)
				if err := show(c, raw, err, func(a agent) { line(c.stdout, "%s: %s", printable(a.AgentID), printable(a.Status)) }); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().Var((*wholeSeconds)(&grace), "grace", "time between SIGTERM and SIGKILL")
	return cmd
}

func newAgentAttach(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "attach ID", Short: "Follow the output of an agent and send it standard input", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			// A read of standard input cannot be interrupted. The process exits soon after the
			// agent has ended.
			go func() {
				if err := c.feed(ctx, args[0]); err != nil && ctx.Err() == nil {
					line(c.stderr, "agentctl: input: %s", err)
				}
			}()
			return c.followAgent(ctx, args[0])
		},
	}
}

// maxPiece is how much one input call accepts.
const maxPiece = 32 << 10

func (c *cli) feed(ctx context.Context, id string) error {
	buf := make([]byte, maxPiece)
	for {
		n, err := c.stdin.Read(buf)
		end := err != nil
		if err != nil && err != io.EOF {
			return err
		}
		in := map[string]any{"data": base64.StdEncoding.EncodeToString(buf[:n]), "encoding": "base64", "eof": end}
		if n > 0 || end {
			_, err := c.ask(ctx, http.MethodPost, agentPath(id, "/input"), nil, in)
			// A conflict says that the agent has no open standard input, for example because it has ended
			// after its last line. No byte is lost. After another refusal, the agent may wait for the end.
			refused, ok := errors.AsType[*api.Error](err)
			if closed := n == 0 && ok && refused.Status == http.StatusConflict; err != nil && !closed {
				return err
			}
		}
		if end {
			return nil
		}
	}
}
