package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// BridgeProtocol is what the connection of a bridge is upgraded to.
const BridgeProtocol = "agentbox.orchestrator"

// BridgeConn is the channel between an orchestrator's host and the box: lines of
// JSON-RPC 2.0 in both directions.
type BridgeConn struct {
	net.Conn
	r *bufio.Reader
}

// Read reads what the box sends.
func (b *BridgeConn) Read(p []byte) (int, error) { return b.r.Read(p) }

// CloseWrite tells the box that no more data comes.
func (b *BridgeConn) CloseWrite() error {
	half, ok := b.Conn.(interface{ CloseWrite() error })
	if !ok {
		return b.Conn.Close()
	}
	return half.CloseWrite()
}

var _ io.ReadWriteCloser = (*BridgeConn)(nil)

// Bridge becomes the host of the box's orchestrator. CodeUnsupported says that
// the box has no bridge. The caller closes the connection.
func (c *Client) Bridge(ctx context.Context) (*BridgeConn, error) {
	conn, r, err := c.upgrade(ctx, http.MethodPost, "/v1/bridge", BridgeProtocol)
	if err != nil {
		return nil, err
	}
	return &BridgeConn{conn, r}, nil
}

// upgrade changes the protocol of a connection. The reader may already hold bytes of the new protocol.
func (c *Client) upgrade(ctx context.Context, method, target, protocol string) (net.Conn, *bufio.Reader, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, c.lost(ctx, err)
	}
	r, err := c.switchOver(ctx, conn, method, target, protocol)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, r, nil
}

func (c *Client) switchOver(ctx context.Context, conn net.Conn, method, target, protocol string) (*bufio.Reader, error) {
	if err := conn.SetDeadline(time.Now().Add(quickTimeout)); err != nil {
		return nil, c.lost(ctx, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agentinit"+target, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	if err := req.Write(conn); err != nil {
		return nil, c.lost(ctx, err)
	}
	r := bufio.NewReaderSize(conn, maxHeadBytes)
	resp, err := http.ReadResponse(r, req)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = noAnswer(quickTimeout)
	}
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		if resp.StatusCode < 300 {
			return nil, Errorf(CodeInternal, "agentinit answered %s instead of changing the protocol", resp.Status)
		}
		return nil, readError(resp)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, c.lost(ctx, fmt.Errorf("cannot remove the deadline: %w", err))
	}
	return r, nil
}
