// SPDX-License-Identifier: Apache-2.0

// Forwarders of the symbols that are passed on to the driver.
//
// The driver's signature need not be known: an exported symbol is one jump
// through its entry in lgpu_reals. The entry first leads to lgpu_real_resolve,
// which finds the driver's function while all registers that can carry arguments
// are kept, and stores it in the entry.
#if defined(__x86_64__)

.macro FORWARD name
	.text
	.globl \name
	.type \name, @function
	.p2align 4
\name:
	endbr64
	jmp *(lgpu_reals + 8 * .Lnumber)(%rip)
	.size \name, . - \name
.Llazy_\name:
	movl $.Lnumber, %r11d
	jmp lgpu_lazy
	ENTRY .Llazy_\name
.endm

.macro ENTRY address
	.data
	.quad \address
	.set .Lnumber, .Lnumber + 1
.endm

	.text
	.type lgpu_lazy, @function
lgpu_lazy:
	.cfi_startproc
	pushq %rax
	pushq %rdi
	pushq %rsi
	pushq %rdx
	pushq %rcx
	pushq %r8
	pushq %r9
	pushq %r10
	subq $136, %rsp
	.cfi_def_cfa_offset 208
	movups %xmm0, (%rsp)
	movups %xmm1, 16(%rsp)
	movups %xmm2, 32(%rsp)
	movups %xmm3, 48(%rsp)
	movups %xmm4, 64(%rsp)
	movups %xmm5, 80(%rsp)
	movups %xmm6, 96(%rsp)
	movups %xmm7, 112(%rsp)
	movl %r11d, %edi
	call lgpu_real_resolve
	movq %rax, %r11
	movups (%rsp), %xmm0
	movups 16(%rsp), %xmm1
	movups 32(%rsp), %xmm2
	movups 48(%rsp), %xmm3
	movups 64(%rsp), %xmm4
	movups 80(%rsp), %xmm5
	movups 96(%rsp), %xmm6
	movups 112(%rsp), %xmm7
	addq $136, %rsp
	popq %r10
	popq %r9
	popq %r8
	popq %rcx
	popq %rdx
	popq %rsi
	popq %rdi
	popq %rax
	.cfi_def_cfa_offset 8
	jmp *%r11
	.cfi_endproc
	.size lgpu_lazy, . - lgpu_lazy

	.data
	.p2align 3
	.globl lgpu_reals
	.hidden lgpu_reals
	.type lgpu_reals, @object
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

	.section .note.GNU-stack, "", @progbits
#endif
