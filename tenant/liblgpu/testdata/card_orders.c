// SPDX-License-Identifier: Apache-2.0

// card_orders: does what it reads on the device of card.c, one order a line, and prints each order with the driver's
// answer when it is done. Streams have numbers; 0 is the legacy stream and 1 that of the thread.
//
//	init             cuInit
//	context          the primary context
//	stream S         makes one
//	destroy S
//	launch S N NS    N kernels that run so long each
//	round S N NS     N kernels, one after the other into each stream from 2 to S
//	threads S N NS   four threads launch N each, all into S
//	hold S           its work does not end
//	release S        it does
//	capture S        begins a capture
//	captured S       ends it
//	sync
//	events           prints how many events were recorded
//	prepared         prints how many kernels were launched into streams that waited for a word
//	later S N NS     as launch, but the next order is read at once
//	shut             the residence lock, where the library is linked with shut.c
//	busy             the same, for a moment only
//	waited           returns when a touch waits for it
//	open
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testdata/card.h"

#define STREAMS 64

static CUstream streams[STREAMS] = {NULL, CU_STREAM_PER_THREAD};
static CUfunction kernel;

static CUresult context(void)
{
	CUdevice device;
	CUcontext c;
	CUmodule module;
	CUresult r = cuDeviceGet(&device, 0);
	if (r == CUDA_SUCCESS)
		r = cuDevicePrimaryCtxRetain(&c, device);
	if (r == CUDA_SUCCESS)
		r = cuCtxSetCurrent(c);
	if (r == CUDA_SUCCESS)
		r = cuModuleLoadData(&module, "");
	return r == CUDA_SUCCESS ? cuModuleGetFunction(&kernel, module, "kernel") : r;
}

static CUresult launch(int first, int last, int n, unsigned ns)
{
	CUresult r = CUDA_SUCCESS;
	for (int i = 0; i < n && r == CUDA_SUCCESS; i++)
		r = cuLaunchKernel(kernel, ns, 1, 1, 1, 1, 1, 0, streams[first + i % (last - first + 1)], NULL, NULL);
	return r;
}

struct order {
	int s, n;
	unsigned ns;
	CUcontext context;
};

static void *work(void *arg)
{
	const struct order *o = arg;
	CUresult r = cuCtxSetCurrent(o->context);
	return (void *)(uintptr_t)(r == CUDA_SUCCESS ? launch(o->s, o->s, o->n, o->ns) : r);
}

static CUresult threads(struct order o)
{
	pthread_t thread[4];
	CUresult r = cuCtxGetCurrent(&o.context);
	for (int i = 0; i < 4; i++)
		pthread_create(&thread[i], NULL, work, &o);
	for (int i = 0; i < 4; i++) {
		void *result;
		pthread_join(thread[i], &result);
		r = r == CUDA_SUCCESS ? (CUresult)(uintptr_t)result : r;
	}
	return r;
}

static void *work_later(void *arg)
{
	struct order *o = arg;
	printf("late: %d\n", (int)(uintptr_t)work(o));
	free(o);
	return NULL;
}

static CUresult later(struct order o)
{
	pthread_t thread;
	struct order *copy = malloc(sizeof *copy);
	CUresult r = cuCtxGetCurrent(&o.context);
	*copy = o;
	return r == CUDA_SUCCESS && pthread_create(&thread, NULL, work_later, copy) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

// lock calls a function of shut.c.
static CUresult lock(const char *name)
{
	int (*call)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, name);
	return call != NULL ? (CUresult)call() : CUDA_ERROR_NOT_FOUND;
}

static CUresult obey(const char *word, int s, int n, unsigned ns)
{
	CUgraph graph;
	if (strcmp(word, "init") == 0)
		return cuInit(0);
	if (strcmp(word, "context") == 0)
		return context();
	if (strcmp(word, "stream") == 0)
		return cuStreamCreate(&streams[s], CU_STREAM_NON_BLOCKING);
	if (strcmp(word, "destroy") == 0)
		return cuStreamDestroy_v2(streams[s]);
	if (strcmp(word, "launch") == 0)
		return launch(s, s, n, ns);
	if (strcmp(word, "round") == 0)
		return launch(2, s, n, ns);
	if (strcmp(word, "threads") == 0)
		return threads((struct order){.s = s, .n = n, .ns = ns});
	if (strcmp(word, "capture") == 0)
		return cuStreamBeginCapture_v2(streams[s], CU_STREAM_CAPTURE_MODE_GLOBAL);
	if (strcmp(word, "captured") == 0)
		return cuStreamEndCapture(streams[s], &graph);
	if (strcmp(word, "sync") == 0)
		return cuCtxSynchronize();
	if (strcmp(word, "hold") == 0 || strcmp(word, "release") == 0)
		return card_hold(streams[s], word[0] == 'h'), CUDA_SUCCESS;
	if (strcmp(word, "later") == 0)
		return later((struct order){.s = s, .n = n, .ns = ns});
	if (strcmp(word, "shut") == 0)
		return lock("cuTestShut");
	if (strcmp(word, "busy") == 0)
		return lock("cuTestBusy");
	if (strcmp(word, "open") == 0)
		return lock("cuTestOpen");
	if (strcmp(word, "waited") == 0) {
		while (lock("cuTestWaited") == 0)
			sched_yield();
		return CUDA_SUCCESS;
	}
	if (strcmp(word, "events") == 0)
		return printf("%llu events\n", (unsigned long long)card_recorded()), CUDA_SUCCESS;
	if (strcmp(word, "prepared") == 0)
		return printf("%llu prepared\n", (unsigned long long)card_waited()), CUDA_SUCCESS;
	return CUDA_ERROR_INVALID_VALUE;
}

int main(void)
{
	char text[64], word[16];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(text, sizeof text, stdin) != NULL) {
		int s = 0, n = 0;
		unsigned ns = 0;
		text[strcspn(text, "\n")] = 0;
		if (sscanf(text, "%15s %d %d %u", word, &s, &n, &ns) < 1 || s < 0 || s >= STREAMS)
			return 2;
		printf("%s: %d\n", text, (int)obey(word, s, n, ns));
	}
	return 0;
}
