// The test in this file keeps ARCHITECTURE.md true: which package may import
// which, who may fork, signal and wait, and where a clock may be read.
package agentinit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dreamlab-ai/agentinit"

// arrows lists, for each package of ours, what else of ours it may import. "*"
// is everything. A package that is missing here fails the test: put it on the
// map, with a reason, in ARCHITECTURE.md too.
var arrows = map[string][]string{
	"cmd/agentinit":          {"*"},
	"cmd/agentinit/ahead":    {"bootstrap"},
	"cmd/agentinit/early":    {}, // what it imports is initialised before it
	"cmd/agentinit/reserve":  {},
	"cmd/agentinit/initmode": {"cmd/agentinit/early", "supervisor/proc"},
	"cmd/agentctl": {
		"supervisor/control/api", "supervisor/program", "supervisor/event",
		"schema", "schema/rules", "schema/catalog", "schema/plan", "schema/compose", "schema/hardening",
		"bootstrap/identity", "probes/nip98", // to sign requests
		"supervisor/control/listing", "cmd/agentctl/picture", "cmd/agentctl/quick", "internal/escape", "internal/table", "internal/manual", "internal/outbound", "internal/plural", "docs",
	},
	"cmd/agentctl/quick":      {}, // what it imports is initialised before it
	"cmd/agentctl/picture":    {"schema/plan", "supervisor/program", "supervisor/control/api", "internal/plural", "internal/table"},
	"supervisor":              {"supervisor/program", "supervisor/proc", "supervisor/logs", "supervisor/ready", "supervisor/event", "supervisor/proc/filter", "internal/capability"},
	"supervisor/ready":        {"supervisor/program", "supervisor/proc", "supervisor/logs", "internal/escape", "internal/lateclose", "internal/outbound", "internal/rate"},
	"supervisor/control":      {"supervisor", "supervisor/program", "supervisor/logs", "supervisor/event", "supervisor/audit", "supervisor/control/api", "supervisor/control/listing", "internal/edits", "internal/exchange", "internal/idle", "internal/ijson", "internal/lateclose", "internal/polled", "internal/problem", "internal/table"},
	"supervisor/audit":        {"internal/safeopen"},
	"supervisor/program":      {"internal/plural"},
	"supervisor/proc":         {"supervisor/proc/child", "supervisor/proc/filter", "internal/capability", "internal/highfd", "internal/lateclose", "internal/rate"},
	"supervisor/proc/child":   {}, // what it imports is initialised before it
	"supervisor/logs":         {"internal/escape", "internal/highfd", "internal/plural", "internal/safeopen"},
	"supervisor/logs/forward": {"supervisor/logs", "supervisor/program", "internal/otlp", "internal/outbound"},
	"supervisor/event":        {},
	"supervisor/control/api":  {},
	// The table of agentctl status, which the server renders too.
	"supervisor/control/listing": {"supervisor/control/api", "supervisor/program", "internal/escape", "internal/table"},
	"supervisor/proc/filter":     {},
	// A control server over a made-up supervisor: for tests of the server and of
	// agentctl, part of no binary.
	"supervisor/control/controltest": {
		"supervisor", "supervisor/program", "supervisor/logs", "supervisor/event", "supervisor/audit", "supervisor/control", "supervisor/control/api",
	},

	"schema":           {"supervisor/program", "internal/edits"},
	"schema/catalog":   {"schema"},
	"schema/plan":      {"schema", "schema/catalog", "supervisor/program"},
	"schema/rules":     {"schema", "schema/catalog", "schema/plan", "supervisor/program", "supervisor/proc/filter", "internal/capability"},
	"schema/compose":   {"schema", "schema/catalog", "schema/plan", "schema/hardening"},
	"schema/hardening": {"schema", "schema/catalog"}, // apart from compose: PID 1 links no generators

	"bootstrap": {
		"schema", "schema/rules", "schema/catalog", "schema/plan", "schema/hardening",
		"bootstrap/identity", "supervisor/program", "supervisor/event", "internal/safeopen", "internal/lateclose", "internal/plural",
	},
	"bootstrap/identity": {},

	"adapters":              {"internal/escape", "internal/ijson", "internal/outbound", "internal/problem"},
	"adapters/middleware":   {"adapters", "adapters/sqlite", "supervisor/event", "internal/outbound"}, // sqlite: the file of idempotency keys
	"adapters/wire":         {"adapters", "internal/outbound"},
	"adapters/sqlite":       {"adapters", "internal/safeopen"}, // how a slot keeps an SQLite file: open, migrate, one writer
	"adapters/backup":       {"adapters"},                      // state copied, archived, checked and put back
	"adapters/tasks":        {"adapters", "internal/safeopen"}, // templates run once, with their records and logs
	"adapters/beads":        {"adapters", "adapters/wire", "adapters/sqlite"},
	"adapters/pods":         {"adapters", "adapters/wire", "adapters/pods/rebase", "internal/outbound"},
	"adapters/pods/rebase":  {}, // moves RDF from one address to another
	"adapters/memory":       {"adapters", "adapters/wire", "adapters/sqlite", "internal/escape", "internal/outbound"},
	"adapters/events":       {"adapters", "adapters/wire", "internal/safeopen"},
	"adapters/orchestrator": {"adapters", "adapters/wire"},
	"adapters/rest":         {"adapters", "adapters/backup", "adapters/tasks", "adapters/federation", "adapters/federation/host", "internal/exchange", "internal/problem", "internal/rate"},
	// For tests, part of no binary: clients of the routes that no class speaks,
	// and the host's end of a bridge.
	"adapters/rest/resttest":         {"adapters", "adapters/rest", "adapters/wire"},
	"adapters/orchestrator/hosttest": {"adapters"},
	"adapters/federation":            {"adapters", "internal/escape", "internal/outbound"},
	"adapters/federation/host":       {"adapters", "adapters/federation", "adapters/sqlite"},
	"adapters/contract":              {"adapters"},

	"mesh/nip01": {},
	"mesh/relay": {"mesh/nip01", "adapters/sqlite", "internal/idle", "internal/rate"},
	"mesh/pool":  {"mesh/nip01", "internal/outbound"},
	// The relay for the tests of its clients: part of no binary.
	"mesh/relay/relaytest": {"mesh/relay", "bootstrap/identity"},
	// The box's key opens and makes gift wraps.
	"mesh/mailbox": {"mesh/nip01", "mesh/pool", "bootstrap/identity"},
	// The cursor over the slot's journal, and what is published of an event.
	"mesh/announce": {"adapters", "mesh/pool", "internal/safeopen"},

	"probes":         {"supervisor/event", "supervisor/program", "probes/console", "probes/nip98", "internal/capability", "internal/exchange", "internal/idle", "internal/problem", "internal/rate", "internal/polled"},
	"probes/nip98":   {},
	"probes/console": {},

	"telemetry": {"internal/escape", "internal/exchange", "internal/otlp", "internal/outbound"},
	// A collector for tests: part of no binary.
	"telemetry/collectortest": {},

	"image":                         {},
	"nix/vendorhash":                {},
	"release":                       {},
	"internal/testprog":             {},
	"internal/testprog/built":       {}, // for tests, part of no binary
	"internal/capability":           {},
	"internal/edits":                {},
	"internal/escape":               {},
	"internal/exchange":             {},
	"internal/idle":                 {},
	"internal/highfd":               {},
	"internal/lateclose":            {},
	"internal/lateclose/lingertest": {}, // for tests, part of no binary
	"internal/otlp":                 {},
	"internal/outbound":             {},
	"internal/plural":               {},
	"internal/polled":               {},
	"internal/problem":              {},
	"internal/ijson":                {},
	"internal/safeopen":             {},
	"internal/table":                {},
	"internal/rate":                 {},
	// For tests and benchmarks, part of no binary of a box: the servers of others,
	// and connections in memory.
	"internal/foreign": {},
	"internal/pipenet": {},

	"docs":            {},
	"internal/manual": {},
	// For tests, part of no binary.
	"internal/manual/manpage": {},
	"bench":                   {"*"},
	"bench/adapters":          {"*"},
	"bench/federation":        {"*"},
}

