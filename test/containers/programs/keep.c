// keep allocates 256 MiB of device memory and says so; for each line of its input it tries to get 2 GiB more, and prints
// "bounded" if it does not.
#include <stdio.h>

#include "lgpu_cuda.h"

int main(void)
{
	CUcontext context;
	CUdeviceptr memory;
	if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate(&context, NULL, 0, 0) != CUDA_SUCCESS ||
	    cuMemAlloc(&memory, (size_t)256 << 20) != CUDA_SUCCESS) {
		puts("no device");
		return 1;
	}
	puts("kept");
	fflush(stdout);
	for (int c; (c = getchar()) != EOF;) {
		if (c != '\n')
			continue;
		puts(cuMemAlloc(&memory, (size_t)2 << 30) == CUDA_ERROR_OUT_OF_MEMORY ? "bounded" : "not bounded");
		fflush(stdout);
	}
	return 0;
}
