#include "textflag.h"
#include "go_asm.h"

#define SYS_rt_sigprocmask 135
#define SYS_exit_group 94
#define SYS_prlimit64 261
#define SIG_SETMASK 2

// The kernel keeps all registers but R0. The new process has the stack pointer of
// the caller, who goes on at the same time: after the clone, no instruction of the
// new process may touch the stack.

// func spawn(b *Block) int
TEXT ·spawn(SB),NOSPLIT,$0-16
	MOVD	b+0(FP), R19
	MOVD	$SIG_SETMASK, R0
	ADD	$Block_AllSignals, R19, R1
	ADD	$Block_OldSignals, R19, R2
	MOVD	$8, R3
	MOVD	$SYS_rt_sigprocmask, R8
	SVC
	MOVD	Block_CloneNr(R19), R8
	MOVD	(Block_CloneArgs+0)(R19), R0
	MOVD	(Block_CloneArgs+8)(R19), R1
	MOVD	(Block_CloneArgs+16)(R19), R2
	MOVD	(Block_CloneArgs+24)(R19), R3
	MOVD	(Block_CloneArgs+32)(R19), R4
	SVC
	CBZ	R0, child
	MOVD	R0, R20
	MOVD	$SIG_SETMASK, R0
	ADD	$Block_OldSignals, R19, R1
	MOVD	$0, R2
	MOVD	$8, R3
	MOVD	$SYS_rt_sigprocmask, R8
	SVC
	MOVD	R20, ret+8(FP)
	RET

child:
	MOVD	Block_First(R19), R20
step:
	MOVD	R20, Block_At(R19)
	MOVD	Step_Nr(R20), R8
	MOVD	(Step_Args+0)(R20), R0
	MOVD	(Step_Args+8)(R20), R1
	MOVD	(Step_Args+16)(R20), R2
	MOVD	(Step_Args+24)(R20), R3
	MOVD	(Step_Args+32)(R20), R4
	MOVD	(Step_Args+40)(R20), R5
	SVC
	CMN	$4095, R0	// results from -4095 on are error numbers (syscall(2))
	BCS	failed
	MOVD	Step_Store(R20), R21
	CBZ	R21, stored
	MOVD	R0, (R21)
stored:
	ADD	$Step__size, R20
	B	step
failed:
	MOVD	Step_OnError(R20), R21
	CBZ	R21, giveup
	MOVD	R21, R20
	B	step
giveup:
	NEG	R0, R0
	MOVD	R0, Block_Errno(R19)
exit:
	MOVD	$127, R0
	MOVD	$SYS_exit_group, R8
	SVC
	B	exit

// func prlimit(resource uintptr, old *[2]uint64) int
TEXT ·prlimit(SB),NOSPLIT,$0-24
	MOVD	$0, R0
	MOVD	resource+0(FP), R1
	MOVD	$0, R2
	MOVD	old+8(FP), R3
	MOVD	$SYS_prlimit64, R8
	SVC
	MOVD	R0, ret+16(FP)
	RET
