// Forwarders of the symbols that are passed on to the driver; see
// forward_x86_64.S.
#if defined(__aarch64__)

.macro FORWARD name, number
	.text
	.globl \name
	.type \name, %function
	.p2align 4
\name:
	hint #34
	adrp x16, lgpu_slots + 8 * \number
	ldr x16, [x16, :lo12:lgpu_slots + 8 * \number]
	br x16
	.size \name, . - \name
.Llazy\number:
	hint #34
	mov w17, #\number
	b lgpu_lazy
.endm

.macro SLOTS
	.data
	.p2align 3
	.globl lgpu_slots
	.hidden lgpu_slots
	.type lgpu_slots, %object
lgpu_slots:
.endm

.macro SLOT_LAZY number
	.quad .Llazy\number
.endm

.macro SLOT_EMPTY
	.quad 0
.endm

.macro SLOTS_END
	.size lgpu_slots, . - lgpu_slots
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
	bl lgpu_slot_resolve
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

#include "forward_gen.inc"

	.section .note.GNU-stack, "", %progbits
#endif
