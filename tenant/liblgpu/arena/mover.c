// SPDX-License-Identifier: Apache-2.0

// The mover: the thread that does what Keep says.
//
// A level that holds already is answered at once. Otherwise the residence lock is shut, and memory leaves, largest first,
// until the level holds. When the levels of all devices have room for everything, memory comes back and the lock opens.
// A Keep that comes meanwhile is looked at between two blocks, and takes the older one's place. While there is nothing to
// move, the stores are registered.
#include <stdlib.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "daemon/daemon.h"
#include "residence/residence.h"

#define PATIENCE (10 * LGPU_NANOS)          // for the program to come to rest
#define AGAIN LGPU_NANOS                    // between two tries to bring memory back
#define INFLIGHT_BYTES (UINT64_C(512) << 20) // that leave at once, beside one block

// A Keep that has not been acted on, by device. The thread that hears the daemon writes it.
static struct letter {
	bool keep, refusal;
	uint64_t serial, value;
	uint64_t refusal_serial, refusal_value;
} letters[LGPU_MAX_DEVICES];
static uint32_t letters_lock;
static uint32_t unread;  // Keeps in letters
static uint32_t event;   // event count of the mover
static uint32_t waiting; // a touch waits, and nobody has asked for it yet

static bool holds; // the mover has shut the lock; its own
static uint32_t errands; // threads that move a device

// What is to be answered: the mover's own.
static struct answer {
	bool owed;
	uint64_t serial;
} answers[LGPU_MAX_DEVICES];

void lgpu_mover_wake(void)
{
	__atomic_fetch_add(&event, 1, __ATOMIC_RELEASE);
	lgpu_futex_wake(&event, 1);
}

void lgpu_arena_keep(const struct lgpu_message *m)
{
	if (m->device >= LGPU_MAX_DEVICES || !lgpu_managed)
		return;
	struct letter *l = &letters[m->device];
	lgpu_lock(&letters_lock);
	if (m->flags & LGPU_LINK_FLAG_REFUSED) {
		l->refusal = true;
		l->refusal_serial = m->serial;
		l->refusal_value = m->value;
	} else {
		if (!l->keep)
			__atomic_fetch_add(&unread, 1, __ATOMIC_RELEASE);
		l->keep = true;
		l->serial = m->serial;
		l->value = m->value;
	}
	lgpu_unlock(&letters_lock);
	lgpu_mover_wake();
}

void lgpu_arena_wanted(void)
{
	__atomic_store_n(&waiting, 1, __ATOMIC_RELEASE);
	lgpu_mover_wake();
}

static bool newer(void) { return __atomic_load_n(&unread, __ATOMIC_ACQUIRE) != 0; }
static uint64_t level_of(int device) { return __atomic_load_n(&lgpu_levels[device].value, __ATOMIC_RELAXED); }
static uint64_t away(int device) { return lgpu_arena_bytes(device) - lgpu_arena_resident(device); }

static int devices(const struct lgpu_state *s)
{
	return (int)(s->limits->devices < LGPU_MAX_DEVICES ? s->limits->devices : LGPU_MAX_DEVICES);
}

// read_letters makes what the daemon has said the levels that hold.
static void read_letters(const struct lgpu_state *s)
{
	for (int i = 0; i < devices(s); i++) {
		struct letter l;
		lgpu_lock(&letters_lock);
		l = letters[i];
		letters[i] = (struct letter){.keep = false};
		if (l.keep)
			__atomic_fetch_sub(&unread, 1, __ATOMIC_RELEASE);
		lgpu_unlock(&letters_lock);
		if (l.refusal) {
			lgpu_level_kept(s, i, l.refusal_serial, 0);
			lgpu_level_refuse(i, l.refusal_value);
		}
		if (l.keep) {
			answers[i] = (struct answer){true, l.serial};
			lgpu_level_set(i, l.value);
		}
	}
}

// settled answers a Keep that is met (why 0), or that will not be.
static void settled(const struct lgpu_state *s, int device, uint64_t why)
{
	struct answer *a = &answers[device];
	if (!a->owed)
		return;
	a->owed = false;
	if (why != 0)
		lgpu_level_set(device, lgpu_level_resident(s, device));
	lgpu_level_kept(s, device, a->serial, why);
}

// ---- moving

// The blocks of a device that are on it, or away.
struct list {
	struct lgpu_block **block;
	size_t count;
};

