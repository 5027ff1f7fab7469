// The test in this file keeps ARCHITECTURE.md true: which package may import
// which, who may fork, signal and wait, and where a clock may be read.
package agentinit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
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
		"adapters/pods/solid", // the command pod-server
		"bootstrap/profiles",
		"supervisor/control/listing", "cmd/agentctl/picture", "cmd/agentctl/quick", "cmd/agentctl/supervisord", "supervisor/control/supervisord", "internal/escape", "internal/table", "internal/manual", "internal/outbound", "internal/plural", "internal/safeopen", "internal/signame", "internal/sleep", "docs",
	},
	"cmd/agentctl/quick":       {}, // what it imports is initialised before it
	"cmd/agentctl/supervisord": {"schema", "supervisor/control/supervisord", "internal/escape", "internal/signame"},
	"cmd/agentctl/picture":     {"schema/plan", "supervisor/program", "supervisor/control/api", "internal/plural", "internal/table"},
	"supervisor":               {"supervisor/program", "supervisor/proc", "supervisor/logs", "supervisor/ready", "supervisor/event", "supervisor/proc/filter", "internal/capability", "internal/escape", "internal/highfd", "internal/lateclose", "internal/signame", "internal/sleep"},
	"supervisor/ready":         {"supervisor/program", "supervisor/proc", "supervisor/logs", "internal/escape", "internal/hostname", "internal/lateclose", "internal/outbound", "internal/rate", "internal/sleep"},
	"supervisor/control":       {"supervisor", "supervisor/program", "supervisor/logs", "supervisor/event", "supervisor/audit", "supervisor/control/api", "supervisor/control/listing", "supervisor/control/supervisord", "internal/edits", "internal/escape", "internal/exchange", "internal/idle", "internal/ijson", "internal/lateclose", "internal/polled", "internal/problem", "internal/signame", "internal/sleep", "internal/table", "internal/wireschema"},
	"supervisor/audit":         {"internal/safeopen"},
	"supervisor/program":       {"internal/leased", "internal/plural"},
	"supervisor/proc":          {"supervisor/proc/child", "supervisor/proc/filter", "internal/capability", "internal/highfd", "internal/lateclose", "internal/rate", "internal/signame"},
	"supervisor/proc/child":    {}, // what it imports is initialised before it
	"supervisor/logs":          {"internal/escape", "internal/highfd", "internal/lateclose", "internal/plural", "internal/rotated", "internal/safeopen"},
	"supervisor/logs/forward":  {"supervisor/logs", "supervisor/program", "internal/hostname", "internal/otlp", "internal/outbound", "internal/sysroots"},
	"supervisor/event":         {},
	"supervisor/control/api":   {},
	// The table of agentctl status, which the server renders too.
	"supervisor/control/listing":     {"supervisor/control/api", "supervisor/program", "internal/escape", "internal/table"},
	"supervisor/control/supervisord": {"supervisor/control/api", "supervisor/event", "supervisor/program", "internal/escape", "internal/signame"},
	"supervisor/proc/filter":         {},
	// A control server over a made-up supervisor: for tests of the server and of
	// agentctl, part of no binary.
	"supervisor/control/controltest": {
		"supervisor", "supervisor/program", "supervisor/logs", "supervisor/event", "supervisor/audit", "supervisor/control", "supervisor/control/api",
	},

	"schema":           {"supervisor/program", "internal/edits"},
	"schema/catalog":   {"schema"},
	"schema/plan":      {"schema", "schema/catalog", "supervisor/program"},
	"schema/rules":     {"schema", "schema/catalog", "schema/plan", "supervisor/program", "supervisor/proc/filter", "internal/capability", "internal/rotated", "internal/signame"},
	"schema/compose":   {"schema", "schema/catalog", "schema/plan", "schema/hardening"},
	"schema/hardening": {"schema", "schema/catalog", "internal/capability"}, // apart from compose: PID 1 links no generators

	"bootstrap": {
		"schema", "schema/rules", "schema/catalog", "schema/plan", "schema/hardening",
		"bootstrap/identity", "bootstrap/profiles", "supervisor/program", "supervisor/event", "internal/escape", "internal/safeopen", "internal/lateclose", "internal/plural", "internal/sleep",
	},
	"bootstrap/identity": {},
	"bootstrap/profiles": {"schema/rules", "internal/safeopen"},

	"adapters":              {"internal/escape", "internal/ijson", "internal/outbound", "internal/problem"},
	"adapters/middleware":   {"adapters", "adapters/sqlite", "supervisor/event", "internal/outbound"}, // sqlite: the file of idempotency keys
	"adapters/wire":         {"adapters", "internal/hostname", "internal/ijson", "internal/outbound", "internal/sleep", "internal/sysroots"},
	"adapters/sqlite":       {"adapters", "internal/safeopen"},                   // how a slot keeps an SQLite file: open, migrate, one writer
	"adapters/backup":       {"adapters", "internal/safeopen"},                   // state copied, archived, checked and put back
	"adapters/tasks":        {"adapters", "internal/safeopen", "internal/sleep"}, // templates run once, with their records and logs
	"adapters/beads":        {"adapters", "adapters/wire", "adapters/sqlite"},
	"adapters/pods":         {"adapters", "adapters/wire", "adapters/pods/rdf", "adapters/pods/rebase", "internal/escape", "internal/hostname", "internal/outbound", "internal/sysroots"},
	"adapters/pods/rdf":     {"internal/escape", "internal/ijson"},
	"adapters/pods/rebase":  {"adapters/pods/rdf"}, // moves RDF from one address to another
	"adapters/pods/solid":   {"adapters", "adapters/pods/rdf", "adapters/pods/wac", "internal/idle", "internal/problem", "internal/rate", "internal/safeopen"},
	"adapters/pods/wac":     {"adapters/pods/rdf"},
	"adapters/memory":       {"adapters", "adapters/wire", "adapters/sqlite", "internal/conninfo", "internal/escape", "internal/ijson", "internal/outbound", "internal/sleep", "internal/slowcall"},
	"adapters/events":       {"adapters", "adapters/wire", "internal/safeopen"},
	"adapters/orchestrator": {"adapters", "adapters/wire", "internal/signame"},
	"adapters/rest":         {"adapters", "adapters/backup", "adapters/tasks", "adapters/federation", "adapters/federation/host", "internal/exchange", "internal/problem", "internal/rate", "internal/wireschema"},
	// For tests, part of no binary: clients of the routes that no class speaks,
	// and the host's end of a bridge.
	"adapters/rest/resttest":         {"adapters", "adapters/rest", "adapters/wire"},
	"adapters/orchestrator/hosttest": {"adapters"},
	"adapters/federation":            {"adapters", "internal/escape", "internal/hostname", "internal/outbound", "internal/sysroots"},
	"adapters/federation/host":       {"adapters", "adapters/federation", "adapters/sqlite", "internal/conninfo", "internal/escape", "internal/slowcall"},
	"adapters/contract":              {"adapters"},

	"mesh/nip01": {},
	"mesh/relay": {"mesh/nip01", "adapters/sqlite", "internal/idle", "internal/rate", "internal/sleep"},
	"mesh/pool":  {"mesh/nip01", "internal/escape", "internal/hostname", "internal/outbound", "internal/sleep", "internal/sysroots"},
	// The relay for the tests of its clients: part of no binary.
	"mesh/relay/relaytest": {"mesh/relay", "bootstrap/identity"},
	// The box's key opens and makes gift wraps.
	"mesh/mailbox": {"mesh/nip01", "mesh/pool", "bootstrap/identity"},
	// The cursor over the slot's journal, and what is published of an event.
	"mesh/announce": {"adapters", "mesh/nip01", "mesh/pool", "internal/safeopen", "internal/sleep"},

	"probes":         {"supervisor/event", "supervisor/program", "probes/console", "probes/nip98", "internal/capability", "internal/exchange", "internal/idle", "internal/problem", "internal/rate", "internal/polled", "internal/sleep"},
	"probes/nip98":   {},
	"probes/console": {},

	"telemetry": {"internal/escape", "internal/exchange", "internal/hostname", "internal/otlp", "internal/outbound", "internal/sysroots"},
	// A collector for tests: part of no binary.
	"telemetry/collectortest": {},

	"image":                         {},
	"nix/vendorhash":                {},
	"release":                       {},
	"internal/testprog":             {},
	"internal/testprog/built":       {}, // for tests, part of no binary
	"internal/capability":           {},
	"internal/conninfo":             {"internal/hostname", "internal/sysroots"},
	"internal/edits":                {},
	"internal/escape":               {},
	"internal/exchange":             {},
	"internal/idle":                 {},
	"internal/highfd":               {},
	"internal/lateclose":            {},
	"internal/lateclose/lingertest": {}, // for tests, part of no binary
	"internal/hostname":             {"internal/leased", "internal/slowcall"},
	"internal/leased":               {},
	"internal/leased/leasetest":     {}, // for tests, part of no binary
	"internal/otlp":                 {},
	"internal/outbound":             {},
	"internal/sleep":                {},
	"internal/slowcall":             {},
	"internal/sysroots":             {"internal/slowcall"},
	"internal/plural":               {},
	"internal/polled":               {},
	"internal/problem":              {},
	"internal/ijson":                {},
	"internal/safeopen":             {},
	"internal/signame":              {},
	"internal/table":                {},
	"internal/rate":                 {},
	"internal/rotated":              {},
	"internal/wireschema":           {},
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
var pure = []string{"supervisor/program", "supervisor/control/listing", "cmd/agentctl/picture", "cmd/agentctl/supervisord", "internal/plural", "internal/signame", "internal/table", "schema", "schema/rules", "schema/catalog", "schema/plan", "schema/compose", "schema/hardening", "probes/nip98", "mesh/nip01", "internal/capability", "internal/otlp", "internal/wireschema", "adapters/pods/rdf", "adapters/pods/wac"}

