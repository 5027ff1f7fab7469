package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/escape"
	"github.com/dreamlab-ai/agentinit/schema"
)

const workspaceReadme = `# Workspace

This directory survives the box. Programs and agents keep their state here.

- agents/    definitions of agents
- profiles/  one directory for each stack, with its keys and settings
- projects that are shared between boxes live in the projects volume, not here

The management key is in profiles/default/mgmt-key unless MANAGEMENT_API_KEY is
set. Ask "agentctl status" what runs, and "agentctl ready" whether all is well.
`

const tmuxConfig = `set -g default-terminal "tmux-256color"
set -g history-limit 50000
set -g mouse on
`

// sourcingMark ends the line that is appended to login-shell files, so that a later boot finds the
// line.
const sourcingMark = "# agentbox runtime variables"

// maxShellFile bounds the shell files that are read. Larger files stay unchanged.
const maxShellFile = 1 << 20

// workspaceDefaults adds default files to a workspace. Existing files are kept.
func workspaceDefaults(_ context.Context, b *Boot) (Outcome, error) {
	w := b.cfg.Roots.Workspace
	hints := b.cfg.Roots.EnvHints()
	line := fmt.Sprintf("[ -r %s ] && . %s %s\n", escape.Shell(hints), escape.Shell(hints), sourcingMark)
	err := errors.Join(
		b.policy.MkdirAll(filepath.Join(w, "agents"), 0o755),
		b.ifAbsent(filepath.Join(w, "README.md"), workspaceReadme),
		b.ifAbsent(filepath.Join(w, ".tmux.conf"), tmuxConfig),
		b.appendOnce(filepath.Join(w, ".profile"), line),
		b.appendOnce(filepath.Join(w, ".bashrc"), line),
	)
	if err != nil {
		b.warn("the workspace defaults are incomplete: %v", err)
		return warned("incomplete"), nil
	}
	return done(), nil
}

func (b *Boot) ifAbsent(path, text string) error {
	err := b.policy.CreateFile(path, []byte(text), 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// appendOnce adds line at the end of a file, unless the file contains a line with the mark.
func (b *Boot) appendOnce(path, line string) error {
	old, info, err := b.policy.ReadFile(path, maxShellFile)
	if errors.Is(err, fs.ErrNotExist) {
		return b.policy.WriteFile(path, []byte(line), 0o644)
	}
	if err != nil {
		return err
	}
	if bytes.Contains(old, []byte(sourcingMark)) {
		return nil
	}
	if len(old) > 0 && !bytes.HasSuffix(old, []byte("\n")) {
		old = append(old, '\n')
	}
	return b.policy.RewriteFile(path, append(old, line...), info)
}

// envHints writes the resolved variables for login shells.
func envHints(_ context.Context, b *Boot) (Outcome, error) {
	path := b.cfg.Roots.EnvHints()
	text := hintFile(b.hints())
	if old, _, err := b.policy.ReadFile(path, maxShellFile); err == nil && string(old) == text {
		return done(), nil
	}
	err := b.policy.MkdirParent(path, 0o755)
	if err == nil {
		err = b.policy.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		b.warn("cannot write %s: %v", path, err)
		return warned("cannot write " + path), nil
	}
	return done(), nil
}

// hintFile is a shell file that exports the variables, sorted by name.
func hintFile(variables map[string]string) string {
	var b strings.Builder
	b.WriteString("# Written by agentinit at boot; changes are lost.\n")
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if schema.VariableName(name) {
			fmt.Fprintf(&b, "export %s=%s\n", name, escape.Shell(variables[name]))
		}
	}
	return b.String()
}
