// SPDX-License-Identifier: Apache-2.0

// Stream-ordered pools. The program's pool is the driver's, which checks and keeps what the program sets, and from which
// nothing is ever allocated; the memory is blocks of ours. Allocations of at most LGPU_SHARED_PAGE are units of blocks of
// one page, larger ones are runs of pages of larger blocks.
//
// What is freed in stream order is parked (order.c). It is used again by its own stream, by those that come after the
// free anyhow (follow.c), and by all once the stream has reached the free. If there is no other room, an allocation's
// stream is made to wait for the free, as the driver does it, or the call waits for a second. What a pool has more
// than its threshold is given back when the program synchronises.
#include <stdlib.h>
#include <time.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

// The driver's pools grow by so much at least (read off driver 580).
#define GROWTH (UINT64_C(32) << 20)
#define PATIENCE LGPU_NANOS // for what is freed to come back
#define NAP 100000          // between two looks, ns

struct lgpu_arena_pool {
	struct lgpu_owner owner;
	struct lgpu_arena_pool *next;
	CUmemoryPool handle; // NULL: the program has destroyed it
	CUmemoryPool told;   // the same, which its memory is said to be of as long as there is any
	struct lgpu_bins pages;
	struct lgpu_queue *queues;
	uint64_t limit; // of reserved; 0: none
	uint64_t threshold;
	uint64_t reserved, used, reserved_high, used_high;
	int follow, opportunistic, internal; // what may be used again, as CU_MEMPOOL_ATTR_REUSE_* says
};

// Pools are never given back, so that they are found without waiting for anybody; one that has ended is used again.
static struct lgpu_arena_pool *pools;
static uint32_t restless; // something may be given back at the next synchronise

static void stir(void) { __atomic_store_n(&restless, 1, __ATOMIC_RELEASE); }

void lgpu_arena_pools_forget(void)
{
	pools = NULL;
	restless = 0;
	lgpu_queues_forget();
	lgpu_follows_forget();
}

struct lgpu_arena_pool *lgpu_arena_pool_find(CUmemoryPool handle)
{
	if (handle == NULL || !lgpu_arena_own(__atomic_load_n(&pools, __ATOMIC_RELAXED)))
		return NULL;
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_arena_pool *p = pools;
	while (p != NULL && p->handle != handle)
		p = p->next;
	lgpu_unlock(&lgpu_arena_lock);
	return p;
}

int lgpu_arena_pool_device(const struct lgpu_arena_pool *p) { return p->owner.device; }

// idle reports whether a pool that has ended may be used for another one. The caller has the lock.
static bool idle(const struct lgpu_arena_pool *p)
{
	return p->handle == NULL && p->reserved == 0 && p->owner.blocks == NULL && p->queues == NULL;
}

static void settings(struct lgpu_arena_pool *p, CUmemoryPool handle)
{
	cuuint64_t threshold = 0;
	LGPU_REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &p->follow);
	LGPU_REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &p->opportunistic);
	LGPU_REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &p->internal);
	LGPU_REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
	p->threshold = threshold;
}

struct lgpu_arena_pool *lgpu_arena_pool_add(CUmemoryPool handle, int device, CUdevice ordinal, uint64_t limit)
{
	struct lgpu_arena_pool *found = lgpu_arena_pool_find(handle), fresh = {.handle = handle, .told = handle};
	if (found != NULL)
		return found;
	fresh.owner.lasting = true;
	fresh.owner.ordinal = ordinal;
	fresh.owner.device = device;
	fresh.owner.context = lgpu_residence_context_of(ordinal);
	fresh.limit = lgpu_round_up(limit, LGPU_PAGE);
	settings(&fresh, handle);
	for (int i = 0; i < LGPU_ORDINALS; i++) {
		CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, i};
		CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
		if (LGPU_REAL(cuMemPoolGetAccess)(&flags, handle, &location) != CUDA_SUCCESS)
			break; // no more devices
		fresh.owner.access[i] = (uint8_t)flags;
	}
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_arena_pool *p = NULL;
	for (struct lgpu_arena_pool *one = pools; one != NULL; one = one->next)
		p = one->handle == handle || (p == NULL && idle(one)) ? one : p;
	if (p == NULL && (p = lgpu_pages(sizeof *p)) != NULL) {
		p->owner.next = lgpu_owners;
		p->next = pools;
		__atomic_store_n(&pools, p, __ATOMIC_RELEASE);
		__atomic_store_n(&lgpu_owners, &p->owner, __ATOMIC_RELEASE);
	}
	if (p != NULL && p->handle != handle) {
		fresh.next = p->next;
		fresh.owner.next = p->owner.next;
		fresh.owner.pool = p;
		lgpu_owner_unequip(&p->owner);
		*p = fresh;
	}
	lgpu_unlock(&lgpu_arena_lock);
	return p;
}

