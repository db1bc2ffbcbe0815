// SPDX-License-Identifier: Apache-2.0

// Memory as the program is told of it: its lgpu's size, and what is free of it.
#include "alone/alone.h"
#include "arena/arena.h"
#include "memory/exports.h"
#include "memory/memory.h"
#include "memory/pools.h"

// shown turns the device's truth into the lgpu's: its size is the limit, and
// what is free of it is never more than the device has, nor less than nothing. If memory
// can leave the device, what is free there now says nothing.
static void shown(const struct lgpu_state *s, int device, uint64_t *free, uint64_t *total)
{
	uint64_t limit = __atomic_load_n(&s->limits->device[device].memory, __ATOMIC_RELAXED);
	bool movable = lgpu_arena_wants(s, device);
	if (limit == LGPU_NO_LIMIT && !movable)
		return;
	limit = movable && limit > *total ? *total : limit;
	uint64_t used = lgpu_used(s, device), left = used < limit ? limit - used : 0;
	*total = limit < *total ? limit : *total;
	*free = left < *free || movable ? left : *free;
	*free = *free < *total ? *free : *total;
}

LGPU_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL ? lgpu_current(&context) : -1;
	if (device < 0 || free == NULL || total == NULL) {
		// Only one of the two is asked for: the driver needs both all the same.
		size_t other;
		if (device < 0 || (free == NULL && total == NULL))
			return LGPU_REAL(cuMemGetInfo_v2)(free, total);
		return cuMemGetInfo_v2(free != NULL ? free : &other, total != NULL ? total : &other);
	}
	lgpu_reclaim_sometimes(s);
	lgpu_overhead_measure(s, device);
	lgpu_exports_look(s, device);
	lgpu_pools_look(true);
	size_t real_free, real_total;
	CUresult r = LGPU_REAL(cuMemGetInfo_v2)(&real_free, &real_total);
	if (r != CUDA_SUCCESS)
		return r;
	uint64_t f = real_free, t = real_total;
	shown(s, device, &f, &t);
	*free = f;
	*total = t;
	return CUDA_SUCCESS;
}

static unsigned int saturate(uint64_t v) { return v < UINT32_MAX ? (unsigned int)v : UINT32_MAX; }

LGPU_EXPORT CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	if (lgpu_attached() == NULL || free == NULL || total == NULL)
		return LGPU_REAL(cuMemGetInfo)(free, total);
	size_t f, t;
	CUresult r = cuMemGetInfo_v2(&f, &t);
	if (r == CUDA_SUCCESS) {
		*free = saturate(f);
		*total = saturate(t);
	}
	return r;
}

LGPU_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	CUresult r = LGPU_REAL(cuDeviceTotalMem_v2)(bytes, dev);
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL && r == CUDA_SUCCESS && bytes != NULL ? lgpu_limits_index(dev) : -1;
	if (device >= 0) {
		uint64_t limit = __atomic_load_n(&s->limits->device[device].memory, __ATOMIC_RELAXED);
		*bytes = limit < *bytes ? limit : *bytes;
	}
	return r;
}

LGPU_EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	if (lgpu_attached() == NULL || bytes == NULL)
		return LGPU_REAL(cuDeviceTotalMem)(bytes, dev);
	size_t b;
	CUresult r = cuDeviceTotalMem_v2(&b, dev);
	if (r == CUDA_SUCCESS)
		*bytes = saturate(b);
	return r;
}
