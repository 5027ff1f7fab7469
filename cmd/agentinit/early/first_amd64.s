//go:build !cgo

#include "textflag.h"

DATA _cgo_sigaction(SB)/8, $·first(SB)
GLOBL _cgo_sigaction(SB), NOPTR, $8

// The runtime calls it as C is called: DI = signal, SI = *struct sigaction or nil, AX =
// the errno. first.go says what it does.
TEXT ·first(SB),NOSPLIT|NOFRAME,$0
	TESTQ	SI, SI
	JZ	done
	MOVQ	·ours(SB), AX
	BTQ	DI, AX
	JCC	done
	MOVQ	(SI), AX
	CMPQ	AX, $1          // SIG_DFL, SIG_IGN
	JLS	done
	LEAQ	·next(SB), R10
	MOVL	DI, CX
	MOVQ	AX, (R10)(CX*8)
	LEAQ	·handler(SB), AX
	MOVQ	AX, (SI)

done:
	MOVL	$22, AX         // EINVAL
	RET