// ---- memory of pools; the caller has the lock

static struct lgpu_bins *bins_of(struct lgpu_arena_pool *p, bool paged) { return paged ? &p->pages : &p->owner.bins; }

// taken has a run be an allocation.
static void taken(struct lgpu_arena_pool *p, struct lgpu_unit *u, uint64_t bytes)
{
	u->dead = false;
	u->bytes = bytes;
	u->id = lgpu_arena_id();
	p->used += bytes;
	p->used_high = p->used > p->used_high ? p->used : p->used_high;
}

// give makes a run free for all.
static void give(struct lgpu_arena_pool *p, struct lgpu_unit *u)
{
	struct lgpu_chunk *c = u->chunk;
	const struct lgpu_block *b = c->owner;
	lgpu_units_give(bins_of(p, b->grain == LGPU_PAGE), u);
	p->owner.empty += c->taken == 0;
}

// collect makes what streams have reached free for all, or everything. A queue that nobody will add to is dropped. False:
// there was nothing.
static bool collect(struct lgpu_arena_pool *p, bool all)
{
	static const struct lgpu_stream_key none;
	struct lgpu_unit *u;
	bool any = false;
	for (struct lgpu_queue *q = p->queues; q != NULL; q = lgpu_queue_next(q))
		for (; (u = lgpu_queue_passed(q, all)) != NULL; any = true)
			give(p, u);
	if (p->queues != NULL)
		lgpu_queues_end(&p->queues, p->handle == NULL && p->used == 0 ? NULL : &none);
	return any;
}

static bool parked(const struct lgpu_arena_pool *p)
{
	for (struct lgpu_queue *q = p->queues; q != NULL; q = lgpu_queue_next(q))
		if (!lgpu_queue_empty(q))
			return true;
	return false;
}

// spare takes a block out of a pool that nothing of is used, or returns NULL.
static struct lgpu_block *spare(struct lgpu_arena_pool *p)
{
	if (p->owner.empty == 0)
		return NULL;
	struct lgpu_block *b = p->owner.blocks;
	while (b != NULL && (b->state != LGPU_BLOCK_LIVE || b->chunk->taken != 0))
		b = b->next;
	if (b == NULL)
		return NULL;
	lgpu_chunk_remove(bins_of(p, b->grain == LGPU_PAGE), b->chunk);
	p->owner.empty--;
	p->reserved -= b->bytes;
	b->state = LGPU_BLOCK_ENDING;
	lgpu_block_unlink(b);
	return b;
}

// ---- giving back

// trim gives back what a pool does not use, until it has at most keep. Inside a touch, without the lock.
static void trim(struct lgpu_state *s, struct lgpu_arena_pool *p, uint64_t keep)
{
	for (;;) {
		lgpu_lock(&lgpu_arena_lock);
		struct lgpu_block *b = p->reserved > keep ? spare(p) : NULL;
		lgpu_unlock(&lgpu_arena_lock);
		if (b == NULL)
			return;
		uint64_t bytes = b->bytes;
		lgpu_block_unmake(b);
		lgpu_uncharge(s, p->owner.device, bytes);
	}
}

static bool collect_locked(struct lgpu_arena_pool *p)
{
	// A capture that this thread has under way must not be spoilt by a question.
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool captures = lgpu_residence_captures();
	if (captures)
		LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	lgpu_lock(&lgpu_arena_lock);
	bool any = collect(p, false);
	lgpu_unlock(&lgpu_arena_lock);
	if (captures)
		LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return any;
}

void lgpu_arena_pool_trim(struct lgpu_state *s, struct lgpu_arena_pool *p, uint64_t keep)
{
	collect_locked(p);
	trim(s, p, keep);
}

