package filter

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestPresetsNameSystemCalls(t *testing.T) {
	for section, names := range sections() {
		for _, name := range names {
			if !Known(name) {
				t.Errorf("[%s] names %q, which is no system call", section, name)
			}
		}
	}
	if len(sections()["default"]) < 300 || len(sections()["strict without"]) < 20 {
		t.Error("lists are missing")
	}
	if Known("make_coffee") {
		t.Error("every name is known")
	}
}

func TestCompile(t *testing.T) {
	const logged = retLog
	for _, machine := range []string{"amd64", "arm64"} {
		nr := numbers()[machine]
		arch := tables(machine)[0].arch
		for _, tc := range []struct {
			pol  Policy
			call string
			args []uint64
			want uint32
		}{
			{Policy{Preset: "default"}, "read", nil, retAllow},
			{Policy{Preset: "default"}, "execve", nil, retAllow},
			{Policy{Preset: "default"}, "rt_sigprocmask", nil, retAllow},
			{Policy{Preset: "default"}, "mount", nil, refused},
			{Policy{Preset: "default"}, "keyctl", nil, refused},
			{Policy{Preset: "default"}, "clone", []uint64{17}, retAllow},
			{Policy{Preset: "default"}, "clone", []uint64{0x10000000 | 17}, refused}, // CLONE_NEWUSER
			{Policy{Preset: "default"}, "clone3", nil, missing},
			{Policy{Preset: "default"}, "socket", []uint64{2}, retAllow},
			{Policy{Preset: "default"}, "socket", []uint64{38}, refused},
			{Policy{Preset: "default"}, "personality", []uint64{0}, retAllow},
			{Policy{Preset: "default"}, "personality", []uint64{0x400000}, refused}, // READ_IMPLIES_EXEC
			{Policy{Preset: "default"}, "ptrace", nil, retAllow},
			{Policy{Preset: "strict"}, "ptrace", nil, refused},
			{Policy{Preset: "strict"}, "socket", []uint64{17}, refused}, // AF_PACKET
			{Policy{Preset: "strict"}, "execve", nil, retAllow},
			{Policy{Preset: "strict"}, "rt_sigprocmask", nil, retAllow},
			{Policy{Preset: "strict", Allow: []string{"ptrace"}}, "ptrace", nil, retAllow},
			{Policy{Preset: "strict", Allow: []string{"ptrace"}, Deny: []string{"ptrace"}}, "ptrace", nil, refused},
			{Policy{Preset: "default", Deny: []string{"socket"}}, "socket", []uint64{2}, refused},
			{Policy{Deny: []string{"mount"}}, "mount", nil, refused},
			{Policy{Deny: []string{"mount"}}, "keyctl", nil, retAllow},
			{Policy{Deny: []string{"mount"}}, "io_uring_setup", nil, retAllow},
			{Policy{Deny: []string{"connect"}}, "io_uring_setup", nil, refused},
			{Policy{Deny: []string{"connect"}, Allow: []string{"io_uring_setup"}}, "io_uring_setup", nil, retAllow},
			{Policy{Preset: "default", Allow: []string{"io_uring_setup"}, Deny: []string{"connect"}}, "io_uring_setup", nil, retAllow},
			{Policy{Preset: "default", Capabilities: []string{"SYS_ADMIN"}}, "mount", nil, retAllow},
			{Policy{Preset: "default", Capabilities: []string{"SYS_ADMIN"}}, "clone3", nil, retAllow},
			{Policy{Preset: "default", Log: true}, "mount", nil, logged},
		} {
			f, err := Compile(machine, tc.pol)
			if err != nil {
				t.Fatal(err)
			}
			if got := answer(t, f, arch, uint32(nr[tc.call]), tc.args...); got != tc.want {
				t.Errorf("%s %+v: %s %x: %#x, want %#x", machine, tc.pol, tc.call, tc.args, got, tc.want)
			}
		}
		f, err := Compile(machine, Policy{Preset: "default"})
		if err != nil {
			t.Fatal(err)
		}
		if got := answer(t, f, arch, 9999); got != missing {
			t.Errorf("%s: a call of the future: %#x", machine, got)
		}
		if got := answer(t, f, tables(machine)[1].arch, 3); got != missing {
			t.Errorf("%s: a 32-bit caller: %#x", machine, got)
		}
		// The filter gives every system call number the answer of its name.
		actions, err := Policy{Preset: "strict"}.actions(nr)
		if err != nil {
			t.Fatal(err)
		}
		if f, err = Compile(machine, Policy{Preset: "strict"}); err != nil {
			t.Fatal(err)
		}
		for n, label := range actions {
			want, ok := map[string]uint32{"allow": retAllow, "deny": refused, "absent": missing}[label]
			if got := answer(t, f, arch, uint32(n)); ok && got != want {
				t.Errorf("%s: call %d: %#x, want %s", machine, n, got, label)
			}
		}
	}
	for _, bad := range []Policy{{Preset: "none"}, {Preset: "strict", Allow: []string{"make_coffee"}}} {
		if _, err := Compile("amd64", bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	if _, err := Compile("mips", Policy{}); err == nil {
		t.Error("mips was taken")
	}
}

// search finds the label of every number, wherever the numbers with other labels are.
func TestSearch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	labels := map[string]uint32{"allow": retAllow, "deny": refused, "absent": missing}
	for range 300 {
		actions := map[int]string{}
		for range random.IntN(40) {
			actions[random.IntN(600)] = []string{"allow", "deny", "absent"}[random.IntN(3)]
		}
		open := random.IntN(2) == 0
		p := newProgram()
		p.load(offNr)
		p.search(ranges(actions, open), math.MaxInt)
		for label, action := range labels {
			p.label(label)
			p.ret(action)
		}
		f, err := p.assemble()
		if err != nil {
			t.Fatal(err)
		}
		for n := range 700 {
			want := missing
			if open {
				want = retAllow
			}
			if label, ok := actions[n]; ok {
				want = labels[label]
			}
			if got := answer(t, f, 0, uint32(n)); got != want {
				t.Fatalf("%v, open %t: call %d: %#x, want %#x", actions, open, n, got, want)
			}
		}
	}
}
