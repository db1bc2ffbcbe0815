// SPDX-License-Identifier: Apache-2.0

// Freeing what cuMemAlloc has given: once the work of its context is done, or once a stream has reached the free.
#include <stdlib.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

CUresult lgpu_arena_drain(CUcontext context)
{
	CUcontext current = NULL;
	LGPU_REAL(cuCtxGetCurrent)(&current);
	if (current == context)
		return LGPU_REAL(cuCtxSynchronize)();
	CUresult r = LGPU_REAL(cuCtxPushCurrent_v2)(context);
	if (r != CUDA_SUCCESS)
		return r;
	r = LGPU_REAL(cuCtxSynchronize)();
	LGPU_REAL(cuCtxPopCurrent_v2)(&current);
	return r;
}

// drained waits for all work that may use an owner's memory.
static CUresult drained(struct lgpu_owner *o)
{
	CUcontext contexts[LGPU_MAX_DEVICES];
	lgpu_lock(&lgpu_arena_lock);
	uint32_t count = o->peers;
	for (uint32_t i = 0; i < count; i++)
		contexts[i] = o->peer[i].context;
	lgpu_unlock(&lgpu_arena_lock);
	CUresult r = lgpu_arena_drain(o->context);
	for (uint32_t i = 0; i < count && r == CUDA_SUCCESS; i++)
		r = lgpu_arena_drain(contexts[i]);
	return r;
}

// relaxed reports whether this thread may make calls that a capture elsewhere forbids.
static bool relaxed(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode) != CUDA_SUCCESS)
		return false;
	CUstreamCaptureMode mine = mode;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return mine == CU_STREAM_CAPTURE_MODE_RELAXED;
}

// end_unit gives a small allocation back, and the chunk with it if it is another one without any. The caller has the
// lock, and what is returned is to be unmade without it.
static struct lgpu_block *end_unit(struct lgpu_owner *o, struct lgpu_unit *u)
{
	struct lgpu_chunk *c = u->chunk;
	struct lgpu_block *b = c->owner;
	lgpu_units_give(&o->bins, u);
	if (c->taken != 0 || o->empty++ == 0)
		return NULL;
	lgpu_chunk_remove(&o->bins, c);
	o->empty--;
	b->state = LGPU_BLOCK_ENDING;
	lgpu_block_unlink(b);
	return b;
}

// end_late ends what could not be when it was freed. The work of the owner's contexts is done.
static void end_late(struct lgpu_owner *o)
{
	struct lgpu_block *b, *next;
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_block *blocks = o->late;
	o->late = NULL;
	for (struct lgpu_unit *u = o->late_units, *after; u != NULL; u = after) {
		after = u->next;
		if ((b = end_unit(o, u)) != NULL) {
			b->prev = blocks;
			blocks = b;
		}
	}
	o->late_units = NULL;
	lgpu_unlock(&lgpu_arena_lock);
	for (b = blocks; b != NULL; b = next) {
		next = b->prev;
		lgpu_block_unmake(b);
	}
}

// A free under way: one of the two is not NULL.
struct ending {
	struct lgpu_block *block;
	struct lgpu_unit *unit;
	struct lgpu_owner *owner;
};

// find_end finds what begins at an address, and hides it. False: nothing does.
static bool find_end(CUdeviceptr at, struct ending *e, bool *ours)
{
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_block *b = lgpu_range_find(at);
	*ours = b != NULL && (b->owner == NULL || b->owner->pool == NULL);
	b = *ours ? b : NULL; // pools free their own
	*e = (struct ending){.owner = b != NULL ? b->owner : NULL};
	if (b != NULL && b->state == LGPU_BLOCK_LIVE && b->use == LGPU_USE_UNITS && at < b->base + b->bytes) {
		struct lgpu_unit *u = lgpu_units_find(b->chunk, (uint32_t)((at - b->base) / b->grain));
		if (u != NULL && lgpu_unit_address(u) == at) {
			u->dead = true;
			e->unit = u;
		}
	} else if (b != NULL && b->state == LGPU_BLOCK_LIVE && b->use == LGPU_USE_WHOLE && at == b->base) {
		b->state = LGPU_BLOCK_ENDING;
		e->block = b;
	}
	lgpu_unlock(&lgpu_arena_lock);
	return e->block != NULL || e->unit != NULL;
}

// undo shows it again, as the driver refuses; later has it end with the next free.
static void undo(struct ending *e)
{
	lgpu_lock(&lgpu_arena_lock);
	if (e->unit != NULL)
		e->unit->dead = false;
	else
		e->block->state = LGPU_BLOCK_LIVE;
	lgpu_unlock(&lgpu_arena_lock);
}

static void later(struct ending *e)
{
	lgpu_lock(&lgpu_arena_lock);
	lgpu_arena_unshare(e->unit != NULL ? e->unit->id : e->block->id);
	if (e->unit != NULL) {
		e->unit->next = e->owner->late_units;
		e->owner->late_units = e->unit;
	} else {
		lgpu_block_unlink(e->block);
		e->block->prev = e->owner->late;
		e->owner->late = e->block;
	}
	lgpu_unlock(&lgpu_arena_lock);
}

