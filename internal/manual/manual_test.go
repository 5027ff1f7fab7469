package manual

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rivo/uniseg"
)

const document = `# A document

<!-- not
shown -->

Some words with ` + "`code`" + `, **weight**, a [link](https://example.org/) and an escape \_.

## ` + "`[programs.<name>]`" + `

| Key | Type | Default | Meaning |
|---|---|---|---|
| ` + "`a`" + ` | string | – | What it is \| is not, said in more words than fit into one line of eighty columns. |
| ` + "`b`" + ` | integer | ` + "`1`" + ` |  |

- an item that is so long that it does not fit into one line, with [text](x.md) and more
- 数据库 of wide characters

` + "```sh\nagentctl status   # | not a table |\n# not a heading\n```" + `

### deeper

More.

## ` + "`[programs.<name>.ready]`" + `

Readiness.

## programs_more
`

const laidOut = `A DOCUMENT

Some words with code, weight, a link and an escape _.

[programs.<name>]

  a
      Type: string
      What it is | is not, said in more words than fit into one line of eighty
      columns.
  b
      Type: integer
      Default: 1

- an item that is so long that it does not fit into one line, with text and more
- 数据库 of wide characters

    agentctl status   # | not a table |
    # not a heading

deeper

More.

[programs.<name>.ready]

Readiness.

programs_more

`

func TestTerminal(t *testing.T) {
	if got := Terminal(document, 80); got != laidOut {
		t.Errorf("got\n%s\nwant\n%s", got, laidOut)
	}
}

func TestSection(t *testing.T) {
	for what, want := range map[string]string{
		"programs":        "[programs.<name>] deeper [programs.<name>.ready]",
		"[programs":       "[programs.<name>] deeper [programs.<name>.ready]",
		"PROGRAMS_MORE":   "programs_more",
		"deeper":          "deeper",
		"program":         "",
		"not a heading":   "",
		"":                "",
		"programs.<name>": "[programs.<name>] deeper [programs.<name>.ready]",
		"programs.web":    "[programs.<name>] deeper [programs.<name>.ready]",

		"programs.ready":     "[programs.<name>.ready]",
		"programs.web.ready": "[programs.<name>.ready]",
		"programs.web.wrong": "",
	} {
		text, headings, found := Section(document, what)
		var have []string
		for line := range strings.Lines(Terminal(text, 80)) {
			if line = strings.TrimSpace(line); slices.Contains(headings, line) {
				have = append(have, line)
			}
		}
		if got := strings.Join(have, " "); got != want || found != (want != "") {
			t.Errorf("%q: found %v, sections %q, want %q", what, found, got, want)
		}
	}
	if _, headings, _ := Section(document, "x"); len(headings) != 4 {
		t.Errorf("headings %q", headings)
	}
}

// An entry of a table has its heading above it, and no other entry of the table.
func TestSectionOfAnEntry(t *testing.T) {
	const tables = `# Signals

| signal | effect |
|---|---|
| TERM, INT | stop |
| HUP | apply |

## ` + "`[programs.<name>]`" + `

| Key | Type | Meaning |
|---|---|---|
| ` + "`user`" + ` | string | Who. |
| ` + "`logs`" + ` | table | Where. |

## ` + "`[programs.<name>.logs]`" + `

| Key | Type | Meaning |
|---|---|---|
| ` + "`path`" + ` | string | The file. |

## Others

| place | meaning |
|---|---|
| here | first |

| file | meaning |
|---|---|
| ` + "`/etc/box.toml`" + ` | manifest |
| ` + "`path`" + ` (old) | none |
`
	const user = "[programs.<name>]\n\n  user\n      Type: string\n      Who.\n"
	const path = "[programs.<name>.logs]\n\n  path\n      Type: string\n      The file.\n"
	for what, want := range map[string]string{
		"HUP":                    "SIGNALS\n\n  HUP\n      apply\n",
		"int":                    "SIGNALS\n\n  TERM, INT\n      stop\n",
		"user":                   user,
		"programs.user":          user,
		"programs.<name>.user":   user,
		"programs.logs.path":     path,
		"programs.web.logs.path": path,
		"path":                   path + "\nOthers\n\n  path (old)\n      none\n",
		"/etc/box.toml":          "Others\n\n  /etc/box.toml\n      manifest\n",
		"signal":                 "",
		"programs.logs.user":     "",
		"logs.path.user":         "",
	} {
		text, _, found := Section(tables, what)
		if got := strings.TrimRight(Terminal(text, 80), "\n"); got != strings.TrimRight(want, "\n") || found != (want != "") {
			t.Errorf("%q: found %v\n%s\nwant\n%s", what, found, got, want)
		}
	}
}

// No line of a reference document is wider than the terminal, except for words and code that are
// wider themselves. No markup is left in the output.
func TestReferenceFits(t *testing.T) {
	files, err := filepath.Glob("../../docs/*/*.md")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range append(files, "../../docs/manifest.md", "../../docs/rules.md", "../../docs/states.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(Terminal(string(text), 80)) {
			line = strings.TrimRight(line, "\n")
			words := strings.TrimLeft(line, " -*0123456789.")
			if uniseg.StringWidth(line) > 80 && strings.Contains(words, " ") && !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: %d columns: %s", file, uniseg.StringWidth(line), line)
			}
			if strings.Contains(line, "](") || strings.HasPrefix(line, "|") {
				t.Errorf("%s: Markdown is left: %s", file, line)
			}
		}
	}
}

func FuzzTerminal(f *testing.F) {
	f.Add(document, 80)
	f.Add("| a |\n|---|\n||\n", 1)
	f.Fuzz(func(t *testing.T, text string, columns int) {
		Terminal(text, columns%200)
		Section(text, "programs")
	})
}
