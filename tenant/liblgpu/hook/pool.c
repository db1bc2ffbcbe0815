// SPDX-License-Identifier: Apache-2.0

// Memory pools: stream-ordered allocation (memory/pools.c).
#include "arena/arena.h"
#include "hook/hook.h"
#include "memory/freed.h"
#include "memory/pools.h"
#include "residence/residence.h"

// device_of returns the CUdevice whose pool serves a stream.
static bool device_of(CUstream stream, CUdevice *device)
{
	// A driver before 12.8 cannot say; there it is the current one.
	if (stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
	    LGPU_REAL(cuStreamGetDevice)(stream, device) == CUDA_SUCCESS)
		return true;
	return LGPU_REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
}

// current_pool stores the pool that cuMemAllocAsync takes from, and returns the
// index of its device, or -1.
static int current_pool(CUstream stream, CUmemoryPool *handle)
{
	CUdevice device;
	if (!device_of(stream, &device) || LGPU_REAL(cuDeviceGetMemPool)(handle, device) != CUDA_SUCCESS)
		return -1;
	return lgpu_limits_index(device);
}

// named_pool returns the index of the device of a pool named by the program, one
// that it made or a device's default one; -1 for others. Imported pools are the
// exporter's.
static int named_pool(CUmemoryPool handle)
{
	const struct lgpu_pool *p = lgpu_pool_find(handle);
	const struct lgpu_arena_pool *movable = p == NULL ? lgpu_arena_pool_find(handle) : NULL;
	if (p != NULL)
		return lgpu_pool_device(p);
	if (movable != NULL)
		return lgpu_arena_pool_device(movable);
	int count = 0;
	LGPU_REAL(cuDeviceGetCount)(&count);
	for (int i = 0; i < count; i++) {
		CUmemoryPool pool;
		CUdevice device;
		if (LGPU_REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS &&
		    LGPU_REAL(cuDeviceGetDefaultMemPool)(&pool, device) == CUDA_SUCCESS && pool == handle)
			return lgpu_limits_index(device);
	}
	return -1;
}

// movable_pool returns the pool of ours behind a handle: one that the program has made, or else a device's default one.
// NULL: there is no memory.
static struct lgpu_arena_pool *movable_pool(CUmemoryPool handle, int device)
{
	struct lgpu_arena_pool *p = lgpu_arena_pool_find(handle);
	CUdevice ordinal;
	for (int i = 0, count = 0; p == NULL && LGPU_REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS && i < count; i++)
		if (LGPU_REAL(cuDeviceGet)(&ordinal, i) == CUDA_SUCCESS && lgpu_limits_index(ordinal) == device)
			return lgpu_arena_pool_add(handle, device, ordinal, 0);
	return p;
}

static bool capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	return LGPU_REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult plain(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	(void)pool;
	return LGPU_REAL(cuMemAllocAsync)(dptr, bytes, stream);
}

static CUresult plain_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	(void)pool;
	return LGPU_REAL(cuMemAllocAsync_ptsz)(dptr, bytes, stream);
}

static CUresult any(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream, bool current, lgpu_pool_call driver,
		    lgpu_pool_free undo)
{
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || dptr == NULL || bytes == 0)
		return LGPU_TOUCHED(driver(dptr, bytes, pool, stream));
	// Captured, it becomes a node of a graph, which is charged when it runs.
	if (capturing(stream)) {
		__atomic_store_n(&lgpu_graphs_allocate, true, __ATOMIC_RELAXED);
		return LGPU_TOUCHED(driver(dptr, bytes, pool, stream));
	}
	int device = current ? current_pool(stream, &pool) : named_pool(pool);
	if (device < 0)
		return LGPU_TOUCHED(driver(dptr, bytes, pool, stream));
	struct lgpu_pool *p = lgpu_pool_find(pool);
	if (p == NULL && lgpu_arena_wants(s, device)) {
		struct lgpu_arena_pool *movable = movable_pool(pool, device);
		return movable != NULL ? lgpu_arena_pool_alloc(s, movable, dptr, bytes, stream) : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (p == NULL)
		p = lgpu_pool_add(pool, device);
	return p != NULL ? LGPU_TOUCHED(lgpu_pool_alloc(s, p, dptr, bytes, pool, stream, driver, undo)) : CUDA_ERROR_OUT_OF_MEMORY;
}

// The streams that mean a default stream mean another one in the _ptsz forms;
// asked about them, the driver must be asked in the same form.
static CUstream per_thread(CUstream stream) { return stream == NULL ? CU_STREAM_PER_THREAD : stream; }

LGPU_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	return any(dptr, bytesize, NULL, hStream, true, plain, LGPU_REAL(cuMemFreeAsync));
}

LGPU_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
	return any(dptr, bytesize, NULL, per_thread(hStream), true, plain_ptsz, LGPU_REAL(cuMemFreeAsync_ptsz));
}

LGPU_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
	return any(dptr, bytesize, pool, hStream, false, LGPU_REAL(cuMemAllocFromPoolAsync), LGPU_REAL(cuMemFreeAsync));
}

LGPU_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)
{
	return any(dptr, bytesize, pool, per_thread(hStream), false, LGPU_REAL(cuMemAllocFromPoolAsync_ptsz),
		   LGPU_REAL(cuMemFreeAsync_ptsz));
}

