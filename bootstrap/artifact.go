package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/catalog"
	"github.com/dreamlab-ai/agentinit/supervisor/event"
)

// artifact is a probe that checks that one capability of the image is present and works.
type artifact struct {
	ID       string
	Class    string // A service, B command-line tool, C skill server, D bundle
	Entry    string // path, or glob; a bare name is looked up in PATH
	Assets   []string
	Command  []string // argv that must exit 0; empty: no command is run
	Timeout  time.Duration
	Required bool
	Feature  string // the feature that needs it; empty if the manifest itself lists it
}

// probeLimit is how many probes run at once. Probes start real tools, and a small machine cannot
// start all of them at the same time.
const probeLimit = 4

// runnerGrace is the time that a command has to end after its timeout.
const runnerGrace = 5 * time.Second

// Command is a command that a Runner runs once.
type Command struct {
	Argv []string
	Dir  string
	Env  []string // the complete environment
	// MaxOutput is how many bytes of output are kept. The rest is read and discarded.
	MaxOutput int
}

// CommandResult is how a command ended.
type CommandResult struct {
	Status int // as a shell reports it: 128 + n for signal n
	Output []byte
}

// Runner runs a command until it ends. If ctx ends first, it kills the whole process tree and
// returns ctx's error. Any other error means that the command could not be started.
type Runner interface {
	Run(ctx context.Context, c Command) (CommandResult, error)
}

// ArtifactOutcome is the result of a probe in one word.
type ArtifactOutcome string

// The outcomes of a probe.
const (
	ArtifactPassed      ArtifactOutcome = "passed"
	ArtifactMissing     ArtifactOutcome = "missing"      // the entry or an asset does not exist
	ArtifactFailed      ArtifactOutcome = "failed"       // it exists but does not run, or its file system does not answer
	ArtifactNotPackaged ArtifactOutcome = "not-packaged" // the image was built without it
)

// ArtifactResult is the outcome of one probe.
type ArtifactResult struct {
	ID         string          `json:"id"`
	Class      string          `json:"class"`
	Required   bool            `json:"required"`
	Feature    string          `json:"feature,omitempty"`
	Outcome    ArtifactOutcome `json:"outcome"`
	Path       string          `json:"path,omitempty"` // the path that was found, or the one that was searched
	Reason     string          `json:"reason,omitempty"`
	DurationMS float64         `json:"duration_ms"`
}

// placeholder matches text that the build must replace. If the text is still there, the build did
// not replace it.
var placeholder = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`@[A-Z][A-Z0-9_]*@`)
})

// prober runs probes.
type prober struct {
	Runner Runner
	Roots  Roots
	Env    []string // the environment of the commands
}

// probe runs all probes, at most probeLimit at a time. It returns their results in the order of
// artifacts.
func (p prober) probe(ctx context.Context, artifacts []artifact) []ArtifactResult {
	results := make([]ArtifactResult, len(artifacts))
	slots := make(chan struct{}, probeLimit)
	var wg sync.WaitGroup
	for i, a := range artifacts {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = p.one(ctx, a)
		})
	}
	wg.Wait()
	return results
}

func (p prober) one(ctx context.Context, a artifact) ArtifactResult {
	begin := time.Now()
	r := ArtifactResult{ID: a.ID, Class: a.Class, Required: a.Required, Feature: a.Feature, Path: a.Entry}
	r.Outcome, r.Path, r.Reason = p.judge(ctx, a)
	r.DurationMS = milliseconds(time.Since(begin))
	return r
}

func (p prober) judge(ctx context.Context, a artifact) (outcome ArtifactOutcome, path, reason string) {
	if name := firstPlaceholder(a); name != "" {
		if a.Required {
			return ArtifactMissing, a.Entry, "the build left the placeholder " + name + " unresolved"
		}
		return ArtifactNotPackaged, a.Entry, "the image was built without it (" + name + ")"
	}
	type finding struct {
		path string
		err  error
	}
	found, answered := within(ctx, a.limit(), func() finding {
		path, err := p.files(a)
		return finding{path, err}
	})
	switch path = found.path; {
	case !answered && ctx.Err() != nil:
		return ArtifactFailed, a.Entry, "the boot was interrupted"
	case !answered:
		return ArtifactFailed, a.Entry, fmt.Sprintf("the file system of %s did not answer within %s", cmp.Or(a.Entry, strings.Join(a.Assets, ", ")), a.limit())
	case found.err != nil:
		return ArtifactMissing, path, found.err.Error()
	case len(a.Command) == 0:
		return ArtifactPassed, path, ""
	}
	if err := p.run(ctx, a); err != nil {
		return ArtifactFailed, path, err.Error()
	}
	return ArtifactPassed, path, ""
}

