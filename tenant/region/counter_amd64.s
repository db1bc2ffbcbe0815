#include "textflag.h"

// func swap(c *Counter, bytes, last, newBytes, newLast uint64) (swapped bool, nowBytes, nowLast uint64)
TEXT ·swap(SB), NOSPLIT, $0-64
	MOVQ c+0(FP), DI
	MOVQ bytes+8(FP), AX
	MOVQ last+16(FP), DX
	MOVQ newBytes+24(FP), BX
	MOVQ newLast+32(FP), CX
	LOCK
	CMPXCHG16B (DI)
	SETEQ swapped+40(FP)
	MOVQ AX, nowBytes+48(FP)
	MOVQ DX, nowLast+56(FP)
	RET
