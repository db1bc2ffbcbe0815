// SPDX-License-Identifier: Apache-2.0

// answers: random calls on memory, and what the driver answers to each, without any address or handle: so that two runs
// with one seed can be compared. It does what it reads, one order a line, and prints each order with 0 when it is done.
//
//	init DEVICES    cuInit, and a context on each of so many devices
//	go SEED STEPS   makes so many calls, and prints a line for each
//	wild            from now on also calls with what is no more, or of another kind: on a card, the driver may not survive
//	                them
//
// Memory that may be written has a pattern of its own, which is looked at before it is freed or unmapped, and now and then.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "contexts.h"

#define PAGE ((size_t)2 << 20)
#define MOST 24
#define STREAMS 4

static unsigned long long state;
static CUstream streams[STREAMS];
static int wild;

static unsigned next(unsigned bound)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned)(state >> 33) % bound;
}

static int one_in(unsigned n) { return next(n) == 0; }

// ---- contents

static CUresult fill(CUdeviceptr at, size_t bytes, unsigned seed, CUstream stream)
{
	CUresult r = cuMemsetD32Async(at, seed, bytes / 4, stream);
	return r == CUDA_SUCCESS ? cuStreamSynchronize(stream) : r;
}

// compare looks at the beginning, the middle and the end.
static CUresult compare(CUdeviceptr at, size_t bytes, unsigned seed)
{
	size_t offsets[3] = {0, bytes / 8 * 4, bytes / 4 * 4 - 4};
	for (int i = 0; i < 3; i++) {
		unsigned word = 0;
		CUresult r = cuMemcpyDtoH_v2(&word, at + offsets[i], sizeof word);
		if (r != CUDA_SUCCESS)
			return r;
		if (word != seed) {
			printf("the word at %zu of %zu is %x, not %x\n", offsets[i], bytes, word, seed);
			return CUDA_ERROR_UNKNOWN;
		}
	}
	return CUDA_SUCCESS;
}

// ---- what is said of an address

static void attributes(CUdeviceptr at, CUdeviceptr base)
{
	static const CUpointer_attribute words[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
						    CU_POINTER_ATTRIBUTE_ACCESS_FLAGS};
	static const CUpointer_attribute bytes[] = {CU_POINTER_ATTRIBUTE_MAPPED, CU_POINTER_ATTRIBUTE_IS_MANAGED,
						    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		unsigned v = 0;
		CUresult r = cuPointerGetAttribute(&v, words[i], at);
		printf(" %d:%d,%u", words[i], r, v);
	}
	for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
		unsigned v = 0;
		CUresult r = cuPointerGetAttribute(&v, bytes[i], at);
		printf(" %d:%d,%u", bytes[i], r, v & 0xff);
	}
	CUdeviceptr start = 0, pointer = 0, host = 0;
	size_t size = 0, range = 0;
	unsigned long long types = 0, id = 0, again = 0;
	CUmemoryPool pool = NULL;
	CUcontext context = NULL;
	CUresult r = cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);
	printf(" start:%d,%lld", r, r == CUDA_SUCCESS ? (long long)(start - base) : 0);
	r = cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
	printf(" size:%d,%zu", r, range);
	r = cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at);
	printf(" pointer:%d,%d", r, pointer == at);
	printf(" host:%d", cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, at));
	r = cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at);
	printf(" types:%d,%llu", r, types);
	r = cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
	printf(" pool:%d,%d", r, pool != NULL);
	r = cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at);
	printf(" context:%d,%d", r, context == NULL ? 0 : context == contexts[0] ? 1 : 2);
	r = cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
	cuPointerGetAttribute(&again, CU_POINTER_ATTRIBUTE_BUFFER_ID, base);
	printf(" id:%d,%d", r, id == again && (id != 0) == (r == CUDA_SUCCESS));
	r = cuMemGetAddressRange_v2(&start, &size, at);
	printf(" range:%d", r);
	if (r == CUDA_SUCCESS)
		printf(",%lld,%zu", (long long)(start - base), size);
}

// ---- handles of the program's own

