// Memory pools: stream-ordered allocation.
//
// What counts is what a pool has reserved, not what was allocated from it: a
// pool grows in units of its own, keeps what is freed, and gives it back when
// a stream or the device is synchronised. So the driver is asked after every
// call that can change it, and before a call that may grow it the growth is
// reserved.
#include "accounts.h"
#include "futex.h"
#include "memory.h"
#include "pools.h"

#define POOLS 256
#define PAGE_UNIT (UINT64_C(2) << 20)
// The unit in which the driver's pools grow, until it has been seen.
#define GROWTH_UNIT (UINT64_C(32) << 20)

struct pool {
	struct lgpu_reserve reserve;
	CUmemoryPool handle; // NULL: free
	uint64_t growth;     // the smallest growth seen; 0: none yet
};

static struct pool pools[POOLS];
static uint32_t pools_lock;
static uint32_t pool_count; // entries in use are below
static bool changed;        // something was freed since pools were looked at

bool lgpu_reserve_settle(struct lgpu_state *s, struct lgpu_reserve *r, uint64_t reserved)
{
	if (reserved < r->charged) {
		lgpu_uncharge(s, r->device, r->charged - reserved);
		r->charged = reserved;
		return true;
	}
	uint64_t more = reserved - r->charged;
	if (lgpu_charge(s, r->device, more)) {
		r->charged = reserved;
		return true;
	}
	r->charged += lgpu_charge_most(s, r->device, more);
	return false;
}

static struct pool *pool_find(CUmemoryPool handle)
{
	uint32_t n = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < n; i++)
		if (__atomic_load_n(&pools[i].handle, __ATOMIC_ACQUIRE) == handle)
			return &pools[i];
	return NULL;
}

static struct pool *pool_add(CUmemoryPool handle, int device)
{
	lgpu_lock(&pools_lock);
	struct pool *p = pool_find(handle);
	for (uint32_t i = 0; p == NULL && i < POOLS; i++) {
		if (pools[i].handle != NULL)
			continue;
		p = &pools[i];
		p->reserve.device = device;
		p->reserve.charged = 0;
		p->growth = 0;
		__atomic_store_n(&p->handle, handle, __ATOMIC_RELEASE);
		if (i >= pool_count)
			__atomic_store_n(&pool_count, i + 1, __ATOMIC_RELEASE);
	}
	lgpu_unlock(&pools_lock);
	return p;
}

static bool attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t *value)
{
	cuuint64_t v = 0;
	CUresult r = LGPU_REAL(cuMemPoolGetAttribute)(handle, which, &v);
	*value = v;
	return r == CUDA_SUCCESS;
}

// look charges what the pool has reserved now. The caller has its lock.
static bool look(struct lgpu_state *s, struct pool *p)
{
	uint64_t reserved;
	if (!attribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
		return true;
	return lgpu_reserve_settle(s, &p->reserve, reserved);
}

void lgpu_pools_look(bool force)
{
	if (__atomic_load_n(&pool_count, __ATOMIC_RELAXED) == 0 || (!force && !__atomic_load_n(&changed, __ATOMIC_RELAXED)))
		return;
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL)
		return;
	__atomic_store_n(&changed, false, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < pool_count; i++) {
		struct pool *p = &pools[i];
		lgpu_lock(&p->reserve.lock);
		if (p->handle != NULL && p->reserve.charged != 0)
			look(s, p);
		// What is freed in stream order is given back at some later synchronise.
		if (p->handle != NULL && p->reserve.charged != 0)
			__atomic_store_n(&changed, true, __ATOMIC_RELAXED);
		lgpu_unlock(&p->reserve.lock);
	}
}

