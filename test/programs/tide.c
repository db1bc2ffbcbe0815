// tide LINEAR.PTX CONTROL.PTX: has patterns in device memory and does what each line of its input says, until that ends;
// answers with a line. What the device's memory has to be, it knows from a copy in its own.
//   device N           from now on allocates on that device; steps are for the first one's memory
//   hold COUNT BYTES   so many allocations of that size, filled; says how it went
//   step COUNT         so many times: a kernel adds 1 to words of each allocation, and a part of it is copied to the next
//   check              compares all allocations with the copies
//   small COUNT        so many allocations of 1000 bytes, half of which it frees again
//   more BYTES         says how an allocation goes, which it frees again
//   spin MILLIS        launches a kernel of that length, without waiting for it
//   sync               waits for what has been launched
//   quit               ends without a word to the driver. What C++ destroys at exit, such as a library's caches, is what comes
//                      after the driver's own end: so it then says how it goes to free an allocation
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "try.h"

#define MOST 64
#define FLOATS 1024  // at the start of each allocation, that the kernel counts in
#define PART 65536   // bytes that a step copies to the next allocation
#define SMALL 1000

static struct {
	CUdeviceptr at;
	char *copy;
} block[MOST];
static int blocks;
static size_t bytes;
static uint64_t steps;
static bool quits;
static CUdeviceptr ones;
static CUfunction saxpy, spin;

static void begin(char **argv)
{
	CUdevice device;
	CUcontext context;
	CUmodule linear, control;
	static float one[FLOATS];
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	TRY(cuDevicePrimaryCtxRetain(&context, device));
	TRY(cuCtxSetCurrent(context));
	TRY(cuModuleLoad(&linear, argv[1]));
	TRY(cuModuleLoad(&control, argv[2]));
	TRY(cuModuleGetFunction(&saxpy, linear, "saxpy"));
	TRY(cuModuleGetFunction(&spin, control, "spin"));
	TRY(cuMemAlloc(&ones, sizeof one));
	for (int i = 0; i < FLOATS; i++)
		one[i] = 1;
	TRY(cuMemcpyHtoD(ones, one, sizeof one));
}

static void on(int ordinal)
{
	CUdevice device;
	CUcontext context;
	TRY(cuDeviceGet(&device, ordinal));
	TRY(cuDevicePrimaryCtxRetain(&context, device));
	TRY(cuCtxSetCurrent(context));
	printf("on device %d\n", ordinal);
}

static void hold(int count, size_t each)
{
	bytes = each;
	for (int i = 0; i < count && blocks < MOST; i++) {
		CUresult r = cuMemAlloc(&block[blocks].at, each);
		if (r != CUDA_SUCCESS) {
			printf("hold %s after %d\n", name(r), i);
			return;
		}
		char *copy = malloc(each);
		if (copy == NULL)
			exit(1);
		uint64_t x = (uint64_t)blocks * 2654435761 + 1;
		for (size_t k = 0; k + 8 <= each; k += 8) {
			x = x * 6364136223846793005 + 1442695040888963407;
			memcpy(copy + k, &x, 8);
		}
		for (int k = 0; k < FLOATS; k++)
			((float *)copy)[k] = (float)k;
		TRY(cuMemcpyHtoD(block[blocks].at, copy, each));
		block[blocks++].copy = copy;
	}
	printf("hold CUDA_SUCCESS\n");
}

static void step(void)
{
	unsigned n = FLOATS;
	float a = 1;
	// Behind the floats, at a place that moves on with each step.
	size_t room = (bytes - FLOATS * sizeof(float)) / PART, at = FLOATS * sizeof(float) + steps % room * PART;
	for (int i = 0; i < blocks; i++) {
		void *params[] = {&n, &a, &ones, &block[i].at};
		TRY(cuLaunchKernel(saxpy, FLOATS / 128, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
		for (int k = 0; k < FLOATS; k++)
			((float *)block[i].copy)[k] += 1;
		int next = (i + 1) % blocks;
		TRY(cuMemcpyDtoD(block[next].at + at, block[i].at + at, PART));
		if (next != i)
			memcpy(block[next].copy + at, block[i].copy + at, PART);
	}
	TRY(cuCtxSynchronize());
	steps++;
}

static void check(void)
{
	char *back = malloc(bytes);
	if (back == NULL)
		exit(1);
	for (int i = 0; i < blocks; i++) {
		TRY(cuMemcpyDtoH(back, block[i].at, bytes));
		for (size_t k = 0; k < bytes; k++)
			if (back[k] != block[i].copy[k]) {
				printf("allocation %d differs at byte %zu of %zu after %" PRIu64 " steps\n", i, k, bytes, steps);
				free(back);
				return;
			}
	}
	free(back);
	printf("intact after %" PRIu64 " steps\n", steps);
}

static void small(int count)
{
	char want[SMALL], got[SMALL];
	CUdeviceptr *p = calloc((size_t)count, sizeof *p);
	if (p == NULL)
		exit(1);
	for (int i = 0; i < count; i++) {
		TRY(cuMemAlloc(&p[i], SMALL));
		TRY(cuMemsetD8(p[i], (unsigned char)i, SMALL));
	}
	for (int i = 0; i < count; i += 2)
		TRY(cuMemFree(p[i]));
	for (int i = 1; i < count; i += 2) {
		memset(want, i, SMALL);
		TRY(cuMemcpyDtoH(got, p[i], SMALL));
		if (memcmp(want, got, SMALL) != 0) {
			printf("small allocation %d differs\n", i);
			free(p);
			return;
		}
	}
	free(p);
	printf("small CUDA_SUCCESS\n");
}

static void after_driver(void)
{
	if (!quits)
		return;
	printf("freed %s\n", name(cuMemFree(block[0].at)));
	fflush(stdout);
}

static void obey(const char *line)
{
	uint64_t n, each;
	if (sscanf(line, "hold %" SCNu64 " %" SCNu64, &n, &each) == 2) {
		hold((int)n, each);
	} else if (sscanf(line, "device %" SCNu64, &n) == 1) {
		on((int)n);
	} else if (sscanf(line, "step %" SCNu64, &n) == 1) {
		for (uint64_t i = 0; i < n; i++)
			step();
		printf("stepped %" PRIu64 "\n", n);
	} else if (sscanf(line, "small %" SCNu64, &n) == 1) {
		small((int)n);
	} else if (sscanf(line, "more %" SCNu64, &each) == 1) {
		CUdeviceptr p;
		CUresult r = cuMemAlloc(&p, each);
		if (r == CUDA_SUCCESS)
			TRY(cuMemFree(p));
		printf("more %s\n", name(r));
	} else if (sscanf(line, "spin %" SCNu64, &n) == 1) {
		n *= 1000000;
		void *params[] = {&n};
		TRY(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		printf("spinning\n");
	} else if (strcmp(line, "sync\n") == 0) {
		TRY(cuCtxSynchronize());
		printf("synced\n");
	} else if (strcmp(line, "quit\n") == 0) {
		quits = true;
		exit(0);
	} else if (strcmp(line, "check\n") == 0) {
		check();
	} else {
		exit(2);
	}
}

int main(int argc, char **argv)
{
	char line[128];
	if (argc != 3 || atexit(after_driver) != 0) // the last registered is the first called, and cuInit registers one, too
		return 2;
	begin(argv);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) != NULL) {
		obey(line);
		fflush(stdout);
	}
	TRY(cuCtxSynchronize());
	return 0;
}
