package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// page is a page of docs/ that the test runs. A fenced block with a title is a file. In a console
// block, a line that begins with "$ " is a command, and the lines below it are its output. "…"
// stands for any text; on its own line, for any lines.
type page struct {
	steps []step
}

type step struct {
	file, text string // a file to create
	command    string // a command, whose output must match want
	want       []string
	line       int
}

func readPage(t *testing.T, path string) page {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePage(string(data))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return p
}

var titled = regexp.MustCompile("^```\\w+ title=\"([^\"]+)\"$")

func parsePage(text string) (p page, err error) {
	var file, block string
	var in bool
	var body []string
	for i, line := range strings.Split(text, "\n") {
		switch {
		case !in && strings.HasPrefix(line, "```"):
			in, block, file, body = true, line, "", nil
			if m := titled.FindStringSubmatch(line); m != nil {
				file = m[1]
			}
		case in && line == "```":
			in = false
			if file != "" {
				p.steps = append(p.steps, step{file: file, text: strings.Join(body, "\n") + "\n", line: i})
			}
			if block == "```console" {
				steps, err := parseConsole(body, i-len(body)+1)
				if err != nil {
					return p, err
				}
				p.steps = append(p.steps, steps...)
			}
		case in:
			body = append(body, line)
		}
	}
	if in {
		err = fmt.Errorf("a block is not closed")
	}
	return p, err
}

func parseConsole(lines []string, first int) (steps []step, err error) {
	end := ""
	for i, line := range lines {
		last := len(steps) - 1
		switch {
		case end != "":
			steps[last].command += "\n" + line
			if line == end {
				end = ""
			}
		case strings.HasPrefix(line, "$ "):
			steps = append(steps, step{command: line[2:], line: first + i})
			if _, word, ok := strings.Cut(line, "<<'"); ok {
				end, _, _ = strings.Cut(word, "'")
			}
		case last < 0:
			return nil, fmt.Errorf("line %d: output without a command", first+i)
		default:
			steps[last].want = append(steps[last].want, line)
		}
	}
	return steps, nil
}

// matches compares output with the lines of a page; "…" in the page stands for any text.
func matches(want, got []string) bool {
	if len(want) == 0 {
		return len(got) == 0
	}
	if want[0] == "…" {
		for n := range len(got) + 1 {
			if matches(want[1:], got[n:]) {
				return true
			}
		}
		return false
	}
	if len(got) == 0 {
		return false
	}
	parts := strings.Split(want[0], "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	line := regexp.MustCompile("^" + strings.Join(parts, ".*") + `\s*$`)
	return line.MatchString(got[0]) && matches(want[1:], got[1:])
}

// runPage runs a page in one shell, as a reader would, and compares the output.
func runPage(t *testing.T, path string, needs ...string) {
	for _, command := range append(needs, "bash") {
		if _, err := exec.LookPath(command); err != nil {
			t.Skipf("needs root once: %s is not installed (.ci/deps e2e installs it)", command)
		}
	}
	p := readPage(t, path)
	dir := t.TempDir()
	const marker = "--- step"
	var script strings.Builder
	for i, s := range p.steps {
		fmt.Fprintf(&script, "echo '%s %d'\n", marker, i)
		if s.file != "" {
			fmt.Fprintf(&script, "cat > %s <<'END-OF-FILE'\n%sEND-OF-FILE\n", s.file, s.text)
		} else {
			fmt.Fprintf(&script, "{ %s\n} 2>&1\n", s.command)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(script.String())
	bin, err := filepath.Abs("../bin")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "AGENTCTL_") }), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the shell ended with %v", err)
	}
	printed := map[int][]string{}
	at := -1
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if _, n, ok := strings.Cut(line, marker+" "); ok {
			if _, err := fmt.Sscan(n, &at); err != nil {
				t.Fatal(err)
			}
			continue
		}
		printed[at] = append(printed[at], line)
	}
	for i, s := range p.steps {
		if !matches(s.want, printed[i]) {
			t.Errorf("%s:%d: $ %s\nsays:\n%s\nprints:\n%s", path, s.line, s.command, strings.Join(s.want, "\n"), strings.Join(printed[i], "\n"))
		}
	}
}

func TestTutorial(t *testing.T) {
	runPage(t, "../docs/tutorial.md", "redis-server", "redis-cli", "python3", "curl")
}

// The negative test: a page fails if it differs from the real output.
func TestPagesAreCompared(t *testing.T) {
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a … c", "a b c", true}, {"…", "", true}, {"…\nx", "1\n2\nx", true}, {"…\nx", "1\n2", false}, {"a\nb", "a", false}, {"", "a", false},
	} {
		split := func(s string) []string {
			if s == "" {
				return nil
			}
			return strings.Split(s, "\n")
		}
		if got := matches(split(c.want), split(c.got)); got != c.ok {
			t.Errorf("%q against %q is %v", c.want, c.got, got)
		}
	}
	p, err := parsePage("```toml title=\"a.toml\"\nx = 1\n```\n```console\n$ cat <<'E'\nin\nE\nout\n$ two\n```\n")
	if err != nil || len(p.steps) != 3 || p.steps[0].text != "x = 1\n" || p.steps[1].command != "cat <<'E'\nin\nE" || p.steps[1].want[0] != "out" {
		t.Errorf("%+v, %v", p, err)
	}
}