// A caller may have locks of its own, so this waits for nobody: while memory is away nothing is trimmed.
void lgpu_arena_pools_trim(struct lgpu_state *s, int device)
{
	if (!lgpu_arena_own(__atomic_load_n(&pools, __ATOMIC_ACQUIRE)) || !lgpu_touch_try())
		return;
	for (struct lgpu_arena_pool *p = pools; p != NULL; p = p->next)
		if (p->owner.device == device)
			lgpu_arena_pool_trim(s, p, 0);
	lgpu_touch_end();
}

void lgpu_arena_pools_settle(void)
{
	if (__atomic_load_n(&restless, __ATOMIC_RELAXED) == 0 || lgpu_attached() == NULL || !lgpu_touch_try())
		return;
	struct lgpu_state *s = lgpu_attached();
	__atomic_store_n(&restless, 0, __ATOMIC_RELEASE);
	for (struct lgpu_arena_pool *p = pools; p != NULL; p = p->next) {
		lgpu_arena_pool_trim(s, p, p->handle != NULL ? p->threshold : 0);
		lgpu_lock(&lgpu_arena_lock);
		bool more = parked(p);
		lgpu_unlock(&lgpu_arena_lock);
		if (more)
			stir();
	}
	lgpu_touch_end();
}

// ---- allocating

// What an allocation looks for.
struct want {
	struct lgpu_state *state;
	struct lgpu_arena_pool *pool;
	CUstream stream;
	struct lgpu_stream_key key;
	uint64_t bytes;
	uint32_t count;
	bool paged;
	CUdeviceptr at; // what was found
};

static void found(struct want *w, struct lgpu_unit *u)
{
	taken(w->pool, u, w->bytes);
	w->at = lgpu_unit_address(u);
}

// reuse looks for memory that the pool has and that may be used now.
static bool reuse(struct want *w)
{
	struct lgpu_arena_pool *p = w->pool;
	struct lgpu_freed f;
	struct lgpu_unit *u = NULL;
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_queue *own = lgpu_queue_find(p->queues, &w->key);
	if (own != NULL && lgpu_queue_take(own, w->paged, w->count, UINT64_MAX, &f)) {
		lgpu_mark_drop(own, f.mark);
		u = f.unit;
	} else {
		u = lgpu_units_take(bins_of(p, w->paged), w->count);
		p->owner.empty -= u != NULL && u->chunk->taken == 1;
	}
	if (u != NULL)
		found(w, u);
	lgpu_unlock(&lgpu_arena_lock);
	return u != NULL;
}

// take_from takes memory that another stream has not reached the free of yet: such that the allocation's stream comes after
// anyhow, or any. The caller has the lock.
static struct lgpu_queue *take_from(const struct want *w, bool after, enum lgpu_stream_kind kind, struct lgpu_freed *f)
{
	if (after)
		lgpu_follow_look(&w->key, kind);
	for (struct lgpu_queue *q = w->pool->queues; q != NULL; q = lgpu_queue_next(q)) {
		uint64_t until = after ? lgpu_follow_until(&w->key, kind, lgpu_queue_key(q)) : UINT64_MAX;
		if (until != 0 && lgpu_queue_take(q, w->paged, w->count, until, f))
			return q;
	}
	return NULL;
}

// depend gives out what take_from takes: the allocation's stream waits for the free, which takes no time if it would have
// come after it.
static bool depend(struct want *w, bool after)
{
	struct lgpu_arena_pool *p = w->pool;
	struct lgpu_freed f;
	if ((after ? p->follow : p->internal) == 0 || !lgpu_arena_parked())
		return false;
	enum lgpu_stream_kind kind = lgpu_stream_kind(w->stream);
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_queue *q = take_from(w, after, kind, &f);
	if (q == NULL) {
		lgpu_unlock(&lgpu_arena_lock);
		return false;
	}
	lgpu_queue_pin(q, 1);
	lgpu_unlock(&lgpu_arena_lock);
	bool follows = lgpu_mark_follow(f.mark, w->stream) == CUDA_SUCCESS;
	lgpu_lock(&lgpu_arena_lock);
	lgpu_queue_pin(q, -1);
	if (follows) {
		lgpu_mark_drop(q, f.mark);
		found(w, f.unit);
	} else if (lgpu_queue_add(q, &f)) {
		lgpu_mark_drop(q, f.mark);
	}
	lgpu_unlock(&lgpu_arena_lock);
	return follows;
}

