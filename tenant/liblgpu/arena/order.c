// SPDX-License-Identifier: Apache-2.0

// Memory that was freed in the order of a stream: a queue for each stream of a pool.
//
// After each free an event is recorded on its stream, by the thread that frees: only it knows that the stream is not
// captured. Until the event has happened, work of that stream alone may be given the memory, since it comes after the
// free. An event has happened for good once the program has waited for the stream, or for its context.
//
// Streams are told apart by the numbers that the driver gives them, which it never gives twice. So what a stream that is
// gone has freed is never another one's.
#include <stdlib.h>

#include "arena/parts.h"
#include "base/futex.h"

// What lies behind a free in its stream. Parts of what was freed share it.
struct lgpu_mark {
	struct lgpu_mark *next;
	CUevent event;
	uint32_t uses;
};

// A run that was freed.
struct parked {
	struct parked *next, *prev;    // of the queue
	struct parked *after, *before; // of the bin
	struct lgpu_freed freed;
};

struct lgpu_queue {
	struct lgpu_queue *next;
	struct lgpu_stream_key key;
	bool ended; // the stream is no more
	int pins;   // who uses it without the lock
	struct parked *oldest, *newest;
	struct lgpu_mark *spare;
	struct {
		uint64_t filled;
		struct parked *first[LGPU_BINS];
	} bins[2]; // of units, and of pages
};

static struct parked *spare_parked;
static uint32_t parked_count; // in all queues

bool lgpu_arena_parked(void) { return __atomic_load_n(&parked_count, __ATOMIC_RELAXED) != 0; }
void lgpu_queues_forget(void) { parked_count = 0; }

CUresult lgpu_stream_key(CUstream stream, struct lgpu_stream_key *key)
{
	unsigned long long id = 0;
	CUresult r = LGPU_REAL(cuStreamGetCtx)(stream, &key->context);
	if (r == CUDA_SUCCESS)
		r = LGPU_REAL(cuStreamGetId)(stream, &id);
	key->id = id;
	return r;
}

struct lgpu_queue *lgpu_queue_find(struct lgpu_queue *list, const struct lgpu_stream_key *key)
{
	while (list != NULL && (list->key.id != key->id || list->key.context != key->context))
		list = list->next;
	return list;
}

struct lgpu_queue *lgpu_queue_make(struct lgpu_queue **list, const struct lgpu_stream_key *key)
{
	struct lgpu_queue *q = lgpu_queue_find(*list, key);
	if (q == NULL && (q = calloc(1, sizeof *q)) != NULL) {
		q->key = *key;
		q->next = *list;
		*list = q;
	}
	return q;
}

// ---- marks

struct lgpu_mark *lgpu_mark_spare(struct lgpu_queue *q)
{
	struct lgpu_mark *m = q->spare;
	if (m != NULL)
		q->spare = m->next;
	return m;
}

