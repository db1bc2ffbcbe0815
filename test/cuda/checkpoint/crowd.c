/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd KERNELS CYCLES: threads that make calls all the time, come and go, while the process is checkpointed and restored
 * again and again. Prints "whole" if no thread has seen anything of it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <lgpu_cuda.h>

enum { THREADS = 6, COUNT = 300, ROUNDS = 7 };

#define MUST(call)                                                          \
	do {                                                                \
		CUresult r_ = (call);                                       \
		if (r_ != CUDA_SUCCESS) {                                   \
			fprintf(stderr, "%s: %d\n", #call, r_);             \
			exit(1);                                            \
		}                                                           \
	} while (0)

static CUcontext ctx;
static CUfunction saxpy;
static atomic_int stop, called, rounds;

static void count(void *arg)
{
	(void)arg;
	atomic_fetch_add(&called, 1);
}

/* Adds ROUNDS to numbers on the device, one at a time, on the thread's default stream, and looks at what comes of it. */
static void work(void)
{
	float got[COUNT], a = 1;
	unsigned n = COUNT;
	CUdeviceptr x, y;
	void *args[] = {&n, &a, &x, &y};
	CUevent e;
	int i;

	MUST(cuMemAlloc(&x, sizeof got));
	MUST(cuMemAllocAsync(&y, sizeof got, CU_STREAM_PER_THREAD));
	MUST(cuMemsetD32(x, 0x3f800000, COUNT)); /* 1 */
	MUST(cuMemsetD32Async(y, 0, COUNT, CU_STREAM_PER_THREAD));
	MUST(cuEventCreate(&e, 0));
	for (i = 0; i < ROUNDS; i++)
		MUST(cuLaunchKernel(saxpy, 2, 1, 1, 160, 1, 1, 0, CU_STREAM_PER_THREAD, args, NULL));
	MUST(cuLaunchHostFunc(CU_STREAM_PER_THREAD, count, NULL));
	MUST(cuEventRecord(e, CU_STREAM_PER_THREAD));
	MUST(cuEventSynchronize(e));
	MUST(cuMemcpyDtoH(got, y, sizeof got));
	for (i = 0; i < COUNT; i++)
		if (got[i] != ROUNDS) {
			fprintf(stderr, "%d: %g\n", i, got[i]);
			exit(1);
		}
	MUST(cuEventDestroy(e));
	MUST(cuMemFreeAsync(y, CU_STREAM_PER_THREAD));
	MUST(cuMemFree(x));
}

static void *brief(void *arg)
{
	(void)arg;
	MUST(cuCtxSetCurrent(ctx));
	work();
	atomic_fetch_add(&rounds, 1);
	return NULL;
}

/* One that works itself, or has others do it that end at once. */
static void *worker(void *arg)
{
	pthread_t t;

	MUST(cuCtxSetCurrent(ctx));
	while (!atomic_load(&stop)) {
		if ((long)arg % 2) {
			if (pthread_create(&t, NULL, brief, NULL) != 0)
				exit(2);
			pthread_join(t, NULL);
		} else {
			work();
			atomic_fetch_add(&rounds, 1);
		}
	}
	return NULL;
}

static void load(const char *folder)
{
	static char text[1 << 20];
	char path[4096];
	CUmodule m;
	FILE *f;

	snprintf(path, sizeof path, "%s/linear.ptx", folder);
	if (!(f = fopen(path, "r")) || fread(text, 1, sizeof text - 1, f) == 0)
		exit(2);
	fclose(f);
	MUST(cuModuleLoadData(&m, text));
	MUST(cuModuleGetFunction(&saxpy, m, "saxpy"));
}

int main(int argc, char **argv)
{
	int cycles = argc > 2 ? atoi(argv[2]) : 0, pid = getpid();
	pthread_t t[THREADS];
	long i;

	alarm(110);
	if (argc < 3)
		return 2;
	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&ctx, 0));
	MUST(cuCtxSetCurrent(ctx));
	load(argv[1]);
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&t[i], NULL, worker, (void *)i) != 0)
			return 2;
	while (cycles-- > 0) {
		MUST(cuCheckpointProcessLock(pid, NULL));
		MUST(cuCheckpointProcessCheckpoint(pid, NULL));
		MUST(cuCheckpointProcessRestore(pid, NULL));
		MUST(cuCheckpointProcessUnlock(pid, NULL));
	}
	atomic_store(&stop, 1);
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	printf("%s\n", atomic_load(&rounds) >= THREADS && atomic_load(&rounds) == atomic_load(&called) ? "whole" : "broken");
	return 0;
}
