package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// Set by the linker (-X main.version=…).
var (
	version = "devel"
	commit  = ""
)

// versions is what `agentctl version --json` prints.
type versions struct {
	Client api.Version  `json:"client"`
	Server *api.Version `json:"server,omitempty"`
}

func newVersion(c *cli) *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:               "version",
		Short:             "Show the versions of agentctl and of the running agentinit",
		Args:              cobra.NoArgs,
		ValidArgsFunction: noFiles,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := versions{Client: api.Version{Version: version, Commit: commit, Go: runtime.Version()}}
			var asked error
			if !clientOnly {
				client := c.client()
				var server api.Version
				if server, asked = client.Version(cmd.Context()); asked == nil {
					out.Server = &server
				}
			}
			if err := c.printVersions(out); err != nil {
				return err
			}
			return failed(asked)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "do not ask agentinit")
	return cmd
}

func (c *cli) printVersions(v versions) error {
	if c.json {
		return c.printJSON(v)
	}
	line(c.stdout, "agentctl  %s %s", v.Client.Version, v.Client.Go)
	if v.Server != nil {
		line(c.stdout, "agentinit %s %s, pid %d", printable(v.Server.Version), printable(v.Server.Go), v.Server.PID)
	}
	return nil
}
