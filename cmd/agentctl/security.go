package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/compose"
	"github.com/dreamlab-ai/agentinit/schema/hardening"
)

func newSecurity(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "security", Short: "Show what a manifest allows, and how exposed a program is"}
	cmd.AddCommand(&cobra.Command{
		Use:   "show [FILE|PROGRAM]",
		Short: "Show the profile of a manifest, or how exposed a program is",
		Long: `With the name of a program, show what bounds it in the running box, and a score
from 0 (confined) to 10 (root without limits). Without a name, show the security
profile of FILE: the baseline with the exceptions that FILE makes. --json prints
the content of the event SecurityProfileApplied.
` + fileHelp + `

Exit status: 0 done, 1 the manifest is invalid, 2 wrong command line.`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			names, _ := c.completeOne(cmd, args, prefix)
			return names, cobra.ShellCompDirectiveDefault // files, too
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && isProgram(args[0]) {
				x, err := c.client().Confinement(cmd.Context(), args[0])
				if err != nil {
					return failed(err)
				}
				return c.printExposure(x)
			}
			box, _, err := c.box(compose.Input{System: catalog.System()}, c.manifestArg(args))
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(box.Security)
			}
			return printSecurity(c.stdout, box.Security)
		},
	})
	return cmd
}

func printSecurity(w io.Writer, a hardening.Applied) error {
	var b strings.Builder
	writeProfile(&b, "baseline", a.Baseline)
	for _, e := range a.Exceptions {
		title := "exception " + e.Feature
		if e.Target != "box" {
			title += " (" + e.Target + ")"
		}
		writeProfile(&b, title, e.Delta)
		if e.Reason != "" {
			fmt.Fprintf(&b, "  reason: %s\n", printable(e.Reason))
		}
	}
	for _, c := range a.Conflicts {
		fmt.Fprintf(&b, "conflict: %s want %s; %s wins\n", strings.Join(c.Exceptions, " and "), strings.Join(c.Values, ", "), c.Winner)
	}
	writeProfile(&b, "effective", a.Effective)
	if a.Sidecar != nil {
		writeProfile(&b, "model server", *a.Sidecar)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeProfile writes the settings of a profile, or that it has none.
func writeProfile(b *strings.Builder, title string, p hardening.Profile) {
	b.WriteString(title + "\n")
	before := b.Len()
	entry := func(name string, values ...string) {
		if text := strings.Join(values, " "); text != "" {
			fmt.Fprintf(b, "  %s: %s\n", name, printable(text))
		}
	}
	entry("user", p.User)
	if p.ReadOnly {
		entry("read_only", "true")
	}
	entry("cap_drop", p.CapDrop...)
	entry("cap_add", p.CapAdd...)
	entry("security_opt", p.SecurityOpt...)
	if p.PidsLimit > 0 {
		entry("pids_limit", strconv.Itoa(p.PidsLimit))
	}
	entry("tmpfs", p.Tmpfs...)
	entry("writable_volumes", p.WritableVolumes...)
	entry("devices", p.Devices...)
	entry("group_add", p.GroupAdd...)
	entry("runtime", p.Runtime)
	for _, r := range p.DeviceRequests {
		entry("device_request", request(r))
	}
	if b.Len() == before {
		b.WriteString("  nothing\n")
	}
}

func request(r catalog.DeviceRequest) string {
	count := fmt.Sprint(r.Count)
	if r.Count < 0 {
		count = "all"
	}
	return fmt.Sprintf("%s %s %v", r.Driver, count, r.Capabilities)
}
