// SPDX-License-Identifier: Apache-2.0

// dlsym and dlvsym.
//
// lgpu_dl_translate decides whether the answer is one of our functions. If
// not, libc's own function is entered by a jump, with the caller's return
// address on the stack: RTLD_NEXT and RTLD_DEFAULT are answered for the real
// caller, exactly as without us.
#if defined(__x86_64__)

.macro DL name, number
	.text
	.globl \name
	.type \name, @function
	.p2align 4
\name:
	.cfi_startproc
	endbr64
	pushq %rdi
	pushq %rsi
	pushq %rdx
	.cfi_def_cfa_offset 32
	movq 24(%rsp), %rcx
	movl $\number, %r8d
	call lgpu_dl_translate
	popq %rdx
	popq %rsi
	popq %rdi
	.cfi_def_cfa_offset 8
	testq %rax, %rax
	jnz 1f
	jmp *(lgpu_dl_real + 8 * \number)(%rip)
1:	ret
	.cfi_endproc
	.size \name, . - \name
.endm

// The second argument of dlsym is followed by nothing, that of dlvsym by the
// version; lgpu_dl_translate knows by the number.
DL dlsym, 0
DL dlvsym, 1

	.section .note.GNU-stack, "", @progbits
#endif