// Only proc may use these: a second waiter beside it was measured to lose
// exit statuses, and a signal sent without its lock can reach a reused pid.
var processCalls = []string{
	"StartProcess", "ForkExec", "Wait4", "Waitid", "Kill", "PidfdSendSignal",
}

// mayFork are the packages that run processes: their owner, and those of tests
// and benchmarks that are never part of a box's own binaries.
var mayFork = []string{"supervisor/proc", "bench", "bench/adapters", "bench/federation", "internal/testprog", "internal/testprog/built", "internal/foreign", "adapters/contract"}

type source struct {
	pkg  string // directory below the module, "." for the root
	name string
	file *ast.File
	test bool
}

// sources are the Go files of the module. All tests share one reading of them, which takes a second, and do not change it.
func sources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	all, err := readSources()
	if err != nil {
		t.Fatal(err)
	}
	if len(all.files) < 5 {
		t.Fatalf("only %d Go files found: the test looks at the wrong place", len(all.files))
	}
	return all.fset, all.files
}

type allSources struct {
	fset  *token.FileSet
	files []source
}

var readSources = sync.OnceValues(func() (allSources, error) {
	all := allSources{fset: token.NewFileSet()}
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
		f, err := parser.ParseFile(all.fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		all.files = append(all.files, source{pkg: path.Dir(filepath.ToSlash(p)), name: p, file: f, test: strings.HasSuffix(p, "_test.go")})
		return nil
	})
	return all, err
})

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

