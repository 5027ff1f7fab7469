package main

import (
	"slices"

	"github.com/spf13/cobra"
)

// foreignVerbs are words of other tools (supervisorctl, docker, systemctl, kubectl), with the commands that
// do the same here. They are not aliases, because output and exit status differ. So each answer
// says what to write.
var foreignVerbs = [][2]string{
	{"ps", "use: agentctl status"},
	{"list", "use: agentctl status"},
	{"ls", "use: agentctl status"},
	{"show", "use: agentctl status --json NAME, or agentctl why NAME"},
	{"describe", "use: agentctl status NAME, or agentctl why NAME"},
	{"inspect", "use: agentctl status NAME, or agentctl why NAME"},
	{"info", "use: agentctl status NAME, or agentctl why NAME"},
	{"pid", "use: agentctl status NAME -o 'jsonpath={.programs[0].pid}'"},
	{"get", "use: agentctl status, with -o json, yaml, name, jsonpath=… or go-template=…"},
	{"cat", "use: agentctl config show, or agentctl plan for the commands of programs"},
	{"shell", "use the engine: podman exec -it BOX sh, kubectl exec -it POD -- sh"},
	{"history", "use: agentctl audit for requests, or agentctl events for states"},
	{"avail", "use: agentctl status, or agentctl plan for what the manifest says"},
	{"tail", "use: agentctl logs -n 100 NAME, with -f to follow"},
	{"maintail", "agentinit logs to its own output; use: agentctl events"},
	{"clear", "logs rotate by themselves: see logs.max_bytes in the manifest"},
	{"journal", "use: agentctl logs NAME"},
	{"fg", "use: agentctl logs -f NAME"},
	{"open", "name the socket of the box: agentctl --socket PATH"},
	{"attach", "use: agentctl logs -f NAME"},
	{"exec", "use: agentctl sandbox test NAME -- COMMAND, which runs it as the program runs, or the engine: podman exec, kubectl exec"},
	{"reread", "use: agentctl apply --dry-run"},
	{"update", "use: agentctl apply"},
	{"reload", "use: agentctl apply, or agentctl signal HUP NAME for one program"},
	{"daemon-reload", "use: agentctl apply"},
	{"diff", "use: agentctl apply --dry-run"},
	{"edit", "edit the manifest, then use: agentctl apply"},
	{"rollback", "write the former manifest into the file, then use: agentctl apply"},
	{"undo", "write the former manifest into the file, then use: agentctl apply"},
	{"add", "write it into the manifest, then use: agentctl apply"},
	{"remove", "set enabled = false in the manifest, then use: agentctl apply"},
	{"rm", "set enabled = false in the manifest, then use: agentctl apply"},
	{"enable", "set autostart = true in the manifest, then use: agentctl apply"},
	{"disable", "set autostart = false in the manifest, then use: agentctl apply"},
	{"pause", "use: agentctl stop NAME; a schedule is paused by it"},
	{"resume", "use: agentctl start NAME"},
	{"trigger", "use: agentctl run NAME"},
	{"scale", "set instances in the manifest, then use: agentctl apply"},
	{"up", "use: agentctl start NAME, or agentctl start --all"},
	{"down", "use: agentctl stop NAME, or agentctl shutdown for the whole box"},
	{"kill", "use: agentctl signal KILL NAME, or agentctl stop NAME, which ends in KILL"},
	{"poweroff", "use: agentctl shutdown"},
	{"health", "use: agentctl ready, or agentctl status"},
	{"check", "use: agentctl config validate"},
	{"validate", "use: agentctl config validate"},
	{"lint", "use: agentctl config validate"},
	{"explain", "use: agentctl why NAME for a program, or agentctl config explain CODE for a finding"},
}

// foreignHint says what to use in place of a word.
func foreignHint(word string) string {
	i := slices.IndexFunc(foreignVerbs, func(row [2]string) bool { return row[0] == word })
	return foreignVerbs[i][1]
}

// refuseForeign answers a word of another tool with the command to use here. A word that is a
// command of agentctl is not refused.
func refuseForeign(root *cobra.Command) {
	for _, row := range foreignVerbs {
		word, hint := row[0], row[1]
		if slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == word || c.HasAlias(word) }) {
			continue
		}
		root.AddCommand(&cobra.Command{
			Use: word, Hidden: true, DisableFlagParsing: true, ValidArgsFunction: noFiles,
			RunE: func(*cobra.Command, []string) error {
				return usageError("unknown command %q for %q; %s", word, root.Name(), hint)
			},
		})
	}
}
