package schema

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestReferenceIsCurrent checks that docs/manifest.md matches the shapes.
func TestReferenceIsCurrent(t *testing.T) {
	golden(t, "../docs/manifest.md", reference())
}

func reference() []byte {
	var b bytes.Buffer
	b.WriteString(`# Manifest reference

<!-- Made from the shapes in schema/; do not edit. go test ./schema ./schema/rules -run Current -update -->

One TOML 1.0 document, UTF-8, at most 16 MiB, 40,000 keys and 100,000 array elements. Every table is optional
and an empty file is valid; unknown keys are refused (E016). ` + "`agentctl config show`" + ` prints what holds and where it
comes from, ` + "`agentctl config schema`" + ` the JSON Schema. For completion in an editor with Taplo,
begin the manifest with:

    #:schema ./agentbox.toml.schema.json

A duration is a string such as "1m30s" or a number of seconds. A size is a number of bytes
or a string such as "64MiB" (1024) or "50MB" (1000). The precedence is: command-line flag,
environment, manifest, feature catalogue (of programs), ` + "`[supervisor.defaults]`" + ` (of
programs), default.

`)
	var tables bytes.Buffer
	for _, k := range manifestShape().keys {
		referenceTable(&tables, []string{k.name}, k.shape)
	}
	contents(&b, tableNames(tables.String()))
	b.Write(tables.Bytes())
	return b.Bytes()
}

// subjects groups the top-level tables for the list of contents.
var subjects = []struct {
	title  string
	tables []string
}{
	{"Programs", []string{"programs", "artifacts"}},
	{"The box", []string{"supervisor", "bootstrap", "api", "observability", "security"}},
	{"Agents and tools", []string{"templates", "providers", "consultants", "skills", "toolchains"}},
	{"Slots", []string{"adapters", "slots", "integrations", "privacy_filter", "adapters_compat"}},
	{"Identity and mesh", []string{"sovereign_mesh", "federation", "linked_data"}},
	{"Other parts", []string{"core", "gpu", "desktop"}},
}

var tableHeading = regexp.MustCompile("(?m)^## `\\[+([^\\]]+)\\]+`$")

// tableNames lists the tables that have a section, in the order of the sections.
func tableNames(markdown string) []string {
	var out []string
	for _, m := range tableHeading.FindAllStringSubmatch(markdown, -1) {
		out = append(out, m[1])
	}
	return out
}

// contents writes a list of the tables: one line for each subject. The text of a link has no
// brackets, because agentctl help and the man page read a link only up to the first bracket.
func contents(b *bytes.Buffer, names []string) {
	b.WriteString("This page describes the following tables. Names in parentheses are sub-tables of the table before\n" +
		"them: `backoff` is `[programs.<name>.backoff]`. For programs of your own, `[programs.<name>]` and\n" +
		"`[supervisor]` are enough.\n\n")
	for _, s := range subjects {
		var entries []string
		for _, top := range s.tables {
			entries = append(entries, contentsOf(top, names))
		}
		fmt.Fprintf(b, "- **%s**: %s\n", s.title, strings.Join(entries, "; "))
	}
	b.WriteString("\n")
}

// contentsOf links to a top-level table and to the tables below it.
func contentsOf(top string, names []string) string {
	entry, below := "", []string(nil)
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, top)
		rest = strings.TrimPrefix(rest, ".<name>")
		switch {
		case !ok || rest != "" && rest[0] != '.':
		case rest == "":
			entry = link(name, name)
		case !strings.HasPrefix(name, "security.exceptions."): // all alike, one for each feature
			below = append(below, link(rest[1:], name))
		}
	}
	if below != nil {
		entry += " (" + strings.Join(below, ", ") + ")"
	}
	return entry
}

func link(text, table string) string { return fmt.Sprintf("[`%s`](#%s)", text, anchorOf(table)) }

// anchorOf is the anchor that GitHub and mkdocs make of a heading without spaces: lower case, and of
// the punctuation only hyphen and underscore.
func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_' {
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// Each table is in the contents, and each link there leads to one section.
func TestContentsOfReference(t *testing.T) {
	text := string(reference())
	sections := map[string]int{}
	for _, name := range tableNames(text) {
		sections[anchorOf(name)]++
	}
	if len(sections) < 80 {
		t.Fatalf("only %d tables found", len(sections))
	}
	links := map[string]bool{}
	for _, m := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(text, -1) {
		links[m[1]] = true
		if sections[m[1]] != 1 {
			t.Errorf("the link #%s leads to %d sections", m[1], sections[m[1]])
		}
	}
	for _, name := range tableNames(text) {
		if !links[anchorOf(name)] && !strings.HasPrefix(name, "security.exceptions.") {
			t.Errorf("[%s] is not in the contents: put its top-level table into subjects", name)
		}
	}
}

