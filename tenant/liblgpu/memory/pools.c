// SPDX-License-Identifier: Apache-2.0

// Memory pools: stream-ordered allocation.
//
// The memory that a pool has reserved is charged, not the memory that was allocated
// from it: a pool grows in units of its own, keeps what is freed, and gives it back when
// a stream or the device is synchronised.
//
// Before every allocation the most that the pool can grow by is charged; afterwards
// what it did not grow by is given back. Only the driver knows whether unused memory of
// the pool can serve an allocation: it may be in pieces, or freed on a stream that has
// not reached the free yet. So if the limit has not enough room, unused memory is given
// back to the device first, and then memory that is about to come back is waited for.
// No call here waits for the device, because a stream may wait for the calling thread.
#include <stdlib.h>
#include <time.h>

#include "base/futex.h"
#include "memory/freed.h"
#include "memory/memory.h"
#include "memory/pools.h"

// Read off driver 580: a pool grows by what an allocation lacks, rounded up to
// this unit, and never by more (4.6 million random allocations on four
// streams). A driver of a finer unit shows it by how its pools grow.
#define GROWTH_UNIT (UINT64_C(32) << 20)
// How long an allocation waits for memory that was freed in stream order and
// would make it fit, and how often it looks; ns.
#define PATIENCE LGPU_NANOS
#define LOOK_FIRST (LGPU_NANOS / 20000)
#define LOOK_LAST (LGPU_NANOS / 500)

struct lgpu_pool {
	struct lgpu_reserve reserve;
	CUmemoryPool handle; // NULL: free
	CUdevice ordinal;    // of a pool that the program has made
	bool made;           // by the program, which may destroy it
	// The program has destroyed it, and some of its memory lives on. The driver
	// is told when the last is gone: until then it can say how much there is.
	bool destroyed;
};

// Pools lie in blocks that never move and are never given back, so that they
// are found without a lock.
#define BLOCK 128
#define BLOCKS 256

static struct lgpu_pool first_block[BLOCK];
static struct lgpu_pool *blocks[BLOCKS] = {first_block};
static uint32_t pools_lock; // adding
static uint32_t pool_count; // entries in use are below
static bool changed;        // something was freed since pools were looked at
// All growth seen was a multiple of this power of two.
static uint64_t unit = GROWTH_UNIT;

static uint64_t unit_now(void) { return __atomic_load_n(&unit, __ATOMIC_RELAXED); }

static struct lgpu_pool *pool_at(uint32_t i) { return &blocks[i / BLOCK][i % BLOCK]; }

static uint32_t count(void) { return __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE); }

static CUmemoryPool handle_of(const struct lgpu_pool *p) { return __atomic_load_n(&p->handle, __ATOMIC_ACQUIRE); }

