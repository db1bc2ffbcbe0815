// linked is a program, and a plug-in, that is linked to libcuda.so.1. It tries what grab tries.
#include <stdio.h>

#include "lgpu_cuda.h"

int main(void)
{
	CUcontext context;
	CUdeviceptr memory;
	if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&context, NULL, 0, 0) != CUDA_SUCCESS)
		return 3;
	CUresult large = cuMemAlloc(&memory, (size_t)2 << 30), small = cuMemAlloc(&memory, (size_t)256 << 20);
	int bounded = large == CUDA_ERROR_OUT_OF_MEMORY && small == CUDA_SUCCESS;
	printf("%s: 2 GiB %d, 256 MiB %d\n", bounded ? "bounded" : "not bounded", (int)large, (int)small);
	return !bounded;
}
