// SPDX-License-Identifier: Apache-2.0

// movable: memory that leaves its device. It does what it reads, one order a line, and prints each order with
// the driver's answer when it is done.
//
//	init DEVICES    cuInit, and a context on each of so many devices
//	device N        whose context is current from now on
//	second          another context on device 0, which is current from now on
//	destroy         ends it, with what was allocated in it
//	alloc KIB       cuMemAlloc of so much, filled with a pattern
//	pooled KIB      cuMemAllocAsync
//	own KIB         cuMemCreate, mapped at two addresses, of which the second is for reading
//	hide KIB        cuMemCreate, written, and mapped nowhere
//	show            maps that again, and looks at it
//	free            of the newest allocation
//	check           whether all patterns are as they were; an address or a byte that has changed is an error
//	things          prints how many descriptors and mappings of files there are
//	rules           what the driver says of addresses, and of frees that are wrong
//	stale           reads what was freed, and what was unmapped
//	probe KIB       looks whether new memory has anything in it
//	churn N         N threads that allocate, fill, check and free until stop
//	stop            ends them, and says whether anything was wrong
//	peer            a copy by device 1 of device 0's memory, made before and after access was enabled
//	fork            a child that ends; whether it did
//	give            prints the handle of legacy IPC of the newest allocation
//	open HANDLE     opens one: its bytes are compared with the first allocation's pattern, and made the second's
//	write N         its bytes are the Nth pattern from now on
//	opened          whether they still are, and closes it
//	fill            writes the newest allocation's pattern
//	rewrite         writes another pattern to each allocation
//	seed N          the newest allocation has the Nth pattern from now on
//	flip KIB        flips one bit of the newest allocation so far from its beginning, which must be as it was left
//	peek            reads a byte of it
//	graph           makes a graph that writes to the newest allocation's first page
//	replay          launches it, and looks at what it has written
//	capture         begins a capture on a new stream
//	abandon         destroys that stream
#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contexts.h"

#define MOST 512

static CUcontext second;
static struct held {
	CUdeviceptr at;
	size_t bytes;
	unsigned seed;
	CUcontext context;
} held[MOST];
static int count;
static unsigned seeds = 1;

static void pattern(unsigned *words, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes / 4; i++)
		words[i] = (seed + (unsigned)i) * 2654435761u;
}

static CUresult fill(CUdeviceptr at, size_t bytes, unsigned seed)
{
	unsigned *words = malloc(bytes);
	pattern(words, bytes, seed);
	CUresult r = cuMemcpyHtoD_v2(at, words, bytes);
	free(words);
	return r;
}

static CUresult compare(CUdeviceptr at, size_t bytes, unsigned seed)
{
	unsigned *want = malloc(bytes), *have = calloc(1, bytes);
	pattern(want, bytes, seed);
	CUresult r = cuMemcpyDtoH_v2(have, at, bytes);
	if (r == CUDA_SUCCESS && memcmp(want, have, bytes) != 0)
		r = CUDA_ERROR_UNKNOWN;
	free(want);
	free(have);
	return r;
}

static CUresult alloc(size_t bytes)
{
	struct held *h = &held[count];
	CUresult r = cuMemAlloc_v2(&h->at, bytes);
	if (r != CUDA_SUCCESS)
		return r;
	h->bytes = bytes;
	h->seed = seeds++;
	cuCtxGetCurrent(&h->context);
	count++;
	return fill(h->at, bytes, h->seed);
}

// hold notes what was allocated, and fills it.
static CUresult hold(CUdeviceptr at, size_t bytes)
{
	struct held *h = &held[count++];
	*h = (struct held){.at = at, .bytes = bytes, .seed = seeds++};
	cuCtxGetCurrent(&h->context);
	return fill(at, bytes, h->seed);
}

static CUresult pooled(size_t bytes)
{
	CUdeviceptr at;
	CUresult r = cuMemAllocAsync(&at, bytes, NULL);
	return r == CUDA_SUCCESS ? hold(at, bytes) : r;
}