// grow makes a block for an allocation, of a size. What may not be charged, or may never be resident, is
// CUDA_ERROR_OUT_OF_MEMORY.
static CUresult grow(const struct want *w, uint64_t bytes)
{
	struct lgpu_arena_pool *p = w->pool;
	int device = p->owner.device;
	if ((p->limit != 0 && p->reserved + bytes > p->limit) || !lgpu_reserve(w->state, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	if (lgpu_level_wait(w->state, device, bytes)) {
		lgpu_touch_begin();
		r = lgpu_block_cut(&p->owner, bytes, w->paged ? (uint32_t)LGPU_PAGE : (uint32_t)LGPU_UNIT, bins_of(p, w->paged));
		if (r == CUDA_SUCCESS) {
			lgpu_lock(&lgpu_arena_lock);
			p->reserved += bytes;
			p->reserved_high = p->reserved > p->reserved_high ? p->reserved : p->reserved_high;
			lgpu_unlock(&lgpu_arena_lock);
			stir();
		}
		lgpu_touch_end();
	}
	if (r != CUDA_SUCCESS)
		lgpu_uncharge(w->state, device, bytes);
	lgpu_reserved(w->state, device, bytes);
	return r;
}

// wait_for waits until something of the device that was freed has come back. False: nothing will.
static bool wait_for(const struct want *w, int64_t deadline)
{
	bool coming = false;
	for (struct lgpu_arena_pool *p = pools; p != NULL; p = p->next) {
		lgpu_lock(&lgpu_arena_lock);
		coming |= p->owner.device == w->pool->owner.device && parked(p);
		lgpu_unlock(&lgpu_arena_lock);
	}
	if (!coming || lgpu_now() >= deadline)
		return false;
	nanosleep(&(struct timespec){0, NAP}, NULL);
	return true;
}

CUresult lgpu_arena_pool_alloc(struct lgpu_state *s, struct lgpu_arena_pool *p, CUdeviceptr *at, size_t bytes, CUstream stream)
{
	uint64_t need = lgpu_taken(bytes);
	struct want w = {.state = s, .pool = p, .stream = stream, .bytes = bytes, .paged = bytes > LGPU_SHARED_PAGE};
	uint64_t units = need / (w.paged ? LGPU_PAGE : LGPU_UNIT);
	CUresult r = lgpu_stream_key(stream, &w.key);
	if (r != CUDA_SUCCESS)
		return r;
	if (units > UINT32_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	w.count = (uint32_t)units;
	int64_t deadline = 0;
	for (;;) {
		if (reuse(&w))
			break;
		if (p->opportunistic != 0 && collect_locked(p) && reuse(&w))
			break;
		if (depend(&w, true))
			break;
		r = grow(&w, w.paged ? lgpu_round_up(need, GROWTH) : LGPU_PAGE);
		if (r != CUDA_SUCCESS && w.paged && need % GROWTH != 0)
			r = grow(&w, need);
		if (r == CUDA_SUCCESS)
			continue;
		if (depend(&w, false))
			break;
		deadline = deadline == 0 ? lgpu_now() + PATIENCE : deadline;
		if (!wait_for(&w, deadline))
			return r;
		collect_locked(p);
	}
	*at = w.at;
	return CUDA_SUCCESS;
}

// ---- freeing

// find_end finds the allocation of a pool that begins at an address. *ours: the address is of a pool. The caller has the
// lock.
static struct lgpu_unit *find_end(CUdeviceptr at, struct lgpu_arena_pool **pool, bool *ours)
{
	struct lgpu_block *b = lgpu_range_find(at);
	*ours = b != NULL && b->owner != NULL && b->owner->pool != NULL;
	*pool = *ours ? b->owner->pool : NULL;
	if (!*ours || b->state != LGPU_BLOCK_LIVE || at >= b->base + b->bytes)
		return NULL;
	struct lgpu_unit *u = lgpu_units_find(b->chunk, (uint32_t)((at - b->base) / b->grain));
	return u != NULL && lgpu_unit_address(u) == at ? u : NULL;
}

// hide finds what find_end does, and hides it.
static struct lgpu_unit *hide(CUdeviceptr at, struct lgpu_arena_pool **pool, bool *ours)
{
	*ours = false;
	if (!lgpu_arena_own(__atomic_load_n(&pools, __ATOMIC_ACQUIRE)))
		return NULL;
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_unit *u = find_end(at, pool, ours);
	if (u != NULL)
		u->dead = true;
	lgpu_unlock(&lgpu_arena_lock);
	return u;
}

CUresult lgpu_arena_pool_free(struct lgpu_state *s, CUdeviceptr at, bool *ours)
{
	struct lgpu_arena_pool *p;
	struct lgpu_unit *u = hide(at, &p, ours);
	if (u == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	lgpu_touch_begin();
	CUresult r = CUDA_SUCCESS;
	CUcontext context;
	for (size_t i = 0; r == CUDA_SUCCESS && (context = lgpu_residence_context_at(i)) != NULL; i++)
		r = lgpu_arena_drain(context);
	lgpu_lock(&lgpu_arena_lock);
	if (r == CUDA_SUCCESS) {
		p->used -= u->bytes;
		give(p, u);
	} else {
		u->dead = false;
	}
	lgpu_unlock(&lgpu_arena_lock);
	stir();
	if (r == CUDA_SUCCESS && p->handle == NULL)
		lgpu_arena_pool_trim(s, p, 0);
	lgpu_touch_end();
	return r;
}

// park puts a run behind a mark in its stream.
static CUresult park(struct lgpu_arena_pool *p, struct lgpu_unit *u, CUstream stream)
{
	struct lgpu_stream_key key;
	CUresult r = lgpu_stream_key(stream, &key);
	if (r != CUDA_SUCCESS)
		return r;
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_queue *q = lgpu_queue_make(&p->queues, &key);
	struct lgpu_freed f = {.unit = u, .mark = q != NULL ? lgpu_mark_spare(q) : NULL};
	enum lgpu_stream_kind kind = lgpu_follow_kind(&key);
	lgpu_unlock(&lgpu_arena_lock);
	if (kind == LGPU_STREAM_UNKNOWN)
		kind = lgpu_stream_kind(stream);
	if (f.mark == NULL)
		f.mark = lgpu_mark_make(key.context);
	if (q == NULL || f.mark == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = lgpu_mark_record(f.mark, stream);
	lgpu_lock(&lgpu_arena_lock);
	f.number = lgpu_follow_freed(&key, kind);
	if (r == CUDA_SUCCESS && !lgpu_queue_add(q, &f))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS)
		p->used -= u->bytes;
	else
		lgpu_mark_drop(q, f.mark);
	lgpu_unlock(&lgpu_arena_lock);
	return r;
}

CUresult lgpu_arena_pool_free_ordered(CUdeviceptr at, CUstream stream, bool *ours)
{
	struct lgpu_arena_pool *p;
	struct lgpu_unit *u = hide(at, &p, ours);
	if (u == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = LGPU_TOUCHED(park(p, u, stream));
	if (r != CUDA_SUCCESS) {
		lgpu_lock(&lgpu_arena_lock);
		u->dead = false;
		lgpu_unlock(&lgpu_arena_lock);
	}
	stir();
	return r;
}

// ---- what the program sets and asks

static void rename_to(struct lgpu_arena_pool *p, CUmemoryPool handle)
{
	lgpu_lock(&lgpu_arena_lock);
	p->handle = handle;
	lgpu_unlock(&lgpu_arena_lock);
}

// The handle is forgotten first: as soon as the driver has ended the pool, it may be a new one's.
CUresult lgpu_arena_pool_destroy(struct lgpu_state *s, struct lgpu_arena_pool *p)
{
	CUmemoryPool handle = p->handle;
	rename_to(p, NULL);
	CUresult r = LGPU_REAL(cuMemPoolDestroy)(handle);
	if (r != CUDA_SUCCESS) {
		rename_to(p, handle);
		return r;
	}
	lgpu_arena_pool_trim(s, p, 0);
	stir();
	return r;
}

void lgpu_arena_pool_changed(struct lgpu_arena_pool *p)
{
	settings(p, p->handle);
	stir();
}

bool lgpu_arena_pool_attribute(struct lgpu_arena_pool *p, CUmemPool_attribute attribute, uint64_t *value)
{
	bool known = true;
	lgpu_lock(&lgpu_arena_lock);
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *value = p->reserved; break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *value = p->reserved_high; break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *value = p->used; break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *value = p->used_high; break;
	default: known = false; break;
	}
	lgpu_unlock(&lgpu_arena_lock);
	return known;
}

void lgpu_arena_pool_reset_high(struct lgpu_arena_pool *p, CUmemPool_attribute attribute)
{
	lgpu_lock(&lgpu_arena_lock);
	if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
		p->used_high = p->used;
	else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
		p->reserved_high = p->reserved;
	lgpu_unlock(&lgpu_arena_lock);
}

CUresult lgpu_arena_pool_access(struct lgpu_arena_pool *p, const CUmemAccessDesc *access, size_t count)
{
	CUresult r = CUDA_SUCCESS;
	lgpu_lock(&lgpu_arena_lock);
	for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++) {
		CUdevice ordinal = access[i].location.id;
		if (ordinal < 0 || ordinal >= LGPU_ORDINALS)
			r = CUDA_ERROR_NOT_SUPPORTED;
		else if (ordinal != p->owner.ordinal)
			r = lgpu_owner_grant(&p->owner, ordinal, access[i].flags);
		if (r == CUDA_SUCCESS)
			p->owner.access[ordinal] = (uint8_t)access[i].flags;
	}
	p->owner.version++;
	lgpu_unlock(&lgpu_arena_lock);
	return r;
}

void lgpu_pool_place(const struct lgpu_owner *o, struct lgpu_arena_place *place)
{
	place->context = NULL;
	place->ordered = true;
	place->shareable = false;
	place->pool = o->pool->told;
}

// ---- streams and contexts

void lgpu_arena_stream_ends(CUstream stream)
{
	struct lgpu_stream_key key;
	if (!lgpu_arena_own(__atomic_load_n(&pools, __ATOMIC_ACQUIRE)) || lgpu_stream_key(stream, &key) != CUDA_SUCCESS)
		return;
	lgpu_lock(&lgpu_arena_lock);
	for (struct lgpu_arena_pool *p = pools; p != NULL; p = p->next)
		lgpu_queues_end(&p->queues, &key);
	lgpu_unlock(&lgpu_arena_lock);
}

// drop_all frees everything that a pool has, as the driver does when the last context of the device ends.
static void drop_all(struct lgpu_state *s, struct lgpu_arena_pool *p)
{
	struct lgpu_block *b;
	for (;;) {
		lgpu_lock(&lgpu_arena_lock);
		collect(p, true);
		b = p->owner.blocks;
		if (b != NULL) {
			p->reserved -= b->bytes;
			b->state = LGPU_BLOCK_ENDING;
			lgpu_block_unlink(b);
		} else {
			p->used = 0;
			p->owner.empty = 0;
			p->owner.bins = p->pages = (struct lgpu_bins){.filled = 0};
		}
		lgpu_unlock(&lgpu_arena_lock);
		if (b == NULL)
			return;
		uint64_t bytes = b->bytes;
		lgpu_block_unmake(b);
		lgpu_uncharge(s, p->owner.device, bytes);
	}
}

void lgpu_arena_pools_context_ended(CUcontext context)
{
	struct lgpu_unit *u;
	for (struct lgpu_arena_pool *p = pools; p != NULL; p = p->next) {
		lgpu_lock(&lgpu_arena_lock);
		for (struct lgpu_queue *q = p->queues, *next; q != NULL; q = next) {
			next = lgpu_queue_next(q);
			if (lgpu_queue_key(q)->context != context)
				continue;
			while ((u = lgpu_queue_passed(q, true)) != NULL)
				give(p, u);
			lgpu_queue_drop(&p->queues, q, false);
		}
		lgpu_unlock(&lgpu_arena_lock);
		if (p->reserved != 0 && lgpu_residence_context_of(p->owner.ordinal) == NULL)
			drop_all(lgpu_attached(), p);
	}
}
