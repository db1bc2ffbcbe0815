// Memory cost: what a call costs, in microseconds; run it with and without
// lgpu, alternately. One line a call: the mean over many, and the least of 20
// batches' means.
//
//	cc -O2 -Itenant/abi/include -o memory_cost bench/memory_cost.c -lcuda
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "lgpu_cuda.h"

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

#define BATCHES 20
#define MEASURE(name, n, call)                                                        \
	do {                                                                          \
		double total = 0, least = 1e30;                                       \
		for (int b = 0; b < BATCHES; b++) {                                   \
			double begin = now();                                         \
			for (int i = 0; i < (n); i++) {                               \
				call;                                                 \
			}                                                             \
			double mean = (now() - begin) / (n);                          \
			total += mean;                                                \
			least = mean < least ? mean : least;                          \
		}                                                                     \
		printf("%-28s mean %9.3f  least %9.3f\n", name, total / BATCHES, least); \
	} while (0)

int main(void)
{
	CUdevice device;
	CUcontext context;
	CUdeviceptr p;
	CUstream stream;
	size_t f, t;
	double begin = now();
	if (cuInit(0) != CUDA_SUCCESS)
		return 1;
	double initialised = now();
	cuDeviceGet(&device, 0);
	cuDevicePrimaryCtxRetain(&context, device);
	cuCtxSetCurrent(context);
	double made = now();
	printf("%-28s      %9.0f\n%-28s      %9.0f\n", "cuInit", initialised - begin, "primary context", made - initialised);
	cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	CUdeviceptr keep;
	cuMemAlloc(&keep, 512);
	MEASURE("cuMemAlloc+Free 512 B", 2000, cuMemAlloc(&p, 512); cuMemFree(p));
	MEASURE("cuMemAlloc+Free 2 MiB", 200, cuMemAlloc(&p, 2 << 20); cuMemFree(p));
	cuMemAllocAsync(&keep, 64 << 20, stream);
	MEASURE("cuMemAllocAsync+Free 1 MiB", 1000, cuMemAllocAsync(&p, 1 << 20, stream); cuMemFreeAsync(p, stream));
	MEASURE("cuMemGetInfo", 200, cuMemGetInfo(&f, &t));
	MEASURE("cuCtxGetCurrent (passed)", 100000, cuCtxGetCurrent(&context));
	return 0;
}
