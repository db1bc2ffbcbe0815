// SPDX-License-Identifier: Apache-2.0

// Memory pools: stream-ordered allocation (memory/pools.c).
#include "gate/gate.h"
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
	if (p != NULL)
		return lgpu_pool_device(p);
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

static CUresult freed(struct lgpu_freeing *f, CUstream stream, CUresult r)
{
	if (r == CUDA_SUCCESS && f->state == NULL)
		lgpu_pools_freed(stream);
	return lgpu_free_end(f, r);
}

// Memory that was allocated without a pool may be freed in stream order too.
LGPU_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MEMORY, dptr);
	return freed(&f, hStream, LGPU_TOUCHED(LGPU_REAL(cuMemFreeAsync)(dptr, hStream)));
}

LGPU_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MEMORY, dptr);
	return freed(&f, per_thread(hStream), LGPU_TOUCHED(LGPU_REAL(cuMemFreeAsync_ptsz)(dptr, hStream)));
}

// note notes a pool of a device of the lgpu and stores it. False: there is no
// memory for that.
static bool note(CUmemoryPool handle, const CUmemLocation *location, struct lgpu_pool **p)
{
	int device = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? lgpu_limits_index(location->id) : -1;
	*p = device >= 0 ? lgpu_pool_add(handle, device) : NULL;
	return device < 0 || *p != NULL;
}

LGPU_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	struct lgpu_pool *p;
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuMemPoolCreate)(pool, poolProps));
	if (r != CUDA_SUCCESS || lgpu_attached() == NULL)
		return r;
	if (!note(*pool, &poolProps->location, &p)) {
		LGPU_TOUCHED(LGPU_REAL(cuMemPoolDestroy)(*pool));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (p != NULL)
		lgpu_pool_made(p, poolProps->location.id);
	return r;
}

LGPU_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
	struct lgpu_pool *p;
	CUresult r = LGPU_REAL(cuMemGetDefaultMemPool)(pool_out, location, type);
	return r != CUDA_SUCCESS || lgpu_attached() == NULL || note(*pool_out, location, &p) ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

LGPU_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct lgpu_state *s = lgpu_attached();
	struct lgpu_pool *p = s != NULL && pool != NULL ? lgpu_pool_find(pool) : NULL;
	return LGPU_TOUCHED(p != NULL ? lgpu_pool_destroy(s, p, pool) : LGPU_REAL(cuMemPoolDestroy)(pool));
}

LGPU_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuMemPoolTrimTo)(pool, minBytesToKeep));
	struct lgpu_state *s = lgpu_attached();
	struct lgpu_pool *p = s != NULL && pool != NULL ? lgpu_pool_find(pool) : NULL;
	if (p != NULL)
		lgpu_pool_trimmed(s, p);
	return r;
}
