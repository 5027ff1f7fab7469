package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/schema/plan"
)

// RuntimeClosure holds the facts about the image and the boot in one value.
type RuntimeClosure struct {
	ManifestChecksum string           `json:"manifest_checksum"`
	Valid            bool             `json:"valid"` // every required artifact passed
	Artifacts        []ArtifactResult `json:"artifacts"`
	Sentinel         *Sentinel        `json:"sentinel"` // nil before the seal
}

// Closure returns the present runtime closure.
func (b *Boot) Closure() RuntimeClosure {
	c := RuntimeClosure{ManifestChecksum: b.Current().Checksum, Artifacts: b.Artifacts(), Valid: true}
	if s, _, ok := b.Sealed(); ok {
		c.Sentinel = &s
	}
	for _, a := range c.Artifacts {
		if a.Required && a.Outcome != ArtifactPassed {
			c.Valid = false
		}
	}
	return c
}

func (b *Boot) prober() prober {
	return prober{Runner: b.cfg.Runner, Roots: b.cfg.Roots, Env: b.probeEnvironment()}
}

// probeEnvironment is the environment of probe commands: paths, but no secrets.
func (b *Boot) probeEnvironment() []string {
	env := []string{"PATH=" + b.path(), "HOME=" + b.cfg.Roots.Workspace}
	for name, value := range b.cfg.Roots.Environment() {
		env = append(env, name+"="+value)
	}
	return env
}

func (b *Boot) path() string {
	if p := b.getenv("PATH"); p != "" {
		return p
	}
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// closures is phase 6: everything that the catalogue's features start must be in the image. The
// manifest's own programs are not checked, because they are the operator's: a missing one becomes
// FATAL with a reason, and the box keeps running.
func closures(ctx context.Context, b *Boot) (Outcome, error) {
	var missing, features []string
	first, do := "", mount
	for i := range b.Current().Plan.Programs {
		p := &b.Current().Plan.Programs[i]
		if p.Feature == "" {
			continue
		}
		lacking, answered := within(ctx, schema.DefaultArtifactTimeout, func() []error { return b.lacks(p) })
		if err := context.Cause(ctx); err != nil {
			return Outcome{}, fail(ExitOK, err, "the boot was interrupted")
		}
		if !answered {
			do = repair
			lacking = []error{fmt.Errorf("the file system of its files did not answer within %s", schema.DefaultArtifactTimeout)}
		}
		for _, what := range lacking {
			if _, outside := errors.AsType[*unmounted](what); !outside && do != repair {
				do = addToImage
			}
			missing = append(missing, fmt.Sprintf("%s (of %s): %v", p.Spec.Name, p.Feature, what))
			features = append(features, p.Feature)
			first = cmp.Or(first, p.Feature)
		}
	}
	if len(missing) > 0 {
		f := fail(ExitArtifact, nil, "missing closures: %s; %s", strings.Join(missing, "; "), remedy(features, do))
		f.Capability = first
		return Outcome{}, f
	}
	return done(), nil
}

// lacks lists the parts of the program's closure that do not exist: its directory, its executable,
// and the entry files among its arguments.
func (b *Boot) lacks(p *plan.Program) []error {
	prober := b.prober()
	var out []error
	miss := func(err error) {
		if err != nil {
			out = append(out, err)
		}
	}
	if d := p.Spec.Directory; d != "" {
		err := b.isDirectory(prober, d)
		if volume := b.volumeAt(d, p.Feature); err != nil && volume != "" {
			err = &unmounted{err, volume}
		}
		miss(err)
	}
	for i, arg := range p.Spec.Argv {
		switch {
		case placeholder().MatchString(arg):
			miss(fmt.Errorf("the build left the placeholder %s unresolved", placeholder().FindString(arg)))
		case i == 0 && !strings.Contains(arg, "/"):
			_, err := b.cfg.Roots.lookPath(arg, p.Spec.Env)
			miss(err)
		case i == 0 && strings.HasPrefix(arg, "/"), strings.HasPrefix(arg, "/opt/agentbox/"):
			_, err := prober.find(arg)
			miss(err)
		}
	}
	return out
}

// unmounted is about a directory that no image has, because it keeps data.
type unmounted struct {
	err    error
	volume string // what to mount, and how
}

func (u *unmounted) Error() string { return u.err.Error() + ": " + u.volume }

// volumeAt says which volume belongs at a directory of a feature; "" if none does.
func (b *Boot) volumeAt(dir, feature string) string {
	for _, name := range slices.Sorted(maps.Keys(b.Current().Manifest.Security.Exceptions)) {
		for _, volume := range b.Current().Manifest.Security.Exceptions[name].WritableVolumes {
			source, target, _ := strings.Cut(volume, ":")
			if target, _, _ = strings.Cut(target, ":"); target == filepath.Clean(dir) {
				return fmt.Sprintf("mount the volume %s there, which the files of agentctl generate do for [security.exceptions.%s]", source, name)
			}
		}
	}
	for _, f := range catalog.Load().Features {
		if f.Name == feature && len(f.Volumes) > 0 {
			return fmt.Sprintf("mount a volume there, with %q in the writable_volumes of a block of [security.exceptions]", f.Volumes[0]+":"+dir)
		}
	}
	return ""
}

func (b *Boot) isDirectory(p prober, path string) error {
	found, err := p.find(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(found)
	if err != nil {
		return fmt.Errorf("%s: %w", found, unwrapPath(err))
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", found)
	}
	return nil
}
