package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newAdapters(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "adapters", Short: "Show the adapter slots, their classes and their health", Args: noArgs, ValidArgsFunction: noFiles,
		Long: `Show the adapter slots, their classes and their health.

LAST ERROR is why a slot is not healthy, with the time of the error. A healthy
slot has one until such a call succeeds again. On a full disk, reads go on, so
its health is good. Without calls, the cause may have gone since.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := c.ask(cmd.Context(), http.MethodGet, "/v1/adapters", nil, nil)
			type row struct {
				Slot, Wanted, Active, State, Since string
				LastError                          string `json:"last_error"`
				LastErrorAt                        string `json:"last_error_at"`
				ContractVersion                    string `json:"contract_version"`
			}
			return show(c, raw, err, func(l items[row]) {
				colour := map[string]string{"healthy": green, "degraded": yellow, "unhealthy": red, "off": dim}
				rows := make([][]cell, len(l.Items))
				for i, s := range l.Items {
					if s.LastError != "" {
						s.LastError = s.LastErrorAt + " " + s.LastError
					}
					rows[i] = texts(s.Slot, s.Wanted, s.Active, s.State, s.Since, s.ContractVersion, s.LastError)
					rows[i][3].Style = colour[s.State]
				}
				c.table(titled("SLOT", "WANTED", "ACTIVE", "STATE", "SINCE", "CONTRACT", "LAST ERROR"), rows)
			})
		},
	}
}

func newMem(c *cli) *cobra.Command {
	ns := "default"
	cmd := group("mem", "Store and search memory", newMemStore(c, &ns), newMemSearch(c, &ns), newMemGet(c, &ns), newMemRemove(c, &ns), newMemList(c, &ns))
	cmd.PersistentFlags().StringVarP(&ns, "namespace", "n", ns, "namespace of the entries, for every command of mem")
	return cmd
}

func memPath(ns, key string) string {
	return "/v1/memory/" + segment(ns) + "/" + segment(key)
}

func newMemStore(c *cli, ns *string) *cobra.Command {
	var metadata string
	var ttl int64
	cmd := &cobra.Command{
		Use: "store KEY VALUE|-", Short: "Store a value", Args: cobra.ExactArgs(2), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := c.text(args[1])
			if err != nil {
				return err
			}
			in := map[string]any{"value": value}
			if metadata != "" {
				if !json.Valid([]byte(metadata)) {
					return usageError("--metadata must be a JSON object")
				}
				in["metadata"] = json.RawMessage(metadata)
			}
			if cmd.Flags().Changed("ttl") {
				in["ttl_s"] = ttl
			}
			raw, err := c.ask(cmd.Context(), http.MethodPut, memPath(*ns, args[0]), nil, in)
			return show(c, raw, err, func(struct{}) {})
		},
	}
	cmd.Flags().StringVar(&metadata, "metadata", "", "JSON object to store with it")
	cmd.Flags().Int64Var(&ttl, "ttl", 0, "seconds until it is forgotten")
	return cmd
}

// entry is a value or a hit.
type entry struct {
	Key, Value string
	Score      float64
}

func newMemSearch(c *cli, ns *string) *cobra.Command {
	var mode string
	limit := 10
	cmd := &cobra.Command{
		Use: "search QUERY", Short: "Find values that are similar to a text", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			in := map[string]any{"query": args[0], "limit": limit}
			if mode != "" {
				in["mode"] = mode
			}
			raw, err := c.ask(cmd.Context(), http.MethodPost, memPath(*ns, "search"), nil, in)
			return show(c, raw, err, func(l items[entry]) {
				rows := make([][]cell, len(l.Items))
				for i, e := range l.Items {
					rows[i] = texts(fmt.Sprintf("%.3f", e.Score), e.Key, strings.ReplaceAll(e.Value, "\n", " "))
				}
				c.table(titled("SCORE", "KEY", "VALUE"), rows)
			})
		},
	}
	cmd.Flags().StringVar(&mode, "mode", "", "vector (default), text or hybrid")
	cmd.Flags().IntVar(&limit, "limit", limit, "at most so many, 1-100")
	return cmd
}

func newMemGet(c *cli, ns *string) *cobra.Command {
	return &cobra.Command{
		Use: "get KEY", Short: "Print a value", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := c.ask(cmd.Context(), http.MethodGet, memPath(*ns, args[0]), nil, nil)
			return show(c, raw, err, func(e entry) { fmt.Fprint(c.stdout, c.tidy(e.Value)) })
		},
	}
}

func newMemRemove(c *cli, ns *string) *cobra.Command {
	return &cobra.Command{
		Use: "rm KEY...", Short: "Forget values", Args: cobra.MinimumNArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, key := range args {
				raw, err := c.ask(cmd.Context(), http.MethodDelete, memPath(*ns, key), nil, nil)
				if err := c.deleted(key, raw, err); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// deleted fails if the item did not exist, with --json too.
func (c *cli) deleted(name string, raw json.RawMessage, err error) error {
	r, err := shown(c, raw, err, func(struct{ Deleted bool }) {})
	if err == nil && !r.Deleted {
		return &exitError{exitFailure, fmt.Errorf("there is no %q", name)}
	}
	return err
}

func newMemList(c *cli, ns *string) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the keys of a namespace", Args: noArgs, ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return pages(cmd.Context(), c, "/v1/memory/"+segment(*ns), url.Values{}, func(e entry, raw json.RawMessage) error {
				if c.json {
					return c.printJSONLine(raw)
				}
				line(c.stdout, "%s", printable(e.Key))
				return nil
			})
		},
	}
}

func newPod(c *cli) *cobra.Command {
	return group("pod", "Read and write the pod's documents", newPodPut(c), newPodGet(c), newPodList(c), newPodRemove(c))
}

// podPath escapes each segment of a path that a user wrote.
func podPath(path string) (string, error) {
	if !strings.HasPrefix(path, "/") {
		return "", usageError("a pod's path must begin with /")
	}
	return "/pods" + (&url.URL{Path: path}).EscapedPath(), nil
}

func newPodPut(c *cli) *cobra.Command {
	contentType := "application/ld+json"
	cmd := &cobra.Command{
		Use: "put PATH [FILE|-]", Short: "Write a document, or make a container when PATH ends with /", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := podPath(args[0])
			if err != nil {
				return err
			}
			req := api.AdapterRequest{Method: http.MethodPut, Path: path, Header: http.Header{"Content-Type": {contentType}}}
			if !strings.HasSuffix(path, "/") {
				name := "-"
				if len(args) == 2 {
					name = args[1]
				}
				body, err := c.input(name)
				if err != nil {
					return err
				}
				req.Body = bytes.NewReader(body)
			}
			raw, err := c.answered(cmd.Context(), req)
			return show(c, raw, err, func(struct{}) {})
		},
	}
	cmd.Flags().StringVar(&contentType, "type", contentType, "media type of the document")
	return cmd
}

func newPodGet(c *cli) *cobra.Command {
	var accept string
	cmd := &cobra.Command{
		Use: "get PATH", Short: "Print a document as it is", Args: cobra.ExactArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := podPath(args[0])
			if err != nil {
				return err
			}
			req := api.AdapterRequest{Method: http.MethodGet, Path: path, Header: http.Header{}}
			if accept != "" {
				req.Header.Set("Accept", accept)
			}
			resp, err := c.adapters(cmd.Context(), req)
			if err != nil {
				return failed(err)
			}
			defer resp.Body.Close()
			_, err = io.Copy(c.stdout, resp.Body)
			return failed(err)
		},
	}
	cmd.Flags().StringVar(&accept, "accept", "", "media types to ask for")
	return cmd
}

func newPodList(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "ls [PATH/]", Short: "List a container", Args: cobra.MaximumNArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{}
			if len(args) == 1 {
				q.Set("container", args[0])
			}
			return pages(cmd.Context(), c, "/v1/pods", q, func(e struct{ Path string }, raw json.RawMessage) error {
				if c.json {
					return c.printJSONLine(raw)
				}
				line(c.stdout, "%s", printable(e.Path))
				return nil
			})
		},
	}
}

func newPodRemove(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rm PATH...", Short: "Delete documents and empty containers", Args: cobra.MinimumNArgs(1), ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				path, err := podPath(arg)
				if err != nil {
					return err
				}
				raw, err := c.ask(cmd.Context(), http.MethodDelete, path, nil, nil)
				if err := c.deleted(arg, raw, err); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