static CUresult free_ordered(CUdeviceptr dptr, CUstream stream, CUstream given, lgpu_pool_free driver)
{
	bool movable = false;
	bool captured = __atomic_load_n(&lgpu_managed, __ATOMIC_RELAXED) && capturing(stream);
	if (!captured) {
		CUresult r = lgpu_arena_pool_free_ordered(dptr, stream, &movable);
		if (movable)
			return r;
	}
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MEMORY, dptr);
	if (f.state != NULL && !captured) {
		CUresult r = lgpu_arena_free_ordered(&f, dptr, stream, &movable);
		if (movable)
			return r;
	}
	CUresult r = LGPU_TOUCHED(driver(dptr, given));
	if (r == CUDA_SUCCESS && f.state == NULL)
		lgpu_pools_freed(stream);
	return lgpu_free_end(&f, r);
}

// Memory that was allocated without a pool may be freed in stream order too.
LGPU_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	return free_ordered(dptr, hStream, hStream, LGPU_REAL(cuMemFreeAsync));
}

LGPU_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	return free_ordered(dptr, per_thread(hStream), hStream, LGPU_REAL(cuMemFreeAsync_ptsz));
}

// note notes a pool of a device of the lgpu, which the program has made or asked for. False: there is no memory for that.
// Memory that other processes may import stays the driver's.
static bool note(CUmemoryPool handle, const CUmemLocation *location, const CUmemPoolProps *made)
{
	int device = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? lgpu_limits_index(location->id) : -1;
	if (device < 0 || lgpu_pool_find(handle) != NULL)
		return true;
	bool shared = made != NULL && made->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
	if (!shared && lgpu_arena_wants(lgpu_attached(), device))
		return lgpu_arena_pool_add(handle, device, location->id, made != NULL ? made->maxSize : 0) != NULL;
	struct lgpu_pool *p = lgpu_pool_add(handle, device);
	if (p != NULL && made != NULL)
		lgpu_pool_made(p, location->id);
	return p != NULL;
}

LGPU_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuMemPoolCreate)(pool, poolProps));
	if (r != CUDA_SUCCESS || lgpu_attached() == NULL || note(*pool, &poolProps->location, poolProps))
		return r;
	LGPU_TOUCHED(LGPU_REAL(cuMemPoolDestroy)(*pool));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

LGPU_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult r = LGPU_REAL(cuMemGetDefaultMemPool)(pool_out, location, type);
	return r != CUDA_SUCCESS || lgpu_attached() == NULL || note(*pool_out, location, NULL) ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

LGPU_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct lgpu_state *s = lgpu_attached();
	struct lgpu_pool *p = s != NULL && pool != NULL ? lgpu_pool_find(pool) : NULL;
	struct lgpu_arena_pool *movable = p == NULL ? lgpu_arena_pool_find(pool) : NULL;
	lgpu_touch_begin();
	CUresult r = p != NULL ? lgpu_pool_destroy(s, p, pool) :
		     movable != NULL ? lgpu_arena_pool_destroy(s, movable) : LGPU_REAL(cuMemPoolDestroy)(pool);
	lgpu_touch_end();
	return r;
}

LGPU_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	struct lgpu_state *s = lgpu_attached();
	struct lgpu_arena_pool *movable = lgpu_arena_pool_find(pool);
	lgpu_touch_begin();
	CUresult r = LGPU_REAL(cuMemPoolTrimTo)(pool, minBytesToKeep);
	if (r == CUDA_SUCCESS && movable != NULL)
		lgpu_arena_pool_trim(s, movable, minBytesToKeep);
	lgpu_touch_end();
	struct lgpu_pool *p = s != NULL && pool != NULL ? lgpu_pool_find(pool) : NULL;
	if (p != NULL)
		lgpu_pool_trimmed(s, p);
	return r;
}

// The driver's pool, of which nothing is allocated, has the other attributes of one of ours.
LGPU_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct lgpu_arena_pool *movable = lgpu_arena_pool_find(pool);
	CUresult r = LGPU_REAL(cuMemPoolGetAttribute)(pool, attr, value);
	uint64_t amount;
	if (r == CUDA_SUCCESS && movable != NULL && lgpu_arena_pool_attribute(movable, attr, &amount))
		*(cuuint64_t *)value = amount;
	return r;
}

LGPU_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	struct lgpu_arena_pool *movable = lgpu_arena_pool_find(pool);
	CUresult r = LGPU_REAL(cuMemPoolSetAttribute)(pool, attr, value);
	if (r == CUDA_SUCCESS && movable != NULL && (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH || attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH))
		lgpu_arena_pool_reset_high(movable, attr);
	else if (r == CUDA_SUCCESS && movable != NULL)
		lgpu_arena_pool_changed(movable);
	return r;
}

LGPU_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
	struct lgpu_arena_pool *movable = lgpu_arena_pool_find(pool);
	lgpu_touch_begin();
	CUresult r = LGPU_REAL(cuMemPoolSetAccess)(pool, map, count);
	if (r == CUDA_SUCCESS && movable != NULL)
		r = lgpu_arena_pool_access(movable, map, count);
	lgpu_touch_end();
	return r;
}