static struct physical {
	CUmemGenericAllocationHandle handle;
	size_t pages;
	unsigned seed; // of what was written; 0: nothing
	int device, handles, mappings, exportable;
} physicals[MOST];

static struct reserved {
	CUdeviceptr base;
	size_t pages;
} reserveds[6];

static struct mapped {
	CUdeviceptr at;
	size_t pages;
	struct physical *of; // NULL: none
	int access; // of device 0, as set
} mappeds[MOST];

static struct physical *some_physical(void) { return &physicals[next(MOST)]; }

static void vmm_create(void)
{
	struct physical *p = some_physical();
	if (p->handles != 0 || p->mappings != 0)
		return;
	p->pages = 1 + next(4);
	p->device = (int)next((unsigned)devices);
	p->exportable = one_in(3);
	p->seed = 0;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, p->device}};
	if (p->exportable)
		prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (one_in(20))
		prop.location.id = 77;
	if (one_in(20))
		prop.type = (CUmemAllocationType)9;
	CUresult r = cuMemCreate(&p->handle, one_in(20) ? PAGE + 4096 : p->pages * PAGE, &prop, one_in(30) ? 5 : 0);
	printf("create %zu %d: %d\n", p->pages, p->exportable, r);
	p->handles = r == CUDA_SUCCESS;
}

static void vmm_release(void)
{
	struct physical *p = some_physical();
	if (p->handle == 0 || (p->handles == 0 && !wild))
		return;
	CUresult r = cuMemRelease(p->handle);
	printf("release of %d handles, %d mappings: %d\n", p->handles, p->mappings, r);
	if (r == CUDA_SUCCESS)
		p->handles--;
}

static void vmm_reserve(void)
{
	struct reserved *v = &reserveds[next(6)];
	if (v->base != 0)
		return;
	v->pages = 4 + next(12);
	CUresult r = cuMemAddressReserve(&v->base, v->pages * PAGE, 0, 0, 0);
	printf("reserve %zu: %d\n", v->pages, r);
}

static void vmm_give(void)
{
	struct reserved *v = &reserveds[next(6)];
	if (v->base == 0)
		return;
	CUresult r = cuMemAddressFree(v->base, v->pages * PAGE);
	printf("address free: %d\n", r);
	if (r == CUDA_SUCCESS)
		v->base = 0;
}

static void vmm_map(void)
{
	struct physical *p = some_physical();
	struct reserved *v = &reserveds[next(6)];
	struct mapped *m = mappeds;
	while (m < mappeds + MOST && m->of != NULL)
		m++;
	if (v->base == 0 || p->handle == 0 || m == mappeds + MOST || (p->handles == 0 && !wild))
		return;
	size_t pages = one_in(6) ? 1 + next(5) : p->pages, page = next((unsigned)v->pages);
	size_t offset = one_in(10) ? PAGE : 0;
	CUdeviceptr at = v->base + page * PAGE;
	CUresult r = cuMemMap(at, pages * PAGE, offset, p->handle, one_in(30) ? 1 : 0);
	printf("map %zu of %zu at %zu of %zu: %d\n", pages, p->pages, page, v->pages, r);
	if (r != CUDA_SUCCESS)
		return;
	*m = (struct mapped){at, pages, p, 0};
	p->mappings++;
}

static struct mapped *some_mapped(void)
{
	struct mapped *m = &mappeds[next(MOST)];
	return m->of != NULL ? m : NULL;
}

static int writable(const struct mapped *m) { return m->access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE; }

static void look(const struct mapped *m)
{
	if (m->access != 0 && m->of->seed != 0)
		printf("look: %d\n", compare(m->at, m->pages * PAGE, m->of->seed));
}

static void vmm_unmap(void)
{
	struct mapped *m = some_mapped();
	if (m == NULL)
		return;
	look(m);
	size_t pages = one_in(8) ? 1 + next(4) : m->pages;
	CUresult r = cuMemUnmap(m->at, pages * PAGE);
	printf("unmap %zu of %zu: %d\n", pages, m->pages, r);
	if (r != CUDA_SUCCESS)
		return;
	CUdeviceptr from = m->at, end = from + pages * PAGE;
	for (m = mappeds; m < mappeds + MOST; m++)
		if (m->of != NULL && m->at >= from && m->at < end) {
			m->of->mappings--;
			m->of = NULL;
		}
}

