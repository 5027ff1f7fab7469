package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// immutableRoot tries to write into the image, which must fail. In a plain container it does so
// only if AGENTBOX_STRICT_IMMUTABLE is set. Without /opt/agentbox in the image, it tries the root
// directory.
func immutableRoot(_ context.Context, b *Boot) (Outcome, error) {
	dir, strict := b.cfg.Roots.Image, b.strictRoot()
	if !b.agentbox() {
		if !strict {
			return off(`profile "none"`), nil
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			dir = b.cfg.Roots.Path("/")
		}
	}
	// The probe file is outside the write policy on purpose: it tests whether the image is
	// writable.
	f, err := os.CreateTemp(dir, ".agentinit-write-probe-")
	if errors.Is(err, fs.ErrNotExist) {
		return off(dir + " does not exist"), nil
	}
	if err != nil {
		return done(), nil
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		b.warn("cannot remove the write probe: %v", err)
	}
	b.publish(event.Warn, EventRootWritable, map[string]any{"path": dir})
	if strict {
		return Outcome{}, fail(ExitImmutableRoot, nil, "%s is writable and AGENTBOX_STRICT_IMMUTABLE is true", dir)
	}
	return warned(dir + " is writable"), nil
}

// strictRoot reads AGENTBOX_STRICT_IMMUTABLE. A value that is no boolean must not leave the check
// out without a word.
func (b *Boot) strictRoot() bool {
	text := b.getenv("AGENTBOX_STRICT_IMMUTABLE")
	strict, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil && text != "" {
		b.warn("AGENTBOX_STRICT_IMMUTABLE is %q and is ignored; write true or false", text)
	}
	return strict
}

// directory is one root that bootstrap creates.
type directory struct {
	path func(Roots) string
	mode fs.FileMode
	// needed names an enabled feature that cannot work without it; "" if there is none.
	needed func(*schema.Manifest) string
	// If when returns false, the directory is skipped. If when is nil, the directory is always
	// made.
	when func(*schema.Manifest) bool
}

// directories is the table of phase 1.
var directories = []directory{
	{path: func(r Roots) string { return r.Workspace }, mode: 0o755, needed: always("the workspace")},
	{path: func(r Roots) string { return r.Projects }, mode: 0o755, needed: always("the shared projects")},
	{path: func(r Roots) string { return r.Ruvector }, mode: 0o755, needed: func(m *schema.Manifest) string {
		return ifSet(m.Adapters.Memory == "embedded-ruvector", `adapters.memory = "embedded-ruvector"`)
	}},
	{path: func(r Roots) string { return r.SolidPods }, mode: 0o755, needed: func(m *schema.Manifest) string {
		return ifSet(m.Adapters.Pods == "local-solid-rs", `adapters.pods = "local-solid-rs"`)
	}},
	{path: func(r Roots) string { return r.Identities }, mode: 0o700, needed: func(m *schema.Manifest) string {
		return ifSet(m.SovereignMesh.Enabled, "sovereign_mesh.enabled")
	}},
	{path: func(r Roots) string { return r.ProgramLogs }, mode: 0o755, needed: optional},
	{path: func(r Roots) string { return r.VarRun }, mode: 0o755, needed: optional},
	{path: func(r Roots) string { return r.Screenshots }, mode: 0o755, needed: optional},
	{path: func(r Roots) string { return r.Runtime }, mode: 0o755, needed: optional},
	{path: func(r Roots) string { return r.Consultations }, mode: 0o755, needed: optional,
		when: func(m *schema.Manifest) bool { return m.Consultants.Enabled }},
	{path: func(r Roots) string { return r.X11 }, mode: 0o777 | fs.ModeSticky,
		needed: func(*schema.Manifest) string { return "desktop.enabled" },
		when:   func(m *schema.Manifest) bool { return m.Desktop.Enabled }},
}

func always(what string) func(*schema.Manifest) string {
	return func(*schema.Manifest) string { return what }
}

func optional(*schema.Manifest) string { return "" }

func ifSet(on bool, what string) string {
	if on {
		return what
	}
	return ""
}

// makeDirectories creates the roots and tries to write to each, because an existing directory may
// belong to another user.
func makeDirectories(_ context.Context, b *Boot) (Outcome, error) {
	var faults []error
	outcome := done()
	for _, d := range directories {
		if d.when != nil && !d.when(b.Current().Manifest) {
			continue
		}
		path := d.path(b.cfg.Roots)
		err := b.makeDirectory(path, d.mode)
		if err == nil {
			continue
		}
		if who := d.needed(b.Current().Manifest); who != "" {
			faults = append(faults, fmt.Errorf("%s (needed by %s): %w", path, who, err))
			continue
		}
		outcome = warned("not every directory could be prepared")
		b.warn("cannot prepare %s: %v", path, err)
	}
	if len(faults) > 0 {
		return Outcome{}, fail(ExitPrepare, errors.Join(faults...), "cannot prepare a root directory")
	}
	return outcome, nil
}

func (b *Boot) makeDirectory(path string, mode fs.FileMode) error {
	_, statErr := os.Stat(path)
	if err := b.policy.MkdirAll(path, mode.Perm()); err != nil {
		return unwritable(err)
	}
	if errors.Is(statErr, fs.ErrNotExist) && mode.Perm()&0o022 != 0 {
		// The umask has removed permission bits that other users need.
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	return b.tryWrite(path)
}

// tryWrite creates a file and removes it again.
func (b *Boot) tryWrite(dir string) error {
	name := filepath.Join(dir, ".agentinit-write-probe-"+randomHex(4))
	if err := b.policy.CreateFile(name, nil, 0o600); err != nil {
		return unwritable(err)
	}
	return b.policy.Remove(name)
}

// unwritable explains why a directory cannot be made or written. The path in err is left out if it
// may be that of the probe.
func unwritable(err error) error {
	switch errno, _ := errors.AsType[syscall.Errno](err); errno {
	case syscall.EACCES, syscall.EPERM:
		return fmt.Errorf("user %d cannot write there: %w; the directory must exist and belong to this user (chown, or fsGroup in Kubernetes)", os.Geteuid(), errno)
	case syscall.EROFS:
		return fmt.Errorf("%w; mount a volume or a tmpfs there", errno)
	}
	return err
}
