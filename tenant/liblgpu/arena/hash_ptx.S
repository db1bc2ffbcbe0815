// SPDX-License-Identifier: Apache-2.0

// The kernel of hash.cu, as the driver takes it: text with a zero behind it.
	.section .rodata.lgpu_hash_ptx, "a"
	.globl	lgpu_hash_ptx
	.hidden	lgpu_hash_ptx
	.type	lgpu_hash_ptx, %object
lgpu_hash_ptx:
	.incbin "arena/hash.ptx"
	.byte	0
	.size	lgpu_hash_ptx, . - lgpu_hash_ptx
	.section .note.GNU-stack, "", %progbits