// ownTrust lists the files of agentinit that make an http.Transport without sysroots.Transport.
var ownTrust = map[string]string{
	"supervisor/ready/http.go":        "probes verify no certificate",
	"supervisor/logs/forward/push.go": "it takes the certificates from sysroots before its first request",
	"adapters/middleware/privacy.go":  "its requests go to the loopback address without TLS",
	"telemetry/client.go":             "the copy for each attempt is wrapped",
}

// A transport that verifies servers by the files of the system as crypto/x509 reads them could end agentinit
// (package sysroots).
func TestTransportsReadCertificatesSafely(t *testing.T) {
	checkUses(t, unsafeTrust, ownTrust, "crypto/x509 reads the certificates of the system without a bound: use internal/sysroots", func(pkg string) bool {
		return pkg == "cmd/agentctl" || pkg == "adapters/contract"
	})
}

// checkUses reports what find finds in the files of agentinit, except in those that own lists with their
// reasons, in code for tests, and in packages that exempt names. It also reports files in own without a find.
func checkUses(t *testing.T, find func(*ast.File) []token.Pos, own map[string]string, wrong string, exempt func(pkg string) bool) {
	t.Helper()
	fset, all := sources(t)
	used := map[string]bool{}
	for _, s := range all {
		if s.test || slices.Contains(mayFork, s.pkg) || strings.HasSuffix(s.pkg, "test") || exempt(s.pkg) {
			continue
		}
		for _, at := range find(s.file) {
			if _, ok := own[s.name]; !ok {
				t.Errorf("%s: %s", fset.Position(at), wrong)
			}
			used[s.name] = true
		}
	}
	for name := range own {
		if !used[name] {
			t.Errorf("the exception of %s is of no use", name)
		}
	}
}

