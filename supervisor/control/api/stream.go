package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Logs calls each for every line of output that q selects, in order of time.
// It returns nil when the stream has ended, each's error when that returns one.
// A stream that breaks off in the middle is *UnreachableError.
func (c *Client) Logs(ctx context.Context, q LogQuery, each func(LogLine) error) error {
	return stream(ctx, c, "/v1/logs", q.values(), each)
}

// Events calls each for every event after number since that the ring still
// holds, and with follow for every later one. A Lagged event stands for events
// that are gone.
func (c *Client) Events(ctx context.Context, since uint64, follow bool, each func(Event) error) error {
	v := url.Values{"since": {strconv.FormatUint(since, 10)}}
	if follow {
		v.Set("follow", "true")
	}
	return stream(ctx, c, "/v1/events", v, each)
}

// stream reads JSON lines. An empty line is a sign of life and nothing more;
// the last line is an empty object, so that an end can be told from a break.
func stream[T any](ctx context.Context, c *Client, path string, query url.Values, each func(T) error) error {
	resp, err := c.send(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		line := lines.Bytes()
		switch string(line) {
		case "":
			continue
		case StreamEnd:
			return nil
		}
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			return Errorf(CodeInternal, "cannot read a line of %s: %v", path, err)
		}
		if err := each(v); err != nil {
			return err
		}
	}
	err = lines.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		return Errorf(CodeInternal, "a line of %s is longer than %d bytes", path, maxLine)
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return c.lost(ctx, err)
}

// StreamEnd is the line that ends a stream which is complete.
const StreamEnd = "{}"
