// SPDX-License-Identifier: Apache-2.0

// frees: threads free what other threads free, while another allocates anew at the same addresses. In the end nothing
// is left, on the device or of page-locked memory. Prints what the lgpu shows as used, in MiB, before and after.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "steps.h"

#define COUNT 200
#define ROUNDS 4

static CUcontext context;
static CUdeviceptr device[COUNT];
static void *host[COUNT];
static pthread_barrier_t barrier;
static atomic_int freed, busy;

static void *freer(void *arg)
{
	(void)arg;
	MUST(cuCtxSetCurrent(context));
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < COUNT; i++) {
		freed += cuMemFree_v2(device[i]) == CUDA_SUCCESS;
		freed += cuMemFreeHost(host[i]) == CUDA_SUCCESS;
	}
	busy--;
	return NULL;
}

// again allocates and frees at addresses that have just become free. Somebody else may free them for it.
static void *again(void *arg)
{
	CUdeviceptr p;
	void *h;
	(void)arg;
	MUST(cuCtxSetCurrent(context));
	pthread_barrier_wait(&barrier);
	while (busy > 0) {
		if (cuMemAlloc_v2(&p, 2 * MIB) == CUDA_SUCCESS)
			cuMemFree_v2(p);
		if (cuMemHostAlloc(&h, 4096, 0) == CUDA_SUCCESS)
			cuMemFreeHost(h);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	CUdevice d;
	pthread_t t[3];
	int third = argc > 1 && argv[1][0] == 'a';
	MUST(cuInit(0));
	MUST(cuDeviceGet(&d, 0));
	MUST(cuDevicePrimaryCtxRetain(&context, d));
	MUST(cuCtxSetCurrent(context));
	printf("begin %ld\n", used());
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < COUNT; i++) {
			MUST(cuMemAlloc_v2(&device[i], 2 * MIB));
			MUST(cuMemHostAlloc(&host[i], 4096, 0));
		}
		freed = 0;
		busy = 2;
		pthread_barrier_init(&barrier, NULL, 2 + (unsigned)third);
		for (int i = 0; i < 2 + third; i++)
			pthread_create(&t[i], NULL, i < 2 ? freer : again, NULL);
		for (int i = 0; i < 2 + third; i++)
			pthread_join(t[i], NULL);
		pthread_barrier_destroy(&barrier);
		if (freed < 2 * COUNT || (!third && freed > 2 * COUNT))
			printf("%d of %d were freed\n", freed, 2 * COUNT);
	}
	printf("end %ld\n", used());
	return 0;
}