// unsafeTrust finds the transports of net/http that sysroots.Transport does not wrap, and other uses of the
// certificates of the system.
func unsafeTrust(f *ast.File) (at []token.Pos) {
	named := func(e ast.Expr, pkg string, names ...string) bool {
		sel, ok := e.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		from, ok := sel.X.(*ast.Ident)
		return ok && from.Name == pkg && slices.Contains(names, sel.Sel.Name)
	}
	wrapped := map[ast.Node]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if named(n.Fun, "sysroots", "Transport") && len(n.Args) == 1 {
				if address, ok := n.Args[0].(*ast.UnaryExpr); ok {
					wrapped[address.X] = true
				}
			}
		case *ast.CompositeLit:
			if named(n.Type, "http", "Transport") && !wrapped[n] {
				at = append(at, n.Pos())
			}
		case *ast.SelectorExpr:
			if named(n, "http", "DefaultTransport", "DefaultClient") || named(n, "x509", "SystemCertPool") {
				at = append(at, n.Pos())
			}
		}
		return true
	})
	return at
}

func TestUnsafeTrust(t *testing.T) {
	checkFinds(t, unsafeTrust, map[string]int{
		"sysroots.Transport(&http.Transport{})": 0,
		"&http.Transport{}":                     1,
		"http.DefaultClient":                    1,
		"x509.SystemCertPool":                   1,
		"&http.Client{}":                        0,
	})
}

// checkFinds checks how much find finds in an expression.
func checkFinds(t *testing.T, find func(*ast.File) []token.Pos, expressions map[string]int) {
	t.Helper()
	for text, want := range expressions {
		f, err := parser.ParseFile(token.NewFileSet(), "", "package p\nvar v = "+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(find(f)); got != want {
			t.Errorf("%s: %d findings, want %d", text, got, want)
		}
	}
}

// ownDial lists the files of agentinit that connect without package hostname.
var ownDial = map[string]string{
	"internal/sysroots/sysroots.go":  "it asks whether a transport has a dialer",
	"telemetry/client.go":            "its dialer is in line.go",
	"internal/hostname/hostname.go":  "it is what connects for the others",
	"supervisor/control/api/dial.go": "to a unix socket",
	"supervisor/control/listen.go":   "to a unix socket",
}

// Package net reads /etc/hosts and the like without a bound, and can wait for one of them for ever.
func TestConnectionsGoThroughHostname(t *testing.T) {
	checkUses(t, dials, ownDial, "package net looks names up in files that a program can replace: use internal/hostname", func(pkg string) bool {
		return strings.HasPrefix(pkg, "cmd/agentctl")
	})
}

// dials finds the uses of what connects to a name in package net.
func dials(f *ast.File) (at []token.Pos) {
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		from, isName := sel.X.(*ast.Ident)
		switch {
		case sel.Sel.Name == "DialContext",
			isName && from.Name == "net" && (sel.Sel.Name == "Dial" || sel.Sel.Name == "DialTimeout" || sel.Sel.Name == "DefaultResolver" || strings.HasPrefix(sel.Sel.Name, "Lookup")):
			at = append(at, sel.Pos())
		}
		return true
	})
	return at
}

