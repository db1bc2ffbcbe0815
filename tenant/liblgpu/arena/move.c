// SPDX-License-Identifier: Apache-2.0

// Moving memory, while the residence lock is shut: pieces leave, largest blocks first, until a level holds, or come back as
// far as a level has room. Some are on their way at once. A newer Keep is heard between two of them; what is on its way
// then is waited for, and nothing more is begun, unless more is to come back than was.
#include <stdlib.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

#define INFLIGHT_BYTES (UINT64_C(256) << 20) // that move at once, beside one piece
#define LOOK_BYTES (UINT64_C(512) << 20)     // that are looked at together before they leave, beside one piece

// The pieces of a device that are on it, or away.
struct list {
	struct lgpu_part *part;
	size_t count;
};

static uint64_t bytes_of(struct lgpu_part p) { return lgpu_piece_bytes(p.block, p.piece); }

static int larger(const void *a, const void *b)
{
	const struct lgpu_part *x = a, *y = b;
	if (x->block->bytes != y->block->bytes)
		return x->block->bytes < y->block->bytes ? 1 : -1;
	if (x->block != y->block)
		return x->block->base < y->block->base ? -1 : 1;
	return x->piece < y->piece ? -1 : x->piece > y->piece;
}

// refused is why a Keep is not met: the driver's error.
static uint64_t refused(CUresult r) { return LGPU_LINK_WHY_DRIVER | (uint64_t)r << LGPU_LINK_WHY_BITS; }

// visit adds the pieces that are on a device, or away, to a list, or only counts them.
static void visit(struct list *l, int device, bool out)
{
	for (struct lgpu_owner *o = lgpu_owners; o != NULL; o = o->next)
		for (struct lgpu_block *b = o->blocks; b != NULL; b = b->next)
			for (uint32_t i = 0; o->device == device && !b->fixed && i < b->pieces; i++)
				if (lgpu_piece(b, i)->out == out) {
					if (l->part != NULL)
						l->part[l->count] = (struct lgpu_part){b, i};
					l->count++;
				}
}

// list_read reads them. The lock is shut, so none comes or goes. False: there is no memory.
static bool list_read(struct list *l, int device, bool out)
{
	*l = (struct list){NULL, 0};
	visit(l, device, out);
	if (l->count == 0)
		return true;
	l->part = malloc(l->count * sizeof *l->part);
	if (l->part == NULL)
		return false;
	l->count = 0;
	visit(l, device, out);
	qsort(l->part, l->count, sizeof *l->part, larger);
	return true;
}