static void vmm_access(void)
{
	struct mapped *m = some_mapped();
	if (m == NULL)
		return;
	static const int flags[] = {CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READ,
				    CU_MEM_ACCESS_FLAGS_PROT_NONE, 2};
	CUmemAccessDesc access[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, one_in(20) ? 9 : 0}, (CUmemAccess_flags)flags[next(5)]},
				     {{CU_MEM_LOCATION_TYPE_DEVICE, devices - 1}, CU_MEM_ACCESS_FLAGS_PROT_READ}};
	size_t count = devices > 1 ? next(3) : 1;
	CUresult r = cuMemSetAccess(m->at, m->pages * PAGE, access, count);
	printf("set access %d %zu: %d\n", access[0].flags, count, r);
	if (r == CUDA_SUCCESS && count != 0)
		m->access = access[0].flags;
	if (r == CUDA_SUCCESS && writable(m) && m->of->seed == 0 && m->pages == m->of->pages) {
		m->of->seed = 1 + next(1u << 30);
		printf("fill: %d\n", fill(m->at, m->pages * PAGE, m->of->seed, streams[0]));
	}
	look(m);
}

static void vmm_ask(void)
{
	struct mapped *m = some_mapped();
	struct physical *p = some_physical();
	unsigned long long flags = 0;
	if (m != NULL) {
		for (int i = 0; i < devices; i++) {
			CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, i};
			CUresult r = cuMemGetAccess(&flags, &location, m->at + next((unsigned)m->pages) * PAGE);
			printf("access: %d,%llu ", r, flags);
		}
		attributes(m->at + 5 + next((unsigned)m->pages) * PAGE, m->at);
		printf("\n");
		look(m);
	}
	CUmemAllocationProp prop = {.type = (CUmemAllocationType)0};
	if (p->handle != 0 && (p->handles != 0 || wild)) {
		CUresult r = cuMemGetAllocationPropertiesFromHandle(&prop, p->handle);
		printf("properties: %d,%d,%d,%d\n", r, prop.type, prop.location.id, prop.requestedHandleTypes);
	}
}

static void vmm_retain(void)
{
	struct mapped *m = some_mapped();
	CUmemGenericAllocationHandle h = 0;
	if (m == NULL)
		return;
	CUresult r = cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)(m->at + 4096));
	printf("retain with %d handles: %d, %s\n", m->of->handles, r, h == m->of->handle || m->of->handles == 0 ? "as it was" : "another");
	if (r != CUDA_SUCCESS)
		return;
	m->of->handle = h;
	m->of->handles++;
}

