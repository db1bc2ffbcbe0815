// check.h: what the benchmarks share. A call that fails ends the program with status 1 and is named on standard error.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                     \
	do {                                                                                            \
		CUresult r_ = (call);                                                                   \
		if (r_ != CUDA_SUCCESS) {                                                               \
			const char *s_ = "?";                                                           \
			cuGetErrorString(r_, &s_);                                                      \
			fprintf(stderr, PROGRAM ": %s: %d %s\n", #call, (int)r_, s_);                   \
			exit(1);                                                                        \
		}                                                                                       \
	} while (0)

// begin makes the first device's primary context current, and loads a kernel of some PTX.
static inline CUfunction begin(const char *ptx, const char *kernel, CUdevice *device)
{
	CUcontext context;
	CUmodule module;
	CUfunction function;
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, *device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, ptx));
	CHECK(cuModuleGetFunction(&function, module, kernel));
	return function;
}
