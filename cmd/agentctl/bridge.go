package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

func newBridge(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "bridge",
		Short: "Connect the orchestrator's host to the box, over stdin and stdout",
		Long: `Join standard input and output to the box's orchestrator, for a host that runs

  docker exec -i BOX agentctl bridge

and speaks JSON-RPC 2.0 over it, one object a line, beginning with initialize.
The manifest's adapters.orchestrator must be "stdio-bridge". The end of standard
input detaches the host; agents keep running. The box is ready (/ready) only
while a host is attached.`,
		Args:              noArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := c.client().Bridge(cmd.Context())
			if err != nil {
				return failed(err)
			}
			defer conn.Close()
			return c.joinBridge(cmd.Context(), conn)
		},
	}
}

// joinBridge copies in both directions until the box closes the channel. The box also closes it
// after the host has ended its side.
func (c *cli) joinBridge(ctx context.Context, conn *api.BridgeConn) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	hostDone := make(chan struct{})
	go func() {
		// After an error the host has not ended its side: it still talks, and the box takes no more.
		if _, err := io.Copy(conn, c.stdin); err == nil {
			close(hostDone)
		}
		_ = conn.CloseWrite()
	}()
	_, err := io.Copy(c.stdout, conn)
	select {
	case <-hostDone:
		return nil // the host has detached, as it wanted
	default:
	}
	if ctx.Err() != nil {
		return nil
	}
	if err == nil {
		err = errors.New("the box has closed the channel")
	}
	return failed(err)
}
