// SPDX-License-Identifier: Apache-2.0

// movable_rules.h: memory with patterns, and what the driver says of addresses and to calls that are wrong; for movable.c.
#ifndef MOVABLE_RULES_H
#define MOVABLE_RULES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contexts.h"

#define EXPECT(call, want)                                                              \
	do {                                                                            \
		long long had_ = (long long)(call);                                     \
		if (had_ != (long long)(want)) {                                        \
			printf("%s is %lld\n", #call, had_);                            \
			return CUDA_ERROR_UNKNOWN;                                      \
		}                                                                       \
	} while (0)

// pattern: the one with seed 0 is of zeros.
static void pattern(unsigned *words, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes / 4; i++)
		words[i] = seed == 0 ? 0 : (seed + (unsigned)i) * 2654435761u;
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

// ---- rules

// ends expects that copies and memsets of every kind may go to the last byte of an allocation, and not by one beyond it.
static CUresult ends(CUdeviceptr p, size_t bytes)
{
	char *host = calloc(1, bytes + 1);
	CUdeviceptr end = p + bytes, other;
	size_t pitch = bytes / 2 + 8, rest = bytes - pitch; // of a row and of the second, which is shorter
	EXPECT(cuMemAlloc_v2(&other, bytes + 1), CUDA_SUCCESS);
	for (size_t more = 0; more < 2; more++) {
		CUresult want = more == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
		CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = pitch, .dstMemoryType = CU_MEMORYTYPE_HOST,
				      .dstHost = host, .dstPitch = rest + 1, .WidthInBytes = rest + more, .Height = 2};
		CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = other, .srcPitch = pitch, .srcHeight = 1,
				     .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = pitch, .dstHeight = 1, .dstZ = 1,
				     .WidthInBytes = rest + more, .Height = 1, .Depth = 1};
		EXPECT(cuMemcpyDtoH_v2(host, p, bytes + more), want);
		EXPECT(cuMemcpyHtoD_v2(end - 4, host, 4 + more), want);
		EXPECT(cuMemcpyDtoD_v2(other, p, bytes + more), want);
		EXPECT(cuMemcpyDtoDAsync_v2(end - 1, other, 1 + more, NULL), want);
		EXPECT(cuMemcpy(p, other, bytes + more), want);
		EXPECT(cuMemcpyPeer(p, contexts[0], other, contexts[0], bytes + more), want);
		EXPECT(cuMemcpyHtoDAsync_v2(end + more - 1, host, 1, NULL), want);
		EXPECT(cuMemcpy2D_v2(&rows), want);
		EXPECT(cuMemcpy3D_v2(&box), want);
		EXPECT(cuMemsetD8_v2(p, 0, bytes + more), want);
		EXPECT(cuMemsetD16Async(p, 0, bytes / 2 + more, NULL), want);
		EXPECT(cuMemsetD2D8Async(p, pitch, 0, rest + more, 2, NULL), want);
	}
	free(host);
	return cuMemFree_v2(other);
}

static CUresult all_ends(void)
{
	size_t sizes[] = {1000, (3 << 20) + 5};
	CUdeviceptr at;
	CUresult r = CUDA_SUCCESS;
	for (int i = 0; i < 4 && r == CUDA_SUCCESS; i++) {
		size_t bytes = sizes[i / 2];
		EXPECT(i % 2 == 0 ? cuMemAlloc_v2(&at, bytes) : cuMemAllocAsync(&at, bytes, NULL), CUDA_SUCCESS);
		r = ends(at, bytes);
		EXPECT(i % 2 == 0 ? cuMemFree_v2(at) : cuMemFreeAsync(at, NULL), CUDA_SUCCESS);
	}
	return r;
}

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

// borders crosses the border of two pieces of an allocation in every way that takes an address and a length.
static CUresult borders(void)
{
	CUdeviceptr p, at;
	size_t piece = 128 << 20, bytes = 2 * piece + 4096, part = 2000;
	unsigned char have[2000], want[2000];
	unsigned on = 1, is = 0;
	EXPECT(cuMemAlloc_v2(&p, bytes), CUDA_SUCCESS);
	EXPECT(rules_of(p, bytes), CUDA_SUCCESS);
	at = p + piece - part / 2;
	memset(want, 0x77, part);
	EXPECT(cuMemsetD8_v2(at, 0x77, part), CUDA_SUCCESS);
	EXPECT(cuMemcpyDtoD_v2(at + piece, at, part), CUDA_SUCCESS);
	EXPECT(cuMemcpyDtoH_v2(have, at + piece, part), CUDA_SUCCESS);
	EXPECT(memcmp(have, want, part), 0);
	EXPECT(cuMemcpyHtoD_v2(at, want, part), CUDA_SUCCESS);
	EXPECT(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p), CUDA_SUCCESS);
	EXPECT(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p + bytes - 1), CUDA_SUCCESS);
	EXPECT(is, 1);
	EXPECT(cuMemUnmap(p + piece, piece), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree_v2(p + piece), CUDA_ERROR_INVALID_VALUE);
	return cuMemFree_v2(p);
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
	return r == CUDA_SUCCESS ? borders() : r;
}

