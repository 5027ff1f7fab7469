package supervisor

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/dreamlab-ai/agentinit/supervisor/proc"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

func TestGuardOf(t *testing.T) {
	me := uint32(os.Geteuid())
	for _, tc := range []struct {
		wanted, control bool
		cr              *proc.Credential
		want            proc.Guard
	}{
		{true, false, nil, proc.GuardFull},
		{true, true, nil, proc.GuardControl},
		{false, false, nil, proc.GuardNone},
		{true, false, &proc.Credential{UID: me}, proc.GuardFull},
		{true, false, &proc.Credential{UID: 0}, proc.GuardFull},
		{true, false, &proc.Credential{UID: me + 7}, proc.GuardNone},
		{true, true, &proc.Credential{UID: me + 7}, proc.GuardNone},
	} {
		if got := GuardOf(tc.wanted, tc.control, tc.cr); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

func TestConfine(t *testing.T) {
	abi := proc.LandlockABI()
	for _, tc := range []struct {
		name    string
		sandbox *program.Sandbox
		filter  bool
		skipped string // part of the skipped features, "-" for none
		err     string
	}{
		{"none", nil, false, "-", ""},
		{"off", &program.Sandbox{Seccomp: "strict", Mode: "off"}, false, "-", ""},
		{"filter", &program.Sandbox{Seccomp: "strict"}, true, "-", ""},
		{"denied calls alone", &program.Sandbox{DenySyscalls: []string{"ptrace"}}, true, "-", ""},
		{"audit", &program.Sandbox{Seccomp: "strict", Read: []string{"/"}, Mode: "audit"}, true, "audit", ""},
		{"unknown capability", &program.Sandbox{Capabilities: []string{"FLY"}}, false, "-", `unknown capability "FLY"`},
		{"unknown call", &program.Sandbox{Seccomp: "strict", AllowSyscalls: []string{"fly"}}, false, "-", `unknown system call "fly"`},
		{"unknown preset", &program.Sandbox{Seccomp: "iron"}, false, "-", `unknown preset "iron"`},
	} {
		c := proc.Command{}
		skipped, err := Confine(&c, tc.sandbox)
		switch {
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)), tc.err == "" && err != nil:
			t.Errorf("%s: error %v", tc.name, err)
		case tc.skipped == "-" && skipped != nil, tc.skipped != "-" && (skipped == nil || !strings.Contains(skipped.Error(), tc.skipped)):
			t.Errorf("%s: skipped %v", tc.name, skipped)
		case tc.filter != (c.Sandbox != nil && c.Sandbox.Filter != nil):
			t.Errorf("%s: filter %+v", tc.name, c.Sandbox)
		case tc.name == "audit" && c.Sandbox.Read != nil:
			t.Error("audit enforces paths")
		}
	}
	// A feature that the kernel does not have is skipped or, with required, refused.
	lacking := program.Sandbox{Capabilities: []string{"SYS_ADMIN", "MAC_ADMIN", "SYS_MODULE"}}
	if _, missing := proc.Enforceable(proc.Sandbox{Capabilities: []int{16, 21, 33}}); len(missing) > 0 {
		c := proc.Command{}
		if skipped, err := Confine(&c, &lacking); err != nil || skipped == nil {
			t.Errorf("skipped %v, error %v", skipped, err)
		}
		lacking.Required = true
		_, err := Confine(&c, &lacking)
		if _, ok := errors.AsType[*UnsupportedError](err); !ok {
			t.Errorf("required: %v", err)
		}
	}
	if abi == 0 {
		t.Skip("the kernel has no Landlock: the rest is about paths")
	}
	c := proc.Command{}
	if _, err := Confine(&c, &program.Sandbox{Write: []string{"/x"}, PrivateTmp: true}); err != nil || len(c.Sandbox.Write) < 2 {
		t.Errorf("%+v, %v", c.Sandbox, err)
	}
}
