#include "textflag.h"

// The runtime calls this as a C function: DI = addr, SI = length, DX = prot, CX = flags,
// R8 = fd, R9 = offset. It returns an address, or the errno.

#define ENOMEM $12
#define READWRITE $3 // PROT_READ|PROT_WRITE

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
	TESTQ	DI, DI          // a given address: only the kernel can map it
	JNE	done
	CMPL	DX, READWRITE
	JNE	done
	ADDQ	$0xffff, SI     // the largest page size
	ANDQ	$~0xffff, SI
	MOVQ	SI, R11
	LEAQ	·free(SB), R10
	LOCK
	XADDQ	R11, (R10)
	ADDQ	R11, SI
	CMPQ	SI, ·end(SB)
	JHI	done
	MOVQ	R11, AX
done:
	RET