// pure packages compute; time comes in as an argument.
var pure = []string{"supervisor/program", "supervisor/control/listing", "cmd/agentctl/picture", "internal/plural", "internal/table", "schema", "schema/rules", "schema/catalog", "schema/plan", "schema/compose", "schema/hardening", "probes/nip98", "mesh/nip01", "internal/capability", "internal/otlp"}

// Only proc may use these: a second waiter beside it was measured to lose
// exit statuses, and a signal sent without its lock can reach a reused pid.
var processCalls = []string{
	"StartProcess", "ForkExec", "Wait4", "Waitid", "Kill", "PidfdSendSignal",
}

// mayFork are the packages that run processes: their owner, and those of tests
// and benchmarks that are never part of a box's own binaries.
var mayFork = []string{"supervisor/proc", "bench", "bench/adapters", "bench/federation", "internal/testprog", "internal/testprog/built", "internal/foreign"}

type source struct {
	pkg  string // directory below the module, "." for the root
	name string
	file *ast.File
	test bool
}

func sources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset := token.NewFileSet()
	var all []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			switch {
			case p != "." && strings.HasPrefix(d.Name(), "."), d.Name() == "testdata", p == "bin", p == "dist", p == "test":
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{pkg: path.Dir(filepath.ToSlash(p)), name: p, file: f, test: strings.HasSuffix(p, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("only %d Go files found: the test looks at the wrong place", len(all))
	}
	return fset, all
}

func TestImportArrows(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if s.test {
			continue
		}
		allowed, known := arrows[s.pkg]
		if !known {
			t.Errorf("%s: package %s is not on the map (ARCHITECTURE.md and the table here)", s.name, s.pkg)
			continue
		}
		for _, imp := range s.file.Imports {
			name := strings.Trim(imp.Path.Value, `"`)
			at := fset.Position(imp.Pos())
			if name == "os/exec" && !slices.Contains(mayFork, s.pkg) {
				t.Errorf("%s: os/exec waits by itself and would steal exit statuses from supervisor/proc; use proc.Start or proc.Run", at)
			}
			ours, ok := strings.CutPrefix(name, module+"/")
			if !ok || slices.Contains(allowed, "*") || slices.Contains(allowed, ours) {
				continue
			}
			t.Errorf("%s: %s may not import %s (ARCHITECTURE.md, Arrows): declare a small interface and let cmd/agentinit/wire.go join them", at, s.pkg, ours)
		}
	}
}

