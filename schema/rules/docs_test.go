package rules

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/plan"
)

var update = flag.Bool("update", false, "rewrite generated files")

// TestDocIsCurrent checks that docs/rules.md matches the table of rules.
func TestDocIsCurrent(t *testing.T) {
	const path = "../../docs/rules.md"
	want := document()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not current; run: go test ./schema ./schema/rules -run Current -update", path)
	}
}

func document() []byte {
	var b bytes.Buffer
	b.WriteString(`# Rules

<!-- Made from schema/rules; do not edit. go test ./schema ./schema/rules -run Current -update -->

What ` + "`agentctl config validate`" + ` checks, in the order of evaluation. E is an error and
blocks, W is advice. ` + "`agentctl config explain CODE`" + ` prints one of these.

Codes below 100 are about the sections that older manifests have too; E100, W100 and up
are about programs and the box.

`)
	for _, r := range All() {
		fmt.Fprintf(&b, "## %s (%s)\n\n%s\n", r.Code, r.Severity, escapeTable(r.Doc))
		if r.Remedy != "" {
			fmt.Fprintf(&b, "\n*Instead:* %s\n", escapeTable(r.Remedy))
		}
		b.WriteString("\n")
	}
	b.WriteString("## Codes without a rule\n\nNone of them gets a new meaning.\n\n| Code | State |\n|---|---|\n")
	retired := Retired()
	for _, code := range slices.Sorted(maps.Keys(retired)) {
		fmt.Fprintf(&b, "| %s | %s |\n", code, retired[code])
	}
	return b.Bytes()
}

// tomlBlock is a block of TOML in Markdown.
var tomlBlock = regexp.MustCompile("(?ms)^```toml[^\n]*\n(.*?)^```$")

// TestManifestsOfThePages checks every manifest that a page shows. A block may be a part of a manifest:
// it may leave out the command of a program, and need a program of another block.
func TestManifestsOfThePages(t *testing.T) {
	facts := plan.Facts{Env: map[string]string{"ANTHROPIC_API_KEY": "x"}} // howto/secrets.md requires it
	root, checked := os.DirFS("../.."), 0
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md"} {
		pages, err := fs.Glob(root, pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := fs.ReadFile(root, page)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range tomlBlock.FindAllSubmatchIndex(text, -1) {
				checked++
				line := 1 + bytes.Count(text[:at[2]], []byte("\n"))
				for _, f := range Validate(page, text[at[2]:at[3]], Facts{}, facts).Findings {
					if f.Severity == schema.Error && f.Code != "E123" && f.Code != "E125" {
						t.Errorf("the manifest at %s:%d: %v", page, line, f)
					}
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d manifests were found", checked)
	}
}

func escapeTable(s string) string { return strings.ReplaceAll(s, "<", "&lt;") }
