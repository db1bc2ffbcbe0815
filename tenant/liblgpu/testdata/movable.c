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
//	ends            whether copies and memsets end where allocations do
//	ranges          what the driver says to who maps at, or gives back, addresses that are not its own
//	stale           reads what was freed, and what was unmapped
//	flood KIB       cuMemAlloc of so much, with one word everywhere
//	ghost           two small allocations in one chunk, of which the first is filled and freed
//	haunt           a kernel looks where that was: what it sees is the program's own, or nothing
//	probe KIB       looks whether new memory has anything in it
//	churn N         N threads that allocate, fill, check and free until stop
//	stop            ends them, and says whether anything was wrong
//	peer            a copy, and a kernel, by device 1 of device 0's memory, made before and after access was enabled
//	fork N          N children, one after another, for which every call fails, whatever it is about; whether they ended
//	block           a stream waits until pass, and cannot be waited for
//	pass            ends that
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
#include "movable_rules.h"

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

static CUmemoryPool pool; // from which pooled allocates, once it has

static CUresult pooled(size_t bytes)
{
	CUdeviceptr at;
	cuDeviceGetDefaultMemPool(&pool, 0);
	CUresult r = cuMemAllocAsync(&at, bytes, NULL);
	return r == CUDA_SUCCESS ? hold(at, bytes) : r;
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
	unsigned seed = (unsigned)(uintptr_t)arg * 7919 + 1, on = 1;
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
		r = r == CUDA_SUCCESS ? cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p) : r;
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
		EXPECT(cuCtxSetCurrent(contexts[1]), CUDA_SUCCESS);
		EXPECT(cuMemcpyDtoD_v2(theirs, i == 1 ? before : after, bytes), CUDA_SUCCESS);
		EXPECT(compare(theirs, bytes, i), CUDA_SUCCESS);
		EXPECT(run_peek(theirs, i == 1 ? before : after), CUDA_SUCCESS);
		EXPECT(compare(theirs, 4096, i), CUDA_SUCCESS);
		EXPECT(cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
	}
	return CUDA_SUCCESS;
}

// successes counts the calls that a forked child has had success with. It has no device, and none of its parent's memory.
static int successes(void)
{
	CUdeviceptr p;
	unsigned word;
	cuuint64_t amount;
	int had = cuMemAlloc_v2(&p, 4096) == CUDA_SUCCESS;
	had += cuMemAllocAsync(&p, 4096, NULL) == CUDA_SUCCESS;
	had += cuCtxSynchronize() == CUDA_SUCCESS;
	had += cuStreamSynchronize(NULL) == CUDA_SUCCESS;
	had += pool != NULL && cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &amount) == CUDA_SUCCESS;
	had += pool != NULL && cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS;
	for (int i = 0; i < count; i++) {
		CUdeviceptr at = held[i].at;
		had += cuMemcpyDtoH_v2(&word, at, sizeof word) == CUDA_SUCCESS;
		had += cuPointerGetAttribute(&word, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == CUDA_SUCCESS;
		had += cuMemGetAddressRange_v2(NULL, NULL, at) == CUDA_SUCCESS;
		had += cuMemFreeAsync(at, NULL) == CUDA_SUCCESS;
		had += cuMemFree_v2(at) == CUDA_SUCCESS;
		had += cuMemUnmap(at, 2 << 20) == CUDA_SUCCESS;
		had += cuIpcCloseMemHandle(at) == CUDA_SUCCESS;
	}
	had += cuCtxDestroy_v2(contexts[0]) == CUDA_SUCCESS;
	return had;
}

static CUresult forked(int children)
{
	for (int i = 0; i < children; i++) {
		int status = 1;
		pid_t child = fork();
		if (child == 0) {
			alarm(30); // it waits for nobody
			exit(successes());
		}
		if (waitpid(child, &status, 0) != child || status != 0) {
			printf("a child ended with %x\n", (unsigned)status);
			return CUDA_ERROR_UNKNOWN;
		}
	}
	return CUDA_SUCCESS;
}

// ---- work that does not end

static CUstream blocked;
static volatile unsigned *flag; // that it waits for

static CUresult block(void)
{
	void *p;
	CUdeviceptr at;
	EXPECT(cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
	EXPECT(cuMemHostGetDevicePointer_v2(&at, p, 0), CUDA_SUCCESS);
	flag = p;
	*flag = 0;
	EXPECT(cuStreamCreate(&blocked, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	return cuStreamWaitValue32_v2(blocked, at, 1, CU_STREAM_WAIT_VALUE_EQ);
}

static CUresult pass(void)
{
	*flag = 1;
	return cuStreamSynchronize(blocked);
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
	CUmemGenericAllocationHandle handle;
	EXPECT(create(&handle, 2 << 20), CUDA_SUCCESS);
	EXPECT(foreign_range(foreign, handle), CUDA_SUCCESS);
	EXPECT(cuMemRelease(handle), CUDA_SUCCESS);
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
	if (strcmp(word, "ends") == 0)
		return all_ends();
	if (strcmp(word, "rules") == 0)
		return rules();
	if (strcmp(word, "ranges") == 0)
		return ranges();
	if (strcmp(word, "stale") == 0)
		return stale();
	if (strcmp(word, "flood") == 0)
		return flood((size_t)n << 10);
	if (strcmp(word, "ghost") == 0)
		return ghost();
	if (strcmp(word, "haunt") == 0)
		return haunt();
	if (strcmp(word, "probe") == 0)
		return probe((size_t)n << 10);
	if (strcmp(word, "peer") == 0)
		return peer();
	if (strcmp(word, "fork") == 0)
		return forked(n);
	if (strcmp(word, "block") == 0)
		return block();
	if (strcmp(word, "pass") == 0)
		return pass();
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
