package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/template"

	"github.com/ohler55/ojg/jp"
	"go.yaml.in/yaml/v3"
)

// formatHelp lists the forms that -o accepts.
const formatHelp = "output `FORMAT`: wide, json, yaml, name, jsonpath=TEMPLATE or go-template=TEMPLATE"

// parseFormat reads the value of -o. The forms are those of kubectl.
func parseFormat(text string) (kind, argument string, err error) {
	kind, argument, found := strings.Cut(text, "=")
	switch kind {
	case "", "wide", "json", "yaml", "name":
		if !found {
			return kind, "", nil
		}
	case "jsonpath", "go-template":
		if argument != "" {
			return kind, argument, nil
		}
		return "", "", usageError("-o %s needs a template: -o '%s=…'", kind, kind)
	}
	return "", "", usageError("-o %q is not a valid format: write wide, json, yaml, name, jsonpath=TEMPLATE or go-template=TEMPLATE", text)
}

// generic converts a value to the types of decoded JSON.
func generic(v any) (any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out any
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		return nil, err
	}
	return plain(out), nil
}

// plain turns json.Number into the Go number type that holds it exactly.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = plain(v[key])
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
	}
	return v
}

// printFormat prints a value in one of the forms that every answer supports.
func (c *cli) printFormat(kind, argument string, v any) error {
	if kind == "json" {
		return c.printJSON(v)
	}
	data, err := generic(v)
	if err != nil {
		return err
	}
	switch kind {
	case "yaml":
		e := yaml.NewEncoder(c.stdout)
		e.SetIndent(2)
		return errors.Join(e.Encode(data), e.Close())
	case "jsonpath":
		text, err := jsonPath(argument, data)
		if err != nil {
			return usageError("-o jsonpath: %v", err)
		}
		_, err = fmt.Fprint(c.stdout, c.tidy(text))
		return err
	}
	t, err := template.New("go-template").Parse(argument)
	if err != nil {
		return usageError("-o %v", err)
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return usageError("-o %v", err)
	}
	_, err = fmt.Fprint(c.stdout, c.tidy(b.String()))
	return err
}

// tidy makes the output of a template harmless on a terminal. Newlines and tabs stay.
func (c *cli) tidy(text string) string {
	if _, tty := terminal(c.stdout); !tty {
		return text
	}
	return printableLines(text)
}

// printableLines is printable for each line of a text; its newlines stay.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = printable(l)
	}
	return strings.Join(lines, "\n")
}

// jsonPath fills in a template. A text without braces is one JSONPath (RFC 9535), and each of its
// values is printed on its own line. A text with braces has kubectl's form: text outside of braces
// is printed unchanged, braces contain "text" or a PATH, and {range PATH}…{end} repeats for each
// value.
func jsonPath(template string, data any) (string, error) {
	if !strings.Contains(template, "{") {
		values, err := lookUpPath(template, data)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		for _, v := range values {
			b.WriteString(textOf(v) + "\n")
		}
		return b.String(), nil
	}
	var b strings.Builder
	rest, ended, err := expand(&b, template, data)
	switch {
	case err != nil:
		return "", err
	case ended:
		return "", fmt.Errorf("{end} without {range} before %q", rest)
	}
	return b.String(), nil
}

// expand writes the template up to its end, or up to an {end}; rest is the text after it.
func expand(b *strings.Builder, template string, data any) (rest string, ended bool, err error) {
	for {
		text, inner, found := strings.Cut(template, "{")
		b.WriteString(text)
		if !found {
			return "", false, nil
		}
		action, rest, err := cutAction(inner)
		if err != nil {
			return "", false, err
		}
		template = rest
		path, isRange := strings.CutPrefix(action, "range ")
		switch {
		case action == "end":
			return rest, true, nil
		case isRange:
			template, err = expandRange(b, path, rest, data)
		case strings.HasPrefix(action, `"`):
			var text string
			if text, err = strconv.Unquote(action); err != nil {
				err = fmt.Errorf("%s is not a quoted text", action)
			}
			b.WriteString(text)
		default:
			var values []any
			values, err = lookUpPath(action, data)
			for i, v := range values {
				if i > 0 {
					b.WriteByte(' ')
				}
				b.WriteString(textOf(v))
			}
		}
		if err != nil {
			return "", false, err
		}
	}
}

// expandRange writes body for each value of path. It returns the text after its {end}.
func expandRange(b *strings.Builder, path, body string, data any) (rest string, err error) {
	values, err := lookUpPath(path, data)
	if err != nil {
		return "", err
	}
	// Even without a value, the position of {end} must be found.
	rest, ended, err := expand(new(strings.Builder), body, nil)
	if err == nil && !ended {
		err = errors.New("{range} without {end}")
	}
	for _, v := range values {
		if err == nil {
			_, _, err = expand(b, body, v)
		}
	}
	return rest, err
}

// cutAction returns the text in braces; a brace in quotes does not end it.
func cutAction(text string) (action, rest string, err error) {
	quote := byte(0)
	for i := 0; i < len(text); i++ {
		switch ch := text[i]; {
		case quote != 0 && ch == '\\':
			i++
		case quote != 0 && ch == quote:
			quote = 0
		case quote != 0:
		case ch == '"' || ch == '\'':
			quote = ch
		case ch == '}':
			return strings.TrimSpace(text[:i]), text[i+1:], nil
		}
	}
	return "", "", fmt.Errorf("a brace is not closed before %q", cut(text, 20))
}

func lookUpPath(path string, data any) (values []any, err error) {
	path = strings.TrimSpace(path)
	switch {
	case path == "" || path == "." || path == "@" || path == "$":
		return []any{data}, nil
	case strings.HasPrefix(path, "."), strings.HasPrefix(path, "["):
		path = "$" + path
	case strings.HasPrefix(path, "@"):
		path = "$" + path[1:]
	case !strings.HasPrefix(path, "$"):
		return nil, fmt.Errorf("%q is not a path: begin it with a dot", path)
	}
	expression, err := jp.ParseString(path)
	if err != nil {
		return nil, fmt.Errorf("%q is not a path: %w", path, err)
	}
	return expression.Get(data), nil
}

// textOf writes a value for a shell: a string unchanged, other values as JSON.
func textOf(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(data)
}
