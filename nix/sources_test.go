// Package nix_test compares the Nix build with the Go module, without Nix. It owns no code of any
// binary.
package nix_test

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// excluded returns the paths that nix/package.nix excludes from the source set, relative to the
// root of the module.
func excluded(text string) ([]string, error) {
	list := regexp.MustCompile(`(?s)lib\.fileset\.difference \.\./\. \(\s*lib\.fileset\.unions \[(.*?)\]\s*\)`).FindStringSubmatch(text)
	if list == nil {
		return nil, fmt.Errorf("no source set of the form: difference ../. (unions [ … ])")
	}
	var out []string
	for p := range strings.FieldsSeq(list[1]) {
		rel, ok := strings.CutPrefix(p, "../")
		if !ok {
			return nil, fmt.Errorf("the source set excludes %q, which is not below ../", p)
		}
		out = append(out, path.Clean(rel))
	}
	return out, nil
}

// leftOut returns the files among names that are not in the source set.
func leftOut(text string, names []string) ([]string, error) {
	gone, err := excluded(text)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range names {
		for _, e := range gone {
			if name == e || strings.HasPrefix(name, e+"/") {
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// files lists every file that `go list` reports for the packages of the module, relative to the
// root. This includes tests, embedded files and assembly.
func files(t *testing.T) []string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	const each = `{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .TestGoFiles}}{{$d}}/{{.}}
{{end}}{{range .XTestGoFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{range .TestEmbedFiles}}{{$d}}/{{.}}
{{end}}{{range .SFiles}}{{$d}}/{{.}}
{{end}}`
	cmd := exec.Command("go", "list", "-f", each, "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		rel, err := filepath.Rel(root, line)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.ToSlash(rel))
	}
	if len(names) < 100 {
		t.Fatalf("go list names only %d files: the test looks at the wrong module", len(names))
	}
	return append(names, "go.mod", "go.sum", "VERSION")
}

func TestEveryPackageIsInTheSourceSet(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("needs go: %v", err)
	}
	text, err := os.ReadFile("package.nix")
	if err != nil {
		t.Fatal(err)
	}
	names := files(t)
	gone, err := leftOut(string(text), names)
	if err != nil {
		t.Fatal(err)
	}
	if len(gone) > 0 {
		t.Errorf("nix/package.nix leaves out %d files of the module, so the Nix build lacks them: %v", len(gone), gone)
	}
	// The negative case: if a directory of packages is excluded, the check finds it.
	bad := strings.Replace(string(text), "../.ci\n", "../.ci\n../telemetry\n", 1)
	if gone, err := leftOut(bad, names); err != nil || len(gone) == 0 {
		t.Errorf("a source set without telemetry passed (%v)", err)
	}
}

// Each excluded path must exist. Nix fails on a missing path, and a renamed directory would get
// into the source set unnoticed.
func TestExcludedPathsExist(t *testing.T) {
	text, err := os.ReadFile("package.nix")
	if err != nil {
		t.Fatal(err)
	}
	gone, err := excluded(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("../.ci"); err != nil {
		t.Skip("needs the whole tree: this is the source set itself")
	}
	for _, name := range gone {
		if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(name))); err != nil {
			t.Errorf("nix/package.nix excludes ../%s: %v", name, err)
		}
	}
}
