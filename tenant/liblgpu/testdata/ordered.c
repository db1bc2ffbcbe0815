// SPDX-License-Identifier: Apache-2.0

// ordered: whether pools keep the order of streams. It knows the orders init 1, and ordered, which makes all of it
// and says whether anything was wrong.
#include <stdio.h>
#include <string.h>

#include "contexts.h"

#define BYTES ((size_t)8 << 20)

#define EXPECT(call, want)                                                              \
	do {                                                                            \
		long long had_ = (long long)(call);                                     \
		if (had_ != (long long)(want)) {                                        \
			printf("line %d: %s is %lld\n", __LINE__, #call, had_);         \
			return CUDA_ERROR_UNKNOWN;                                      \
		}                                                                       \
	} while (0)

static volatile unsigned *word; // that streams wait for
static CUdeviceptr word_address;
#define SEEN ((unsigned *)word + 16) // where streams copy to: page-locked memory, for which no call waits
static unsigned turn;
static CUstream a, b;

// block has a stream wait until go; what it does later is not done before.
static CUresult block(CUstream s) { return cuStreamWaitValue32_v2(s, word_address, turn + 1, CU_STREAM_WAIT_VALUE_EQ); }
static void go(void) { *word = ++turn; }

static int apart(CUdeviceptr x, CUdeviceptr y) { return x + BYTES <= y || y + BYTES <= x; }

static CUmemoryPool pool_new(size_t most)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .maxSize = most};
	cuuint64_t all = ~UINT64_C(0);
	CUmemoryPool pool = NULL;
	cuMemPoolCreate(&pool, &props);
	cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
	return pool;
}

static unsigned long long reserved(CUmemoryPool pool)
{
	cuuint64_t bytes = 0;
	return cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS ? bytes : 1;
}

static unsigned word_at(CUdeviceptr at)
{
	unsigned v = 0;
	return cuMemcpyDtoH_v2(&v, at, sizeof v) == CUDA_SUCCESS ? v : 0xdead;
}

// What is freed on a stream is that stream's at once, and another's only when the stream has reached the free.
static CUresult streams(void)
{
	CUmemoryPool pool = pool_new(0);
	CUdeviceptr x, again, other;
	EXPECT(cuMemAllocFromPoolAsync(&x, BYTES, pool, a), CUDA_SUCCESS);
	EXPECT(block(a), CUDA_SUCCESS);
	EXPECT(cuMemsetD32Async(x, 1, BYTES / 4, a), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(x, a), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&again, BYTES, pool, a), CUDA_SUCCESS);
	EXPECT(again == x, 1);
	EXPECT(cuMemFreeAsync(x, a), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&other, BYTES, pool, b), CUDA_SUCCESS);
	EXPECT(apart(x, other), 1);
	EXPECT(cuMemsetD32Async(other, 2, BYTES / 4, b), CUDA_SUCCESS);
	EXPECT(cuStreamSynchronize(b), CUDA_SUCCESS);
	go();
	EXPECT(cuStreamSynchronize(a), CUDA_SUCCESS);
	EXPECT(word_at(other), 2);
	EXPECT(cuMemAllocFromPoolAsync(&again, BYTES, pool, b), CUDA_SUCCESS);
	EXPECT(again == x, 1);
	EXPECT(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	return CUDA_SUCCESS;
}

// Without room, a stream waits for the free of another one.
static CUresult depends(void)
{
	CUmemoryPool pool = pool_new(BYTES);
	CUdeviceptr x, y;
	EXPECT(cuMemAllocFromPoolAsync(&x, BYTES, pool, a), CUDA_SUCCESS);
	EXPECT(block(a), CUDA_SUCCESS);
	EXPECT(cuMemsetD32Async(x, 3, BYTES / 4, a), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(x, a), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&y, BYTES, pool, b), CUDA_SUCCESS);
	EXPECT(y == x, 1);
	EXPECT(cuMemsetD32Async(y, 4, BYTES / 4, b), CUDA_SUCCESS);
	EXPECT(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
	go();
	EXPECT(cuStreamSynchronize(b), CUDA_SUCCESS);
	EXPECT(word_at(y), 4);
	int none = 0;
	EXPECT(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &none), CUDA_SUCCESS);
	EXPECT(block(b), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(y, b), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&x, BYTES, pool, a), CUDA_ERROR_OUT_OF_MEMORY);
	go();
	EXPECT(cuStreamSynchronize(b), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&x, BYTES, pool, a), CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(x), CUDA_SUCCESS);
	EXPECT(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	return CUDA_SUCCESS;
}

