//go:build !cgo

#include "textflag.h"

DATA _cgo_sigaction(SB)/8, $·first(SB)
GLOBL _cgo_sigaction(SB), NOPTR, $8

// The runtime calls it as C is called: R0 = signal, R1 = *struct sigaction or nil, and
// the errno in R0. first.go says what it does.
TEXT ·first(SB),NOSPLIT|NOFRAME,$0
	CBZ	R1, done
	MOVD	·ours(SB), R9
	LSR	R0, R9, R9
	TBZ	$0, R9, done
	MOVD	(R1), R9
	CMP	$1, R9          // SIG_DFL, SIG_IGN
	BLS	done
	MOVD	$·next(SB), R10
	ADD	R0<<3, R10, R10
	MOVD	R9, (R10)
	MOVD	$·handler(SB), R9
	MOVD	R9, (R1)

done:
	MOVD	$22, R0         // EINVAL
	RET
