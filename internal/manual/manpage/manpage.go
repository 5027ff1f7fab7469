// Package manpage owns the man pages and the generated reference documents: it generates them and
// compares them with the files in the repository. It is for tests and must never be part of a
// binary.
package manpage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cpuguy83/go-md2man/v2/md2man"
)

// Check compares a generated file with the one in the repository. If UPDATE_GOLDEN is set in the
// environment, Check writes the file.
func Check(t *testing.T, file string, want []byte) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not what the code says now; make generate writes it anew", file)
	}
}

// Page is one man page.
type Page struct {
	Name    string // agentctl-status
	Section int
	Short   string // the one-line description for whatis(1)
	Body    string // Markdown of the sections after NAME; section titles are headings of level 1
}

var (
	comment = regexp.MustCompile(`(?s)<!--.*?-->\n*`)
	anchor  = regexp.MustCompile(`<a [^>]*></a>`)
	link    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// Roff writes the page in the macros of man(7). It contains no date, so that the same source gives
// the same bytes.
func (p Page) Roff() []byte {
	head := fmt.Sprintf("%s %d \"\" \"agentinit\" \"agentinit manual\"\n===\n\n# NAME\n\n%s - %s\n\n", p.Name, p.Section, p.Name, p.Short)
	body := link.ReplaceAllString(anchor.ReplaceAllString(comment.ReplaceAllString(p.Body, ""), ""), "$1")
	page := md2man.Render([]byte(head + strings.ReplaceAll(lists(body), "&lt;", `\<`)))
	// Align left: troff cannot justify a line of long names.
	return bytes.Replace(page, []byte("\n.SH NAME"), []byte("\n.ad l\n.SH NAME"), 1)
}

var border = regexp.MustCompile(`^\|[ :|-]+\|$`)

// lists turns tables into lists, because tbl(1) cannot fit sentences into the columns of a
// terminal.
func lists(markdown string) string {
	var b strings.Builder
	var header []string
	for line := range strings.Lines(markdown) {
		row := strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(row, "|"):
			header = nil
			b.WriteString(line)
		case header == nil:
			header = cells(row)
		case !border.MatchString(row):
			b.WriteString(entry(header, cells(row)))
		}
	}
	return b.String()
}

func cells(row string) []string {
	row = strings.ReplaceAll(strings.Trim(row, "|"), `\|`, "\x00")
	out := strings.Split(row, "|")
	for n := range out {
		out[n] = strings.TrimSpace(strings.ReplaceAll(out[n], "\x00", "|"))
	}
	return out
}

// entry is one row as a list entry: the first cell, then the middle cells with their column titles,
// then the last cell. The type and the default of a key of the manifest are in parentheses.
func entry(header, row []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "- **%s**", strings.Trim(row[0], "`"))
	if len(header) == 4 && len(row) == 4 && header[1] == "Type" && header[2] == "Default" {
		fmt.Fprintf(&b, " (%s): %s\n", typeAndDefault(row[1], row[2]), row[3])
		return b.String()
	}
	for n, cell := range row[1:] {
		switch last := n == len(row)-2; {
		case cell == "" || cell == "–":
		case last:
			b.WriteString(": " + cell)
		case n+1 < len(header):
			fmt.Fprintf(&b, ", %s %s", strings.ToLower(header[n+1]), cell)
		}
	}
	return b.String() + "\n"
}

// typeAndDefault joins two cells. A semicolon is between them where the type is a list.
func typeAndDefault(kind, value string) string {
	comma := ", "
	if strings.ContainsAny(kind, ",:") {
		comma = "; "
	}
	switch value {
	case "", "–":
		return kind
	case "**required**":
		return kind + comma + "required"
	}
	return kind + comma + "default " + value
}

// Chapter adds a document to a page: its title becomes the section title, and its headings become
// one level lower.
func Chapter(title, markdown string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", strings.ToUpper(title))
	code := false
	for line := range strings.Lines(comment.ReplaceAllString(markdown, "")) {
		code = code != strings.HasPrefix(line, "```")
		if !code && strings.HasPrefix(line, "# ") {
			continue
		}
		b.WriteString(line)
	}
	b.WriteString("\n")
	return b.String()
}

var special = regexp.MustCompile("([\\\\`*_{}\\[\\]<>#|])")

// Escape writes plain text as Markdown.
func Escape(text string) string { return special.ReplaceAllString(text, `\$1`) }

// Prose turns help text into Markdown: paragraphs, and lines that two blanks or a tab indent as code.
func Prose(text string) string {
	var b strings.Builder
	code := false
	fence := func(on bool) {
		if code != on {
			b.WriteString("```\n")
			code = on
			if !on {
				b.WriteString("\n")
			}
		}
	}
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		rest, indented := strings.CutPrefix(line, "  ")
		if !indented {
			rest, indented = strings.CutPrefix(line, "\t")
		}
		if strings.TrimSpace(line) == "" {
			fence(false)
			b.WriteString("\n")
			continue
		}
		if indented && !code {
			b.WriteString("\n")
		}
		fence(indented)
		if indented {
			b.WriteString(rest)
		} else {
			b.WriteString(Escape(line))
		}
	}
	fence(false)
	return b.String() + "\n"
}
