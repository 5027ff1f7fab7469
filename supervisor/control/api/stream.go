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

// Logs calls each for every line of output that q selects, in order of time. It returns nil at the
// end of the stream, or the error that each returns. If the stream breaks off, the error is
// *UnreachableError.
func (c *Client) Logs(ctx context.Context, q LogQuery, each func(LogLine) error) error {
	return stream(ctx, c, "/v1/logs", q.values(), each)
}

// Events calls each for every event after number since that the ring still holds. With follow, it
// continues with later events. A Lagged event stands for events that were overwritten.
func (c *Client) Events(ctx context.Context, since uint64, follow bool, each func(Event) error) error {
	v := url.Values{"since": {strconv.FormatUint(since, 10)}}
	if follow {
		v.Set("follow", "true")
	}
	return stream(ctx, c, "/v1/events", v, each)
}

// stream reads JSON lines. An empty line only shows that the server is alive. The last line is an
// empty object, which tells a complete stream from a broken one.
func stream[T any](ctx context.Context, c *Client, path string, query url.Values, each func(T) error) error {
	resp, err := c.send(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	lines.Split(wholeLine)
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

// wholeLine is bufio.ScanLines, but drops a last line without its newline. A connection that broke in
// the middle of a line is reported as broken, not as a line that cannot be read.
func wholeLine(data []byte, _ bool) (advance int, token []byte, err error) {
	return bufio.ScanLines(data, false)
}

// StreamEnd is the line that ends a stream which is complete.
const StreamEnd = "{}"
