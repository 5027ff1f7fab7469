package agentinit_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/docs"
	"github.com/dreamlab-ai/agentinit/internal/manual/manpage"
)

// usageOfAgentinit is what agentinit --help prints. It is read from the source: a
// test inside cmd/agentinit would link the renderer of man pages into the binary
// whose initialisation is measured there.
func usageOfAgentinit(t *testing.T) string {
	t.Helper()
	_, all := sources(t)
	for _, s := range all {
		if s.name != filepath.Join("cmd", "agentinit", "main.go") {
			continue
		}
		if text, ok := constants(s.file)["usageText"]; ok {
			return text
		}
	}
	t.Fatal("cmd/agentinit/main.go has no usageText")
	return ""
}

// agentinit(1) says what --help and the reference say.
func TestManPageOfAgentinit(t *testing.T) {
	_, usage, _ := strings.Cut(usageOfAgentinit(t), "usage:\n")
	usage, rest, _ := strings.Cut(usage, "\n\n")
	about, _, found := strings.Cut(rest, "\n\nsignals:")
	if !found {
		t.Fatal("agentinit --help has another form")
	}
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
			t.Fatalf("there is no topic %s", c.topic)
		}
		body.WriteString(manpage.Chapter(c.title, chapters[c.topic]))
	}
	body.WriteString("# SEE ALSO\n\n**agentctl**(1), **agentbox.toml**(5)\n")
	page := manpage.Page{Name: "agentinit", Section: 1, Short: "PID 1 and process supervisor of a container", Body: body.String()}
	manpage.Check(t, filepath.Join("docs", "man", "agentinit.1"), page.Roff())
}
