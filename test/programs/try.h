// try.h: what the test programs share. A call that fails ends the program with status 1 and is named on its output.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "lgpu_cuda.h"

static inline const char *name(CUresult r)
{
	const char *s = "?";
	cuGetErrorName(r, &s);
	return s;
}

#define TRY(call) \
	do { \
		CUresult r_ = (call); \
		if (r_ != CUDA_SUCCESS) { \
			printf("%s %s\n", #call, name(r_)); \
			exit(1); \
		} \
	} while (0)
