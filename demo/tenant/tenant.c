// A CUDA program as anybody might write one: nothing in it knows of lgpu.
//
//	tenant KERNELS.ptx [MIB]
//
// It allocates device memory until it is refused, or has so many MiB, and says how much it got. For each line of its
// input, a number of seconds, it launches kernels without a pause for that long, and says how many and how long they took,
// timed by events. It needs the kernel compute(u32 iterations, float *out).
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lgpu_cuda.h"

enum { THREADS = 32, ITERATIONS = 12000, IN_FLIGHT = 4 };

static void check(CUresult r, const char *what)
{
	if (r == CUDA_SUCCESS)
		return;
	const char *name = NULL;
	cuGetErrorName(r, &name);
	fprintf(stderr, "tenant: %s: %s\n", what, name ? name : "unknown error");
	exit(1);
}

static char *contents(const char *path)
{
	FILE *f = fopen(path, "rb");
	char *text = calloc(1, 1 << 20);
	if (f == NULL || text == NULL || fread(text, 1, (1 << 20) - 1, f) == 0) {
		fprintf(stderr, "tenant: cannot read %s\n", path);
		exit(1);
	}
	fclose(f);
	return text;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// allocate takes memory in ever smaller pieces until not even 1 MiB is left, or it has all that is wanted.
static void allocate(unsigned long long wanted)
{
	unsigned long long got = 0;
	CUresult refused = CUDA_SUCCESS;
	for (size_t size = (size_t)1 << 30; size >= (size_t)1 << 20; size /= 2) {
		CUdeviceptr p;
		while (got + size <= wanted && (refused = cuMemAlloc(&p, size)) == CUDA_SUCCESS)
			got += size;
		if (refused != CUDA_SUCCESS && refused != CUDA_ERROR_OUT_OF_MEMORY)
			check(refused, "allocate");
	}
	const char *name = "?";
	cuGetErrorName(refused, &name);
	printf("memory %llu %s\n", got, name);
}

// work launches kernels for some seconds.
static void work(CUfunction kernel, unsigned int units, CUdeviceptr out, double seconds)
{
	CUevent done[IN_FLIGHT], first, last;
	unsigned int iterations = ITERATIONS;
	void *arguments[] = {&iterations, &out};
	unsigned long launches = 0;
	float milliseconds;

	for (int i = 0; i < IN_FLIGHT; i++)
		check(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING), "make an event");
	check(cuEventCreate(&first, CU_EVENT_DEFAULT), "make an event");
	check(cuEventCreate(&last, CU_EVENT_DEFAULT), "make an event");
	double end = now() + seconds;
	check(cuEventRecord(first, NULL), "record an event");
	while (now() < end) {
		CUevent event = done[launches % IN_FLIGHT];
		if (launches >= IN_FLIGHT)
			check(cuEventSynchronize(event), "wait for a kernel");
		check(cuLaunchKernel(kernel, units, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL), "launch");
		check(cuEventRecord(event, NULL), "record an event");
		launches++;
	}
	check(cuEventRecord(last, NULL), "record an event");
	check(cuCtxSynchronize(), "wait for the last kernels");
	check(cuEventElapsedTime(&milliseconds, first, last), "read the time");
	printf("kernels %lu %.6f\n", launches, milliseconds / 1000);
	fflush(stdout);
	for (int i = 0; i < IN_FLIGHT; i++)
		check(cuEventDestroy(done[i]), "destroy an event");
	check(cuEventDestroy(first), "destroy an event");
	check(cuEventDestroy(last), "destroy an event");
}

int main(int argc, char **argv)
{
	if (argc != 2 && argc != 3) {
		fprintf(stderr, "usage: tenant KERNELS.ptx [MIB]\n");
		return 2;
	}
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction kernel;
	CUdeviceptr out;
	int units;
	char *ptx = contents(argv[1]);

	check(cuInit(0), "initialise");
	check(cuDeviceGet(&device, 0), "open device 0");
	check(cuDeviceGetAttribute(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), "count units");
	check(cuDevicePrimaryCtxRetain(&context, device), "make a context");
	check(cuCtxSetCurrent(context), "use the context");
	check(cuModuleLoadData(&module, ptx), "load kernels");
	check(cuModuleGetFunction(&kernel, module, "compute"), "find the kernel");
	check(cuMemAlloc(&out, (size_t)units * THREADS * sizeof(float)), "allocate the output");
	allocate(argc == 3 ? strtoull(argv[2], NULL, 10) << 20 : ~0ULL);
	fflush(stdout);

	char line[32];
	while (fgets(line, sizeof line, stdin) != NULL)
		work(kernel, (unsigned int)units, out, atof(line));
	check(cuDevicePrimaryCtxRelease(device), "leave the context");
	return 0;
}
