package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// initBudget limits the packages that are initialised before main, and their allocations. More
// initialisation makes the start of every box slower: first check whether new values can be created
// on first use. The test binary has about twenty packages of its own.
var initBudget = struct{ packages, allocs int }{250, 4700}

// The test counts the work of a box before its first program starts. Counts do not depend on the
// load of the machine.
func TestInitialisationStaysInItsBudget(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var trace bytes.Buffer
	c := &exec.Cmd{Path: self, Args: []string{"agentinit", "--version"}, Env: append(os.Environ(), "GODEBUG=inittrace=1"), Stderr: &trace}
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	const module = "github.com/dreamlab-ai/agentinit/"
	place := map[string]int{}
	allocs := 0
	for lines := bufio.NewScanner(&trace); lines.Scan(); {
		f := strings.Fields(lines.Text()) // init PACKAGE @T ms, T ms clock, N bytes, N allocs
		if len(f) != 11 && len(f) != 10 || f[0] != "init" {
			continue
		}
		place[f[1]] = len(place)
		n := 0
		for _, digit := range f[len(f)-2] {
			n = 10*n + int(digit-'0')
		}
		allocs += n
	}
	if len(place) == 0 {
		t.Fatalf("no trace: %s", trace.String())
	}
	if len(place) > initBudget.packages || allocs > initBudget.allocs {
		t.Errorf("%d packages with %d allocations; the budget is %d with %d", len(place), allocs, initBudget.packages, initBudget.allocs)
	}
	t.Logf("%d packages, %d allocations", len(place), allocs)
	for _, heavy := range []string{"github.com/prometheus/client_golang/prometheus", module + "supervisor/control", module + "probes"} {
		for _, first := range []string{module + "cmd/agentinit/early", module + "cmd/agentinit/ahead"} {
			if place[first] == 0 || place[heavy] == 0 || place[first] > place[heavy] {
				t.Errorf("%s is initialised as number %d, %s as %d", first, place[first], heavy, place[heavy])
			}
		}
	}
}