// map maps a handle at a new address.
static CUresult map(CUdeviceptr *at, size_t bytes, CUmemGenericAllocationHandle handle, CUmemAccess_flags flags)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
	CUresult r = cuMemAddressReserve(at, bytes, 0, 0, 0);
	r = r == CUDA_SUCCESS ? cuMemMap(*at, bytes, 0, handle, 0) : r;
	return r == CUDA_SUCCESS ? cuMemSetAccess(*at, bytes, &access, 1) : r;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	return cuMemCreate(handle, bytes, &prop, 0);
}

static CUresult own(size_t bytes)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr one, two;
	CUresult r = create(&handle, bytes);
	r = r == CUDA_SUCCESS ? map(&one, bytes, handle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) : r;
	r = r == CUDA_SUCCESS ? map(&two, bytes, handle, CU_MEM_ACCESS_FLAGS_PROT_READ) : r;
	r = r == CUDA_SUCCESS ? cuMemRelease(handle) : r;
	r = r == CUDA_SUCCESS ? hold(one, bytes) : r;
	held[count] = held[count - 1];
	held[count++].at = two;
	return r;
}

static CUmemGenericAllocationHandle hidden;
static size_t hidden_bytes;

static CUresult hide(size_t bytes)
{
	CUdeviceptr at;
	CUresult r = create(&hidden, hidden_bytes = bytes);
	r = r == CUDA_SUCCESS ? map(&at, bytes, hidden, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) : r;
	r = r == CUDA_SUCCESS ? fill(at, bytes, 77) : r;
	return r == CUDA_SUCCESS ? cuMemUnmap(at, bytes) : r;
}

static CUresult show(void)
{
	CUdeviceptr at;
	CUresult r = map(&at, hidden_bytes, hidden, CU_MEM_ACCESS_FLAGS_PROT_READ);
	r = r == CUDA_SUCCESS ? compare(at, hidden_bytes, 77) : r;
	return r == CUDA_SUCCESS ? cuMemUnmap(at, hidden_bytes) : r;
}

static CUresult check(void)
{
	CUresult r = CUDA_SUCCESS;
	for (int i = 0; i < count && r == CUDA_SUCCESS; i++) {
		cuCtxPushCurrent_v2(held[i].context);
		CUcontext popped;
		r = compare(held[i].at, held[i].bytes, held[i].seed);
		cuCtxPopCurrent_v2(&popped);
	}
	return r;
}

static CUresult rewrite(void)
{
	CUresult r = CUDA_SUCCESS;
	for (int i = 0; i < count && r == CUDA_SUCCESS; i++)
		r = fill(held[i].at, held[i].bytes, held[i].seed = seeds++);
	return r;
}

static CUresult destroy(void)
{
	CUresult r = cuCtxDestroy_v2(second);
	int kept = 0;
	for (int i = 0; i < count; i++)
		if (held[i].context != second)
			held[kept++] = held[i];
	count = kept;
	return r == CUDA_SUCCESS ? cuCtxSetCurrent(contexts[0]) : r;
}

static void things(void)
{
	int descriptors = 0, mappings = 0;
	char line[512];
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d) != NULL)
		descriptors++;
	closedir(d);
	FILE *f = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, f) != NULL)
		mappings += strchr(line, '/') != NULL;
	fclose(f);
	printf("%d descriptors %d mappings\n", descriptors, mappings);
}

#define EXPECT(call, want)                                                              \
	do {                                                                            \
		long long had_ = (long long)(call);                                     \
		if (had_ != (long long)(want)) {                                        \
			printf("%s is %lld\n", #call, had_);                            \
			return CUDA_ERROR_UNKNOWN;                                      \
		}                                                                       \
	} while (0)

static CUresult rules_of(CUdeviceptr p, size_t bytes)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	unsigned type = 0, managed = 9, mapped = 9, legacy = 9;
	CUcontext context = NULL;
	unsigned long long id = 0, other = 0;
	CUdeviceptr another;
	CUmemGenericAllocationHandle handle;
	EXPECT(cuMemGetAddressRange_v2(&base, &size, p + bytes - 1), CUDA_SUCCESS);
	EXPECT(base == p && size == bytes, 1);
	EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 1), CUDA_SUCCESS);
	EXPECT(type, CU_MEMORYTYPE_DEVICE);
	CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MAPPED, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
				       CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_HOST_POINTER};
	void *none = &none, *data[] = {&managed, &mapped, &legacy, &context, &none};
	EXPECT(cuPointerGetAttributes(5, names, data, p), CUDA_SUCCESS);
	EXPECT(managed == 0 && mapped == 1 && legacy == 1 && context == contexts[0] && none == NULL, 1);
	EXPECT(cuPointerGetAttribute(&none, CU_POINTER_ATTRIBUTE_HOST_POINTER, p), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAlloc_v2(&another, bytes), CUDA_SUCCESS);
	EXPECT(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p), CUDA_SUCCESS);
	EXPECT(cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_BUFFER_ID, another), CUDA_SUCCESS);
	EXPECT(id != other, 1);
	EXPECT(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemUnmap(p, 2 << 20), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree_v2(p + 512), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree_v2(another), CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(another), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemGetAddressRange_v2(&base, &size, another), CUDA_ERROR_NOT_FOUND);
	EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, another), CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

