// SPDX-License-Identifier: Apache-2.0

// Allocating and freeing. An allocation of more than LGPU_SHARED_PAGE is a block of its own; smaller ones are units of
// chunks (units.h), which belong to one context each.
#include <stdlib.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

uint32_t lgpu_arena_lock;
struct lgpu_owner *lgpu_owners;
static struct {
	uint64_t bytes, out;
} amounts[LGPU_MAX_DEVICES];
static uint64_t last_id;

// Ids of ours are none of the driver's.
uint64_t lgpu_arena_id(void) { return __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED) | UINT64_C(1) << 62; }

bool lgpu_arena_wants(const struct lgpu_state *s, int device)
{
	return s->linked && device >= 0 && s->limits->device[device].overcommit != 0;
}

uint64_t lgpu_arena_bytes(int device) { return __atomic_load_n(&amounts[device].bytes, __ATOMIC_RELAXED); }

uint64_t lgpu_arena_resident(int device)
{
	return lgpu_arena_bytes(device) - __atomic_load_n(&amounts[device].out, __ATOMIC_RELAXED);
}

void lgpu_arena_has(int device, int64_t bytes) { __atomic_fetch_add(&amounts[device].bytes, (uint64_t)bytes, __ATOMIC_RELAXED); }

void lgpu_arena_moved(int device, int64_t bytes)
{
	__atomic_fetch_add(&amounts[device].out, (uint64_t)bytes, __ATOMIC_RELAXED);
	lgpu_overhead_away(device, bytes);
}

// ---- blocks

// allow lets all devices use a part of a block that may.
static CUresult allow(const struct lgpu_block *b, uint64_t at, uint64_t bytes, uint32_t *version)
{
	const struct lgpu_owner *o = b->owner;
	CUmemAccessDesc access[LGPU_MAX_DEVICES + 1] = {{{CU_MEM_LOCATION_TYPE_DEVICE, o->ordinal}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
	lgpu_lock(&lgpu_arena_lock);
	size_t count = 1;
	for (uint32_t i = 0; i < o->peers; i++)
		access[count++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, o->peer[i].ordinal}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	for (int i = 0; o->pool != NULL && i < LGPU_ORDINALS && count <= LGPU_MAX_DEVICES; i++)
		if (o->access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE && i != o->ordinal)
			access[count++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, i}, (CUmemAccess_flags)o->access[i]};
	*version = o->version;
	lgpu_unlock(&lgpu_arena_lock);
	return LGPU_REAL(cuMemSetAccess)(at, bytes, access, count);
}

// back makes physical memory for a piece, and maps it where nobody may use it yet.
static CUresult back(struct lgpu_block *b, uint32_t i)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, b->owner->ordinal}};
	struct lgpu_piece *p = lgpu_piece(b, i);
	if (b->owner->pool == NULL)
		prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; // for legacy IPC
	CUresult r = LGPU_REAL(cuMemCreate)(&p->handle, lgpu_piece_bytes(b, i), &prop, 0);
	if (r != CUDA_SUCCESS)
		return r;
	r = LGPU_REAL(cuMemMap)(b->base + i * b->piece, lgpu_piece_bytes(b, i), 0, p->handle, 0);
	if (r != CUDA_SUCCESS)
		LGPU_REAL(cuMemRelease)(p->handle);
	return r;
}

static CUresult unback(struct lgpu_block *b, uint32_t i)
{
	CUresult r = LGPU_REAL(cuMemUnmap)(b->base + i * b->piece, lgpu_piece_bytes(b, i));
	return r == CUDA_SUCCESS ? LGPU_REAL(cuMemRelease)(lgpu_piece(b, i)->handle) : r;
}

// map gives a new block all of its memory.
static CUresult map(struct lgpu_block *b, uint32_t *version)
{
	CUresult r = CUDA_SUCCESS;
	uint32_t made = 0;
	while (made < b->pieces && (r = back(b, made)) == CUDA_SUCCESS)
		made++;
	if (r == CUDA_SUCCESS)
		r = allow(b, b->base, b->bytes, version);
	while (r != CUDA_SUCCESS && made > 0)
		unback(b, --made);
	return r;
}

