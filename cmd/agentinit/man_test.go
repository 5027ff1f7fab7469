package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/docs"
	"github.com/dreamlab-ai/agentinit/internal/manual/manpage"
)

// agentinit(1) says what --help and the reference say.
func TestManPageIsCurrent(t *testing.T) {
	_, usage, _ := strings.Cut(usageText, "usage:\n")
	usage, rest, _ := strings.Cut(usage, "\n\n")
	about, _, _ := strings.Cut(rest, "\n\nsignals:")
	chapters := map[string]string{}
	for _, topic := range docs.Topics() {
		chapters[topic.Name] = topic.Text
	}
	var body strings.Builder
	body.WriteString("# SYNOPSIS\n\n```\n" + usage + "\n```\n\n# DESCRIPTION\n\n" + manpage.Prose(about))
	for _, c := range []struct{ title, topic string }{
		{"Signals", "signals"}, {"Exit status", "exit-statuses"}, {"Environment", "environment"}, {"Files", "files"},
	} {
		if chapters[c.topic] == "" {
			t.Fatalf("no topic %s", c.topic)
		}
		body.WriteString(manpage.Chapter(c.title, chapters[c.topic]))
	}
	body.WriteString("# SEE ALSO\n\n**agentctl**(1), **agentbox.toml**(5)\n")
	page := manpage.Page{Name: "agentinit", Section: 1, Short: "PID 1 and process supervisor of a container", Body: body.String()}
	manpage.Check(t, filepath.Join("..", "..", "docs", "man", "agentinit.1"), page.Roff())
}