static CUresult rules(void)
{
	CUdeviceptr small, large, rows;
	size_t pitch = 0, bytes = 0;
	EXPECT(cuMemAlloc_v2(&small, 1000), CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&large, (3 << 20) + 5), CUDA_SUCCESS);
	CUresult r = rules_of(small, 1000);
	r = r == CUDA_SUCCESS ? rules_of(large, (3 << 20) + 5) : r;
	EXPECT(small % 512 == 0 && large % (2 << 20) == 0, 1);
	EXPECT(cuMemAllocPitch_v2(&rows, &pitch, 1000, 700, 3), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocPitch_v2(&rows, &pitch, 1000, 700, 4), CUDA_SUCCESS);
	EXPECT(cuMemGetAddressRange_v2(NULL, &bytes, rows), CUDA_SUCCESS);
	EXPECT(pitch == 1024 && bytes == 1024 * 700, 1);
	EXPECT(cuMemFree_v2(rows), CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(small), CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(large), CUDA_SUCCESS);
	return r;
}

static CUresult stale(void)
{
	CUdeviceptr p;
	char byte;
	EXPECT(cuMemAlloc_v2(&p, 4 << 20), CUDA_SUCCESS);
	EXPECT(cuMemFree_v2(p), CUDA_SUCCESS);
	EXPECT(cuMemcpyDtoH_v2(&byte, p, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocAsync(&p, 4 << 20, NULL), CUDA_SUCCESS);
	EXPECT(cuMemFreeAsync(p, NULL), CUDA_SUCCESS);
	EXPECT(cuStreamSynchronize(NULL), CUDA_SUCCESS); // now the pool gives it back
	EXPECT(cuMemcpyDtoH_v2(&byte, p, 1), CUDA_ERROR_INVALID_VALUE);
	CUmemGenericAllocationHandle handle;
	EXPECT(create(&handle, 4 << 20), CUDA_SUCCESS);
	EXPECT(map(&p, 4 << 20, handle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
	EXPECT(cuMemcpyDtoH_v2(&byte, p, 1), CUDA_SUCCESS);
	EXPECT(cuMemUnmap(p, 4 << 20), CUDA_SUCCESS);
	EXPECT(cuMemcpyDtoH_v2(&byte, p, 1), CUDA_ERROR_INVALID_VALUE);
	return cuMemRelease(handle);
}

// probe reports whether new memory of any kind has anything in it that is not zero.
static CUresult probe(size_t bytes)
{
	CUdeviceptr at[3];
	CUmemGenericAllocationHandle handle;
	unsigned char *have = malloc(bytes), *zero = calloc(1, bytes);
	EXPECT(cuMemAlloc_v2(&at[0], bytes), CUDA_SUCCESS);
	EXPECT(cuMemAllocAsync(&at[1], bytes, NULL), CUDA_SUCCESS);
	EXPECT(create(&handle, bytes), CUDA_SUCCESS);
	EXPECT(map(&at[2], bytes, handle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
	for (int i = 0; i < 3; i++) {
		EXPECT(cuMemcpyDtoH_v2(have, at[i], bytes), CUDA_SUCCESS);
		EXPECT(memcmp(have, zero, bytes), 0);
	}
	free(have);
	free(zero);
	return CUDA_SUCCESS;
}

// ---- threads

static volatile int stopping;
static int wrong;
static pthread_t threads[16];
static int running;

// churn_handle makes a handle of the device of the current context, maps, fills and looks at it, and ends it.
static CUresult churn_handle(unsigned seed, CUstream stream)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	size_t bytes = 4 << 20;
	CUresult r = cuCtxGetDevice(&prop.location.id);
	r = r == CUDA_SUCCESS ? cuMemCreate(&handle, bytes, &prop, 0) : r;
	r = r == CUDA_SUCCESS ? cuMemAddressReserve(&at, bytes, 0, 0, 0) : r;
	r = r == CUDA_SUCCESS ? cuMemMap(at, bytes, 0, handle, 0) : r;
	r = r == CUDA_SUCCESS ? cuMemRelease(handle) : r;
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	r = r == CUDA_SUCCESS ? cuMemSetAccess(at, bytes, &access, 1) : r;
	r = r == CUDA_SUCCESS ? cuMemsetD32Async(at, 1, bytes / 4, stream) : r;
	r = r == CUDA_SUCCESS ? cuStreamSynchronize(stream) : r;
	r = r == CUDA_SUCCESS ? fill(at, bytes, seed) : r;
	r = r == CUDA_SUCCESS ? compare(at, bytes, seed) : r;
	r = r == CUDA_SUCCESS ? cuMemUnmap(at, bytes) : r;
	return r == CUDA_SUCCESS ? cuMemAddressFree(at, bytes) : r;
}

static void *churn(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg * 7919 + 1;
	CUstream stream;
	CUresult r = cuCtxSetCurrent(contexts[(uintptr_t)arg % (unsigned)devices]);
	r = r == CUDA_SUCCESS ? cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) : r;
	for (unsigned i = 0; !stopping && r == CUDA_SUCCESS; i++) {
		CUdeviceptr p, q;
		size_t bytes = i % 3 == 0 ? (3 << 20) : 4096 * (1 + (seed + i) % 7);
		r = cuMemAlloc_v2(&p, bytes);
		bool ordered = i % 2 != 0;
		r = r == CUDA_SUCCESS ? ordered ? cuMemAllocAsync(&q, bytes, stream) : cuMemAlloc_v2(&q, bytes) : r;
		r = r == CUDA_SUCCESS ? fill(p, bytes, seed + i) : r;
		r = r == CUDA_SUCCESS ? cuMemsetD32Async(q, 7, bytes / 4, stream) : r;
		r = r == CUDA_SUCCESS ? cuMemcpyDtoDAsync_v2(q, p, bytes, stream) : r;
		r = r == CUDA_SUCCESS ? cuStreamSynchronize(stream) : r;
		r = r == CUDA_SUCCESS ? compare(q, bytes, seed + i) : r;
		r = r == CUDA_SUCCESS ? cuMemFree_v2(p) : r;
		r = r == CUDA_SUCCESS ? ordered ? cuMemFreeAsync(q, stream) : cuMemFree_v2(q) : r;
		r = r == CUDA_SUCCESS && i % 5 == 0 ? churn_handle(seed + i, stream) : r;
	}
	if (r != CUDA_SUCCESS)
		__atomic_store_n(&wrong, (int)r, __ATOMIC_RELAXED);
	return NULL;
}

static CUresult stop(void)
{
	stopping = 1;
	while (running > 0)
		pthread_join(threads[--running], NULL);
	stopping = 0;
	return (CUresult)wrong;
}

static CUresult peer(void)
{
	CUdeviceptr before, after, theirs;
	size_t bytes = 4 << 20;
	EXPECT(cuMemAlloc_v2(&before, bytes), CUDA_SUCCESS);
	EXPECT(fill(before, bytes, 1), CUDA_SUCCESS);
	EXPECT(cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS);
	EXPECT(cuCtxEnablePeerAccess(contexts[0], 0), CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&theirs, bytes), CUDA_SUCCESS);
	EXPECT(cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&after, bytes), CUDA_SUCCESS);
	EXPECT(fill(after, bytes, 2), CUDA_SUCCESS);
	for (unsigned i = 1; i <= 2; i++) {
		CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
		unsigned long long access = 0;
		EXPECT(cuMemGetAccess(&access, &location, i == 1 ? before : after), CUDA_SUCCESS);
		EXPECT(access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		EXPECT(cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS);
		EXPECT(cuMemcpyDtoD_v2(theirs, i == 1 ? before : after, bytes), CUDA_SUCCESS);
		EXPECT(compare(theirs, bytes, i), CUDA_SUCCESS);
		EXPECT(cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
	}
	return CUDA_SUCCESS;
}

static CUresult forked(void)
{
	int status = 1;
	pid_t child = fork();
	if (child == 0) {
		CUdeviceptr p;
		_exit(cuMemAlloc_v2(&p, 4096) != CUDA_SUCCESS && cuMemFree_v2(held[0].at) != CUDA_SUCCESS ? 0 : 1);
	}
	waitpid(child, &status, 0);
	return status == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

// ---- legacy IPC

static CUdeviceptr foreign;
static unsigned foreign_seed;

static CUresult give(void)
{
	CUipcMemHandle h, same;
	EXPECT(cuIpcGetMemHandle(&h, held[count - 1].at), CUDA_SUCCESS);
	EXPECT(cuIpcGetMemHandle(&same, held[count - 1].at), CUDA_SUCCESS);
	EXPECT(memcmp(&h, &same, sizeof h), 0);
	EXPECT(cuIpcOpenMemHandle_v2(&foreign, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
	for (size_t i = 0; i < sizeof h; i++)
		printf("%02x", ((unsigned char *)&h)[i]);
	printf("\n");
	return CUDA_SUCCESS;
}

static CUresult open_handle(const char *hex)
{
	CUipcMemHandle h;
	CUdeviceptr again, base;
	size_t bytes = 0;
	for (size_t i = 0; i < sizeof h; i++) {
		unsigned byte = 0;
		sscanf(hex + 2 * i, "%2x", &byte);
		((unsigned char *)&h)[i] = (unsigned char)byte;
	}
	CUresult r = cuIpcOpenMemHandle_v2(&foreign, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (r != CUDA_SUCCESS)
		return r;
	EXPECT(cuIpcOpenMemHandle_v2(&again, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuIpcOpenMemHandle_v2(&again, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_SUCCESS);
	EXPECT(again == foreign, 1);
	EXPECT(cuIpcCloseMemHandle(again), CUDA_SUCCESS);
	EXPECT(cuMemGetAddressRange_v2(&base, &bytes, foreign + 4), CUDA_SUCCESS);
	EXPECT(base == foreign, 1);
	r = compare(foreign, bytes, 1);
	return r == CUDA_SUCCESS ? fill(foreign, bytes, foreign_seed = 2) : r;
}

static CUresult write_foreign(unsigned seed)
{
	size_t bytes = 0;
	EXPECT(cuMemGetAddressRange_v2(NULL, &bytes, foreign), CUDA_SUCCESS);
	return fill(foreign, bytes, foreign_seed = seed);
}

static CUresult opened(void)
{
	size_t bytes = 0;
	EXPECT(cuMemGetAddressRange_v2(NULL, &bytes, foreign), CUDA_SUCCESS);
	EXPECT(compare(foreign, bytes, foreign_seed), CUDA_SUCCESS);
	EXPECT(cuIpcCloseMemHandle(foreign + 4), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuIpcCloseMemHandle(foreign), CUDA_SUCCESS);
	EXPECT(cuIpcCloseMemHandle(foreign), CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

// ---- single changes

// flip flips a bit for the first time, and the same one back for the second.
static CUresult flip(size_t offset)
{
	static unsigned char flipped;
	const struct held *h = &held[count - 1];
	unsigned word = (h->seed + (unsigned)(offset / 4)) * 2654435761u;
	unsigned char want = (unsigned char)word ^ flipped, have;
	CUresult r = cuMemcpyDtoH_v2(&have, h->at + offset, 1);
	if (r != CUDA_SUCCESS || have != want)
		return r != CUDA_SUCCESS ? r : CUDA_ERROR_UNKNOWN;
	flipped ^= 1;
	want ^= 1;
	return cuMemcpyHtoD_v2(h->at + offset, &want, 1);
}

static CUresult peek(void)
{
	unsigned char byte;
	return cuMemcpyDtoH_v2(&byte, held[count - 1].at, 1);
}

#define WRITTEN 4096

static CUgraphExec graph;
static CUstream replaying;

static CUresult make_graph(void)
{
	CUgraph made;
	CUresult r = cuStreamCreate(&replaying, CU_STREAM_NON_BLOCKING);
	r = r == CUDA_SUCCESS ? cuStreamBeginCapture_v2(replaying, CU_STREAM_CAPTURE_MODE_GLOBAL) : r;
	r = r == CUDA_SUCCESS ? cuMemsetD8Async(held[count - 1].at, 0xa5, WRITTEN, replaying) : r;
	r = r == CUDA_SUCCESS ? cuStreamEndCapture(replaying, &made) : r;
	return r == CUDA_SUCCESS ? cuGraphInstantiateWithFlags(&graph, made, 0) : r;
}

static CUresult replay(void)
{
	unsigned char have[WRITTEN], want[WRITTEN];
	memset(want, 0xa5, sizeof want);
	CUresult r = cuGraphLaunch(graph, replaying);
	r = r == CUDA_SUCCESS ? cuStreamSynchronize(replaying) : r;
	r = r == CUDA_SUCCESS ? cuMemcpyDtoH_v2(have, held[count - 1].at, sizeof have) : r;
	return r == CUDA_SUCCESS && memcmp(have, want, sizeof have) != 0 ? CUDA_ERROR_UNKNOWN : r;
}

static CUstream captured;

static CUresult capture(void)
{
	CUresult r = cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING);
	return r == CUDA_SUCCESS ? cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) : r;
}

static CUresult obey(const char *word, int n)
{
	if (strcmp(word, "init") == 0)
		return init(n);
	if (strcmp(word, "second") == 0)
		return cuCtxCreate_v2(&second, 0, 0);
	if (strcmp(word, "destroy") == 0)
		return destroy();
	if (strcmp(word, "device") == 0)
		return cuCtxSetCurrent(contexts[n]);
	if (strcmp(word, "alloc") == 0)
		return alloc((size_t)n << 10);
	if (strcmp(word, "pooled") == 0)
		return pooled((size_t)n << 10);
	if (strcmp(word, "own") == 0)
		return own((size_t)n << 10);
	if (strcmp(word, "hide") == 0)
		return hide((size_t)n << 10);
	if (strcmp(word, "show") == 0)
		return show();
	if (strcmp(word, "free") == 0)
		return cuMemFree_v2(held[--count].at);
	if (strcmp(word, "check") == 0)
		return check();
	if (strcmp(word, "rules") == 0)
		return rules();
	if (strcmp(word, "stale") == 0)
		return stale();
	if (strcmp(word, "probe") == 0)
		return probe((size_t)n << 10);
	if (strcmp(word, "peer") == 0)
		return peer();
	if (strcmp(word, "fork") == 0)
		return forked();
	if (strcmp(word, "stop") == 0)
		return stop();
	if (strcmp(word, "give") == 0)
		return give();
	if (strcmp(word, "write") == 0)
		return write_foreign((unsigned)n);
	if (strcmp(word, "opened") == 0)
		return opened();
	if (strcmp(word, "fill") == 0)
		return fill(held[count - 1].at, held[count - 1].bytes, held[count - 1].seed);
	if (strcmp(word, "rewrite") == 0)
		return rewrite();
	if (strcmp(word, "seed") == 0)
		held[count - 1].seed = (unsigned)n;
	if (strcmp(word, "flip") == 0)
		return flip((size_t)n << 10);
	if (strcmp(word, "peek") == 0)
		return peek();
	if (strcmp(word, "graph") == 0)
		return make_graph();
	if (strcmp(word, "replay") == 0)
		return replay();
	if (strcmp(word, "capture") == 0)
		return capture();
	if (strcmp(word, "abandon") == 0)
		return cuStreamDestroy_v2(captured);
	if (strcmp(word, "things") == 0)
		things();
	for (int i = 0; i < n && strcmp(word, "churn") == 0; i++)
		running += pthread_create(&threads[running], NULL, churn, (void *)(uintptr_t)i) == 0;
	return CUDA_SUCCESS;
}

int main(void)
{
	char text[256], word[16];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(text, sizeof text, stdin) != NULL) {
		int n = 0;
		text[strcspn(text, "\n")] = 0;
		sscanf(text, "%15s %d", word, &n);
		CUresult r = strcmp(word, "open") == 0 ? open_handle(text + strlen("open ")) : obey(word, n);
		printf("%s: %d\n", text, (int)r);
	}
	return 0;
}
