// Package filter assembles seccomp filters: the guard that keeps programs from harming
// agentinit, and the presets of the manifest's key sandbox.seccomp.
//
// It is pure: what the filters depend on comes in as arguments, and installing them is
// supervisor/proc's. It must never make a system call.
package filter

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets into struct seccomp_data (seccomp(2)). Arguments are 64 bits wide; both
// supported processors are little-endian.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

func low(arg int) uint32  { return uint32(offArgs + 8*arg) }
func high(arg int) uint32 { return uint32(offArgs + 8*arg + 4) }

// Actions of a filter (seccomp(2)).
const (
	retAllow = 0x7fff0000
	retErrno = 0x00050000
	retLog   = 0x7ffc0000
)

func errno(e uint32) uint32 { return retErrno | e }

// program is a filter in the making. Jumps go to labels, which may lie ahead; a
// conditional jump of BPF reaches 255 instructions, so each is a short one around a
// long one.
type program struct {
	code   []bpf.Instruction
	jumps  map[int]string // index of a bpf.Jump to its label
	labels map[string]int
	fresh  int
}

func newProgram() *program {
	return &program{jumps: map[int]string{}, labels: map[string]int{}}
}

func (p *program) label(name string) { p.labels[name] = len(p.code) }

// unique makes a label that nobody else uses.
func (p *program) unique() string {
	p.fresh++
	return fmt.Sprintf("#%d", p.fresh)
}

func (p *program) load(off uint32) {
	p.code = append(p.code, bpf.LoadAbsolute{Off: off, Size: 4})
}

func (p *program) ret(action uint32) { p.code = append(p.code, bpf.RetConstant{Val: action}) }

func (p *program) jump(label string) {
	p.jumps[len(p.code)] = label
	p.code = append(p.code, bpf.Jump{})
}

// when jumps if the accumulator compares so with val.
func (p *program) when(cond bpf.JumpTest, val uint32, label string) {
	p.code = append(p.code, bpf.JumpIf{Cond: cond, Val: val, SkipFalse: 1})
	p.jump(label)
}

// assemble resolves the labels.
func (p *program) assemble() ([]unix.SockFilter, error) {
	for at, label := range p.jumps {
		to, ok := p.labels[label]
		if !ok || to <= at {
			return nil, fmt.Errorf("no label %q after instruction %d", label, at)
		}
		p.code[at] = bpf.Jump{Skip: uint32(to - at - 1)}
	}
	raw, err := bpf.Assemble(p.code)
	if err != nil {
		return nil, err
	}
	out := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		out[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return out, nil
}
