#include "textflag.h"

// The runtime calls this as a C function: DI = addr, SI = length, DX = prot, CX = flags,
// R8 = fd, R9 = offset. It returns an address, or the errno.

#define ENOMEM $12
#define READWRITE $3 // PROT_READ|PROT_WRITE
#define MOVE $3      // MREMAP_MAYMOVE|MREMAP_FIXED

DATA ·hookAddress(SB)/8, $·hook(SB)
GLOBL ·hookAddress(SB), NOPTR, $8

TEXT ·hook(SB),NOSPLIT|NOFRAME,$0
	MOVQ	CX, R10
	MOVQ	$9, AX          // SYS_mmap
	SYSCALL
	CMPQ	AX, $0xfffffffffffff001
	JCS	done
	NEGQ	AX
	CMPQ	AX, ENOMEM
	JNE	done
	CMPL	DX, READWRITE
	JNE	done
	LEAQ	0xffff(SI), R11 // the largest page size
	ANDQ	$~0xffff, R11
	MOVQ	R11, R9
	LEAQ	·free(SB), R10
	LOCK
	XADDQ	R11, (R10)      // R11 = where the part begins
	ADDQ	R11, R9
	CMPQ	R9, ·end(SB)
	JHI	done
	MOVQ	R11, AX
	TESTQ	DI, DI          // no given address: the part stays where it is
	JEQ	done
	MOVQ	DI, R8          // mremap(part, length, length, MOVE, addr)
	MOVQ	R11, DI
	MOVQ	SI, DX
	MOVQ	MOVE, R10
	MOVQ	$25, AX         // SYS_mremap
	SYSCALL
	CMPQ	AX, $0xfffffffffffff001
	JCS	done
	NEGQ	AX
done:
	RET