// files finds the entry and the assets.
func (p prober) files(a artifact) (path string, err error) {
	path, err = p.entry(a)
	if err != nil {
		return a.Entry, err
	}
	for _, asset := range a.Assets {
		if _, err := p.locate(asset); err != nil {
			return path, fmt.Errorf("asset %w", err)
		}
	}
	return path, nil
}

// within returns the result of f, or false when the limit has passed or ctx has ended. On a file system
// whose server is dead, f stays in the kernel, and with it one thread.
func within[T any](ctx context.Context, limit time.Duration, f func() T) (result T, answered bool) {
	ended := make(chan T, 1)
	go func() { ended <- f() }()
	select {
	case result = <-ended:
		return result, true
	case <-time.After(limit):
	case <-ctx.Done():
	}
	return result, false
}

// limit is the time that the file system has to answer, and then the command to end.
func (a artifact) limit() time.Duration {
	if a.Timeout > 0 {
		return a.Timeout
	}
	return schema.DefaultArtifactTimeout
}

func firstPlaceholder(a artifact) string {
	for _, text := range append(append([]string{a.Entry}, a.Assets...), a.Command...) {
		if m := placeholder().FindString(text); m != "" {
			return m
		}
	}
	return ""
}

// entry finds the entry point, if there is one. A command-line tool must be executable; other files
// may be scripts for an interpreter.
func (p prober) entry(a artifact) (string, error) {
	if a.Entry == "" {
		return "", nil
	}
	path, err := p.locate(a.Entry)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, unwrapPath(err))
	}
	if a.Class == "B" && (info.IsDir() || info.Mode().Perm()&0o111 == 0) {
		return "", fmt.Errorf("%s is not an executable file", path)
	}
	return path, nil
}

// locate finds a path or glob as find does, and a bare name on PATH.
func (p prober) locate(what string) (string, error) {
	if strings.Contains(what, "/") {
		return p.find(what)
	}
	return p.Roots.lookPath(what, p.Env)
}

// find returns the first existing path for a path or glob. With a root prefix, the box's own tree
// is searched first, then the machine's.
func (p prober) find(pattern string) (string, error) {
	candidates := []string{p.Roots.Path(pattern)}
	if p.Roots.Prefix != "" && !strings.HasPrefix(pattern, "/opt/agentbox/") {
		candidates = append(candidates, pattern)
	}
	var fault error
	for _, c := range candidates {
		matches, err := filepath.Glob(c)
		if err != nil {
			return "", fmt.Errorf("%s is not a pattern: %w", pattern, err)
		}
		// Glob finds symbolic links whose target does not exist. In an image of such links, that
		// is how a missing package looks.
		for _, m := range matches {
			if _, err := os.Stat(m); err != nil {
				fault = cmp.Or(fault, fmt.Errorf("%s: %w", m, unwrapPath(err)))
				continue
			}
			return m, nil
		}
	}
	return "", cmp.Or(fault, fmt.Errorf("%s does not exist", candidates[0]))
}

// lookPath finds a bare name in the PATH of env. With a root prefix, the box's own directories are
// searched first, then the machine's.
func (r Roots) lookPath(name string, env []string) (string, error) {
	path := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	dirs := filepath.SplitList(path)
	if r.Prefix != "" {
		own := make([]string, len(dirs))
		for i, dir := range dirs {
			own[i] = r.Path(dir)
		}
		dirs = append(own, dirs...)
	}
	for _, dir := range dirs {
		file := filepath.Join(dir, name)
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s is not in PATH (%s)", name, path)
}

// maxProbeOutput is how much output of a failing command is kept, to quote it in the reason.
const maxProbeOutput = 2048

// run runs the command. It waits for the timeout and a short grace for the kill, and no longer: a
// command that is stuck in the kernel must not block the boot.
func (p prober) run(ctx context.Context, a artifact) error {
	timeout := a.limit()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Without cancel: the runner returns when ctx ends, with the reason.
	err, answered := within(context.WithoutCancel(ctx), timeout+runnerGrace, func() error {
		argv := slices.Clone(a.Command)
		if found, err := p.locate(argv[0]); err == nil {
			argv[0] = found
		}
		result, err := p.Runner.Run(limited, Command{Argv: argv, Dir: "/", Env: p.Env, MaxOutput: maxProbeOutput})
		return commandError(limited, argv[0], timeout, result, err)
	})
	if !answered {
		return fmt.Errorf("%s did not end within %s and cannot be killed", a.Command[0], timeout)
	}
	return err
}

func commandError(ctx context.Context, name string, timeout time.Duration, r CommandResult, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil:
		return fmt.Errorf("%s did not end within %s and was killed", name, timeout)
	case err != nil:
		return fmt.Errorf("%s cannot be run: %w", name, err)
	case r.Status != 0:
		return fmt.Errorf("%s ended with status %d%s", name, r.Status, lastLine(r.Output))
	}
	return nil
}

