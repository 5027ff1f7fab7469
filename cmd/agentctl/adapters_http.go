package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// Limits for data from the box and from the user.
const (
	maxAnswer = 64 << 20
	maxInput  = 64 << 20
	maxEvent  = 1 << 20 // bytes of one line of an event stream
)

// segment escapes a name for a path. A path loses the segments "." and ".." on its way, so they are
// escaped, too.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// ask sends one request to the slots. in is JSON; nil means no body. It returns the answer
// unchanged.
func (c *cli) ask(ctx context.Context, method, path string, query url.Values, in any) (json.RawMessage, error) {
	req := api.AdapterRequest{Method: method, Path: path, Query: query}
	if in != nil {
		body, err := requestBody(in)
		if err != nil {
			return nil, err
		}
		req.Body, req.Header = bytes.NewReader(body), http.Header{"Content-Type": {"application/json"}}
	}
	return c.answered(ctx, req)
}

// requestBody is in as JSON.
func requestBody(in any) ([]byte, error) {
	if text, ok := notUTF8(reflect.ValueOf(in)); ok {
		return nil, usageError("%q is not valid UTF-8, so it cannot be sent unchanged", shortened(text))
	}
	return json.Marshal(in)
}

// notUTF8 returns the first text in a request that encoding/json would change: it replaces the bytes
// that are not UTF-8. A json.RawMessage is sent as it is, and the box checks it.
func notUTF8(v reflect.Value) (string, bool) {
	switch v.Kind() {
	case reflect.String:
		return v.String(), !utf8.ValidString(v.String())
	case reflect.Interface, reflect.Pointer:
		return notUTF8(v.Elem())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return "", false
		}
		for i := range v.Len() {
			if text, ok := notUTF8(v.Index(i)); ok {
				return text, true
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			for _, part := range []reflect.Value{key, v.MapIndex(key)} {
				if text, ok := notUTF8(part); ok {
					return text, true
				}
			}
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			if text, ok := notUTF8(field); ok {
				return text, true
			}
		}
	}
	return "", false
}

// shortened is as much of a text as an error message quotes.
func shortened(text string) string {
	if len(text) > 40 {
		return text[:40] + "..."
	}
	return text
}

func (c *cli) answered(ctx context.Context, req api.AdapterRequest) (json.RawMessage, error) {
	raw, _, err := c.exchange(ctx, req)
	return raw, err
}

func (c *cli) exchange(ctx context.Context, req api.AdapterRequest) (json.RawMessage, http.Header, error) {
	resp, err := c.adapters(ctx, req)
	if err != nil {
		return nil, nil, failed(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, nil, failed(err)
	case len(raw) > maxAnswer:
		return nil, nil, failed(fmt.Errorf("the answer is larger than %d bytes", maxAnswer))
	}
	return raw, resp.Header, nil
}

// show prints an answer: unchanged with --json, otherwise with the function text.
func show[T any](c *cli, raw json.RawMessage, err error, text func(T)) error {
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(raw)
	}
	v, err := decoded[T](raw)
	if err == nil {
		text(v)
	}
	return err
}

// shown is show for a caller that needs the answer itself, with --json too.
func shown[T any](c *cli, raw json.RawMessage, err error, text func(T)) (v T, _ error) {
	if err := show(c, raw, err, text); err != nil {
		return v, err
	}
	return decoded[T](raw)
}

func decoded[T any](raw json.RawMessage) (v T, err error) {
	if err = json.Unmarshal(raw, &v); err != nil {
		err = failed(fmt.Errorf("cannot read the answer: %w", err))
	}
	return v, err
}

// items is a list in an answer of the box: with an envelope or without.
type items[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next_cursor"`
}

func (l *items[T]) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, &l.Items)
	}
	type plain items[T]
	return json.Unmarshal(b, (*plain)(l))
}

// pages requests one page after the other and calls each for every row.
func pages[T any](ctx context.Context, c *cli, path string, query url.Values, each func(T, json.RawMessage) error) error {
	query.Set("limit", "1000")
	for {
		raw, header, err := c.exchange(ctx, api.AdapterRequest{Method: http.MethodGet, Path: path, Query: query})
		if err != nil {
			return err
		}
		page, err := decoded[items[json.RawMessage]](raw)
		if err != nil {
			return err
		}
		for _, row := range page.Items {
			v, err := decoded[T](row)
			if err != nil {
				return err
			}
			if err := each(v, row); err != nil {
				return err
			}
		}
		next := cmp.Or(page.Next, linkedCursor(header.Get("Link")))
		if next == "" {
			return nil
		}
		query.Set("cursor", next)
	}
}

// linkedCursor is the cursor of the next page if the answer is a list without an envelope: agentinit
// names it in one Link header, as in </v1/beads/ready?cursor=c>; rel="next".
func linkedCursor(link string) string {
	target, rel, _ := strings.Cut(strings.TrimPrefix(link, "<"), ">")
	u, err := url.Parse(target)
	if err != nil || !strings.Contains(rel, `rel="next"`) {
		return ""
	}
	return u.Query().Get("cursor")
}

// collect returns the rows of all pages as a slice.
func collect[T any](ctx context.Context, c *cli, path string, query url.Values) ([]T, error) {
	all := []T{}
	err := pages(ctx, c, path, query, func(v T, _ json.RawMessage) error {
		all = append(all, v)
		return nil
	})
	return all, err
}

// streamed is one event of an event stream.
type streamed struct {
	id, event string
	data      []byte
}

// events follows an event stream and calls each until each returns stop, the stream ends or the
// user interrupts.
func (c *cli) events(ctx context.Context, path string, query url.Values, each func(streamed) (stop bool, err error)) error {
	resp, err := c.adapters(ctx, api.AdapterRequest{
		Method: http.MethodGet, Path: path, Query: query, Header: http.Header{"Accept": {"text/event-stream"}},
	})
	if err != nil {
		return quietEnd(ctx, err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	var e streamed
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.event = value
		case "data":
			e.data = []byte(value)
		case "":
			if e.data == nil {
				continue
			}
			if e.event == "error" {
				return failed(problemOf(e.data))
			}
			if stop, err := each(e); stop || err != nil {
				return err
			}
			e = streamed{}
		}
	}
	if err := lines.Err(); err != nil {
		return quietEnd(ctx, err)
	}
	return nil
}

func problemOf(data []byte) error {
	var e api.Error
	if json.Unmarshal(data, &e) != nil || e.Message == "" {
		return errors.New("the stream ended with an error")
	}
	return &e
}

// open opens a file, or standard input for "-".
func (c *cli) open(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(c.stdin), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, failed(fmt.Errorf("cannot read %s: %w", printable(name), withoutPath(err)))
	}
	return f, nil
}

// input is the content of a file, or of standard input for "-".
func (c *cli) input(name string) ([]byte, error) {
	r, err := c.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err == nil && len(raw) > maxInput {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxInput)
	}
	return raw, failed(err)
}

// text is an argument, or the content of standard input for "-".
func (c *cli) text(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	raw, err := c.input(arg)
	return string(raw), err
}

// group is a command that only contains other commands.
func group(use, short string, sub ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	cmd.AddCommand(sub...)
	return cmd
}

// params puts the values that are not empty into a query.
func params(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}