CUresult lgpu_piece_map(struct lgpu_block *b, uint32_t i)
{
	uint32_t version;
	if (b->use == LGPU_USE_HANDLE)
		return lgpu_handle_map(b);
	CUresult r = back(b, i);
	if (r != CUDA_SUCCESS)
		return r;
	uint64_t at = b->base + i * b->piece;
	r = allow(b, at, lgpu_piece_bytes(b, i), &version);
	if (r != CUDA_SUCCESS) {
		unback(b, i);
		return r;
	}
	unsigned int on = 1;
	if (b->sync)
		LGPU_REAL(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
	return r;
}

CUresult lgpu_piece_unmap(struct lgpu_block *b, uint32_t i)
{
	return b->use == LGPU_USE_HANDLE ? lgpu_handle_unmap(b) : unback(b, i);
}

CUresult lgpu_block_view(struct lgpu_block *b) { return b->use == LGPU_USE_HANDLE ? lgpu_handle_view(b) : CUDA_SUCCESS; }

void lgpu_block_fix(struct lgpu_block *b)
{
	if (!b->fixed)
		lgpu_arena_has(b->owner->device, -(int64_t)b->bytes);
	b->fixed = true;
}

void lgpu_block_link(struct lgpu_block *b)
{
	struct lgpu_owner *o = b->owner;
	b->prev = NULL;
	b->next = o->blocks;
	if (b->next != NULL)
		b->next->prev = b;
	o->blocks = b;
}

void lgpu_block_unlink(struct lgpu_block *b)
{
	if (b->next != NULL)
		b->next->prev = b->prev;
	if (b->prev != NULL)
		b->prev->next = b->next;
	else
		b->owner->blocks = b->next;
}

// cut_up sets a block's pieces. False: there is no memory.
static bool cut_up(struct lgpu_block *b, enum lgpu_use use)
{
	uint32_t order = b->order < LGPU_PIECE_ORDER * 2 ? LGPU_PIECE_ORDER : b->order - LGPU_PIECE_ORDER;
	b->piece = LGPU_PAGE << order;
	if (use == LGPU_USE_HANDLE || b->piece >= b->bytes)
		b->piece = b->bytes;
	b->pieces = (uint32_t)((b->bytes + b->piece - 1) / b->piece);
	if (b->pieces > 1 && b->many == NULL)
		b->many = calloc(LGPU_PIECES, sizeof *b->many);
	for (uint32_t i = 0; i < b->pieces && (b->pieces == 1 || b->many != NULL); i++)
		*lgpu_piece(b, i) = (struct lgpu_piece){.out = false};
	return b->pieces == 1 || b->many != NULL;
}

struct lgpu_block *lgpu_block_new(struct lgpu_owner *o, uint64_t bytes, enum lgpu_use use, CUresult *r)
{
	struct lgpu_block *b = NULL;
	*r = CUDA_SUCCESS;
	while (b == NULL && *r == CUDA_SUCCESS) {
		lgpu_lock(&lgpu_arena_lock);
		b = lgpu_range_take(bytes);
		lgpu_unlock(&lgpu_arena_lock);
		if (b == NULL)
			*r = lgpu_range_more(bytes);
	}
	if (b == NULL)
		return NULL;
	b->owner = o;
	b->view = b->base;
	b->bytes = bytes;
	b->id = lgpu_arena_id();
	b->use = (uint8_t)use;
	b->program = NULL;
	b->fixed = b->sync = b->windowed = false;
	if (cut_up(b, use))
		return b;
	lgpu_block_drop(b);
	*r = CUDA_ERROR_OUT_OF_MEMORY;
	return NULL;
}

void lgpu_block_drop(struct lgpu_block *b)
{
	lgpu_store_forget(b);
	lgpu_lock(&lgpu_arena_lock);
	lgpu_range_give(b);
	lgpu_unlock(&lgpu_arena_lock);
}

// make makes a block of a context, which nobody finds yet.
static CUresult make(struct lgpu_owner *o, uint64_t bytes, struct lgpu_block **made, uint32_t *version)
{
	CUresult r;
	struct lgpu_block *b = lgpu_block_new(o, bytes, LGPU_USE_WHOLE, &r);
	if (b == NULL)
		return r;
	r = map(b, version);
	if (r != CUDA_SUCCESS) {
		lgpu_block_drop(b);
		return r;
	}
	lgpu_arena_has(o->device, (int64_t)bytes);
	*made = b;
	return CUDA_SUCCESS;
}

// publish lets a block be found. The caller has the lock. Peers that have come meanwhile get access.
static void publish(struct lgpu_block *b, uint32_t version)
{
	while (b->owner->version != version) {
		lgpu_unlock(&lgpu_arena_lock);
		allow(b, b->base, b->bytes, &version);
		lgpu_lock(&lgpu_arena_lock);
	}
	b->state = LGPU_BLOCK_LIVE;
	lgpu_block_link(b);
}

CUresult lgpu_block_unmake(struct lgpu_block *b)
{
	CUresult r = CUDA_SUCCESS;
	for (uint32_t i = 0; i < b->pieces && r == CUDA_SUCCESS; i++)
		r = lgpu_piece_unmap(b, i);
	if (!b->fixed)
		lgpu_arena_has(b->owner->device, -(int64_t)b->bytes);
	lgpu_block_drop(b);
	return r;
}

// ---- owners

// owner_of returns the context's, or NULL. The caller has the lock.
static struct lgpu_owner *owner_of(CUcontext context)
{
	struct lgpu_owner *o = lgpu_owners;
	while (o != NULL && (o->lasting || o->context != context))
		o = o->next;
	return o;
}

// owner_make returns the context's, and makes it if need be.
static struct lgpu_owner *owner_make(CUcontext context, int device)
{
	CUdevice ordinal;
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_owner *o = owner_of(context);
	if (o == NULL && LGPU_REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS && (o = lgpu_pages(sizeof *o)) != NULL) {
		o->context = context;
		o->ordinal = ordinal;
		o->device = device;
		o->next = lgpu_owners;
		lgpu_owners = o;
	}
	lgpu_unlock(&lgpu_arena_lock);
	return o;
}

// ---- allocating

static CUresult alloc_large(struct lgpu_owner *o, CUdeviceptr *at, uint64_t bytes)
{
	struct lgpu_block *b;
	uint32_t version;
	CUresult r = make(o, lgpu_taken(bytes), &b, &version);
	if (r != CUDA_SUCCESS)
		return r;
	b->requested = bytes;
	lgpu_lock(&lgpu_arena_lock);
	publish(b, version);
	lgpu_unlock(&lgpu_arena_lock);
	*at = b->base;
	return CUDA_SUCCESS;
}

CUresult lgpu_block_cut(struct lgpu_owner *o, uint64_t bytes, uint32_t grain, struct lgpu_bins *bins)
{
	struct lgpu_block *b;
	uint32_t version;
	CUresult r = make(o, bytes, &b, &version);
	if (r != CUDA_SUCCESS)
		return r;
	// The range keeps it: all chunks of a range have the same room.
	uint32_t room = b->order == 0 ? (uint32_t)(LGPU_PAGE / LGPU_UNIT) : UINT32_C(1) << b->order;
	if (b->chunk == NULL && (b->chunk = lgpu_pages(lgpu_chunk_bytes(room))) == NULL) {
		lgpu_block_unmake(b);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	b->use = LGPU_USE_UNITS;
	b->grain = grain;
	b->chunk->owner = b;
	lgpu_lock(&lgpu_arena_lock);
	publish(b, version);
	lgpu_chunk_add(bins, b->chunk, (uint32_t)(bytes / grain));
	o->empty++;
	lgpu_unlock(&lgpu_arena_lock);
	return CUDA_SUCCESS;
}

uint64_t lgpu_unit_address(const struct lgpu_unit *u)
{
	const struct lgpu_block *b = u->chunk->owner;
	return b->base + (uint64_t)lgpu_unit_index(u) * b->grain;
}

static CUresult alloc_small(struct lgpu_owner *o, CUdeviceptr *at, uint64_t bytes)
{
	uint32_t count = (uint32_t)(lgpu_taken(bytes) / LGPU_UNIT);
	for (;;) {
		lgpu_lock(&lgpu_arena_lock);
		struct lgpu_unit *u = lgpu_units_take(&o->bins, count);
		if (u != NULL) {
			o->empty -= u->chunk->taken == 1;
			u->bytes = bytes;
			u->id = lgpu_arena_id();
			*at = lgpu_unit_address(u);
		}
		lgpu_unlock(&lgpu_arena_lock);
		CUresult r = u == NULL ? lgpu_block_cut(o, LGPU_PAGE, LGPU_UNIT, &o->bins) : CUDA_SUCCESS;
		if (u != NULL || r != CUDA_SUCCESS)
			return r;
	}
}

CUresult lgpu_arena_alloc(struct lgpu_state *s, int device, CUcontext context, CUdeviceptr *at, size_t bytes)
{
	if (!lgpu_level_wait(s, device, lgpu_taken(bytes)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	lgpu_touch_begin();
	struct lgpu_owner *o = owner_make(context, device);
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	if (o != NULL)
		r = bytes > LGPU_SHARED_PAGE ? alloc_large(o, at, bytes) : alloc_small(o, at, bytes);
	lgpu_touch_end();
	return r;
}

CUresult lgpu_arena_pitch(struct lgpu_state *s, int device, CUcontext context, CUdeviceptr *at, size_t *pitch, size_t width,
			  size_t height, unsigned int element)
{
	if ((element != 4 && element != 8 && element != 16) || width > INT32_MAX || height > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	size_t row = lgpu_round_up(width, LGPU_UNIT);
	CUresult r = lgpu_arena_alloc(s, device, context, at, row * height);
	if (r == CUDA_SUCCESS)
		*pitch = row;
	return r;
}

// ---- contexts

void lgpu_owner_unequip(struct lgpu_owner *o)
{
	for (int lane = 0; lane < LGPU_LANES; lane++) {
		if (o->stream[lane] != NULL)
			LGPU_REAL(cuStreamDestroy_v2)(o->stream[lane]);
		o->stream[lane] = NULL;
		for (int i = 0; i < LGPU_INFLIGHT; i++) {
			if (o->event[i][lane] != NULL)
				LGPU_REAL(cuEventDestroy_v2)(o->event[i][lane]);
			o->event[i][lane] = NULL;
		}
	}
	CUcontext popped;
	if (o->hasher.module != NULL && LGPU_REAL(cuCtxPushCurrent_v2)(o->context) == CUDA_SUCCESS) {
		lgpu_clean_end(&o->hasher);
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	}
	o->hasher = (struct lgpu_hasher){.tried = 0};
	o->context = NULL;
}

void lgpu_arena_context_ends(CUcontext context)
{
	if (!lgpu_managed || context == NULL)
		return;
	lgpu_store_context_ends(context);
	lgpu_lock(&lgpu_arena_lock);
	for (struct lgpu_owner *o = lgpu_owners; o != NULL; o = o->next)
		if (o->lasting && o->context == context)
			lgpu_owner_unequip(o);
	lgpu_unlock(&lgpu_arena_lock);
}

// forget_peer takes a context out of an owner's peers. The caller has the lock.
static bool forget_peer(struct lgpu_owner *o, CUcontext context)
{
	for (uint32_t i = 0; i < o->peers; i++)
		if (o->peer[i].context == context) {
			o->peer[i] = o->peer[--o->peers];
			o->version++;
			return true;
		}
	return false;
}

void lgpu_arena_context_ended(CUcontext context)
{
	struct lgpu_owner **at, *o;
	if (!lgpu_managed || context == NULL)
		return;
	lgpu_arena_pools_context_ended(context);
	lgpu_arena_leave_context(context);
	lgpu_lock(&lgpu_arena_lock);
	for (at = &lgpu_owners; (o = *at) != NULL && (o->lasting || o->context != context); at = &o->next)
		;
	if (o != NULL)
		*at = o->next;
	for (struct lgpu_owner *other = lgpu_owners; other != NULL; other = other->next)
		forget_peer(other, context);
	for (struct lgpu_block *b = o != NULL ? o->blocks : NULL; b != NULL; b = b->next)
		b->state = LGPU_BLOCK_ENDING;
	if (o != NULL)
		lgpu_arena_unshare_all(o);
	lgpu_unlock(&lgpu_arena_lock);
	if (o == NULL)
		return;
	for (struct lgpu_block *b = o->late, *next; b != NULL; b = next) {
		next = b->prev;
		lgpu_block_unmake(b);
	}
	for (struct lgpu_block *b = o->blocks, *next; b != NULL; b = next) {
		next = b->next;
		lgpu_block_unmake(b);
	}
	lgpu_pages_free(o, sizeof *o);
}

CUresult lgpu_owner_grant(struct lgpu_owner *o, CUdevice ordinal, CUmemAccess_flags flags)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, ordinal}, flags};
	CUresult r = CUDA_SUCCESS;
	for (struct lgpu_block *b = o->blocks; b != NULL && r == CUDA_SUCCESS; b = b->next)
		if (b->state == LGPU_BLOCK_LIVE)
			r = LGPU_REAL(cuMemSetAccess)(b->base, b->bytes, &access, 1);
	return r;
}

CUresult lgpu_arena_peer(CUcontext other, bool enable)
{
	CUcontext context;
	CUdevice ordinal, theirs;
	struct lgpu_state *s = lgpu_attached();
	if (!lgpu_managed || LGPU_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || LGPU_REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	CUcontext popped;
	if (LGPU_REAL(cuCtxPushCurrent_v2)(other) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	int device = LGPU_REAL(cuCtxGetDevice)(&theirs) == CUDA_SUCCESS ? lgpu_limits_index(theirs) : -1;
	struct lgpu_owner *o = lgpu_arena_wants(s, device) ? owner_make(other, device) : NULL;
	LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	if (o == NULL)
		return CUDA_SUCCESS;
	CUresult r = CUDA_SUCCESS;
	lgpu_lock(&lgpu_arena_lock);
	if (enable && o->peers < LGPU_MAX_DEVICES) {
		r = lgpu_owner_grant(o, ordinal, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		if (r == CUDA_SUCCESS) {
			o->peer[o->peers].context = context;
			o->peer[o->peers++].ordinal = ordinal;
			o->version++;
		}
	} else if (!enable && forget_peer(o, context)) {
		bool another = false; // context of the same device
		for (uint32_t i = 0; i < o->peers; i++)
			another |= o->peer[i].ordinal == ordinal;
		r = another ? CUDA_SUCCESS : lgpu_owner_grant(o, ordinal, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	}
	lgpu_unlock(&lgpu_arena_lock);
	return r;
}

// ---- what there is

bool lgpu_arena_find(CUdeviceptr at, struct lgpu_arena_place *place)
{
	if (__atomic_load_n(&lgpu_owners, __ATOMIC_RELAXED) == NULL)
		return false;
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_block *b = lgpu_range_find(at);
	*place = (struct lgpu_arena_place){.live = false};
	if (b != NULL && b->state == LGPU_BLOCK_LIVE && b->use != LGPU_USE_HANDLE && at < b->base + b->bytes) {
		*place = (struct lgpu_arena_place){.base = b->base, .bytes = b->requested, .id = b->id, .mapping = b->base,
						   .mapped = b->bytes, .block = b->id, .context = b->owner->context,
						   .ordinal = b->owner->ordinal, .sync = b->sync, .shareable = true};
		struct lgpu_unit *u = b->use == LGPU_USE_UNITS ? lgpu_units_find(b->chunk, (uint32_t)((at - b->base) / b->grain)) : NULL;
		if (u != NULL) {
			place->base = lgpu_unit_address(u);
			place->bytes = u->bytes;
			place->id = u->id;
		}
		if (b->owner->pool != NULL)
			lgpu_pool_place(b->owner, place);
		place->live = (b->use == LGPU_USE_WHOLE || u != NULL) && at < place->base + place->bytes;
	}
	lgpu_unlock(&lgpu_arena_lock);
	return b != NULL;
}

CUresult lgpu_arena_set_sync(CUdeviceptr at, unsigned int on)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	lgpu_touch_begin();
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_block *b = lgpu_range_find(at);
	if (b != NULL && b->state == LGPU_BLOCK_LIVE && b->use != LGPU_USE_HANDLE) {
		r = CUDA_SUCCESS;
		for (uint32_t i = 0; i < b->pieces && r == CUDA_SUCCESS; i++)
			r = LGPU_REAL(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, b->base + i * b->piece);
		if (r == CUDA_SUCCESS)
			b->sync = on != 0;
	}
	lgpu_unlock(&lgpu_arena_lock);
	lgpu_touch_end();
	return r;
}

void lgpu_arena_reset(void)
{
	lgpu_arena_lock = 0;
	lgpu_owners = NULL;
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++)
		amounts[i].bytes = amounts[i].out = 0;
	lgpu_handles_forget();
	lgpu_arena_pools_forget();
	lgpu_arena_frees_forget();
	lgpu_arena_shares_forget();
	lgpu_ranges_reset();
	lgpu_levels_reset();
	lgpu_stores_reset();
	lgpu_mover_reset();
}