struct lgpu_mark *lgpu_mark_make(CUcontext context)
{
	CUcontext popped;
	struct lgpu_mark *m = calloc(1, sizeof *m);
	if (m == NULL || LGPU_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) {
		free(m);
		return NULL;
	}
	bool made = LGPU_REAL(cuEventCreate)(&m->event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
	LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	if (!made) {
		free(m);
		return NULL;
	}
	return m;
}

CUresult lgpu_mark_record(struct lgpu_mark *m, CUstream stream) { return LGPU_REAL(cuEventRecord)(m->event, stream); }

CUresult lgpu_mark_follow(const struct lgpu_mark *m, CUstream stream) { return LGPU_REAL(cuStreamWaitEvent)(stream, m->event, 0); }

// Of a context that is beyond repair nothing passes any more: its memory comes back when it ends.
bool lgpu_mark_passed(const struct lgpu_mark *m) { return LGPU_REAL(cuEventQuery)(m->event) == CUDA_SUCCESS; }

void lgpu_mark_drop(struct lgpu_queue *q, struct lgpu_mark *m)
{
	if (m->uses != 0 && --m->uses != 0)
		return;
	m->next = q->spare;
	q->spare = m;
}

void lgpu_mark_end(struct lgpu_mark *m, bool context_lives)
{
	if (context_lives)
		LGPU_REAL(cuEventDestroy_v2)(m->event);
	free(m);
}

// ---- what is parked

static int grain_index(const struct lgpu_unit *u)
{
	const struct lgpu_block *b = u->chunk->owner;
	return b->grain == LGPU_UNIT ? 0 : 1;
}

static void bin_add(struct lgpu_queue *q, struct parked *k)
{
	uint32_t bin = lgpu_units_bin(k->freed.unit->size);
	int grain = grain_index(k->freed.unit);
	struct parked **first = &q->bins[grain].first[bin];
	k->before = NULL;
	k->after = *first;
	if (k->after != NULL)
		k->after->before = k;
	*first = k;
	q->bins[grain].filled |= UINT64_C(1) << bin;
}

static void bin_remove(struct lgpu_queue *q, struct parked *k)
{
	uint32_t bin = lgpu_units_bin(k->freed.unit->size);
	int grain = grain_index(k->freed.unit);
	if (k->after != NULL)
		k->after->before = k->before;
	if (k->before != NULL)
		k->before->after = k->after;
	else
		q->bins[grain].first[bin] = k->after;
	if (q->bins[grain].first[bin] == NULL)
		q->bins[grain].filled &= ~(UINT64_C(1) << bin);
}

static struct parked *parked_make(void)
{
	struct parked *k = spare_parked;
	if (k != NULL)
		spare_parked = k->next;
	else
		k = calloc(1, sizeof *k);
	return k;
}

// insert puts a run into the queue behind another one; NULL: as the oldest.
static void insert(struct lgpu_queue *q, struct parked *k, struct parked *behind)
{
	k->prev = behind;
	k->next = behind != NULL ? behind->next : q->oldest;
	*(k->prev != NULL ? &k->prev->next : &q->oldest) = k;
	*(k->next != NULL ? &k->next->prev : &q->newest) = k;
	k->freed.mark->uses++;
	__atomic_fetch_add(&parked_count, 1, __ATOMIC_RELAXED);
	bin_add(q, k);
}

static void removed(struct lgpu_queue *q, struct parked *k)
{
	bin_remove(q, k);
	*(k->prev != NULL ? &k->prev->next : &q->oldest) = k->next;
	*(k->next != NULL ? &k->next->prev : &q->newest) = k->prev;
	k->next = spare_parked;
	spare_parked = k;
	__atomic_fetch_sub(&parked_count, 1, __ATOMIC_RELAXED);
}

bool lgpu_queue_add(struct lgpu_queue *q, const struct lgpu_freed *f)
{
	struct parked *k = parked_make();
	if (k == NULL)
		return false;
	k->freed = *f;
	insert(q, k, q->newest);
	return true;
}

// fit returns a run of at least count units, of the frees up to a number. In each bin only some are looked at.
static struct parked *fit(const struct lgpu_queue *q, int grain, uint32_t count, uint64_t until)
{
	uint64_t filled = q->bins[grain].filled & ~UINT64_C(0) << lgpu_units_bin(count);
	for (; filled != 0; filled &= filled - 1) {
		struct parked *k = q->bins[grain].first[__builtin_ctzll(filled)];
		for (int i = 0; i < 8 && k != NULL; i++, k = k->after)
			if (k->freed.unit->size >= count && k->freed.number <= until)
				return k;
	}
	return NULL;
}

bool lgpu_queue_take(struct lgpu_queue *q, bool pages, uint32_t count, uint64_t until, struct lgpu_freed *f)
{
	struct parked *k = fit(q, pages, count, until), *rest = k != NULL && k->freed.unit->size > count ? parked_make() : NULL;
	if (k == NULL || (rest == NULL && k->freed.unit->size > count))
		return false;
	struct parked *behind = k->prev;
	*f = k->freed; // the use of its mark is the caller's now
	removed(q, k);
	if (rest != NULL) {
		rest->freed = *f;
		rest->freed.unit = lgpu_units_split(f->unit, count);
		rest->freed.unit->dead = true;
		insert(q, rest, behind);
	}
	return true;
}

struct lgpu_unit *lgpu_queue_passed(struct lgpu_queue *q, bool all)
{
	struct parked *k = q->oldest;
	if (k == NULL || (!all && !lgpu_mark_passed(k->freed.mark)))
		return NULL;
	struct lgpu_unit *u = k->freed.unit;
	struct lgpu_mark *m = k->freed.mark;
	removed(q, k);
	lgpu_mark_drop(q, m);
	return u;
}

void lgpu_queues_end(struct lgpu_queue **list, const struct lgpu_stream_key *key)
{
	for (struct lgpu_queue *q = *list, *next; q != NULL; q = next) {
		next = q->next;
		q->ended |= key == NULL || q->key.id == key->id;
		if (q->ended && q->oldest == NULL && q->pins == 0)
			lgpu_queue_drop(list, q, true);
	}
}

void lgpu_queue_pin(struct lgpu_queue *q, int more) { q->pins += more; }
bool lgpu_queue_empty(const struct lgpu_queue *q) { return q->oldest == NULL; }
struct lgpu_queue *lgpu_queue_next(const struct lgpu_queue *q) { return q->next; }
const struct lgpu_stream_key *lgpu_queue_key(const struct lgpu_queue *q) { return &q->key; }

void lgpu_queue_drop(struct lgpu_queue **list, struct lgpu_queue *q, bool context_lives)
{
	while (*list != q)
		list = &(*list)->next;
	*list = q->next;
	for (struct lgpu_mark *m = q->spare, *next; m != NULL; m = next) {
		next = m->next;
		lgpu_mark_end(m, context_lives);
	}
	free(q);
}