static void vmm_export(void)
{
	struct physical *p = some_physical();
	int fd = -1;
	if (p->handle == 0 || !one_in(3) || (p->handles == 0 && !wild))
		return;
	CUresult r = cuMemExportToShareableHandle(&fd, p->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	printf("export: %d,%d\n", r, fd >= 0);
	if (fd >= 0)
		close(fd);
}

// ---- plain memory and pools

static struct block {
	CUdeviceptr at;
	size_t bytes;
	unsigned seed;
	int stream; // -1: cuMemAlloc
	CUmemoryPool pool;
} blocks[64];

static CUmemoryPool pools[4]; // of device 0; 0 is the default one

static void alloc(void)
{
	struct block *b = &blocks[next(64)];
	if (b->at != 0)
		return;
	size_t bytes = one_in(3) ? 1 + next(12u << 20) : 1 + next(6000);
	b->bytes = bytes / 4 * 4 + 4;
	b->stream = one_in(3) ? -1 : (int)next(STREAMS);
	unsigned way = next(5);
	b->pool = way < 2 ? NULL : pools[next(4)];
	CUresult r;
	if (b->stream < 0)
		r = cuMemAlloc_v2(&b->at, b->bytes);
	else if (b->pool == NULL)
		r = cuMemAllocAsync(&b->at, b->bytes, streams[b->stream]);
	else
		r = cuMemAllocFromPoolAsync(&b->at, b->bytes, b->pool, streams[b->stream]);
	printf("alloc %zu in %d: %d\n", b->bytes, b->stream, r);
	if (r != CUDA_SUCCESS) {
		b->at = 0;
		return;
	}
	b->seed = next(1u << 30);
	r = cuMemsetD32Async(b->at, b->seed, b->bytes / 4, streams[b->stream < 0 ? 0 : b->stream]);
	printf("fill: %d\n", r);
}

static struct block *some_block(void)
{
	struct block *b = &blocks[next(64)];
	return b->at != 0 ? b : NULL;
}

static void ask(void)
{
	struct block *b = some_block();
	if (b == NULL)
		return;
	cuCtxSynchronize();
	printf("ask %zu:", b->bytes);
	attributes(b->at + next((unsigned)b->bytes), b->at);
	printf(" look: %d\n", compare(b->at, b->bytes, b->seed));
}

static void free_one(void)
{
	struct block *b = some_block();
	if (b == NULL)
		return;
	unsigned way = next(4);
	CUresult r;
	if (one_in(10) && wild) {
		r = way < 2 ? cuMemFree_v2(b->at + 4) : cuMemFreeAsync(b->at + 4, streams[0]);
		printf("free of what is inside: %d\n", r);
	}
	cuCtxSynchronize();
	printf("look: %d\n", compare(b->at, b->bytes, b->seed));
	r = way == 0 ? cuMemFree_v2(b->at) : cuMemFreeAsync(b->at, streams[b->stream >= 0 && way < 3 ? b->stream : (int)next(STREAMS)]);
	printf("free %d of %d: %d\n", way, b->stream, r);
	if (one_in(10) && wild)
		printf("again: %d\n", way == 0 ? cuMemFree_v2(b->at) : cuMemFreeAsync(b->at, streams[0]));
	b->at = 0;
}

// vmm_foreign gives plain and pooled memory to calls for memory that cuMemMap has made.
static void vmm_foreign(void)
{
	const struct block *b = some_block();
	const struct physical *p = some_physical();
	if (b == NULL || !wild)
		return;
	CUdeviceptr at = b->at / PAGE * PAGE;
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, one_in(2) ? CU_MEM_ACCESS_FLAGS_PROT_NONE : CU_MEM_ACCESS_FLAGS_PROT_READ};
	CUmemGenericAllocationHandle handle;
	unsigned long long flags;
	switch (next(6)) {
	case 0: printf("map there: %d\n", cuMemMap(at, PAGE, 0, p->handles != 0 ? p->handle : 0, 0)); return;
	case 1: printf("unmap there: %d\n", cuMemUnmap(at, PAGE * (1 + next(3)))); return;
	case 2: printf("set access there: %d\n", cuMemSetAccess(at, PAGE, &access, 1)); return;
	case 3: printf("access there: %d\n", cuMemGetAccess(&flags, &access.location, b->at)); return;
	case 4: printf("retain there: %d\n", cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)b->at)); return;
	default: printf("address free there: %d\n", cuMemAddressFree(at, PAGE << next(13))); return;
	}
}

