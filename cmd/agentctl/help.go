package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dreamlab-ai/agentinit/docs"
	"github.com/dreamlab-ai/agentinit/internal/manual"
	"github.com/dreamlab-ai/agentinit/schema"
)

// helpColumns is the width of a topic if stdout is not a terminal.
const helpColumns = 80

func newHelp(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND...|TOPIC [SECTION]]",
		Short: "Show the help of a command, or a topic of the reference",
		Long: "Show the help of a command, or a topic of the reference. With SECTION it shows\n" +
			"only the sections of the topic whose title begins with this word. SECTION may\n" +
			"also be one entry: a key (programs.logs.path, or path alone), an exit status, a\n" +
			"signal, a variable, an event, a metric. The name of a program may be left out:\n" +
			"programs.logs is the section [programs.<name>.logs].\n\nTopics:\n" + topicList(),
		Example: "  agentctl help restart\n  agentctl help manifest programs.logs\n  agentctl help rules E016\n  agentctl help exit-statuses 64",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return completeHelp(cmd.Root(), args, prefix), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				for _, t := range docs.Topics() {
					if t.Name == args[0] {
						return c.showTopic(t, args[1:])
					}
				}
			}
			target, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				word, hint := strings.Join(args, " "), ""
				if where := topicsWith(word); where != nil {
					return usageError("there is no command and no topic %q; use: %s", word, strings.Join(where, ", or "))
				}
				known := completeHelp(cmd.Root(), nil, "")
				for i := range known {
					known[i], _, _ = strings.Cut(known[i], "\t") // the description
				}
				if near, ok := schema.Nearest(word, known); ok {
					hint = " (did you mean " + near + "?)"
				}
				return usageError("there is no command and no topic %q%s; agentctl help help lists the topics", word, hint)
			}
			if target.Hidden { // a word of another tool: it says what to write instead
				return target.RunE(target, nil)
			}
			target.InitDefaultHelpFlag()
			return target.Help()
		},
	}
}

// topicsWith returns the commands that show word as a section or an entry of a topic.
func topicsWith(word string) (commands []string) {
	for _, t := range docs.Topics() {
		if _, _, ok := manual.Section(t.Text, word); ok {
			commands = append(commands, "agentctl help "+t.Name+" "+word)
		}
	}
	return commands
}

func topicList() string {
	var b strings.Builder
	for _, t := range docs.Topics() {
		fmt.Fprintf(&b, "  %-14s  %s\n", t.Name, t.Short)
	}
	return strings.TrimRight(b.String(), "\n")
}

// showTopic prints a document, or the requested section or entry of it.
func (c *cli) showTopic(t docs.Topic, section []string) error {
	text := t.Text
	if len(section) > 0 {
		what := strings.Join(section, " ")
		found, headings, ok := manual.Section(text, what)
		if !ok {
			return usageError("the topic %[1]s has no section %[2]q%[3]s; agentctl help %[1]s shows all", t.Name, what, nearest(headings, what))
		}
		text = found
	}
	columns := helpColumns
	if wide, ok := terminal(c.stdout); ok {
		columns = min(wide, 100)
	}
	return c.write([]byte(manual.Terminal(text, columns)))
}

// nearest names the sections that begin like the requested one.
func nearest(headings []string, what string) string {
	const most = 8
	what = strings.ToLower(strings.Trim(what, "[]"))
	best, found := 1, []string(nil) // one equal letter is not enough
	for _, h := range headings {
		title, n := strings.ToLower(strings.Trim(h, "[]")), 0
		for n < min(len(title), len(what)) && title[n] == what[n] {
			n++
		}
		if n > best {
			best, found = n, nil
		}
		if n == best && n > 1 && len(found) < most {
			found = append(found, h)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "; the nearest are " + strings.Join(found, ", ")
}

// completeHelp offers commands, subcommands of the words before, and topics.
func completeHelp(root *cobra.Command, args []string, prefix string) (out []string) {
	for _, t := range docs.Topics() {
		if len(args) == 1 && t.Name == args[0] {
			return completeSection(t.Text, prefix)
		}
	}
	parent, _, err := root.Find(args)
	if err != nil {
		return nil
	}
	for _, cmd := range parent.Commands() {
		if cmd.IsAvailableCommand() && strings.HasPrefix(cmd.Name(), prefix) {
			out = append(out, cobra.CompletionWithDesc(cmd.Name(), cmd.Short))
		}
	}
	for _, t := range docs.Topics() {
		if len(args) == 0 && strings.HasPrefix(t.Name, prefix) {
			out = append(out, cobra.CompletionWithDesc(t.Name, t.Short))
		}
	}
	return out
}

// completeSection offers the tables and codes that head the sections of a topic.
func completeSection(text, prefix string) (out []string) {
	_, headings, _ := manual.Section(text, "")
	for _, h := range headings {
		word, _, _ := strings.Cut(strings.Trim(h, "[]"), " ")
		word = strings.ReplaceAll(strings.TrimRight(word, ","), ".<name>", "")
		if strings.HasPrefix(word, prefix) && !slices.Contains(out, word) {
			out = append(out, word)
		}
	}
	return out
}