// foreign_range expects that addresses which the program has not reserved are none that it can map at, give back, or give
// access to. Those of 8 GiB are no less: so many are reserved at once for small things.
static CUresult foreign_range(CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc none = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_NONE};
	CUmemGenericAllocationHandle other;
	unsigned long long flags;
	size_t page = 2 << 20;
	at = at / page * page;
	EXPECT(cuMemMap(at, page, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemSetAccess(at, page, &none, 1), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemGetAccess(&flags, &none.location, at), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemRetainAllocationHandle(&other, (void *)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemUnmap(at, page), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemUnmap(at - page, 2 * page), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAddressFree(at, page), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAddressFree(at, (size_t)8 << 30), CUDA_ERROR_INVALID_VALUE);
	return CUDA_SUCCESS;
}

// ranges is foreign_range for what is allocated in every way, while it is there and when it is freed. It is the first that
// a program does, so that what it allocates begins where reservations do.
static CUresult ranges(void)
{
	CUdeviceptr at[4], own;
	CUmemGenericAllocationHandle handle;
	size_t page = 2 << 20;
	EXPECT(create(&handle, page), CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&at[0], page), CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&at[1], 1000), CUDA_SUCCESS);
	EXPECT(cuMemAllocAsync(&at[2], page, NULL), CUDA_SUCCESS);
	EXPECT(cuMemAllocAsync(&at[3], 1000, NULL), CUDA_SUCCESS);
	for (int freed = 0; freed < 2; freed++) {
		for (int i = 0; i < 4; i++) {
			CUresult r = foreign_range(at[i], handle);
			if (r != CUDA_SUCCESS)
				return r;
			if (freed == 0)
				EXPECT(cuMemFree_v2(at[i]), CUDA_SUCCESS);
		}
		EXPECT(cuCtxSynchronize(), CUDA_SUCCESS);
	}
	EXPECT(map(&own, page, handle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
	EXPECT(cuMemAddressFree(own, page), CUDA_ERROR_INVALID_VALUE); // it is mapped
	EXPECT(cuMemUnmap(own, page), CUDA_SUCCESS);
	EXPECT(cuMemAddressFree(own, page), CUDA_SUCCESS);
	return cuMemRelease(handle);
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

// peek is a kernel of 1024 threads, each of which copies a word.
static const char peek_code[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			   ".visible .entry peek(.param .u64 to, .param .u64 from)\n{\n"
			   ".reg .u64 %d<3>;\n.reg .u32 %r<2>;\n"
			   "mov.u32 %r0, %tid.x;\nmul.wide.u32 %d0, %r0, 4;\n"
			   "ld.param.u64 %d1, [to];\nld.param.u64 %d2, [from];\nadd.s64 %d1, %d1, %d0;\nadd.s64 %d2, %d2, %d0;\n"
			   "ld.global.u32 %r1, [%d2];\nst.global.u32 [%d1], %r1;\nret;\n}\n";

// run_peek has a kernel in the current context copy 4096 bytes.
static CUresult run_peek(CUdeviceptr to, CUdeviceptr from)
{
	CUmodule module;
	CUfunction function;
	void *arguments[] = {&to, &from};
	EXPECT(cuMemsetD32Async(to, 0, 1024, NULL), CUDA_SUCCESS);
	EXPECT(cuModuleLoadData(&module, peek_code), CUDA_SUCCESS);
	EXPECT(cuModuleGetFunction(&function, module, "peek"), CUDA_SUCCESS);
	EXPECT(cuLaunchKernel(function, 1, 1, 1, 1024, 1, 1, 0, NULL, arguments, NULL), CUDA_SUCCESS);
	EXPECT(cuCtxSynchronize(), CUDA_SUCCESS);
	return cuModuleUnload(module);
}

// ---- what lies at a stale address in memory that is still mapped

#define FLOOD 0xf100f100u
static CUdeviceptr ghost_at;

static CUresult flood(size_t bytes)
{
	CUdeviceptr at;
	EXPECT(cuMemAlloc_v2(&at, bytes), CUDA_SUCCESS);
	EXPECT(cuMemsetD32Async(at, FLOOD, bytes / 4, NULL), CUDA_SUCCESS);
	return cuCtxSynchronize();
}

static CUresult ghost(void)
{
	CUdeviceptr kept;
	EXPECT(cuMemAlloc_v2(&ghost_at, 4096), CUDA_SUCCESS);
	EXPECT(cuMemAlloc_v2(&kept, 512), CUDA_SUCCESS);
	EXPECT(ghost_at >> 21 == kept >> 21, 1);
	EXPECT(fill(ghost_at, 4096, 55), CUDA_SUCCESS);
	return cuMemFree_v2(ghost_at);
}

static CUresult haunt(void)
{
	unsigned own[1024], seen[1024];
	CUdeviceptr to;
	EXPECT(cuMemAlloc_v2(&to, 4 << 20), CUDA_SUCCESS);
	EXPECT(run_peek(to, ghost_at), CUDA_SUCCESS);
	EXPECT(cuMemcpyDtoH_v2(seen, to, sizeof seen), CUDA_SUCCESS);
	pattern(own, sizeof own, 55);
	for (int i = 0; i < 1024; i++)
		EXPECT(seen[i] == own[i] || seen[i] == 0, 1);
	return cuMemFree_v2(to);
}

#endif
