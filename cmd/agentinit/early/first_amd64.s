//go:build !cgo

#include "textflag.h"

#define TABLE $4096 // descriptors

DATA _cgo_sigaction(SB)/8, $·first(SB)
GLOBL _cgo_sigaction(SB), NOPTR, $8

// The runtime calls it as C is called: DI = signal, SI = *struct sigaction or nil, AX =
// the errno. first.go says what it does.
TEXT ·first(SB),NOSPLIT|NOFRAME,$0
	CMPL	·grown(SB), $0
	JEQ	grow

signal:
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

grow:
	MOVL	$1, ·grown(SB)
	MOVQ	DI, R8
	MOVQ	SI, R9
	XORL	DX, DX
	LEAQ	·limit(SB), R10
	CALL	·prlimit(SB)
	MOVQ	·limit+8(SB), AX // rlim_max
	CMPQ	AX, TABLE
	JCS	grown
	MOVQ	TABLE, ·raised(SB)
	MOVQ	AX, ·raised+8(SB)
	LEAQ	·raised(SB), DX
	XORL	R10, R10
	CALL	·prlimit(SB)
	XORL	DI, DI
	MOVL	$1030, SI       // F_DUPFD_CLOEXEC
	MOVL	TABLE, DX
	DECL	DX
	MOVL	$72, AX         // SYS_fcntl
	SYSCALL
	TESTQ	AX, AX
	JLT	back
	MOVQ	AX, DI
	MOVL	$3, AX          // SYS_close
	SYSCALL

back:
	LEAQ	·limit(SB), DX
	XORL	R10, R10
	CALL	·prlimit(SB)

grown:
	MOVQ	R8, DI
	MOVQ	R9, SI
	JMP	signal

// DX = new limit of open files, R10 = where the old one goes; either may be 0.
TEXT ·prlimit(SB),NOSPLIT|NOFRAME,$0
	XORL	DI, DI
	MOVL	$7, SI          // RLIMIT_NOFILE
	MOVL	$302, AX        // SYS_prlimit64
	SYSCALL
	RET