static void pool(void)
{
	unsigned i = next(4);
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, one_in(20) ? 50 : 0}};
	cuuint64_t value = next(3) * (8u << 20), used = 0, reserved = 0;
	int flag = (int)next(2);
	CUmemoryPool p = pools[i], other = NULL;
	CUresult r;
	if (p == NULL) {
		props.maxSize = one_in(3) ? 256 * PAGE : 0;
		props.allocType = one_in(20) ? CU_MEM_ALLOCATION_TYPE_INVALID : props.allocType;
		r = cuMemPoolCreate(&pools[i], &props);
		printf("pool create: %d\n", r);
		return;
	}
	switch (next(8)) {
	case 0:
		r = cuMemPoolDestroy(p);
		printf("pool destroy %d: %d\n", i == 0, r);
		if (r == CUDA_SUCCESS) {
			pools[i] = NULL;
			if (wild)
				printf("again: %d\n", cuMemPoolDestroy(p));
		}
		return;
	case 1: printf("threshold: %d\n", cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value)); return;
	case 2:
		printf("reuse: %d\n", cuMemPoolSetAttribute(p, (CUmemPool_attribute)(1 + next(3)), &flag));
		return;
	case 3:
		r = cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
		printf("used: %d,%llu", r, (unsigned long long)used);
		r = cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value);
		printf(" high: %d,%d", r, value >= used);
		r = cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
		printf(" reserved: %d,%d", r, reserved >= used);
		r = cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value);
		printf(" high: %d,%d", r, value >= reserved);
		r = cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &flag);
		printf(" reuse: %d,%d", r, flag);
		r = cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
		printf(" threshold: %d,%llu\n", r, (unsigned long long)value);
		return;
	case 4:
		value = one_in(4);
		r = cuMemPoolSetAttribute(p, one_in(2) ? CU_MEMPOOL_ATTR_USED_MEM_HIGH : CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value);
		printf("high to %llu: %d\n", (unsigned long long)value, r);
		return;
	case 5:
		r = cuCtxSynchronize();
		printf("trim: %d,%d", r, cuMemPoolTrimTo(p, 0));
		r = cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
		r = r == CUDA_SUCCESS ? cuMemPoolGetAttribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) : r;
		printf(" left: %d,%d\n", r, used == 0 && reserved != 0);
		return;
	case 6:
		r = cuDeviceSetMemPool(0, p);
		printf("current: %d", r);
		r = cuDeviceGetMemPool(&other, 0);
		printf(" %d,%d\n", r, other == p);
		return;
	default: {
		CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, (int)next((unsigned)devices)},
					  one_in(2) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
		CUmemAccess_flags have = CU_MEM_ACCESS_FLAGS_PROT_NONE;
		r = cuMemPoolSetAccess(p, &access, 1);
		printf("pool access %d %d: %d", access.location.id, access.flags, r);
		r = cuMemPoolGetAccess(&have, p, &access.location);
		printf(" %d,%d\n", r, have);
	}
	}
}

static void wait(void)
{
	CUstream s = streams[next(STREAMS)];
	printf("wait: %d\n", one_in(2) ? cuStreamSynchronize(s) : cuCtxSynchronize());
}

static CUresult go(unsigned seed, int steps)
{
	static void (*const calls[])(void) = {vmm_create, vmm_create, vmm_release, vmm_reserve, vmm_give, vmm_map, vmm_map, vmm_map, vmm_unmap,
					      vmm_access, vmm_access, vmm_ask, vmm_retain, vmm_export, alloc, alloc, alloc, alloc, ask,
					      free_one, free_one, free_one, pool, pool, wait, vmm_foreign};
	state = seed * 2654435761u + 88172645463325252u;
	for (int i = 0; i < STREAMS; i++)
		if (cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
			return CUDA_ERROR_UNKNOWN;
	streams[1] = NULL;
	streams[2] = CU_STREAM_PER_THREAD;
	CUresult r = cuDeviceGetDefaultMemPool(&pools[0], 0);
	for (int i = 0; i < steps && r == CUDA_SUCCESS; i++)
		calls[next(sizeof calls / sizeof *calls)]();
	for (int i = 0; i < 64; i++)
		if (blocks[i].at != 0)
			printf("end: %d\n", cuMemFree_v2(blocks[i].at));
	return r;
}

int main(void)
{
	char text[64];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(text, sizeof text, stdin) != NULL) {
		unsigned n = 0;
		int steps = 0;
		CUresult r = CUDA_ERROR_INVALID_VALUE;
		text[strcspn(text, "\n")] = 0;
		if (sscanf(text, "init %u", &n) == 1)
			r = init((int)n);
		else if (sscanf(text, "go %u %d", &n, &steps) == 2)
			r = go(n, steps);
		else if (strcmp(text, "wild") == 0)
			r = (wild = 1, CUDA_SUCCESS);
		printf("%s: %d\n", text, (int)r);
	}
	return 0;
}
