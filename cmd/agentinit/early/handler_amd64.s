#include "textflag.h"

// The kernel calls it with DI = signal, SI = *siginfo_t, DX = *ucontext_t. It keeps
// these three for the runtime's handler. siginfo_t has si_code at 8, si_pid at 16 and
// si_uid at 20.

#define FAULTS $0x800109b0 // handler.go, faults
#define RINGMASK $1023

DATA ·handlerAddress(SB)/8, $·handler(SB)
GLOBL ·handlerAddress(SB), NOPTR, $8

TEXT ·handler(SB),NOSPLIT|NOFRAME,$0
	LEAQ	·relayAs(SB), R10
	MOVL	DI, CX
	MOVL	(R10)(CX*4), AX
	TESTL	AX, AX
	JNZ	relay
	MOVL	8(SI), R9       // si_code
	MOVL	FAULTS, R8
	BTL	DI, R8
	JCC	sender
	CMPL	R9, $0
	JGT	chain           // a real fault

sender:
	CMPL	R9, $0x80       // SI_KERNEL
	JEQ	fromOutside
	CMPL	R9, $0          // SI_USER
	JNE	inside
	MOVL	16(SI), R10
	TESTL	R10, R10
	JNZ	inside

fromOutside:
	LEAQ	·outside(SB), R10
	MOVL	DI, CX
	LOCK
	INCQ	(R10)(CX*8)
	JMP	recorded

inside:
	MOVQ	$1, AX
	LEAQ	·head(SB), R10
	LOCK
	XADDQ	AX, (R10)
	MOVQ	AX, CX
	ANDQ	RINGMASK, CX
	LEAQ	(CX)(CX*2), CX
	LEAQ	·ring(SB), R10
	LEAQ	(R10)(CX*8), R10
	XORL	R11, R11
	XCHGQ	R11, (R10)      // seq = 0
	MOVL	DI, 8(R10)
	MOVL	R9, 12(R10)
	MOVL	16(SI), R11
	MOVL	R11, 16(R10)
	MOVL	20(SI), R11
	MOVL	R11, 20(R10)
	INCQ	AX
	XCHGQ	AX, (R10)

recorded:
	MOVQ	·holds(SB), R8
	BTQ	DI, R8
	JCC	fault
	MOVQ	$2, AX
	LEAQ	·state(SB), R10
	MOVL	DI, CX
	LOCK
	XADDQ	AX, (R10)(CX*8)
	TESTQ	$1, AX          // released?
	JZ	drop            // it waits for release

fault:
	MOVL	FAULTS, R8
	BTL	DI, R8
	JCC	chain
	LEAQ	·pass(SB), R10
	MOVL	(R10), R10
	TESTL	R10, R10
	JZ	drop
	MOVL	$0, 8(SI)       // for the runtime, kill(2) sent it: a message

chain:
	LEAQ	·next(SB), R10
	MOVL	DI, CX
	MOVQ	(R10)(CX*8), R10
	JMP	R10

drop:
	RET

relay:
	LEAQ	·relayed(SB), R10
	LOCK
	INCQ	(R10)(CX*8)
	MOVL	AX, DI          // for the runtime, this signal came
	JMP	chain
