//go:build !cgo

#include "textflag.h"

#define TABLE $4096 // descriptors

DATA _cgo_sigaction(SB)/8, $·first(SB)
GLOBL _cgo_sigaction(SB), NOPTR, $8

// The runtime calls it as C is called: R0 = signal, R1 = *struct sigaction or nil, and
// the errno in R0. first.go says what it does.
TEXT ·first(SB),NOSPLIT|NOFRAME,$0
	MOVW	·grown(SB), R9
	CBZ	R9, grow

signal:
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

grow:
	MOVD	$1, R9
	MOVW	R9, ·grown(SB)
	MOVD	R0, R9
	MOVD	R1, R10
	MOVD	R30, R11
	MOVD	$0, R2
	MOVD	$·limit(SB), R3
	CALL	·prlimit(SB)
	MOVD	·limit+8(SB), R12 // rlim_max
	MOVD	TABLE, R13
	CMP	R13, R12
	BLO	grown
	MOVD	R13, ·raised(SB)
	MOVD	R12, ·raised+8(SB)
	MOVD	$·raised(SB), R2
	MOVD	$0, R3
	CALL	·prlimit(SB)
	MOVD	$0, R0
	MOVD	$1030, R1       // F_DUPFD_CLOEXEC
	SUB	$1, R13, R2
	MOVD	$25, R8         // SYS_fcntl
	SVC
	TBNZ	$63, R0, back
	MOVD	$57, R8         // SYS_close
	SVC

back:
	MOVD	$·limit(SB), R2
	MOVD	$0, R3
	CALL	·prlimit(SB)

grown:
	MOVD	R9, R0
	MOVD	R10, R1
	MOVD	R11, R30
	B	signal

// R2 = new limit of open files, R3 = where the old one goes; either may be 0.
TEXT ·prlimit(SB),NOSPLIT|NOFRAME,$0
	MOVD	$0, R0
	MOVD	$7, R1          // RLIMIT_NOFILE
	MOVD	$261, R8        // SYS_prlimit64
	SVC
	RET
