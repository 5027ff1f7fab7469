package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dreamlab-ai/agentinit/docs"
	"github.com/dreamlab-ai/agentinit/internal/manual/manpage"
)

// commandTree is the command tree that the help shows.
func commandTree() *cobra.Command {
	root := newRoot(&cli{lookupEnv: func(string) (string, bool) { return "", false }, stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard})
	root.InitDefaultCompletionCmd()
	refuseUnknown(root)
	root.DisableAutoGenTag = true
	return root
}

// options lists the command's own flags.
func options(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		text := "--" + f.Name
		if f.Shorthand != "" {
			text = "-" + f.Shorthand + ", " + text
		}
		if name != "" {
			text += " " + name
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "[]" && f.Name != "system" {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(&b, "- `%s`: %s\n", text, manpage.Escape(usage))
	})
	return b.String()
}

// helpBody is the help text of a command, below headings of the given level.
func helpBody(cmd *cobra.Command, level string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", "```\n"+cmd.UseLine()+"\n```")
	long := cmp.Or(cmd.Long, cmd.Short+".")
	b.WriteString(manpage.Prose(long))
	if list := options(cmd.LocalFlags()); list != "" {
		fmt.Fprintf(&b, "%s\n\n%s\n", level+" Options", list)
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "%s\n\n```\n%s\n```\n\n", level+" Examples", strings.TrimRight(cmd.Example, "\n"))
	}
	return b.String()
}

// documented returns the subcommands that a user can call, in the order of the help.
func documented(parent *cobra.Command) (out []*cobra.Command) {
	for _, cmd := range parent.Commands() {
		if cmd.IsAvailableCommand() || cmd.Name() == "help" {
			out = append(out, cmd)
		}
	}
	return out
}

// commandReference is docs/reference/agentctl.md.
func commandReference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# agentctl\n\n<!-- Made from the help of agentctl; do not edit. make generate -->\n\n")
	b.WriteString(manpage.Prose(root.Long))
	b.WriteString("## Options of every command\n\n" + options(root.PersistentFlags()) + "\n")
	for _, g := range append(root.Groups(), &cobra.Group{Title: "Other commands:"}) {
		fmt.Fprintf(&b, "## %s\n\n", strings.TrimSuffix(g.Title, ":"))
		for _, cmd := range documented(root) {
			if cmd.GroupID != g.ID {
				continue
			}
			walk(cmd, func(cmd *cobra.Command) {
				fmt.Fprintf(&b, "### %s\n\n%s", cmd.CommandPath(), helpBody(cmd, "####"))
			})
		}
	}
	return b.String()
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range documented(cmd) {
		walk(sub, visit)
	}
}

// manPages are agentctl(1), a page for each verb and agentbox.toml(5).
func manPages(root *cobra.Command) []manpage.Page {
	var commands strings.Builder
	commands.WriteString("# COMMANDS\n\n")
	pages := []manpage.Page{}
	var names []string
	for _, cmd := range documented(root) {
		name := "agentctl-" + cmd.Name()
		names = append(names, "**"+name+"**(1)")
		fmt.Fprintf(&commands, "- `%s`: %s. See **%s**(1).\n", cmd.Name(), manpage.Escape(cmd.Short), name)
		var body strings.Builder
		walk(cmd, func(sub *cobra.Command) {
			title := "# SYNOPSIS\n\n"
			if sub != cmd {
				title = "# " + strings.ToUpper(sub.CommandPath()) + "\n\n"
			}
			body.WriteString(title + helpBody(sub, "##"))
		})
		body.WriteString("# OPTIONS OF EVERY COMMAND\n\n" + options(root.PersistentFlags()) + "\n# SEE ALSO\n\n**agentctl**(1), **agentinit**(1), **agentbox.toml**(5)\n")
		pages = append(pages, manpage.Page{Name: name, Section: 1, Short: cmd.Short, Body: body.String()})
	}
	topic := func(name string) string {
		for _, t := range docs.Topics() {
			if t.Name == name {
				return t.Text
			}
		}
		panic("no topic " + name)
	}
	return append(pages,
		manpage.Page{Name: "agentctl", Section: 1, Short: root.Short, Body: "# SYNOPSIS\n\n```\nagentctl [OPTION...] COMMAND [ARG...]\n```\n\n# DESCRIPTION\n\n" +
			manpage.Prose(root.Long) + commands.String() + "\n# OPTIONS\n\n" + options(root.PersistentFlags()) + "\n" +
			manpage.Chapter("Environment", topic("environment")) + "# SEE ALSO\n\n" + strings.Join(names, ", ") + ", **agentinit**(1), **agentbox.toml**(5)\n"},
		manpage.Page{Name: "agentbox.toml", Section: 5, Short: "manifest of agentinit", Body: manpage.Chapter("Description", topic("manifest")) +
			"# SEE ALSO\n\n**agentinit**(1), **agentctl**(1), **agentctl-config**(1)\n"},
	)
}

var manDirectory = filepath.Join("..", "..", "docs", "man")

// The command reference and the man pages match the help.
func TestReferenceIsCurrent(t *testing.T) {
	root := commandTree()
	manpage.Check(t, filepath.Join("..", "..", "docs", "reference", "agentctl.md"), []byte(commandReference(root)))
	wanted := map[string]bool{"agentinit.1": true}
	for _, p := range manPages(root) {
		file := fmt.Sprintf("%s.%d", p.Name, p.Section)
		wanted[file] = true
		manpage.Check(t, filepath.Join(manDirectory, file), p.Roff())
	}
	entries, err := os.ReadDir(manDirectory)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !wanted[e.Name()] {
			t.Errorf("docs/man/%s is the page of no command", e.Name())
		}
	}
}

// Every command has a short help and a group, every flag has a description, and no line of the help is
// too long for a narrow terminal.
func TestHelpSentences(t *testing.T) {
	walk(commandTree(), func(cmd *cobra.Command) {
		for line := range strings.SplitSeq(cmd.Long+"\n"+cmd.UsageString(), "\n") {
			asWritten := strings.Contains(cmd.Example, line) || strings.Contains(line, cmd.UseLine())
			ofCobra := strings.HasPrefix(cmd.CommandPath(), "agentctl completion")
			if utf8.RuneCountInString(line) > helpColumns && !asWritten && !ofCobra {
				t.Errorf("%s: a line of the help has more than %d columns: %s", cmd.CommandPath(), helpColumns, line)
			}
		}
		short := cmd.Short
		if short == "" || strings.ToUpper(short[:1]) != short[:1] || strings.HasSuffix(short, ".") {
			t.Errorf("%s: the short help %q must begin with a capital and end without a full stop", cmd.CommandPath(), short)
		}
		if cmd.Parent() == cmd.Root() && cmd.GroupID == "" && cmd.Name() != "help" && cmd.Name() != "completion" {
			t.Errorf("%s stands in no group of the help", cmd.Name())
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no description", cmd.CommandPath(), f.Name)
			}
			if cmd.HasParent() && f.Name != "help" && !strings.Contains(helpBody(cmd, "##"), "--"+f.Name) {
				t.Errorf("%s --%s is not in the reference", cmd.CommandPath(), f.Name)
			}
		})
	})
}

// groff renders every page without a warning.
func TestManPagesRender(t *testing.T) {
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip("needs groff")
	}
	pages, err := filepath.Glob(filepath.Join(manDirectory, "*.[15]"))
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	options := []string{"-man", "-Tutf8", "-Kutf8", "-t", "-ww", "-z"}
	if out, err := exec.Command("groff", append(options, pages...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
