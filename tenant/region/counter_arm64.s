#include "textflag.h"

// func swap(c *Counter, bytes, last, newBytes, newLast uint64) (swapped bool, nowBytes, nowLast uint64)
//
// Where the words are not as expected nothing is stored, and the pair read may be of two moments: the next try fails then.
TEXT ·swap(SB), NOSPLIT, $0-64
	MOVD c+0(FP), R0
	MOVD bytes+8(FP), R1
	MOVD last+16(FP), R2
	MOVD newBytes+24(FP), R3
	MOVD newLast+32(FP), R4
	MOVD ZR, R8
	LDAXP (R0), (R5, R6)
	CMP R1, R5
	BNE done
	CMP R2, R6
	BNE done
	STLXP (R3, R4), (R0), R7
	CMP ZR, R7
	CSET EQ, R8
done:
	MOVB R8, swapped+40(FP)
	MOVD R5, nowBytes+48(FP)
	MOVD R6, nowLast+56(FP)
	RET
