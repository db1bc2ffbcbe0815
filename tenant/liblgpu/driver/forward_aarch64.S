// SPDX-License-Identifier: Apache-2.0

// Forwarders of the symbols that are passed on to the driver; see
// forward_x86_64.S.
#if defined(__aarch64__)

.macro FORWARD name
	.text
	.globl \name
	.type \name, %function
	.p2align 4
\name:
	hint #34
	adrp x16, lgpu_reals + 8 * .Lnumber
	ldr x16, [x16, :lo12:lgpu_reals + 8 * .Lnumber]
	br x16
	.size \name, . - \name
.Llazy_\name:
	hint #34
	mov w17, #.Lnumber
	b lgpu_lazy
	ENTRY .Llazy_\name
.endm

.macro ENTRY address
	.data
	.quad \address
	.set .Lnumber, .Lnumber + 1
.endm

	.text
	.type lgpu_lazy, %function
lgpu_lazy:
	.cfi_startproc
	stp x29, x30, [sp, #-224]!
	.cfi_def_cfa_offset 224
	.cfi_offset 29, -224
	.cfi_offset 30, -216
	mov x29, sp
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
	str x8, [sp, #80]
	stp q0, q1, [sp, #96]
	stp q2, q3, [sp, #128]
	stp q4, q5, [sp, #160]
	stp q6, q7, [sp, #192]
	mov w0, w17
	bl lgpu_real_resolve
	mov x16, x0
	ldp x0, x1, [sp, #16]
	ldp x2, x3, [sp, #32]
	ldp x4, x5, [sp, #48]
	ldp x6, x7, [sp, #64]
	ldr x8, [sp, #80]
	ldp q0, q1, [sp, #96]
	ldp q2, q3, [sp, #128]
	ldp q4, q5, [sp, #160]
	ldp q6, q7, [sp, #192]
	ldp x29, x30, [sp], #224
	.cfi_def_cfa_offset 0
	br x16
	.cfi_endproc
	.size lgpu_lazy, . - lgpu_lazy

	.data
	.p2align 3
	.globl lgpu_reals
	.hidden lgpu_reals
	.type lgpu_reals, %object
lgpu_reals:
	.set .Lnumber, 0
#define SYMBOL(library, class, name) SYMBOL_##class(name)
#define SYMBOL_PASS(name) FORWARD name
#define SYMBOL_REFUSE(name) FORWARD name
#define SYMBOL_HOOK(name) ENTRY 0
#define SYMBOL_TOUCH(name) ENTRY 0
#define BASE(name, rows)
#include "driver/symbols_gen.inc"
	.data
	.size lgpu_reals, . - lgpu_reals

	.section .note.GNU-stack, "", %progbits
#endif
