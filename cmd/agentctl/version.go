package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/supervisor/control/api"
)

// Set by the linker (-X main.version=…).
var (
	version = "devel"
	commit  = "unknown"
)

// versions is the output of `agentctl version --json`.
type versions struct {
	Client api.Version  `json:"client"`
	Server *api.Version `json:"server,omitempty"`
	// Modules are the modules linked into this agentctl.
	Modules []linkedModule `json:"modules,omitempty"`
}

// linkedModule is one Go module with its checksum from go.sum (Go Modules Reference, "go.sum
// files"). A module that a directory replaces has no checksum.
type linkedModule struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	Sum     string `json:"sum,omitempty"`
}

// linkedModules reads the build information in this binary.
func linkedModules() []linkedModule {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	out := make([]linkedModule, len(info.Deps))
	for i, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		out[i] = linkedModule{d.Path, d.Version, d.Sum}
	}
	return out
}

func newVersion(c *cli) *cobra.Command {
	var clientOnly bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of agentctl and of the running agentinit",
		Long: `Show the versions of agentctl and of the running agentinit. --json also lists
the Go modules that agentctl is linked with, each with its checksum from go.sum.`,
		Args:              noArgs,
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

// ownVersion is what --version prints, in the form of agentinit --version.
func ownVersion() string { return "agentctl " + version + " (" + commit + ")" }

func (c *cli) printVersions(v versions) error {
	if c.json {
		v.Modules = linkedModules()
		return c.printJSON(v)
	}
	line(c.stdout, "%s %s", ownVersion(), runtime.Version())
	if s := v.Server; s != nil {
		line(c.stdout, "agentinit %s (%s) %s, pid %d", printable(s.Version), printable(s.Commit), printable(s.Go), s.PID)
	}
	return nil
}