// lastLine is the last line of a command's output, to append to a reason.
func lastLine(output []byte) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(output), "�")), "\n")
	last := lines[len(lines)-1]
	if last == "" {
		return ""
	}
	return ": " + truncate(last, 200)
}

// probeArtifacts is phase 5.
func probeArtifacts(ctx context.Context, b *Boot) (Outcome, error) {
	outcome := done()
	if b.agentbox() {
		outcome = b.provisionProfiles()
	}
	results := b.prober().probe(ctx, b.artifacts)
	b.setArtifacts(results)
	if err := context.Cause(ctx); err != nil {
		return Outcome{}, fail(ExitOK, err, "the boot was interrupted")
	}
	return b.concludeArtifacts(results, outcome)
}

// concludeArtifacts publishes each result. The first missing required artifact gives the failure
// its name, and all of them give its reason.
func (b *Boot) concludeArtifacts(results []ArtifactResult, outcome Outcome) (Outcome, error) {
	var missing, features []string
	first, fails := "", false
	for _, r := range results {
		fields := map[string]any{"capability": r.ID, "class": r.Class, "path": r.Path, "duration_ms": r.DurationMS}
		if r.Reason != "" {
			fields["reason"], fields["outcome"] = r.Reason, string(r.Outcome)
		}
		if r.Feature != "" {
			fields["feature"] = r.Feature
		}
		switch {
		case r.Outcome == ArtifactPassed:
			b.publish(event.Info, EventValidated, fields)
		case r.Required:
			b.publish(event.Error, EventMissing, fields)
			missing, features = append(missing, describeMissing(r)), append(features, r.Feature)
			fails = fails || r.Outcome == ArtifactFailed
			first = cmp.Or(first, r.ID)
		default:
			b.publish(event.Warn, EventOptionalMissing, fields)
		}
	}
	if len(missing) > 0 {
		do := addToImage
		if fails {
			do = repair
		}
		f := fail(ExitArtifact, nil, "artifacts that are missing or do not work: %s; %s", strings.Join(missing, "; "), remedy(features, do))
		f.Capability = first
		return Outcome{}, f
	}
	b.publish(event.Info, EventClosureValid, map[string]any{"artifacts": len(results)})
	return outcome, nil
}

func describeMissing(r ArtifactResult) string {
	by := ""
	if r.Feature != "" {
		by = " (of " + r.Feature + ")"
	}
	return r.ID + by + ": " + r.Reason
}

// What to do about missing parts. A part that fails is there, and a volume is not in the image.
const (
	addToImage = "add to the image what is missing"
	repair     = "repair what the reasons name"
	mount      = "mount what the reasons name"
)

// remedy says which keys of the manifest ask for the missing parts of features, and what to do. The
// feature "" stands for the manifest's own artifacts.
func remedy(features []string, do string) string {
	var asking []string
	for _, name := range features {
		by := "[[artifacts]] with required = true"
		for _, f := range catalog.Load().Features {
			if f.Name == name && len(f.When) > 0 {
				by = catalog.Describe(f.When)
			}
		}
		if !slices.Contains(asking, by) {
			asking = append(asking, by)
		}
	}
	return "the manifest asks for this by " + strings.Join(asking, "; ") + ": " + do + ", or change the manifest"
}

// provisionProfiles creates the directory of each stack.
func (b *Boot) provisionProfiles() Outcome {
	for _, stack := range stacks(b.Current().Manifest) {
		path := filepath.Join(b.cfg.Roots.Workspace, "profiles", stack)
		if err := b.policy.MkdirAll(path, 0o700); err != nil {
			b.warn("cannot provision the profile %s: %v", stack, err)
			return warned("not every profile could be provisioned")
		}
	}
	return done()
}