func referenceTable(b *bytes.Buffer, path []string, s *shape) {
	switch {
	case s.kinds == kArray && len(s.items.keys) > 0:
		fmt.Fprintf(b, "## `[[%s]]`\n\n%s\n\n", strings.Join(path, "."), cellText(s.doc))
		referenceKeys(b, path, s.items)
		return
	case s.entry != nil && len(s.entry.keys) > 0:
		path = append(path, "<name>")
		fmt.Fprintf(b, "## `[%s]`\n\n%s", strings.Join(path, "."), cellText(s.doc))
		if s.names != nil {
			fmt.Fprintf(b, " Names match `%s`.", s.names.pattern)
		}
		b.WriteString("\n\n")
		referenceKeys(b, path, s.entry)
		return
	}
	fmt.Fprintf(b, "## `[%s]`\n\n%s\n\n", strings.Join(path, "."), cellText(s.doc))
	if path[len(path)-1] == "defaults" {
		b.WriteString("The keys are those of `[programs.<name>]`.\n\n")
		return
	}
	if s.entry != nil {
		fmt.Fprintf(b, "Free keys; each value is %s.\n\n", s.entry.kinds)
		return
	}
	referenceKeys(b, path, s)
}

// isSection reports whether a key gets a section of its own.
func isSection(s *shape) bool {
	return s.kinds&kTable != 0 && (len(s.keys) > 0 || s.entry != nil) || s.kinds == kArray && s.items != nil && len(s.items.keys) > 0
}

func referenceKeys(b *bytes.Buffer, path []string, s *shape) {
	var sections []key
	head := false
	for _, k := range s.keys {
		if isSection(k.shape) && k.shape.kinds&kString == 0 {
			sections = append(sections, k)
			if k.shape.kinds == kTable {
				continue
			}
		}
		if !head && isProgram(path) {
			changesText(b)
		}
		if !head {
			b.WriteString("| Key | Type | Default | Meaning |\n|---|---|---|---|\n")
			head = true
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", k.name, typeCell(k.shape), defaultCell(k), meaningCell(k.shape))
	}
	if head {
		b.WriteString("\n")
	}
	for _, k := range sections {
		referenceTable(b, append(append([]string{}, path...), k.name), k.shape)
	}
}

func isProgram(path []string) bool { return slices.Equal(path, []string{"programs", "<name>"}) }

// changesText describes the effect of a change of each key.
func changesText(b *bytes.Buffer) {
	b.WriteString("A set of one instance is named `NAME`, a set of several `NAME:0`, `NAME:1` and so on. In commands and in `needs`, `NAME` is the whole set, " +
		"and `NAME:0` is the first instance of a set of one too. A change of `instances` starts or stops instances at the end of the set; those that remain keep " +
		"their process, also when the first one gets another name.\n\n" +
		"When the manifest is applied to a running box (`agentctl apply`, SIGHUP), each key that has changed takes effect as the list below says. All programs that must restart stop at the same time, " +
		"and each starts again when what it needs is ready. Instances of a set restart one after the other, each when the one before is ready. Keys outside programs hold from the next boot on.\n\n")
	for _, c := range []struct {
		change Change
		text   string
	}{
		{ChangeLive, "in force at once, the process goes on"},
		{ChangeNextStart, "in force at the next start, the process goes on"},
		{ChangeRestart, "the program is restarted"},
	} {
		var keys []string
		for _, key := range ProgramKeys() {
			if ProgramChange(key) == c.change {
				keys = append(keys, "`"+key+"`")
			}
		}
		fmt.Fprintf(b, "- **%s** (%s): %s\n", c.change, c.text, strings.Join(keys, ", "))
	}
	b.WriteString("\n")
}

func typeCell(s *shape) string {
	var out []string
	for _, t := range jsonTypes(s.kinds) {
		switch {
		case t == "array" && s.items != nil && s.items.kinds != 0:
			t = "[" + strings.Join(jsonTypes(s.items.kinds), " or ") + limits(s.items) + "]"
		case t == "object":
			t = "table"
		}
		out = append(out, t)
	}
	return strings.Join(out, ", ") + limits(s)
}

// limits lists the allowed texts or numbers. That a duration or a size is not negative goes without saying.
func limits(s *shape) string {
	switch {
	case s.enum != nil:
		return ": `" + strings.Join(s.enum, "`, `") + "`"
	case s.min != nil && s.max != nil:
		return fmt.Sprintf(", %d–%d", *s.min, *s.max)
	case s.min != nil && (*s.min > 0 || s.kinds == kInteger):
		return fmt.Sprintf(", ≥ %d", *s.min)
	}
	return ""
}

func defaultCell(k key) string {
	switch {
	case k.required:
		return "**required**"
	case k.shape.value == nil:
		return "–"
	}
	return "`" + strings.ReplaceAll(TOML(k.shape.value), "|", `\|`) + "`"
}

func meaningCell(s *shape) string {
	text := cellText(describedShape(s))
	if len(s.also) > 0 && !isSection(s) {
		text += " Example: `" + strings.ReplaceAll(TOML(s.also[0]), "|", `\|`) + "`."
	}
	return text
}

func cellText(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(s)
}

// Each default and each example is a valid value.
func TestExamplesAreValid(t *testing.T) {
	var visit func(path []string, s *shape)
	visit = func(path []string, s *shape) {
		for _, v := range append(slices.Clone(s.also), s.value) {
			if v == nil {
				continue
			}
			one := validator{path: path}
			if one.check(s, v, nil); len(one.findings) > 0 {
				t.Errorf("%s = %v: %v", Path(path...), v, one.findings)
			}
		}
		for _, k := range s.keys {
			visit(append(slices.Clone(path), k.name), k.shape)
		}
		for _, below := range []*shape{s.entry, s.items} {
			if below != nil {
				visit(append(slices.Clone(path), "x"), below)
			}
		}
	}
	visit(nil, manifestShape())
}
