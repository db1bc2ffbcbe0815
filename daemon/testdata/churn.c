// churn SEED: allocates and frees device memory for ever, as fast as it can, and lets the device write to some of it. It does
// so in whole pages of 2 MiB: less is rounded up by the driver, which then holds more than was asked for. Says "ready" once
// it has a context. Running out of memory is expected; anything else ends it with status 3.
#include <stdio.h>
#include <stdlib.h>

#include "lgpu_cuda.h"

static int check(CUresult r, const char *what)
{
	const char *s = "?";

	if (r == CUDA_SUCCESS)
		return 1;
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		return 0;
	cuGetErrorName(r, &s);
	printf("%s: %s\n", what, s);
	fflush(stdout);
	_Exit(3);
}

int main(int argc, char **argv)
{
	CUdeviceptr held[16] = {0};
	CUdevice device;
	CUcontext context;

	srandom(argc > 1 ? (unsigned)atoi(argv[1]) : 1);
	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	while (!check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain"))
		;
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		CUdeviceptr *p = &held[random() % 16];

		if (*p) {
			check(cuMemFree(*p), "cuMemFree");
			*p = 0;
		} else if (check(cuMemAlloc(p, (size_t)(1 + random() % 12) << 21), "cuMemAlloc")) {
			if (random() % 4 == 0)
				check(cuMemsetD8(*p, 7, 4096), "cuMemsetD8");
		} else {
			*p = 0;
		}
	}
}
