package api

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"
)

// ListenProtocol is what the connection of an event listener is upgraded to: the protocol between
// supervisord and its event listeners, version 3.0.
const ListenProtocol = "supervisord.eventlistener"

// ListenQuery says what an event listener of supervisord gets. Zero values leave the choice to the server.
type ListenQuery struct {
	Events []string
	Buffer int
	Pool   string
}

// Listen becomes an event listener. The server sends nothing before the listener has written that it is
// ready, so the connection itself can be the standard input and output of a program. The caller closes it.
func (c *Client) Listen(ctx context.Context, q ListenQuery) (*net.UnixConn, error) {
	v := url.Values{"events": q.Events}
	if q.Buffer != 0 {
		v.Set("buffer", strconv.Itoa(q.Buffer))
	}
	if q.Pool != "" {
		v.Set("pool", q.Pool)
	}
	conn, _, err := c.upgrade(ctx, http.MethodGet, "/v1/listen?"+v.Encode(), ListenProtocol)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}