void lgpu_pools_ended(struct lgpu_state *s, int device)
{
	uint64_t own = lgpu_overhead_own(s, device);
	for (uint32_t i = 0; i < pool_count; i++) {
		struct pool *p = &pools[i];
		uint64_t reserved;
		if (p->handle == NULL || p->reserve.device != device)
			continue;
		lgpu_lock(&p->reserve.lock);
		if (!attribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
			reserved = 0;
		// The driver may go on reporting what went with the context.
		reserved = reserved < own ? reserved : own;
		lgpu_reserve_settle(s, &p->reserve, reserved);
		lgpu_unlock(&p->reserve.lock);
	}
}

void lgpu_pools_reset(void)
{
	for (uint32_t i = 0; i < POOLS; i++)
		pools[i] = (struct pool){.handle = NULL};
	pool_count = 0;
	pools_lock = 0;
	changed = false;
}

// try_lock does not wait: two threads that trim hold a pool each.
static bool try_lock(uint32_t *m)
{
	uint32_t none = 0;
	return __atomic_compare_exchange_n(m, &none, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

// trim makes the pools of a device give up what they do not use.
static void trim(struct lgpu_state *s, int device, const struct pool *held)
{
	for (uint32_t i = 0; i < pool_count; i++) {
		struct pool *p = &pools[i];
		if (p->handle == NULL || p->reserve.device != device || p->reserve.charged == 0)
			continue;
		if (p != held && !try_lock(&p->reserve.lock))
			continue;
		LGPU_REAL(cuMemPoolTrimTo)(p->handle, 0);
		look(s, p);
		if (p != held)
			lgpu_unlock(&p->reserve.lock);
	}
}

typedef CUresult (*pool_alloc)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

// reserve_growth takes the memory by which the pool may have to grow for an
// allocation, rounded up to unit. The caller has the lock.
static bool reserve_growth(struct lgpu_state *s, struct pool *p, uint64_t bytes, uint64_t unit, uint64_t *taken)
{
	uint64_t growth = lgpu_round_up(bytes, unit);
	*taken = 0;
	if (!lgpu_charge(s, p->reserve.device, growth))
		return false;
	p->reserve.charged += growth;
	*taken = growth;
	return true;
}

static CUresult alloc(struct lgpu_state *s, struct pool *p, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream,
		      pool_alloc driver, CUresult (*undo)(CUdeviceptr, CUstream))
{
	uint64_t reserved = 0, used = 0, taken = 0;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	lgpu_overhead_measure(s, p->reserve.device);
	lgpu_lock(&p->reserve.lock);
	bool known = attribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) &&
		     attribute(p->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	if (!known || !lgpu_reserve_settle(s, &p->reserve, reserved))
		goto out;
	if (reserved - used < bytes) {
		uint64_t unit = p->growth != 0 && p->growth < GROWTH_UNIT ? p->growth : GROWTH_UNIT;
		if (!reserve_growth(s, p, bytes, unit, &taken)) {
			trim(s, p->reserve.device, p);
			reserved = p->reserve.charged;
			// A pool whose unit was never seen may grow by less.
			if (!reserve_growth(s, p, bytes, unit, &taken) &&
			    (p->growth != 0 || !reserve_growth(s, p, bytes, PAGE_UNIT, &taken)))
				goto out;
		}
	}
	r = driver(dptr, bytes, pool, stream);
	uint64_t after = reserved;
	if (!attribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &after))
		after = p->reserve.charged;
	if (after > reserved && (p->growth == 0 || after - reserved < p->growth))
		p->growth = after - reserved;
	if (!lgpu_reserve_settle(s, &p->reserve, after) && r == CUDA_SUCCESS) {
		// It grew by more than was thought, and that is too much.
		undo(*dptr, stream);
		LGPU_REAL(cuStreamSynchronize)(stream);
		LGPU_REAL(cuMemPoolTrimTo)(p->handle, 0);
		look(s, p);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
out:
	lgpu_unlock(&p->reserve.lock);
	return r;
}

// device_of returns the CUdevice whose pool serves a stream.
static bool device_of(CUstream stream, CUdevice *device)
{
	// A driver before 12.8 cannot say; there it is the current one.
	if (stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
	    LGPU_REAL(cuStreamGetDevice)(stream, device) == CUDA_SUCCESS)
		return true;
	return LGPU_REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
}

// current_pool finds the pool that cuMemAllocAsync takes from.
static struct pool *current_pool(CUstream stream, CUmemoryPool *handle)
{
	CUdevice device;
	if (!device_of(stream, &device) || LGPU_REAL(cuDeviceGetMemPool)(handle, device) != CUDA_SUCCESS)
		return NULL;
	struct pool *p = pool_find(*handle);
	int index = p == NULL ? lgpu_limits_index(device) : 0;
	return p != NULL || index < 0 ? p : pool_add(*handle, index);
}

// known_pool finds a pool named by the program: one it made, or a device's
// default one. Imported pools are the exporter's.
static struct pool *known_pool(CUmemoryPool handle)
{
	struct pool *p = pool_find(handle);
	int count = 0;
	if (p != NULL || LGPU_REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
		return p;
	for (int i = 0; i < count; i++) {
		CUmemoryPool pool;
		CUdevice device;
		if (LGPU_REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS &&
		    LGPU_REAL(cuDeviceGetDefaultMemPool)(&pool, device) == CUDA_SUCCESS && pool == handle &&
		    lgpu_limits_index(device) >= 0)
			return pool_add(handle, lgpu_limits_index(device));
	}
	return NULL;
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

static CUresult any(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream, bool current, pool_alloc driver,
		    CUresult (*undo)(CUdeviceptr, CUstream))
{
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || dptr == NULL || bytes == 0)
		return driver(dptr, bytes, pool, stream);
	// Captured, it becomes a node of a graph, which is charged when it runs.
	if (capturing(stream)) {
		__atomic_store_n(&lgpu_graphs_allocate, true, __ATOMIC_RELAXED);
		return driver(dptr, bytes, pool, stream);
	}
	struct pool *p = current ? current_pool(stream, &pool) : known_pool(pool);
	return p == NULL ? driver(dptr, bytes, pool, stream) : alloc(s, p, dptr, bytes, pool, stream, driver, undo);
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

static CUresult freed(struct lgpu_freeing *f, CUresult r)
{
	if (r == CUDA_SUCCESS && f->state == NULL)
		__atomic_store_n(&changed, true, __ATOMIC_RELAXED);
	return lgpu_free_end(f, r);
}

// Memory that was allocated without a pool may be freed in stream order too.
LGPU_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MEMORY, dptr);
	return freed(&f, LGPU_REAL(cuMemFreeAsync)(dptr, hStream));
}

LGPU_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MEMORY, dptr);
	return freed(&f, LGPU_REAL(cuMemFreeAsync_ptsz)(dptr, hStream));
}

static void pool_made(CUmemoryPool handle, const CUmemLocation *location)
{
	int index = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? lgpu_limits_index(location->id) : -1;
	if (index >= 0 && pool_add(handle, index) == NULL)
		lgpu_log(LGPU_LOG_ERROR, "more than %d memory pools; what the rest reserve is charged when NVML shows it", POOLS);
}

LGPU_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
	CUresult r = LGPU_REAL(cuMemPoolCreate)(pool, poolProps);
	if (r == CUDA_SUCCESS && lgpu_attached() != NULL && pool != NULL && poolProps != NULL)
		pool_made(*pool, &poolProps->location);
	return r;
}