static CUstream c; // which waits for the default stream, and that for it

// given expects that memory freed on one stream, which is blocked, is given to another one, or not.
static CUresult given(CUmemoryPool pool, CUstream from, CUstream to, CUevent event, int wanted)
{
	CUdeviceptr x, y;
	EXPECT(cuMemAllocFromPoolAsync(&x, BYTES, pool, from), CUDA_SUCCESS);
	EXPECT(block(from), CUDA_SUCCESS);
	EXPECT(cuMemsetD32Async(x, 8, BYTES / 4, from), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(x, from), CUDA_SUCCESS);
	if (event != NULL) {
		EXPECT(cuEventRecord(event, from), CUDA_SUCCESS);
		EXPECT(cuStreamWaitEvent(to, event, 0), CUDA_SUCCESS);
	}
	EXPECT(cuMemAllocFromPoolAsync(&y, BYTES, pool, to), CUDA_SUCCESS);
	EXPECT(y == x, wanted);
	EXPECT(cuMemsetD32Async(y, 9, BYTES / 4, to), CUDA_SUCCESS);
	go();
	EXPECT(cuStreamSynchronize(to), CUDA_SUCCESS);
	EXPECT(word_at(y), 9);
	EXPECT(cuMemFreeAsync(y, to), CUDA_SUCCESS);
	EXPECT(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	return CUDA_SUCCESS;
}

// What one stream has freed is another's that comes after the free, by events or by the default stream.
static CUresult follows(void)
{
	CUmemoryPool pool = pool_new(2 * BYTES); // so that it does not grow by more than what is asked for
	CUdeviceptr x, y;
	CUevent e, f;
	int none = 0, all = 1;
	EXPECT(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
	EXPECT(cuEventCreate(&f, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
	EXPECT(given(pool, a, b, NULL, 0), CUDA_SUCCESS);
	EXPECT(given(pool, a, b, e, 1), CUDA_SUCCESS);
	EXPECT(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &none), CUDA_SUCCESS);
	EXPECT(given(pool, a, b, e, 0), CUDA_SUCCESS);
	EXPECT(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &all), CUDA_SUCCESS);
	EXPECT(given(pool, c, NULL, NULL, 1), CUDA_SUCCESS);
	EXPECT(given(pool, NULL, c, NULL, 1), CUDA_SUCCESS);
	EXPECT(given(pool, a, NULL, NULL, 0), CUDA_SUCCESS);
	// By way of a third stream; an event says what its stream knows, as of when it was recorded.
	EXPECT(cuMemAllocFromPoolAsync(&x, BYTES, pool, a), CUDA_SUCCESS);
	EXPECT(block(a), CUDA_SUCCESS);
	EXPECT(cuEventRecord(f, a), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(x, a), CUDA_SUCCESS);
	EXPECT(cuStreamWaitEvent(c, f, 0), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&y, BYTES, pool, c), CUDA_SUCCESS);
	EXPECT(apart(x, y), 1);
	EXPECT(cuEventRecord(e, a), CUDA_SUCCESS);
	EXPECT(cuStreamWaitEvent(b, e, 0), CUDA_SUCCESS);
	EXPECT(cuEventRecord(e, b), CUDA_SUCCESS); // what b waits for is what it was
	EXPECT(cuStreamWaitEvent(c, e, 0), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&y, BYTES, pool, c), CUDA_SUCCESS);
	EXPECT(y == x, 1);
	go();
	EXPECT(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT(cuEventDestroy_v2(e), CUDA_SUCCESS);
	EXPECT(cuEventDestroy_v2(f), CUDA_SUCCESS);
	EXPECT(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	return CUDA_SUCCESS;
}

// What a stream has freed that is no more is not at once a new stream's, which may have the same handle.
static CUresult ended(void)
{
	CUmemoryPool pool = pool_new(0);
	CUdeviceptr x, y;
	CUstream s;
	EXPECT(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&x, BYTES, pool, s), CUDA_SUCCESS);
	EXPECT(block(s), CUDA_SUCCESS);
	EXPECT(cuMemsetD32Async(x, 5, BYTES / 4, s), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(x, s), CUDA_SUCCESS);
	EXPECT(cuStreamDestroy_v2(s), CUDA_SUCCESS);
	EXPECT(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT(cuMemAllocFromPoolAsync(&y, BYTES, pool, s), CUDA_SUCCESS);
	EXPECT(apart(x, y), 1);
	go();
	EXPECT(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(y, s), CUDA_SUCCESS);
	EXPECT(cuStreamDestroy_v2(s), CUDA_SUCCESS);
	EXPECT(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
	EXPECT(reserved(pool), 0);
	EXPECT(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	return CUDA_SUCCESS;
}

// What is freed for all is given back at a synchronise, as far as the threshold says; parts that were cut join before.
static CUresult thresholds(void)
{
	CUmemoryPool pool = pool_new(0);
	CUdeviceptr at[40];
	cuuint64_t none = 0;
	for (int i = 0; i < 40; i++)
		EXPECT(cuMemAllocFromPoolAsync(&at[i], i % 2 != 0 ? 700 * (size_t)(i + 1) : BYTES / 4 * (size_t)(1 + i % 5), pool, i % 3 != 0 ? a : b), CUDA_SUCCESS);
	for (int i = 0; i < 40; i++)
		EXPECT(cuMemFreeAsync(at[i], i % 2 != 0 ? a : b), CUDA_SUCCESS);
	EXPECT(cuCtxSynchronize(), CUDA_SUCCESS);
	EXPECT(reserved(pool) != 0, 1);
	EXPECT(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none), CUDA_SUCCESS);
	EXPECT(cuStreamSynchronize(a), CUDA_SUCCESS);
	EXPECT(reserved(pool), 0);
	EXPECT(cuMemPoolDestroy(pool), CUDA_SUCCESS);
	return CUDA_SUCCESS;
}

// Memory of cuMemAlloc may be freed in stream order too: until then the stream may use it.
static CUresult plain(void)
{
	CUdeviceptr x, y, base;
	EXPECT(cuMemAlloc_v2(&x, BYTES), CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&y, 1000), CUDA_SUCCESS);
	EXPECT(block(a), CUDA_SUCCESS);
	EXPECT(cuMemsetD32Async(x, 6, BYTES / 4, a), CUDA_SUCCESS);
	EXPECT(cuMemcpyDtoHAsync_v2(SEEN, x, sizeof *word, a), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(x, a), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(y, a), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(y, a), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuStreamSynchronize(b), CUDA_SUCCESS); // says nothing of a
	go();
	EXPECT(cuStreamSynchronize(a), CUDA_SUCCESS);
	EXPECT(*SEEN, 6);
	EXPECT(cuMemGetAddressRange_v2(&base, NULL, x), CUDA_ERROR_NOT_FOUND);
	return CUDA_SUCCESS;
}

// What is captured is the driver's: it has addresses of its own, and a graph's memory may be freed in the graph.
static CUresult captured(void)
{
	CUdeviceptr x;
	CUgraph graph;
	CUgraphExec exec;
	EXPECT(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
	EXPECT(cuMemAllocAsync(&x, BYTES, a), CUDA_SUCCESS);
	EXPECT(cuMemsetD32Async(x, 7, BYTES / 4, a), CUDA_SUCCESS);
	EXPECT(cuMemcpyDtoHAsync_v2(SEEN, x, sizeof *word, a), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(x, a), CUDA_SUCCESS);
	EXPECT(cuStreamEndCapture(a, &graph), CUDA_SUCCESS);
	EXPECT(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
	EXPECT(cuGraphLaunch(exec, a), CUDA_SUCCESS);
	EXPECT(cuStreamSynchronize(a), CUDA_SUCCESS);
	EXPECT(*SEEN, 7);
	EXPECT(cuGraphExecDestroy(exec), CUDA_SUCCESS);
	EXPECT(cuGraphDestroy(graph), CUDA_SUCCESS);
	return CUDA_SUCCESS;
}

static CUresult ordered(void)
{
	static CUresult (*const all[])(void) = {streams, depends, follows, ended, thresholds, plain, captured};
	void *p;
	EXPECT(cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
	word = p;
	*word = 0;
	EXPECT(cuMemHostGetDevicePointer_v2(&word_address, p, 0), CUDA_SUCCESS);
	EXPECT(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EXPECT(cuStreamCreate(&c, CU_STREAM_DEFAULT), CUDA_SUCCESS);
	CUresult r = CUDA_SUCCESS;
	for (size_t i = 0; i < sizeof all / sizeof *all && r == CUDA_SUCCESS; i++)
		r = all[i]();
	return r;
}

int main(void)
{
	char text[64];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(text, sizeof text, stdin) != NULL) {
		text[strcspn(text, "\n")] = 0;
		CUresult r = strcmp(text, "ordered") == 0 ? ordered() : init(1);
		printf("%s: %d\n", text, (int)r);
	}
	return 0;
}
