// Package filter assembles seccomp filters: the guard that keeps programs from harming
// agentinit, and the presets of the manifest's key sandbox.seccomp.
//
// It is pure: everything that the filters depend on is an argument, and supervisor/proc installs
// the filters. It must never make a system call.
package filter

import (
	"fmt"
	"slices"

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

// program is a filter under construction. Jumps go to labels, which must come later in the filter.
type program struct {
	code   []instruction
	labels map[int][]string // by the index of the instruction that follows
	fresh  int
}

// instruction is one of BPF; a bpf.Jump or bpf.JumpIf goes to a label.
type instruction struct {
	bpf.Instruction
	to string
}

func newProgram() *program { return &program{labels: map[int][]string{}} }

func (p *program) label(name string) {
	p.labels[len(p.code)] = append(p.labels[len(p.code)], name)
}

// unique makes a label that is not used yet.
func (p *program) unique() string {
	p.fresh++
	return fmt.Sprintf("#%d", p.fresh)
}

func (p *program) add(i bpf.Instruction, to string) {
	p.code = append(p.code, instruction{i, to})
}

func (p *program) load(off uint32) { p.add(bpf.LoadAbsolute{Off: off, Size: 4}, "") }

func (p *program) ret(action uint32) { p.add(bpf.RetConstant{Val: action}, "") }

func (p *program) jump(label string) { p.add(bpf.Jump{}, label) }

// when jumps to label if the comparison of the accumulator with val is true.
func (p *program) when(cond bpf.JumpTest, val uint32, label string) {
	p.add(bpf.JumpIf{Cond: cond, Val: val}, label)
}

// longestSkip is how many instructions a conditional jump of BPF can skip.
const longestSkip = 255

// assemble resolves the labels. It works from the end to the start, where the length of every jump
// is known.
func (p *program) assemble() ([]unix.SockFilter, error) {
	var reversed []bpf.Instruction
	behind := map[string]int{} // how many instructions follow a label
	for i := len(p.code); ; i-- {
		for _, name := range p.labels[i] {
			behind[name] = len(reversed)
		}
		if i == 0 {
			break
		}
		x := p.code[i-1]
		to, ok := behind[x.to]
		if !ok && x.to != "" {
			return nil, fmt.Errorf("no label %q after instruction %d", x.to, i-1)
		}
		skip := len(reversed) - to
		switch jump := x.Instruction.(type) {
		case bpf.Jump:
			if skip > 0 {
				reversed = append(reversed, bpf.Jump{Skip: uint32(skip)})
			}
		case bpf.JumpIf:
			if skip <= longestSkip {
				jump.SkipTrue = uint8(skip)
			} else { // a short jump around a long one
				reversed = append(reversed, bpf.Jump{Skip: uint32(skip)})
				jump.SkipFalse = 1
			}
			reversed = append(reversed, jump)
		default:
			reversed = append(reversed, jump)
		}
	}
	slices.Reverse(reversed)
	raw, err := bpf.Assemble(reversed)
	if err != nil {
		return nil, err
	}
	out := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		out[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return out, nil
}