// A row without a package is a plan, not a map.
func TestTheMapHasNoPhantoms(t *testing.T) {
	_, all := sources(t)
	there := map[string]bool{}
	for _, s := range all {
		there[s.pkg] = true
	}
	for pkg, allowed := range arrows {
		for _, p := range append([]string{pkg}, allowed...) {
			if p != "*" && !there[p] {
				t.Errorf("the row of %s names %s, which does not exist", pkg, p)
			}
		}
	}
}

func TestOnlyProcForksSignalsAndWaits(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if s.test || slices.Contains(mayFork, s.pkg) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := sel.X.(*ast.Ident)
			if ok && slices.Contains([]string{"syscall", "unix", "os"}, from.Name) &&
				slices.Contains(processCalls, sel.Sel.Name) && from.Name+"."+sel.Sel.Name != "os.Kill" { // os.Kill is a value, not a call
				t.Errorf("%s: %s.%s belongs to supervisor/proc alone: one owner of fork, signal and wait", fset.Position(n.Pos()), from.Name, sel.Sel.Name)
			}
			return true
		})
	}
}

func TestPurePackagesReadNoClock(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if s.test || !slices.Contains(pure, s.pkg) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if from, ok := sel.X.(*ast.Ident); ok && from.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker", "AfterFunc"}, sel.Sel.Name) {
				t.Errorf("%s: time.%s in %s: the package is pure, time is an argument", fset.Position(n.Pos()), sel.Sel.Name, s.pkg)
			}
			return true
		})
	}
}

// initFiles hold the init functions: see ARCHITECTURE.md, decision 6.
var initFiles = []string{"cmd/agentinit/initmode/initmode.go", "cmd/agentinit/ahead/ahead.go", "cmd/agentctl/quick/quick.go"}

func TestNoInitFunctions(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if s.test || slices.Contains(initFiles, s.name) {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: no init(): start-up work hides there and init mode pays for it; wire.go builds everything", fset.Position(f.Pos()))
			}
		}
	}
}

func TestTestsDoNotSleep(t *testing.T) {
	fset, all := sources(t)
	for _, s := range all {
		if !s.test || s.pkg == "." {
			continue
		}
		synctest := slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` })
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && !synctest {
				if from, ok := sel.X.(*ast.Ident); ok && from.Name == "time" && sel.Sel.Name == "Sleep" {
					t.Errorf("%s: a test waits for an event, or runs in a synctest bubble; it does not sleep", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func TestEveryPackageSaysWhatItOwns(t *testing.T) {
	_, all := sources(t)
	said := map[string]bool{}
	for _, s := range all {
		if !s.test {
			said[s.pkg] = said[s.pkg] || s.file.Doc != nil
		}
	}
	for pkg, ok := range said {
		if !ok {
			t.Errorf("%s has no package comment: say what it owns and what it must never do", pkg)
		}
	}
}
