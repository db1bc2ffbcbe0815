/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program in the middle of things, to be killed or to have its hardware taken away: one thread waits for a kernel that
 * never ends, the others make calls. Says "ready", and at the end what each thread's last call returned.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <lgpu_cuda.h>

enum { CALLERS = 4 };

#define MUST(call)                                                          \
	do {                                                                \
		CUresult r_ = (call);                                       \
		if (r_ != CUDA_SUCCESS) {                                   \
			fprintf(stderr, "%s: %d\n", #call, r_);             \
			exit(1);                                            \
		}                                                           \
	} while (0)

static CUcontext ctx;
static pthread_barrier_t calling;

static void *caller(void *arg)
{
	CUresult *last = arg;
	size_t f, t;

	MUST(cuCtxSetCurrent(ctx));
	pthread_barrier_wait(&calling);
	while ((*last = cuMemGetInfo(&f, &t)) == CUDA_SUCCESS)
		;
	return NULL;
}

int main(int argc, char **argv)
{
	static char text[1 << 20];
	CUresult last[CALLERS + 1], again;
	pthread_t t[CALLERS];
	CUdeviceptr p, flag;
	uint32_t value = 1;
	CUfunction fn;
	CUmodule m;
	FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;
	void *args[] = {&flag, &value, &flag};
	int i, n;

	alarm(60);
	if (!f || fread(text, 1, sizeof text - 1, f) == 0)
		return 2;
	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&ctx, 0));
	MUST(cuCtxSetCurrent(ctx));
	MUST(cuMemAlloc(&p, 100 << 20));
	MUST(cuMemAlloc(&flag, 4096));
	MUST(cuMemsetD32(flag, 0, 1024));
	MUST(cuModuleLoadData(&m, text));
	MUST(cuModuleGetFunction(&fn, m, "wait_flag"));
	MUST(cuLaunchKernel(fn, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
	pthread_barrier_init(&calling, NULL, CALLERS + 1);
	for (i = 0; i < CALLERS; i++)
		if (pthread_create(&t[i], NULL, caller, &last[i]) != 0)
			return 1;
	pthread_barrier_wait(&calling);
	printf("ready\n");
	fflush(stdout);
	last[CALLERS] = cuCtxSynchronize();
	for (i = 0; i < CALLERS; i++)
		pthread_join(t[i], NULL);
	for (i = 0; i <= CALLERS; i++)
		printf("%d\n", last[i]);
	again = cuDeviceGetCount(&n);
	printf("%d\n", again);
	return 0;
}