LGPU_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
	CUresult r = LGPU_REAL(cuMemGetDefaultMemPool)(pool_out, location, type);
	if (r == CUDA_SUCCESS && lgpu_attached() != NULL && pool_out != NULL && location != NULL)
		pool_made(*pool_out, location);
	return r;
}

LGPU_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	struct lgpu_state *s = lgpu_attached();
	struct pool *p = s != NULL && pool != NULL ? pool_find(pool) : NULL;
	if (p == NULL)
		return LGPU_REAL(cuMemPoolDestroy)(pool);
	lgpu_lock(&p->reserve.lock);
	CUresult r = LGPU_REAL(cuMemPoolDestroy)(pool);
	if (r == CUDA_SUCCESS) {
		lgpu_uncharge(s, p->reserve.device, p->reserve.charged);
		p->reserve.charged = 0;
		__atomic_store_n(&p->handle, NULL, __ATOMIC_RELEASE);
	}
	lgpu_unlock(&p->reserve.lock);
	return r;
}

LGPU_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
	CUresult r = LGPU_REAL(cuMemPoolTrimTo)(pool, minBytesToKeep);
	struct lgpu_state *s = lgpu_attached();
	struct pool *p = s != NULL && pool != NULL ? pool_find(pool) : NULL;
	if (p != NULL) {
		lgpu_lock(&p->reserve.lock);
		if (p->handle != NULL)
			look(s, p);
		lgpu_unlock(&p->reserve.lock);
	}
	return r;
}
