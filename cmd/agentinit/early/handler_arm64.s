#include "textflag.h"

// The kernel calls it with R0 = signal, R1 = *siginfo_t, R2 = *ucontext_t. It keeps
// these three and R30 for the runtime's handler. siginfo_t has si_code at 8, si_pid at
// 16 and si_uid at 20.

#define FAULTS $0x800109b0 // handler.go, faults
#define RINGMASK $1023

DATA ·handlerAddress(SB)/8, $·handler(SB)
GLOBL ·handlerAddress(SB), NOPTR, $8

TEXT ·handler(SB),NOSPLIT|NOFRAME,$0
	MOVD	$·relayAs(SB), R10
	ADD	R0<<2, R10, R10
	MOVWU	(R10), R9
	CBNZ	R9, relay
	MOVW	8(R1), R9       // si_code
	MOVD	FAULTS, R8
	LSR	R0, R8, R8
	AND	$1, R8          // a fault?
	CBZ	R8, sender
	CMPW	$0, R9
	BGT	chain           // a real fault

sender:
	CMPW	$0x80, R9       // SI_KERNEL
	BEQ	fromOutside
	CBNZW	R9, inside      // not SI_USER
	MOVWU	16(R1), R10
	CBNZ	R10, inside

fromOutside:
	MOVD	$·outside(SB), R10
	ADD	R0<<3, R10, R10
again:
	LDAXR	(R10), R11
	ADD	$1, R11
	STLXR	R11, (R10), R12
	CBNZ	R12, again
	B	recorded

inside:
	MOVD	$·head(SB), R10
take:
	LDAXR	(R10), R11
	ADD	$1, R11, R13
	STLXR	R13, (R10), R12
	CBNZ	R12, take
	AND	RINGMASK, R11, R12
	ADD	R12<<1, R12, R12
	MOVD	$·ring(SB), R10
	ADD	R12<<3, R10, R10
	MOVD	ZR, (R10)       // seq = 0
	DMB	$0xB            // ISH
	MOVW	R0, 8(R10)
	MOVW	R9, 12(R10)
	MOVW	16(R1), R12
	MOVW	R12, 16(R10)
	MOVW	20(R1), R12
	MOVW	R12, 20(R10)
	STLR	R13, (R10)

recorded:
	MOVD	·holds(SB), R10
	LSR	R0, R10, R10
	TBZ	$0, R10, fault
	MOVD	$·state(SB), R10
	ADD	R0<<3, R10, R10
hold:
	LDAXR	(R10), R11
	ADD	$2, R11, R13
	STLXR	R13, (R10), R12
	CBNZ	R12, hold
	TBZ	$0, R11, drop   // not released: it waits for release

fault:
	CBZ	R8, chain
	MOVD	$·pass(SB), R10
	MOVWU	(R10), R10
	CBZ	R10, drop
	MOVW	ZR, 8(R1)       // for the runtime, kill(2) sent it: a message

chain:
	MOVD	$·next(SB), R10
	ADD	R0<<3, R10, R10
	MOVD	(R10), R10
	B	(R10)

drop:
	RET

relay:
	MOVD	$·relayed(SB), R10
	ADD	R0<<3, R10, R10
count:
	LDAXR	(R10), R11
	ADD	$1, R11
	STLXR	R11, (R10), R12
	CBNZ	R12, count
	MOVD	R9, R0          // for the runtime, this signal came
	B	chain