func TestDials(t *testing.T) {
	checkFinds(t, dials, map[string]int{
		"d.DialContext":                1,
		"(&net.Dialer{}).DialContext":  1,
		`net.Dial("tcp", "x:1")`:       1,
		"net.LookupHost":               1,
		"hostname.Dial(&net.Dialer{})": 0,
	})
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

// maySleep lists the functions of tests that let time pass outside the text of a synctest.Test call.
var maySleep = map[string]string{
	"supervisor kernel.Start":                 "a fake whose caller runs in a bubble",
	"supervisor kernel.Forget":                "a fake whose caller runs in a bubble",
	"adapters/federation fakeHost.Register":   "a fake whose caller runs in a bubble",
	"adapters/federation/host oneByOne.write": "a fake whose caller runs in a bubble",
	"e2e chaos.answers":                       "a pause as between two probes of the kubelet",
}

// A test waits for an event, or runs in a synctest bubble, where the time is not real. If an event
// is not reported, a function called waitUntil polls for it.
func TestTestsDoNotSleep(t *testing.T) {
	fset, all := sources(t)
	used := map[string]bool{}
	for _, s := range all {
		if !s.test || s.pkg == "." {
			continue
		}
		for _, d := range s.file.Decls {
			name := s.pkg + " " + declName(d)
			for _, at := range sleeps(d) {
				if _, ok := maySleep[name]; !ok {
					t.Errorf("%s: a test waits for an event, or runs in a synctest bubble; it does not sleep", fset.Position(at))
				}
				used[name] = true
			}
		}
	}
	for name := range maySleep {
		if !used[name] {
			t.Errorf("the row of %s in maySleep is of no use: the function does not sleep, or does not exist", name)
		}
	}
}

// declName is the name of a function or Type.Method, without the star of a pointer.
func declName(d ast.Decl) string {
	f, ok := d.(*ast.FuncDecl)
	if !ok {
		return ""
	}
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "." + f.Name.Name
	}
	return f.Name.Name
}

// sleeps returns where a declaration waits until a time has passed and for nothing else.
func sleeps(d ast.Decl) (at []token.Pos) {
	if f, ok := d.(*ast.FuncDecl); ok && (polls(f) || runsInBubble(f)) {
		return nil
	}
	besides := map[ast.Node]bool{} // waits of a select that waits for another event, too
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			return !isOf(n.Fun, "synctest", "Test")
		case *ast.SelectStmt:
			for _, c := range n.Body.List {
				if wait := received(c.(*ast.CommClause).Comm); wait != nil && len(n.Body.List) > 1 {
					besides[wait] = true
				}
			}
		case *ast.UnaryExpr:
			if n.Op == token.ARROW && !besides[n] && makesTimer(n.X) {
				at = append(at, n.Pos())
			}
		case *ast.RangeStmt:
			if makesTimer(n.X) {
				at = append(at, n.Pos())
			}
		case *ast.SelectorExpr:
			if isOf(n, "time", "Sleep") {
				at = append(at, n.Pos())
			}
		}
		return true
	})
	return at
}

// polls tells whether a function is a polling helper: it is called waitUntil and gets a condition.
func polls(f *ast.FuncDecl) bool {
	return f.Name.Name == "waitUntil" && slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool {
		cond, ok := p.Type.(*ast.FuncType)
		return ok && cond.Results.NumFields() == 1 && cond.Params.NumFields() == 0
	})
}

// runsInBubble tells whether a function calls synctest.Wait, which panics outside a bubble. A
// function literal does not count: it may be the bubble.
func runsInBubble(f *ast.FuncDecl) (yes bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			yes = yes || isOf(call.Fun, "synctest", "Wait")
		}
		_, literal := n.(*ast.FuncLit)
		return !literal
	})
	return yes
}

// received is the receive operation of a case, or nil.
func received(comm ast.Stmt) ast.Node {
	var from ast.Expr
	switch s := comm.(type) {
	case *ast.ExprStmt:
		from = s.X
	case *ast.AssignStmt:
		from = s.Rhs[0]
	}
	if wait, ok := from.(*ast.UnaryExpr); ok && wait.Op == token.ARROW {
		return wait
	}
	return nil
}

