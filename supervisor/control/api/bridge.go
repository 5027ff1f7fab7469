package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
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
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	b, err := c.upgrade(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return b, nil
}

func (c *Client) upgrade(ctx context.Context, conn net.Conn) (*BridgeConn, error) {
	if err := conn.SetDeadline(time.Now().Add(quickTimeout)); err != nil {
		return nil, c.lost(ctx, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agentinit/v1/bridge", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", BridgeProtocol)
	if err := req.Write(conn); err != nil {
		return nil, c.lost(ctx, err)
	}
	r := bufio.NewReaderSize(conn, maxHeadBytes)
	resp, err := http.ReadResponse(r, req)
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
	return &BridgeConn{conn, r}, nil
}
