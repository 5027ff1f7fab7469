#include "textflag.h"
#include "go_asm.h"

#define SYS_rt_sigprocmask 14
#define SYS_exit_group 231
#define SYS_prlimit64 302
#define SIG_SETMASK 2

// Results from -4095 on are error numbers (syscall(2)).
#define MAX_ERRNO 0xfffffffffffff001

// The kernel keeps all registers but AX, CX and R11. The new process has the stack
// pointer of the caller, who goes on at the same time: after the clone, no
// instruction of the new process may touch the stack.

// func spawn(b *Block) int
TEXT ·spawn(SB),NOSPLIT,$0-16
	MOVQ	b+0(FP), R12
	MOVQ	$SIG_SETMASK, DI
	LEAQ	Block_AllSignals(R12), SI
	LEAQ	Block_OldSignals(R12), DX
	MOVQ	$8, R10
	MOVQ	$SYS_rt_sigprocmask, AX
	SYSCALL
	MOVQ	Block_CloneNr(R12), AX
	MOVQ	Block_CloneArgs+0(R12), DI
	MOVQ	Block_CloneArgs+8(R12), SI
	MOVQ	Block_CloneArgs+16(R12), DX
	MOVQ	Block_CloneArgs+24(R12), R10
	MOVQ	Block_CloneArgs+32(R12), R8
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	MOVQ	AX, R13
	MOVQ	$SIG_SETMASK, DI
	LEAQ	Block_OldSignals(R12), SI
	MOVQ	$0, DX
	MOVQ	$8, R10
	MOVQ	$SYS_rt_sigprocmask, AX
	SYSCALL
	MOVQ	R13, ret+8(FP)
	RET

child:
	MOVQ	Block_First(R12), R13
step:
	MOVQ	R13, Block_At(R12)
	MOVQ	Step_Nr(R13), AX
	MOVQ	Step_Args+0(R13), DI
	MOVQ	Step_Args+8(R13), SI
	MOVQ	Step_Args+16(R13), DX
	MOVQ	Step_Args+24(R13), R10
	MOVQ	Step_Args+32(R13), R8
	MOVQ	Step_Args+40(R13), R9
	SYSCALL
	CMPQ	AX, $MAX_ERRNO
	JCC	failed
	MOVQ	Step_Store(R13), BX
	TESTQ	BX, BX
	JEQ	stored
	MOVQ	AX, (BX)
stored:
	ADDQ	$Step__size, R13
	JMP	step
failed:
	MOVQ	Step_OnError(R13), BX
	TESTQ	BX, BX
	JEQ	giveup
	MOVQ	BX, R13
	JMP	step
giveup:
	NEGQ	AX
	MOVQ	AX, Block_Errno(R12)
exit:
	MOVQ	$127, DI
	MOVQ	$SYS_exit_group, AX
	SYSCALL
	JMP	exit

// func prlimit(resource uintptr, old *[2]uint64) int
TEXT ·prlimit(SB),NOSPLIT,$0-24
	MOVQ	$0, DI
	MOVQ	resource+0(FP), SI
	MOVQ	$0, DX
	MOVQ	old+8(FP), R10
	MOVQ	$SYS_prlimit64, AX
	SYSCALL
	MOVQ	AX, ret+16(FP)
	RET