// equip makes a context current, and makes the streams and the events in it. What belongs to no context is copied in any
// of the device.
static CUresult equip(struct lgpu_owner *o)
{
	if (o->context == NULL)
		o->context = lgpu_residence_context_of(o->ordinal);
	if (o->context == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	CUresult r = LGPU_REAL(cuCtxSetCurrent)(o->context);
	for (int i = 0; i < LGPU_LANES * LGPU_INFLIGHT && r == CUDA_SUCCESS; i++) {
		CUevent *e = &o->event[i / LGPU_LANES][i % LGPU_LANES];
		if (*e == NULL)
			r = LGPU_REAL(cuEventCreate)(e, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
	}
	for (int i = 0; i < LGPU_LANES && r == CUDA_SUCCESS; i++)
		if (o->stream[i] == NULL)
			r = LGPU_REAL(cuStreamCreate)(&o->stream[i], CU_STREAM_NON_BLOCKING);
	return r;
}

// Pieces on their way, oldest first.
struct flight {
	struct lgpu_part part[LGPU_INFLIGHT];
	uint32_t first, count;
	uint64_t bytes;
	uint64_t copied; // of those that have left; the rest was clean
};

static bool full(const struct flight *f) { return f->count == LGPU_INFLIGHT || (f->count > 1 && f->bytes > INFLIGHT_BYTES); }

// start begins to copy a piece to the store, or from it if back; the context of its owner is current. It is on its way even
// if it fails: its first copies must have ended before anybody goes on.
static CUresult start(struct flight *f, struct lgpu_part p, bool back)
{
	struct lgpu_owner *o = p.block->owner;
	uint32_t i = (f->first + f->count) % LGPU_INFLIGHT;
	CUresult r = lgpu_store_copy(p.block, p.piece, back);
	for (int lane = 0; lane < LGPU_LANES; lane++) {
		CUresult one = LGPU_REAL(cuEventRecord)(o->event[i][lane], o->stream[lane]);
		r = r != CUDA_SUCCESS ? r : one;
	}
	f->part[i] = p;
	f->count++;
	f->bytes += bytes_of(p);
	return r;
}

// land waits for the oldest, which it returns.
static struct lgpu_part land(struct flight *f, CUresult *r)
{
	uint32_t i = f->first++ % LGPU_INFLIGHT;
	struct lgpu_part p = f->part[i];
	f->count--;
	f->bytes -= bytes_of(p);
	*r = CUDA_SUCCESS;
	for (int lane = 0; lane < LGPU_LANES; lane++) {
		CUresult one = LGPU_REAL(cuEventSynchronize)(p.block->owner->event[i][lane]);
		*r = *r != CUDA_SUCCESS ? *r : one;
	}
	return p;
}

// ---- out

// count counts what has left, and what of it was not copied.
static void count(const struct lgpu_state *s, int device, uint64_t bytes, uint64_t clean)
{
	struct lgpu_device_usage *u = &s->usage->device[device];
	__atomic_fetch_add(&u->evicted, bytes, __ATOMIC_RELAXED);
	__atomic_fetch_add(&u->clean, clean, __ATOMIC_RELAXED);
}

// leave ends the oldest: once it is copied, its memory is given back. With keep it stays.
static CUresult leave(const struct lgpu_state *s, struct flight *f, bool keep)
{
	CUresult r;
	struct lgpu_part p = land(f, &r);
	if (r != CUDA_SUCCESS || keep)
		return r;
	uint64_t clean = lgpu_store_copied(p.block, p.piece);
	r = lgpu_piece_unmap(p.block, p.piece);
	if (r == CUDA_SUCCESS) {
		int device = p.block->owner->device;
		lgpu_piece(p.block, p.piece)->out = true;
		lgpu_arena_moved(device, (int64_t)bytes_of(p));
		count(s, device, bytes_of(p), clean);
		f->copied += bytes_of(p) - clean;
	}
	return r;
}

// place finds room in the store for a piece that is to leave, if need be that of copies of others that stay.
static bool place(const struct list *l, size_t i)
{
	bool placed = lgpu_store_place(l->part[i].block, l->part[i].piece);
	for (size_t last = l->count - 1; !placed && last > i; last--) {
		lgpu_store_unplace(l->part[last].block, l->part[last].piece);
		placed = lgpu_store_place(l->part[i].block, l->part[i].piece);
	}
	return placed;
}

// look finds room for pieces from one on, of as many bytes as are to leave, and finds out which of their pages need not be
// copied. They are one owner's, and not too many. It returns how many there are.
static size_t look(const struct list *l, size_t from, uint64_t bytes, CUresult *r)
{
	struct lgpu_owner *o = l->part[from].block->owner;
	size_t i = from;
	*r = equip(o);
	for (uint64_t sum = 0; i < l->count && l->part[i].block->owner == o && (i == from || (sum < bytes && sum < LOOK_BYTES)); i++) {
		if (*r != CUDA_SUCCESS || !place(l, i))
			break;
		*r = lgpu_block_view(l->part[i].block);
		sum += bytes_of(l->part[i]);
	}
	if (*r == CUDA_SUCCESS)
		lgpu_clean_look(o, &l->part[from], i - from);
	return i - from;
}

// tell tells the daemon how far a move out has come.
static void tell(const struct lgpu_state *s, int device, uint64_t *told)
{
	uint64_t resident = lgpu_level_resident(s, device);
	if (lgpu_level_moving(s, device, lgpu_mover_keep(device)))
		*told = resident;
}

// send has pieces leave until the level holds. Not 0: why they cannot.
static uint64_t send(const struct lgpu_state *s, int device, const struct list *list, struct flight *f, uint64_t *told,
		     CUresult *r)
{
	size_t looked = 0;
	for (size_t i = 0; i < list->count && *r == CUDA_SUCCESS && !lgpu_mover_newer(); i++) {
		uint64_t excess = lgpu_level_excess(s, device);
		if (excess <= f->bytes)
			break;
		if (i == looked) {
			looked += look(list, i, excess - f->bytes, r);
			if (looked == i)
				return *r == CUDA_SUCCESS ? LGPU_LINK_WHY_STORE : 0;
		}
		if (*r == CUDA_SUCCESS)
			*r = equip(list->part[i].block->owner);
		if (*r == CUDA_SUCCESS)
			*r = start(f, list->part[i], false);
		while (*r == CUDA_SUCCESS && full(f)) {
			*r = leave(s, f, false);
			tell(s, device, told);
		}
	}
	return 0;
}

// prepare has what finds out which pages need not be copied in the contexts of all owners. The memory that this takes
// counts.
static void prepare(const struct lgpu_state *s, int device, const struct list *l)
{
	bool loaded = false;
	lgpu_clean_begins(device, lgpu_level_excess(s, device));
	for (size_t i = 0; i < l->count; i++) {
		struct lgpu_owner *o = l->part[i].block->owner;
		if ((i == 0 || o != l->part[i - 1].block->owner) && equip(o) == CUDA_SUCCESS)
			loaded = lgpu_clean_load(o) || loaded;
	}
	if (loaded)
		lgpu_overhead_now(lgpu_attached(), device);
}

uint64_t lgpu_move_out(const struct lgpu_state *s, int device, uint64_t *told)
{
	struct list list;
	struct flight f = {.count = 0};
	CUresult r = CUDA_SUCCESS;
	if (!list_read(&list, device, false))
		return refused(CUDA_ERROR_OUT_OF_MEMORY);
	prepare(s, device, &list);
	int64_t began = lgpu_now();
	lgpu_overhead_moving(device);
	uint64_t why = send(s, device, &list, &f, told, &r);
	while (f.count != 0) {
		CUresult last = leave(s, &f, r != CUDA_SUCCESS);
		r = r != CUDA_SUCCESS ? r : last;
		if (f.count != 0)
			tell(s, device, told);
	}
	lgpu_clean_ended(device, f.copied, lgpu_now() - began);
	lgpu_overhead_moving(device);
	free(list.part);
	if (r == CUDA_SUCCESS)
		return why;
	lgpu_log(LGPU_LOG_WARN, "memory could not leave device %d: error %d; it stays there", device, (int)r);
	return r == CUDA_ERROR_OPERATING_SYSTEM ? LGPU_LINK_WHY_STORE : refused(r);
}

// ---- in

// arrive waits until the oldest is copied.
static CUresult arrive(struct flight *f)
{
	CUresult r;
	struct lgpu_part p = land(f, &r);
	if (r == CUDA_SUCCESS)
		lgpu_piece(p.block, p.piece)->fresh = lgpu_mover_shutting();
	return r;
}

// fetch makes memory for a piece and begins to copy it back. *copied is what has become of the copies of all until now. The
// result is that of the memory alone.
static CUresult fetch(struct flight *f, struct lgpu_part p, CUresult *copied)
{
	CUresult r = lgpu_piece_map(p.block, p.piece);
	if (r != CUDA_SUCCESS)
		return r;
	lgpu_piece(p.block, p.piece)->out = false;
	lgpu_arena_moved(p.block->owner->device, -(int64_t)bytes_of(p));
	if (*copied == CUDA_SUCCESS)
		*copied = equip(p.block->owner);
	if (*copied == CUDA_SUCCESS)
		*copied = lgpu_block_view(p.block);
	if (*copied == CUDA_SUCCESS)
		*copied = start(f, p, true);
	return r;
}

// next is the index of the first piece from one on that is away and for which a level has room, or the list's count.
static size_t next(const struct list *l, size_t from, uint64_t resident, uint64_t level)
{
	uint64_t room = level > resident ? level - resident : 0;
	while (from < l->count && (!lgpu_piece(l->part[from].block, l->part[from].piece)->out || bytes_of(l->part[from]) > room))
		from++;
	return from;
}

uint64_t lgpu_move_in(const struct lgpu_state *s, int device, uint64_t level, bool rises)
{
	struct list list;
	struct flight f = {.count = 0};
	CUresult r = CUDA_SUCCESS, copied = CUDA_SUCCESS;
	if (!list_read(&list, device, true))
		return refused(CUDA_ERROR_OUT_OF_MEMORY);
	lgpu_overhead_moving(device);
	for (size_t i = 0; r == CUDA_SUCCESS;) {
		if (rises && lgpu_mover_raised(device, &level))
			i = 0; // what had no room may have some now
		if (lgpu_mover_newer())
			break;
		i = next(&list, i, lgpu_level_resident(s, device), level);
		bool lands = i == list.count && f.count != 0; // else a raise would find the link idle
		if (i < list.count)
			r = fetch(&f, list.part[i], &copied);
		else if (!lands)
			break;
		for (; lands || full(&f); lands = false) {
			CUresult one = arrive(&f);
			copied = copied != CUDA_SUCCESS ? copied : one;
			lgpu_level_moving(s, device, lgpu_mover_keep(device));
		}
	}
	while (f.count != 0) {
		CUresult one = arrive(&f);
		copied = copied != CUDA_SUCCESS ? copied : one;
	}
	lgpu_overhead_moving(device);
	free(list.part);
	// A context in which copies fail is broken, and every call of the program in it fails from now on. The driver of a
	// program that ends copies nothing.
	if (copied != CUDA_SUCCESS && copied != CUDA_ERROR_DEINITIALIZED)
		lgpu_log(LGPU_LOG_ERROR, "memory could not be brought back to device %d: error %d; its content is lost", device, (int)copied);
	if (r != CUDA_SUCCESS)
		lgpu_log(LGPU_LOG_WARN, "device %d has no room yet for memory that comes back: error %d", device, (int)r);
	if (lgpu_arena_bytes(device) == lgpu_arena_resident(device))
		lgpu_store_rest(device);
	return r == CUDA_SUCCESS ? 0 : refused(r);
}
