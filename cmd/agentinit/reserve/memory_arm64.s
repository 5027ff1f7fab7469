#include "textflag.h"

// The runtime calls this as a C function: R0 = addr, R1 = length, R2 = prot, R3 = flags,
// R4 = fd, R5 = offset. It returns an address, or the errno.

#define ENOMEM $12
#define READWRITE $3 // PROT_READ|PROT_WRITE
#define MOVE $3      // MREMAP_MAYMOVE|MREMAP_FIXED

DATA ·hookAddress(SB)/8, $·hook(SB)
GLOBL ·hookAddress(SB), NOPTR, $8

TEXT ·hook(SB),NOSPLIT|NOFRAME,$0
	MOVD	R0, R9
	MOVD	$222, R8        // SYS_mmap
	SVC
	CMN	$4095, R0
	BCC	done
	NEG	R0, R0
	CMP	ENOMEM, R0
	BNE	done
	CMPW	READWRITE, R2
	BNE	done
	MOVD	$0xffff, R10    // the largest page size
	ADD	R10, R1, R14
	BIC	R10, R14, R14
	MOVD	$·free(SB), R10
take:
	LDAXR	(R10), R11      // R11 = where the part begins
	ADD	R14, R11, R12
	STLXR	R12, (R10), R13
	CBNZ	R13, take
	MOVD	·end(SB), R13
	CMP	R13, R12
	BHI	done
	MOVD	R11, R0
	CBZ	R9, done        // no given address: the part stays where it is
	MOVD	R1, R2          // mremap(part, length, length, MOVE, addr)
	MOVD	MOVE, R3
	MOVD	R9, R4
	MOVD	$216, R8        // SYS_mremap
	SVC
	CMN	$4095, R0
	BCC	done
	NEG	R0, R0
done:
	RET
