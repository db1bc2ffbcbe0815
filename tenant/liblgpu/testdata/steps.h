// SPDX-License-Identifier: Apache-2.0

// steps.h: for programs that print what they do, and what their lgpu shows of it.
#include <stdio.h>
#include <stdlib.h>

#include "lgpu_cuda.h"

#define MIB (1u << 20)

// used is what the lgpu shows as used, in MiB; a negative error where it shows nothing.
static inline long used(void)
{
	size_t f, t;
	CUresult r = cuMemGetInfo_v2(&f, &t);
	return r == CUDA_SUCCESS ? (long)((t - f) / MIB) : -(long)r;
}

// say prints a step with the driver's answer.
static inline void say(const char *what, CUresult r) { printf("%s %d used %ld\n", what, (int)r, used()); }

// MUST ends the program where the driver refuses.
static inline void must(CUresult r, int line)
{
	if (r == CUDA_SUCCESS)
		return;
	printf("line %d: %d\n", line, (int)r);
	exit(1);
}
#define MUST(call) must(call, __LINE__)
