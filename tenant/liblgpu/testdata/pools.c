// SPDX-License-Identifier: Apache-2.0

// pools SCENARIO [ARGUMENT]: what programs do with memory pools. Each step prints what it was, the driver's answer, and
// what the lgpu shows as used after it, in MiB.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

#define PIECES 9

static CUdevice device;
static CUcontext context;

static CUstream stream_new(void)
{
	CUstream s;
	MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

static CUmemoryPool pool_new(void)
{
	CUmemoryPool pool;
	CUmemPoolProps p;
	memset(&p, 0, sizeof p);
	p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = device;
	MUST(cuMemPoolCreate(&pool, &p));
	return pool;
}

// keep makes the default pool keep what is freed.
static CUmemoryPool keep(void)
{
	CUmemoryPool pool;
	cuuint64_t all = ~UINT64_C(0);
	MUST(cuDeviceGetDefaultMemPool(&pool, device));
	MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	return pool;
}

// A word that streams wait for.
static volatile unsigned *word;
static CUdeviceptr word_address;

static void word_new(void)
{
	void *p;
	MUST(cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	word = p;
	*word = 0;
	MUST(cuMemHostGetDevicePointer_v2(&word_address, p, 0));
}

static void wait_for_word(CUstream s) { MUST(cuStreamWaitValue32_v2(s, word_address, 1, CU_STREAM_WAIT_VALUE_EQ)); }

// pieces allocates PIECES of 64 MiB.
static void pieces(CUdeviceptr *p, CUstream s)
{
	for (int i = 0; i < PIECES; i++)
		MUST(cuMemAllocAsync(&p[i], 64 * MIB, s));
	say("pieces", CUDA_SUCCESS);
}

// Every second piece is free, and the stream has got there. More than one of them is asked for on another stream, which
// waits if waits says so. It is the second call that is tried again.
static void fragments(int waits)
{
	CUdeviceptr p[PIECES], q;
	CUmemoryPool pool = keep();
	CUstream a = stream_new(), b = stream_new();
	word_new();
	pieces(p, a);
	for (int i = 0; i < PIECES; i += 2)
		MUST(cuMemFreeAsync(p[i], a));
	say("free", cuStreamSynchronize(a));
	if (waits)
		wait_for_word(b);
	CUresult r = cuMemAllocAsync(&q, 200 * MIB, b);
	say("large", r);
	*word = 1;
	if (r == CUDA_SUCCESS)
		MUST(cuMemFreeAsync(q, b));
	for (int i = 1; i < PIECES; i += 2)
		MUST(cuMemFreeAsync(p[i], a));
	MUST(cuStreamSynchronize(a));
	MUST(cuStreamSynchronize(b));
	say("trim", cuMemPoolTrimTo(pool, 0));
}

// Everything was freed behind a stream that waits for this thread.
static void behind(void)
{
	CUdeviceptr p[PIECES], q = 0;
	CUmemoryPool pool = keep();
	CUstream a = stream_new(), b = stream_new();
	word_new();
	pieces(p, a);
	wait_for_word(a);
	for (int i = 0; i < PIECES; i++)
		MUST(cuMemFreeAsync(p[i], a));
	CUresult r = cuMemAllocAsync(&q, 200 * MIB, b);
	printf("returned, %s\n", r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY ? "as it may" : "wrongly");
	*word = 1;
	if (r == CUDA_SUCCESS)
		MUST(cuMemFreeAsync(q, b));
	// What is freed by now is waited for, though nobody synchronises.
	r = cuMemAllocAsync(&q, 512 * MIB, b);
	printf("large %d\n", (int)r);
	if (r == CUDA_SUCCESS)
		MUST(cuMemFreeAsync(q, b));
	MUST(cuStreamSynchronize(a));
	MUST(cuStreamSynchronize(b));
	say("trim", cuMemPoolTrimTo(pool, 0));
}

// fill takes as much as there is of one pool, and gives it back.
static void fill(const char *which, CUmemoryPool pool)
{
	CUdeviceptr p[64];
	CUstream s = stream_new();
	CUresult r;
	int n = 0;
	while ((r = cuMemAllocFromPoolAsync(&p[n], 32 * MIB, pool, s)) == CUDA_SUCCESS && n < 63)
		n++;
	printf("%s pool: %d of 32 MiB, then %d\n", which, n, (int)r);
	for (int i = 0; i < n; i++)
		MUST(cuMemFreeAsync(p[i], s));
	say("free", cuStreamSynchronize(s));
	MUST(cuStreamDestroy_v2(s));
}

static void many(void)
{
	CUmemoryPool pool[300];
	for (int i = 0; i < 300; i++)
		pool[i] = pool_new();
	fill("first", pool[0]);
	fill("last", pool[299]);
	for (int i = 0; i < 300; i++)
		MUST(cuMemPoolDestroy(pool[i]));
	for (int i = 0; i < 300; i++)
		pool[i] = pool_new();
	fill("new", pool[299]);
}

static void destroyed(void)
{
	CUdeviceptr p, q, other;
	CUmemoryPool pool = pool_new(), current, builtin;
	CUstream s = stream_new();
	CUresult r;
	say("allocate", cuMemAllocFromPoolAsync(&p, 32 * MIB, pool, s));
	say("allocate", cuMemAllocFromPoolAsync(&q, 64 * MIB, pool, s));
	say("destroy", cuMemPoolDestroy(pool));
	say("destroy again", cuMemPoolDestroy(pool));
	say("allocate from what is destroyed", cuMemAllocFromPoolAsync(&other, 32 * MIB, pool, s));
	say("more than the limit leaves", cuMemAlloc_v2(&other, 160 * MIB));
	r = cuMemFreeAsync(p, s);
	say("free one", r == CUDA_SUCCESS ? cuStreamSynchronize(s) : r);
	r = cuMemFreeAsync(q, s);
	say("free the other", r == CUDA_SUCCESS ? cuStreamSynchronize(s) : r);
	pool = pool_new();
	say("make it current", cuDeviceSetMemPool(device, pool));
	say("allocate", cuMemAllocAsync(&p, 32 * MIB, s));
	say("destroy", cuMemPoolDestroy(pool));
	MUST(cuDeviceGetDefaultMemPool(&builtin, device));
	MUST(cuDeviceGetMemPool(&current, device));
	printf("the default pool is %s\n", current == builtin ? "current" : "not current");
	say("allocate", cuMemAllocAsync(&q, 32 * MIB, s));
	say("destroy the default pool", cuMemPoolDestroy(builtin));
	MUST(cuMemFreeAsync(p, s));
	MUST(cuMemFreeAsync(q, s));
	say("free", cuStreamSynchronize(s));
}

// ---- the race

#define THREADS 4
#define GIVEN 8

static CUmemoryPool shared[2];
static CUdeviceptr _Atomic given[THREADS * GIVEN]; // what one thread allocates another frees
static atomic_int granted, refused, wrong;

static void give_back(CUdeviceptr p, CUstream s)
{
	if (p != 0 && cuMemFreeAsync(p, s) != CUDA_SUCCESS)
		wrong++;
}

static void *racer(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;
	MUST(cuCtxSetCurrent(context));
	CUstream s[2] = {stream_new(), stream_new()};
	for (int i = 0; i < 300; i++) {
		CUdeviceptr p = 0;
		CUstream on = s[rand_r(&seed) % 2];
		size_t bytes = (size_t)(1 + rand_r(&seed) % (48 * 1024)) * 1024;
		CUresult r = cuMemAllocFromPoolAsync(&p, bytes, shared[rand_r(&seed) % 2], on);
		if (r == CUDA_SUCCESS)
			granted++;
		else if (r == CUDA_ERROR_OUT_OF_MEMORY)
			refused++;
		else
			wrong++;
		if (rand_r(&seed) % 8 == 0 && cuStreamSynchronize(on) != CUDA_SUCCESS)
			wrong++;
		// Its stream may free it at once; anybody may when the stream has made it.
		if (r == CUDA_SUCCESS && cuStreamSynchronize(on) != CUDA_SUCCESS)
			wrong++;
		p = r == CUDA_SUCCESS ? p : 0;
		give_back(atomic_exchange(&given[rand_r(&seed) % (THREADS * GIVEN)], p), s[rand_r(&seed) % 2]);
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			give_back(atomic_exchange(&given[rand_r(&seed) % (THREADS * GIVEN)], 0), s[rand_r(&seed) % 2]);
	}
	MUST(cuStreamSynchronize(s[0]));
	MUST(cuStreamSynchronize(s[1]));
	return NULL;
}

static void race(void)
{
	pthread_t threads[THREADS];
	CUstream s = stream_new();
	cuuint64_t all = ~UINT64_C(0);
	for (int i = 0; i < 2; i++) {
		shared[i] = pool_new();
		MUST(cuMemPoolSetAttribute(shared[i], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
	}
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, racer, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS * GIVEN; i++)
		give_back(given[i], s);
	MUST(cuStreamSynchronize(s));
	MUST(cuMemPoolTrimTo(shared[0], 0));
	MUST(cuMemPoolTrimTo(shared[1], 0));
	printf("%s, %s, %d wrong\n", granted > 0 ? "granted" : "none granted", refused > 0 ? "refused" : "none refused", wrong);
	say("end", CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	MUST(cuInit(0));
	MUST(cuDeviceGet(&device, 0));
	MUST(cuDevicePrimaryCtxRetain(&context, device));
	MUST(cuCtxSetCurrent(context));
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (strcmp(what, "fragments") == 0)
		fragments(0);
	else if (strcmp(what, "waiting") == 0)
		fragments(1);
	else if (strcmp(what, "behind") == 0)
		behind();
	else if (strcmp(what, "many") == 0)
		many();
	else if (strcmp(what, "destroyed") == 0)
		destroyed();
	else if (strcmp(what, "race") == 0)
		race();
	else
		return 2;
	return 0;
}
