// spin CONTROL.PTX MILLISECONDS: one kernel that runs so long. Says "running" once it is launched.
#include <stdio.h>
#include <stdlib.h>

#include "lgpu_cuda.h"

#define TRY(call) \
	do { \
		CUresult r_ = (call); \
		if (r_ != CUDA_SUCCESS) { \
			printf("%s: %d\n", #call, (int)r_); \
			return 1; \
		} \
	} while (0)

int main(int argc, char **argv)
{
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction spin;
	if (argc != 3)
		return 2;
	unsigned long long ns = strtoull(argv[2], NULL, 10) * 1000000;
	void *params[] = {&ns};
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	TRY(cuDevicePrimaryCtxRetain(&context, device));
	TRY(cuCtxSetCurrent(context));
	TRY(cuModuleLoad(&module, argv[1]));
	TRY(cuModuleGetFunction(&spin, module, "spin"));
	TRY(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	puts("running");
	fflush(stdout);
	TRY(cuCtxSynchronize());
	return 0;
}
