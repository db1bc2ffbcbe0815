// collective CONTROL.PTX FIRST ROUNDS: in each round a kernel on each of two devices waits for the one on the other, as in a
// collective. Device FIRST is given its work first. Says how many rounds came to their end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lgpu_cuda.h"

enum { DEVICES = 2 };

#define TRY(call) \
	do { \
		CUresult r_ = (call); \
		if (r_ != CUDA_SUCCESS) { \
			const char *s_ = "?"; \
			cuGetErrorName(r_, &s_); \
			printf("%s: %s\n", #call, s_); \
			exit(1); \
		} \
	} while (0)

static CUcontext context[DEVICES];
static CUfunction wait_flag[DEVICES];

// enqueue launches, on a device, a kernel that writes 1 to *done as soon as *flag is value.
static void enqueue(int device, CUdeviceptr flag, unsigned value, CUdeviceptr done)
{
	void *params[] = {&flag, &value, &done};
	TRY(cuCtxSetCurrent(context[device]));
	TRY(cuLaunchKernel(wait_flag[device], 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int first = atoi(argv[2]) != 0, rounds = atoi(argv[3]);
	size_t bytes = (size_t)(3 * rounds + 1) * sizeof(unsigned);
	void *words;
	CUdeviceptr base;
	TRY(cuInit(0));
	for (int d = 0; d < DEVICES; d++) {
		CUdevice device;
		CUmodule module;
		TRY(cuDeviceGet(&device, d));
		TRY(cuDevicePrimaryCtxRetain(&context[d], device));
		TRY(cuCtxSetCurrent(context[d]));
		TRY(cuModuleLoad(&module, argv[1]));
		TRY(cuModuleGetFunction(&wait_flag[d], module, "wait_flag"));
	}
	// Page-locked memory, which kernels of both devices see.
	TRY(cuMemHostAlloc(&words, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	memset(words, 0, bytes);
	TRY(cuMemHostGetDevicePointer(&base, words, 0));
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	int done = 0;
	for (; done < rounds; done++) {
		// A word of each device, 1 when it has arrived, and one for what nobody reads. The last word stays 0.
		CUdeviceptr word = base + (size_t)(3 * done) * sizeof(unsigned), zero = base + (size_t)(3 * rounds) * sizeof(unsigned);
		for (int k = 0; k < DEVICES; k++) {
			int d = k ^ first;
			enqueue(d, zero, 0, word + (size_t)d * sizeof(unsigned));
			enqueue(d, word + (size_t)(1 - d) * sizeof(unsigned), 1, word + DEVICES * sizeof(unsigned));
		}
		for (int d = 0; d < DEVICES; d++) {
			TRY(cuCtxSetCurrent(context[d]));
			TRY(cuCtxSynchronize());
		}
	}
	printf("rounds %d\n", done);
	return 0;
}