// makesTimer tells whether the channel of an expression is that of a new timer.
func makesTimer(e ast.Expr) (yes bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			yes = yes || isOf(call.Fun, "time", "After", "Tick", "NewTimer", "NewTicker")
		}
		return !yes
	})
	return yes
}

func isOf(e ast.Expr, pkg string, names ...string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := sel.X.(*ast.Ident)
	return ok && from.Name == pkg && slices.Contains(names, sel.Sel.Name)
}

// The negative twin of TestTestsDoNotSleep: the rule finds what is planted here.
func TestSleepsAreFound(t *testing.T) {
	const inBubble = "synctest.Test(t, func(t *testing.T) { time.Sleep(d); <-time.After(d) })"
	for _, tc := range []struct {
		text  string
		found int
	}{
		{"func TestX(t *testing.T) { time.Sleep(d) }", 1},
		{"func TestX(t *testing.T) { <-time.After(d) }", 1},
		{"func TestX(t *testing.T) { _ = <-time.After(d) }", 1},
		{"func TestX(t *testing.T) { <-time.NewTimer(d).C }", 1},
		{"func TestX(t *testing.T) { for range time.Tick(d) { } }", 1},
		{"func TestX(t *testing.T) { run(func() { <-time.After(d) }) }", 1},
		{"func TestX(t *testing.T) { select { case <-time.After(d): } }", 1},
		{"func TestX(t *testing.T) { select { case <-done: time.Sleep(d); case <-time.After(d): <-time.After(d) } }", 2},
		{"func TestX(t *testing.T) { " + inBubble + "; time.Sleep(d) }", 1},
		{"func TestX(t *testing.T) { synctest.Test(t, func(t *testing.T) { synctest.Wait() }); time.Sleep(d) }", 1},
		{"func waitUntil(d time.Duration) { time.Sleep(d) }", 1},
		{"func await(ok func() bool) { for !ok() { time.Sleep(d) } }", 1},
		{"var pause = time.Sleep", 1},

		{"func TestX(t *testing.T) { " + inBubble + " }", 0},
		{"func TestX(t *testing.T) { select { case <-done: case <-time.After(d): t.Error() } }", 0},
		{"func TestX(t *testing.T) { select { case v := <-done: use(v); case at := <-time.After(d): use(at) } }", 0},
		{"func TestX(t *testing.T) { timeout := time.After(d); select { case <-done: case <-timeout: } }", 0},
		{"func pass(d time.Duration) { time.Sleep(d); synctest.Wait() }", 0},
		{"func waitUntil(ok func() bool) { for !ok() { time.Sleep(d) } }", 0},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x_test.go", "package x\n"+tc.text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if at := sleeps(f.Decls[0]); len(at) != tc.found {
			t.Errorf("%s: found %d sleeps, want %d", tc.text, len(at), tc.found)
		}
	}
}

// The table of private words in docs/internals.md explains names that the supervisor's packages declare.
func TestPrivateWordsAreInUse(t *testing.T) {
	_, all := sources(t)
	declared := map[string]bool{}
	add := func(names ...*ast.Ident) {
		for _, n := range names {
			declared[n.Name] = true
		}
	}
	for _, s := range all {
		if s.test || !strings.HasPrefix(s.pkg, "supervisor") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				add(n.Names...)
			case *ast.ValueSpec:
				add(n.Names...)
			case *ast.TypeSpec:
				add(n.Name)
			case *ast.FuncDecl:
				add(n.Name)
			}
			return true
		})
	}
	text, err := os.ReadFile("docs/internals.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Private words\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|").FindAllStringSubmatch(table, -1)
	if len(rows) == 0 {
		t.Fatal("docs/internals.md has no table of private words")
	}
	for _, row := range rows {
		for word := range strings.SplitSeq(row[1], ", ") {
			if word = strings.Trim(word, "`"); !declared[word] {
				t.Errorf("docs/internals.md explains %s, which no package of the supervisor declares: remove it, or write the name that it has now", word)
			}
		}
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