// finish ends what nothing uses any more.
static CUresult finish(struct ending *e)
{
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_block *b = e->block;
	lgpu_arena_unshare(b != NULL ? b->id : e->unit->id);
	if (b != NULL)
		lgpu_block_unlink(b);
	else
		b = end_unit(e->owner, e->unit);
	lgpu_unlock(&lgpu_arena_lock);
	return b != NULL ? lgpu_block_unmake(b) : CUDA_SUCCESS;
}

static CUresult end(struct ending *e)
{
	struct lgpu_owner *o = e->owner;
	CUresult r = drained(o);
	if (r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && relaxed()) {
		later(e);
		return CUDA_SUCCESS;
	}
	if (r != CUDA_SUCCESS) {
		undo(e);
		return r;
	}
	if (__atomic_load_n(&o->late, __ATOMIC_ACQUIRE) != NULL || __atomic_load_n(&o->late_units, __ATOMIC_ACQUIRE) != NULL)
		end_late(o);
	return finish(e);
}

CUresult lgpu_arena_free(CUdeviceptr at, bool *ours)
{
	struct ending e;
	*ours = false;
	if (!lgpu_arena_own(__atomic_load_n(&lgpu_owners, __ATOMIC_RELAXED)))
		return CUDA_ERROR_INVALID_VALUE;
	lgpu_touch_begin();
	CUresult r = find_end(at, &e, ours) ? end(&e) : CUDA_ERROR_INVALID_VALUE;
	lgpu_touch_end();
	return r;
}

// ---- in the order of a stream

// A free that a stream has not reached yet.
static struct departing {
	struct departing *next;
	struct lgpu_freeing freeing; // its charge
	struct ending end;
	struct lgpu_mark *mark;
	CUcontext context; // of the stream
} *departing;

void lgpu_arena_frees_forget(void) { departing = NULL; }

// mark puts a mark into a stream. NULL: *r says why not.
static struct lgpu_mark *mark_in(CUstream stream, CUcontext *context, CUresult *r)
{
	struct lgpu_stream_key key;
	*r = lgpu_stream_key(stream, &key);
	*context = key.context;
	if (*r != CUDA_SUCCESS)
		return NULL;
	struct lgpu_mark *m = lgpu_mark_make(key.context);
	*r = m != NULL ? lgpu_mark_record(m, stream) : CUDA_ERROR_OUT_OF_MEMORY;
	if (m != NULL && *r != CUDA_SUCCESS) {
		lgpu_mark_end(m, true);
		m = NULL;
	}
	return m;
}

CUresult lgpu_arena_free_ordered(const struct lgpu_freeing *f, CUdeviceptr at, CUstream stream, bool *ours)
{
	struct ending e;
	*ours = false;
	if (!lgpu_arena_own(__atomic_load_n(&lgpu_owners, __ATOMIC_RELAXED)))
		return CUDA_ERROR_INVALID_VALUE;
	lgpu_touch_begin();
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct departing *d = find_end(at, &e, ours) ? calloc(1, sizeof *d) : NULL;
	if (d != NULL) {
		*d = (struct departing){.freeing = *f, .end = e};
		d->mark = mark_in(stream, &d->context, &r);
	} else if (*ours && (e.block != NULL || e.unit != NULL)) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (d != NULL && d->mark != NULL) {
		lgpu_lock(&lgpu_arena_lock);
		d->next = departing;
		__atomic_store_n(&departing, d, __ATOMIC_RELEASE);
		lgpu_unlock(&lgpu_arena_lock);
	} else if (*ours) {
		if (e.block != NULL || e.unit != NULL)
			undo(&e);
		free(d);
		lgpu_free_end(f, r);
	}
	lgpu_touch_end();
	return r;
}

// next_passed takes one out of the list that its stream has reached, or NULL. Of those of a context that has ended, all
// have been reached.
static struct departing *next_passed(CUcontext ended)
{
	lgpu_lock(&lgpu_arena_lock);
	struct departing **link = &departing, *d;
	while ((d = *link) != NULL) {
		bool passed = ended != NULL ? d->context == ended || d->end.owner->context == ended : lgpu_mark_passed(d->mark);
		if (passed)
			break;
		link = &d->next;
	}
	if (d != NULL)
		*link = d->next;
	lgpu_unlock(&lgpu_arena_lock);
	return d;
}

void lgpu_arena_leave(void)
{
	struct departing *d;
	if (!lgpu_arena_own(__atomic_load_n(&departing, __ATOMIC_RELAXED)) || !lgpu_touch_try())
		return;
	// A capture that this thread has under way must not be spoilt by a question.
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	while ((d = next_passed(NULL)) != NULL) {
		lgpu_mark_end(d->mark, true);
		finish(&d->end);
		lgpu_free_end(&d->freeing, CUDA_SUCCESS);
		free(d);
	}
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	lgpu_touch_end();
}

// What belongs to the context itself ends with it.
void lgpu_arena_leave_context(CUcontext context)
{
	struct departing *d;
	while (__atomic_load_n(&departing, __ATOMIC_ACQUIRE) != NULL && (d = next_passed(context)) != NULL) {
		lgpu_mark_end(d->mark, d->context != context);
		if (d->end.owner->context != context)
			finish(&d->end);
		lgpu_free_end(&d->freeing, CUDA_SUCCESS);
		free(d);
	}
}
