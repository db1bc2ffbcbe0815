// SPDX-License-Identifier: Apache-2.0

// dlsym and dlvsym; see dl_x86_64.S.
#if defined(__aarch64__)

.macro DL name, number
	.text
	.globl \name
	.type \name, %function
	.p2align 4
\name:
	.cfi_startproc
	hint #34
	stp x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset 29, -48
	.cfi_offset 30, -40
	mov x29, sp
	stp x0, x1, [sp, #16]
	str x2, [sp, #32]
	mov x3, x30
	mov w4, #\number
	bl lgpu_dl_translate
	mov x16, x0
	ldp x0, x1, [sp, #16]
	ldr x2, [sp, #32]
	ldp x29, x30, [sp], #48
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	cbz x16, 1f
	mov x0, x16
	ret
1:	adrp x16, lgpu_dl_real + 8 * \number
	ldr x16, [x16, :lo12:lgpu_dl_real + 8 * \number]
	br x16
	.cfi_endproc
	.size \name, . - \name
.endm

DL dlsym, 0
DL dlvsym, 1

	.section .note.GNU-stack, "", %progbits
#endif