bool lgpu_reserve_settle(struct lgpu_state *s, struct lgpu_reserve *r, uint64_t reserved)
{
	if (reserved <= r->charged) {
		lgpu_uncharge(s, r->device, r->charged - reserved);
		r->charged = reserved;
		lgpu_charge_seen(s, r->device);
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

struct lgpu_pool *lgpu_pool_find(CUmemoryPool handle)
{
	if (handle == NULL)
		return NULL;
	for (uint32_t i = 0, n = count(); i < n; i++)
		if (handle_of(pool_at(i)) == handle)
			return pool_at(i);
	return NULL;
}

// pool_room returns an unused entry, or NULL when there is no memory for one.
// The caller has pools_lock.
static struct lgpu_pool *pool_room(void)
{
	uint32_t n = pool_count;
	for (uint32_t i = 0; i < n; i++)
		if (handle_of(pool_at(i)) == NULL)
			return pool_at(i);
	if (n == BLOCK * BLOCKS)
		return NULL;
	if (blocks[n / BLOCK] == NULL)
		blocks[n / BLOCK] = calloc(BLOCK, sizeof(struct lgpu_pool));
	if (blocks[n / BLOCK] == NULL)
		return NULL;
	__atomic_store_n(&pool_count, n + 1, __ATOMIC_RELEASE);
	return pool_at(n);
}

// lgpu_pool_add notes a pool. NULL: there is no memory for that, and nothing may be
// allocated from it.
struct lgpu_pool *lgpu_pool_add(CUmemoryPool handle, int device)
{
	lgpu_lock(&pools_lock);
	struct lgpu_pool *p = lgpu_pool_find(handle);
	if (p == NULL) {
		p = pool_room();
		if (p != NULL) {
			p->reserve.device = device;
			p->reserve.charged = 0;
			p->made = p->destroyed = false;
			__atomic_store_n(&p->handle, handle, __ATOMIC_RELEASE);
		}
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
static bool look(struct lgpu_state *s, struct lgpu_pool *p)
{
	uint64_t reserved;
	if (p->destroyed)
		LGPU_REAL(cuMemPoolTrimTo)(p->handle, 0);
	if (!attribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved))
		return true;
	if (p->destroyed && reserved == 0 && LGPU_REAL(cuMemPoolDestroy)(p->handle) == CUDA_SUCCESS) {
		lgpu_reserve_settle(s, &p->reserve, 0);
		__atomic_store_n(&p->handle, NULL, __ATOMIC_RELEASE);
		return true;
	}
	return lgpu_reserve_settle(s, &p->reserve, reserved);
}

// watched reports whether there may be something to see of a pool: memory that
// is charged, or an end to tell the driver of. The caller has its lock.
static bool watched(const struct lgpu_pool *p) { return p->handle != NULL && (p->reserve.charged != 0 || p->destroyed); }

void lgpu_pools_look(bool force)
{
	uint32_t n = count();
	if (n == 0 || (!force && !__atomic_load_n(&changed, __ATOMIC_RELAXED)))
		return;
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL)
		return;
	__atomic_store_n(&changed, false, __ATOMIC_RELAXED);
	for (uint32_t i = 0; i < n; i++) {
		struct lgpu_pool *p = pool_at(i);
		// The thread that has it looks, too, and may wait for the daemon.
		if (force)
			lgpu_lock(&p->reserve.lock);
		else if (!lgpu_try_lock(&p->reserve.lock)) {
			__atomic_store_n(&changed, true, __ATOMIC_RELAXED);
			continue;
		}
		if (watched(p))
			look(s, p);
		// What is freed in stream order is given back at some later synchronise.
		if (watched(p))
			__atomic_store_n(&changed, true, __ATOMIC_RELAXED);
		lgpu_unlock(&p->reserve.lock);
	}
}

void lgpu_pools_ended(struct lgpu_state *s, int device)
{
	uint64_t own = lgpu_overhead_own(s, device);
	for (uint32_t i = 0, n = count(); i < n; i++) {
		struct lgpu_pool *p = pool_at(i);
		lgpu_lock(&p->reserve.lock);
		if (p->handle != NULL && p->reserve.device == device) {
			uint64_t reserved;
			bool known = attribute(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
			// The driver may go on reporting what went with the context.
			lgpu_reserve_settle(s, &p->reserve, !known ? 0 : reserved < own ? reserved : own);
			if (!known)
				__atomic_store_n(&p->handle, NULL, __ATOMIC_RELEASE);
		}
		lgpu_unlock(&p->reserve.lock);
	}
}

void lgpu_pools_reset(void)
{
	for (uint32_t i = 0; i < pool_count; i++)
		*pool_at(i) = (struct lgpu_pool){.handle = NULL};
	pool_count = 0;
	pools_lock = 0;
	changed = false;
}

// trim makes the pools of a device give up what they do not use. The caller may
// have the lock of one, held; others are not waited for, as two threads that trim
// may hold one each. Trimming does not wait for the device.
static void trim(struct lgpu_state *s, int device, const struct lgpu_pool *held)
{
	for (uint32_t i = 0, n = count(); i < n; i++) {
		struct lgpu_pool *p = pool_at(i);
		if (p != held && !lgpu_try_lock(&p->reserve.lock))
			continue;
		if (watched(p) && p->reserve.device == device) {
			LGPU_REAL(cuMemPoolTrimTo)(p->handle, 0);
			look(s, p);
		}
		if (p != held)
			lgpu_unlock(&p->reserve.lock);
	}
}

void lgpu_pools_trim(struct lgpu_state *s, int device) { trim(s, device, NULL); }

// reserve_growth charges the most by which the pool can grow for an allocation.
// The caller has its lock.
static bool reserve_growth(struct lgpu_state *s, struct lgpu_pool *p, uint64_t growth)
{
	lgpu_pending(s, p->reserve.device, growth);
	if (lgpu_charge_ahead(s, p->reserve.device, growth)) {
		p->reserve.charged += growth;
		return true;
	}
	lgpu_reserved(s, p->reserve.device, growth);
	return false;
}

// learn looks at how the pool has grown from what it had reserved.
static void learn(const struct lgpu_pool *p, uint64_t before)
{
	uint64_t grown = p->reserve.charged - before;
	if (p->reserve.charged > before && (grown & -grown) < unit_now())
		__atomic_store_n(&unit, grown & -grown, __ATOMIC_RELAXED);
}

// room makes room for growth. False: there is none; then *coming says whether
// there is once everything freed has come back. The caller has the lock.
static bool room(struct lgpu_state *s, struct lgpu_pool *p, uint64_t growth, bool *coming)
{
	uint64_t used = 0;
	if (reserve_growth(s, p, growth))
		return true;
	// A capture that this thread has under way must not be spoilt.
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	lgpu_overhead_now(s, p->reserve.device);
	trim(s, p->reserve.device, p);
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	if (look(s, p) && reserve_growth(s, p, growth))
		return true;
	uint64_t remaining = lgpu_remaining(s, p->reserve.device);
	attribute(p->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	used = lgpu_round_up(used, unit_now());
	*coming = used < p->reserve.charged && remaining + (p->reserve.charged - used) >= growth;
	return false;
}

// lock_with_room takes the pool's lock and charges and stores what it may grow by
// for an allocation; false: none of it.
static bool lock_with_room(struct lgpu_state *s, struct lgpu_pool *p, uint64_t bytes, uint64_t *growth)
{
	int64_t begun = 0, now;
	for (int64_t wait = LOOK_FIRST;; wait = wait < LOOK_LAST ? 2 * wait : wait) {
		bool coming = false;
		lgpu_lock(&p->reserve.lock);
		*growth = lgpu_round_up(bytes, unit_now());
		if (room(s, p, *growth, &coming))
			return true;
		lgpu_unlock(&p->reserve.lock);
		enum lgpu_freed freed = coming ? lgpu_freed_settle() : LGPU_FREED_NONE;
		now = lgpu_now();
		begun = begun == 0 ? now : begun;
		if (freed == LGPU_FREED_NONE || now - begun > PATIENCE)
			return false;
		if (freed == LGPU_FREED_COMING)
			nanosleep(&(struct timespec){0, wait}, NULL);
	}
}

CUresult lgpu_pool_alloc(struct lgpu_state *s, struct lgpu_pool *p, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
			 CUstream stream, lgpu_pool_call driver, lgpu_pool_free undo)
{
	if (p->destroyed || handle_of(p) != pool)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t growth, reserved;
	lgpu_overhead_measure(s, p->reserve.device);
	if (!lock_with_room(s, p, bytes, &growth))
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t before = p->reserve.charged - growth;
	CUresult r = driver(dptr, bytes, pool, stream);
	if (r != CUDA_SUCCESS && !attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved)) {
		// There is no such pool, or its context is beyond repair.
		lgpu_reserve_settle(s, &p->reserve, before);
	} else if (!look(s, p) && r == CUDA_SUCCESS) {
		// The driver's pools grow by more than is known here, and that is too much.
		undo(*dptr, stream);
		LGPU_REAL(cuMemPoolTrimTo)(p->handle, 0);
		look(s, p);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	learn(p, before);
	lgpu_reserved(s, p->reserve.device, growth);
	lgpu_unlock(&p->reserve.lock);
	return r;
}

int lgpu_pool_device(const struct lgpu_pool *p) { return p->reserve.device; }

void lgpu_pool_made(struct lgpu_pool *p, CUdevice ordinal)
{
	p->ordinal = ordinal;
	p->made = true;
}

void lgpu_pools_freed(CUstream stream)
{
	if (count() == 0)
		return;
	__atomic_store_n(&changed, true, __ATOMIC_RELAXED);
	lgpu_freed_note(stream);
}

void lgpu_pool_trimmed(struct lgpu_state *s, struct lgpu_pool *p)
{
	lgpu_lock(&p->reserve.lock);
	if (p->handle != NULL)
		look(s, p);
	lgpu_unlock(&p->reserve.lock);
}

// outlive begins the end of a pool while some of its memory lives on. The program
// has destroyed it; the driver keeps it until the last memory is freed. The caller
// has its lock.
static void outlive(struct lgpu_pool *p)
{
	cuuint64_t none = 0;
	CUmemoryPool pool;
	p->destroyed = true;
	__atomic_store_n(&changed, true, __ATOMIC_RELAXED);
	LGPU_REAL(cuMemPoolSetAttribute)(p->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);
	if (LGPU_REAL(cuDeviceGetMemPool)(&pool, p->ordinal) == CUDA_SUCCESS && pool == p->handle &&
	    LGPU_REAL(cuDeviceGetDefaultMemPool)(&pool, p->ordinal) == CUDA_SUCCESS)
		LGPU_REAL(cuDeviceSetMemPool)(p->ordinal, pool);
}

CUresult lgpu_pool_destroy(struct lgpu_state *s, struct lgpu_pool *p, CUmemoryPool pool)
{
	if (!p->made)
		return LGPU_REAL(cuMemPoolDestroy)(pool);
	CUresult r = CUDA_SUCCESS;
	uint64_t reserved = 0;
	lgpu_lock(&p->reserve.lock);
	LGPU_REAL(cuMemPoolTrimTo)(pool, 0);
	if (p->destroyed) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else if (attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) && reserved != 0) {
		outlive(p);
		lgpu_reserve_settle(s, &p->reserve, reserved);
	} else {
		r = LGPU_REAL(cuMemPoolDestroy)(pool);
		if (r == CUDA_SUCCESS) {
			lgpu_reserve_settle(s, &p->reserve, 0);
			__atomic_store_n(&p->handle, NULL, __ATOMIC_RELEASE);
		}
	}
	lgpu_unlock(&p->reserve.lock);
	return r;
}