static int larger(const void *a, const void *b)
{
	uint64_t x = (*(struct lgpu_block *const *)a)->bytes, y = (*(struct lgpu_block *const *)b)->bytes;
	return x < y ? 1 : x > y ? -1 : 0;
}

// list_read reads them, largest first. The lock is shut, so none comes or goes. False: there is no memory.
static bool list_read(struct list *l, int device, bool out)
{
	size_t count = 0;
	*l = (struct list){NULL, 0};
	for (struct lgpu_owner *o = lgpu_owners; o != NULL; o = o->next)
		for (struct lgpu_block *b = o->blocks; b != NULL; b = b->next)
			count += o->device == device && b->out == out && !b->fixed;
	if (count == 0)
		return true;
	l->block = malloc(count * sizeof *l->block);
	if (l->block == NULL)
		return false;
	for (struct lgpu_owner *o = lgpu_owners; o != NULL; o = o->next)
		for (struct lgpu_block *b = o->blocks; b != NULL; b = b->next)
			if (o->device == device && b->out == out && !b->fixed)
				l->block[l->count++] = b;
	qsort(l->block, l->count, sizeof *l->block, larger);
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

// Blocks on their way out, oldest first.
struct leaving {
	struct lgpu_block *block[LGPU_INFLIGHT];
	uint32_t first, count;
	uint64_t bytes;
};

// leave ends the oldest: once it is copied, its memory is given back. With keep it stays.
static CUresult leave(struct leaving *l, bool keep)
{
	uint32_t i = l->first++ % LGPU_INFLIGHT;
	struct lgpu_block *b = l->block[i];
	l->count--;
	l->bytes -= b->bytes;
	CUresult r = CUDA_SUCCESS;
	for (int lane = 0; lane < LGPU_LANES; lane++) {
		CUresult one = LGPU_REAL(cuEventSynchronize)(b->owner->event[i][lane]);
		r = r != CUDA_SUCCESS ? r : one;
	}
	if (r != CUDA_SUCCESS || keep)
		return r;
	r = lgpu_block_unmap(b);
	if (r == CUDA_SUCCESS) {
		b->out = true;
		lgpu_arena_moved(b->owner->device, (int64_t)b->bytes);
	}
	return r;
}

// send begins to copy a block to the store.
static CUresult send(struct leaving *l, int device, struct lgpu_block *b)
{
	struct lgpu_owner *o = b->owner;
	CUresult r = equip(o);
	r = r == CUDA_SUCCESS ? lgpu_block_view(b) : r;
	if (r != CUDA_SUCCESS)
		return r;
	uint32_t i = (l->first + l->count) % LGPU_INFLIGHT;
	r = lgpu_store_copy(device, b, false);
	// If the copy has failed in the middle, its first pieces must have ended before anybody goes on.
	for (int lane = 0; lane < LGPU_LANES; lane++)
		if (LGPU_REAL(cuEventRecord)(o->event[i][lane], o->stream[lane]) != CUDA_SUCCESS)
			return r != CUDA_SUCCESS ? r : CUDA_ERROR_UNKNOWN;
	l->block[i] = b;
	l->count++;
	l->bytes += b->bytes;
	return r;
}

// move_out moves memory out until the level holds, nothing can leave any more, or there is a newer Keep. Not 0: why it
// ended before.
static uint64_t move_out(const struct lgpu_state *s, int device)
{
	struct list list;
	struct leaving l = {.count = 0};
	CUresult r = CUDA_SUCCESS;
	uint64_t why = 0;
	if (!list_read(&list, device, false))
		return LGPU_LINK_WHY_DRIVER;
	lgpu_overhead_moving(device);
	for (size_t i = 0; i < list.count && r == CUDA_SUCCESS && why == 0 && !newer(); i++) {
		uint64_t resident = lgpu_level_resident(s, device);
		if (resident <= level_of(device) + l.bytes)
			break;
		if (!lgpu_store_place(device, list.block[i])) {
			why = LGPU_LINK_WHY_STORE;
			break;
		}
		r = send(&l, device, list.block[i]);
		while (r == CUDA_SUCCESS && (l.count == LGPU_INFLIGHT || (l.count > 1 && l.bytes > INFLIGHT_BYTES)))
			r = leave(&l, false);
	}
	while (l.count != 0) {
		CUresult last = leave(&l, r != CUDA_SUCCESS);
		r = r != CUDA_SUCCESS ? r : last;
	}
	lgpu_overhead_moving(device);
	free(list.block);
	if (r == CUDA_SUCCESS)
		return why;
	lgpu_log(LGPU_LOG_WARN, "memory could not leave device %d: error %d; it stays there", device, (int)r);
	return r == CUDA_ERROR_OPERATING_SYSTEM ? LGPU_LINK_WHY_STORE : LGPU_LINK_WHY_DRIVER;
}

// returned waits for the copies of all that came back.
static CUresult returned(const struct list *l, size_t count)
{
	CUresult r = CUDA_SUCCESS;
	struct lgpu_owner *last = NULL;
	for (size_t i = 0; i < count; i++) {
		struct lgpu_owner *o = l->block[i]->owner;
		if (o != last) {
			CUresult one = LGPU_REAL(cuCtxSetCurrent)(o->context);
			for (int lane = 0; lane < LGPU_LANES && one == CUDA_SUCCESS; lane++)
				one = LGPU_REAL(cuStreamSynchronize)(o->stream[lane]);
			r = r != CUDA_SUCCESS ? r : one;
		}
		last = o;
	}
	return r;
}

// move_in brings back all that is away, unless there is a newer Keep. False: the device has no room for it now.
static bool move_in(int device)
{
	struct list list;
	size_t mapped = 0;
	CUresult r = CUDA_SUCCESS, copied = CUDA_SUCCESS;
	if (!list_read(&list, device, true))
		return false;
	lgpu_overhead_moving(device);
	for (; mapped < list.count && !newer(); mapped++) {
		struct lgpu_block *b = list.block[mapped];
		r = lgpu_block_map(b);
		if (r != CUDA_SUCCESS)
			break;
		if (copied == CUDA_SUCCESS)
			copied = equip(b->owner);
		if (copied == CUDA_SUCCESS)
			copied = lgpu_block_view(b);
		if (copied == CUDA_SUCCESS)
			copied = lgpu_store_copy(device, b, true);
		b->out = false;
		lgpu_arena_moved(device, -(int64_t)b->bytes);
	}
	CUresult last = returned(&list, mapped);
	copied = copied != CUDA_SUCCESS ? copied : last;
	lgpu_overhead_moving(device);
	// A context in which copies fail is broken, and every call of the program in it fails from now on.
	if (copied != CUDA_SUCCESS)
		lgpu_log(LGPU_LOG_ERROR, "memory could not be brought back to device %d: error %d; its content is lost", device, (int)copied);
	if (r != CUDA_SUCCESS)
		lgpu_log(LGPU_LOG_WARN, "device %d has no room yet for memory that comes back: error %d", device, (int)r);
	if (mapped == list.count) {
		for (struct lgpu_owner *o = lgpu_owners; o != NULL; o = o->next)
			for (struct lgpu_block *b = o->blocks; b != NULL; b = b->next)
				if (o->device == device)
					b->offset = LGPU_NOWHERE;
		lgpu_store_clear(device);
	}
	free(list.block);
	return r == CUDA_SUCCESS;
}

// ---- deciding

static bool over(const struct lgpu_state *s, int device) { return lgpu_level_resident(s, device) > level_of(device); }
static bool fits(const struct lgpu_state *s, int device) { return lgpu_level_total(s, device) <= level_of(device); }

// movable is how much memory would leave a device for its level to hold.
static uint64_t movable(const struct lgpu_state *s, int device)
{
	uint64_t resident = lgpu_level_resident(s, device), level = level_of(device), here = lgpu_arena_resident(device);
	uint64_t excess = resident > level ? resident - level : 0;
	return excess < here ? excess : here;
}

// shut shuts the lock if a Keep asks for memory to leave. False: nothing is to be done with the lock shut.
static bool shut(const struct lgpu_state *s)
{
	bool must = false;
	for (int i = 0; i < devices(s); i++) {
		if (!answers[i].owed)
			continue;
		if (!over(s, i))
			settled(s, i, 0);
		else if (movable(s, i) > lgpu_store_room(i))
			settled(s, i, LGPU_LINK_WHY_STORE);
		else
			must = true;
	}
	if (!must)
		return false;
	enum lgpu_shut r = lgpu_residence_shut(PATIENCE);
	if (r == LGPU_SHUT_DONE)
		return true;
	for (int i = 0; i < devices(s) && !newer(); i++)
		settled(s, i, r == LGPU_SHUT_CAPTURE ? LGPU_LINK_WHY_CAPTURE : LGPU_LINK_WHY_BUSY);
	return false;
}

// move_device moves what one device's level asks for. False: memory that may come back could not.
static bool move_device(const struct lgpu_state *s, int device)
{
	uint64_t why = over(s, device) ? move_out(s, device) : 0;
	if (newer())
		return true;
	if (why != 0) {
		move_in(device);
		settled(s, device, why);
	}
	bool done = away(device) == 0 || !fits(s, device) || move_in(device);
	if (!newer())
		settled(s, device, done ? 0 : LGPU_LINK_WHY_DRIVER);
	return done;
}

// moves says whether there is memory of a device to be moved.
static bool moves(const struct lgpu_state *s, int device)
{
	return over(s, device) || (away(device) != 0 && fits(s, device));
}

// A device that is moved by a thread of its own: each has a link of its own to the host.
struct errand {
	const struct lgpu_state *state;
	int device;
	bool done;
};

static void *run(void *arg)
{
	struct errand *e = arg;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	e->done = LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS && move_device(e->state, e->device);
	__atomic_fetch_sub(&errands, 1, __ATOMIC_SEQ_CST);
	lgpu_futex_wake(&errands, 1);
	return NULL;
}

// move_devices moves what the levels of all devices ask for, at the same time. False: memory that may come back could not.
static bool move_devices(const struct lgpu_state *s)
{
	struct errand errand[LGPU_MAX_DEVICES];
	int count = 0;
	bool done = true;
	for (int i = 0; i < devices(s); i++) {
		if (moves(s, i))
			errand[count++] = (struct errand){s, i, true};
		else if (!newer())
			done &= move_device(s, i);
	}
	for (int i = 1; i < count; i++) { // the first is this thread's
		__atomic_fetch_add(&errands, 1, __ATOMIC_SEQ_CST);
		if (!lgpu_thread_start(run, &errand[i]))
			run(&errand[i]);
	}
	if (count != 0)
		done &= move_device(s, errand[0].device);
	for (uint32_t left; (left = __atomic_load_n(&errands, __ATOMIC_SEQ_CST)) != 0;)
		lgpu_futex_wait(&errands, left, -1);
	for (int i = 1; i < count; i++)
		done &= errand[i].done;
	return done;
}

// settle does what the levels ask for. False: it is to be tried again.
static bool settle(const struct lgpu_state *s)
{
	if (!holds && !shut(s))
		return true;
	holds = true;
	bool done = move_devices(s), all = true;
	for (int i = 0; i < devices(s); i++)
		all &= fits(s, i) && away(i) == 0;
	if (newer())
		return true;
	if (all) {
		__atomic_store_n(&waiting, 0, __ATOMIC_RELEASE);
		holds = false;
		lgpu_residence_open();
	} else if (__atomic_load_n(&waiting, __ATOMIC_ACQUIRE) != 0) {
		for (int i = 0; i < devices(s); i++)
			lgpu_level_need(s, i);
	}
	return done;
}

static void *move(void *arg)
{
	struct lgpu_state *s = arg;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool ready = false;
	for (;;) {
		uint32_t seen = __atomic_load_n(&event, __ATOMIC_ACQUIRE);
		// Before cuInit there is nothing to move, and the driver takes no calls.
		if (!ready && lgpu_owners != NULL)
			ready = LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
		for (int i = 0; i < devices(s); i++)
			lgpu_store_map(s, i);
		read_letters(s);
		bool done = settle(s), more = false;
		int64_t began = lgpu_now();
		for (int i = 0; i < devices(s) && ready && !newer(); i++)
			more |= lgpu_store_pin(i);
		int64_t rest = more ? lgpu_now() - began : done ? -1 : AGAIN; // registers for half of the time at most
		if (!newer())
			lgpu_futex_wait(&event, seen, rest);
	}
	return NULL;
}

bool lgpu_mover_start(void) { return lgpu_thread_start(move, lgpu_attached()); }

void lgpu_mover_reset(void)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		letters[i] = (struct letter){.keep = false};
		answers[i] = (struct answer){.owed = false};
	}
	letters_lock = unread = event = waiting = errands = 0;
	holds = false;
}
