// SPDX-License-Identifier: Apache-2.0

// The mover: the thread that does what Keep says.
//
// A level that holds already is answered at once. Otherwise the residence lock is shut, and memory leaves until the level
// holds. A level that has room for more brings so much back, while the lock stays shut; it opens when everything is on its
// device again. A Keep that comes meanwhile is looked at between two pieces, and takes the older one's place: at once if it only
// lets more come back. While there is nothing to move, the stores are registered.
//
// A program that exits has its driver end first, and then whatever of it was made before the driver, such as the caches of
// libraries, which free memory. That memory may be away, and cannot come back any more: so then the lock opens for good, and
// the driver itself refuses what is asked of it.
#include "arena/parts.h"
#include "base/futex.h"
#include "daemon/daemon.h"
#include "residence/residence.h"

#define PATIENCE (10 * LGPU_NANOS)          // for the program to come to rest
#define AGAIN LGPU_NANOS                    // between two tries to bring memory back

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
static uint32_t shutting; // how often it has; 0: never
static uint32_t errands; // threads that move a device
static uint32_t ending;  // the process exits: nothing is moved any more

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
	if (m->flags & LGPU_LINK_FLAG_FIXED) {
		lgpu_level_fixed_answer(m->id, m->flags & LGPU_LINK_FLAG_REFUSED);
		return;
	}
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

static bool ends(void) { return __atomic_load_n(&ending, __ATOMIC_ACQUIRE) != 0; }

bool lgpu_mover_newer(void) { return __atomic_load_n(&unread, __ATOMIC_ACQUIRE) != 0 || ends(); }
uint64_t lgpu_mover_keep(int device) { return answers[device].serial; }
uint32_t lgpu_mover_shutting(void) { return shutting; }
static uint64_t level_of(int device) { return __atomic_load_n(&lgpu_levels[device].value, __ATOMIC_RELAXED); }
static uint64_t away(int device) { return lgpu_arena_bytes(device) - lgpu_arena_resident(device); }

static int devices(const struct lgpu_state *s)
{
	return (int)(s->limits->devices < LGPU_MAX_DEVICES ? s->limits->devices : LGPU_MAX_DEVICES);
}

// take takes a letter, or only one that raises a level and says nothing else. False: there is none such.
static bool take(int device, bool raise, struct letter *l)
{
	lgpu_lock(&letters_lock);
	*l = letters[device];
	bool is = !raise || (l->keep && !l->refusal && l->value >= level_of(device));
	if (is)
		letters[device] = (struct letter){.keep = false};
	if (is && l->keep)
		__atomic_fetch_sub(&unread, 1, __ATOMIC_RELEASE);
	lgpu_unlock(&letters_lock);
	return is;
}

// obey has a Keep's level hold.
static void obey(int device, const struct letter *l)
{
	answers[device] = (struct answer){true, l->serial};
	lgpu_level_set(device, l->value);
}

bool lgpu_mover_raised(int device, uint64_t *level)
{
	struct letter l;
	bool is = __atomic_load_n(&unread, __ATOMIC_ACQUIRE) != 0 && take(device, true, &l);
	if (!is)
		return false;
	obey(device, &l);
	*level = l.value;
	return true;
}

// read_letters makes what the daemon has said the levels that hold.
static void read_letters(const struct lgpu_state *s)
{
	for (int i = 0; i < devices(s); i++) {
		struct letter l;
		take(i, false, &l);
		if (l.refusal) {
			if (holds)
				lgpu_clean_ban(i); // what the program had before fitted
			lgpu_level_kept(s, i, l.refusal_serial, 0);
			lgpu_level_refuse(i, l.refusal_value);
		}
		if (l.keep)
			obey(i, &l);
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
	__atomic_store_n(&lgpu_levels[device].answered, a->serial, __ATOMIC_RELEASE);
	lgpu_level_kept(s, device, a->serial, why);
}

// ---- deciding

static bool over(const struct lgpu_state *s, int device) { return lgpu_level_excess(s, device) != 0; }
static bool fits(const struct lgpu_state *s, int device) { return lgpu_level_total(s, device) <= level_of(device); }

// movable is how much memory would leave a device for its level to hold.
static uint64_t movable(const struct lgpu_state *s, int device)
{
	uint64_t excess = lgpu_level_excess(s, device), here = lgpu_arena_resident(device);
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
	for (int i = 0; i < devices(s) && !lgpu_mover_newer(); i++)
		settled(s, i, r == LGPU_SHUT_CAPTURE ? LGPU_LINK_WHY_CAPTURE : LGPU_LINK_WHY_BUSY);
	return false;
}

// move_device moves what one device's level asks for, and answers. After a failure what has left comes back, but for what
// the daemon has been told meanwhile that it has left: that may be somebody else's. False: memory that may come back could
// not.
//
// Raises are obeyed within the move where this is the only device: with several, each one's mover has to see what comes for any.
static bool move_device(const struct lgpu_state *s, int device)
{
	uint64_t told = UINT64_MAX, why = over(s, device) ? lgpu_move_out(s, device, &told) : 0;
	if (lgpu_mover_newer())
		return true;
	uint64_t back = away(device) == 0 ? 0 : lgpu_move_in(s, device, why != 0 ? told : level_of(device), why == 0 && devices(s) == 1);
	if (!lgpu_mover_newer())
		settled(s, device, why != 0 ? why : back);
	return back == 0;
}

// moves says whether there may be memory of a device to be moved.
static bool moves(const struct lgpu_state *s, int device)
{
	return over(s, device) || (away(device) != 0 && lgpu_level_resident(s, device) < level_of(device));
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
		else if (!lgpu_mover_newer())
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

static void open_lock(void)
{
	__atomic_store_n(&waiting, 0, __ATOMIC_RELEASE);
	holds = false;
	lgpu_residence_open();
}

// settle does what the levels ask for. False: it is to be tried again.
static bool settle(const struct lgpu_state *s)
{
	if (!holds && !shut(s))
		return true;
	shutting += !holds;
	holds = true;
	bool done = move_devices(s), all = true;
	for (int i = 0; i < devices(s); i++)
		all &= fits(s, i) && away(i) == 0;
	if (lgpu_mover_newer())
		return true;
	if (all) {
		open_lock();
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
	while (!ends()) {
		uint32_t seen = __atomic_load_n(&event, __ATOMIC_ACQUIRE);
		// Before cuInit there is nothing to move, and the driver takes no calls.
		if (!ready && lgpu_owners != NULL)
			ready = LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
		for (int i = 0; i < devices(s); i++)
			lgpu_store_map(s, i);
		read_letters(s);
		bool done = settle(s), more = false;
		int64_t began = lgpu_now();
		for (int i = 0; i < devices(s) && ready && !lgpu_mover_newer(); i++)
			more |= lgpu_store_pin(i);
		int64_t rest = more ? lgpu_now() - began : done ? -1 : AGAIN; // registers for half of the time at most
		if (!lgpu_mover_newer())
			lgpu_futex_wait(&event, seen, rest);
	}
	if (holds)
		open_lock();
	return NULL;
}

// atexit's own function, which needs none of the start files that this library is linked without (Linux Standard Base).
int __cxa_atexit(void (*function)(void *), void *argument, void *library);

static void end(void *none)
{
	(void)none;
	__atomic_store_n(&ending, 1, __ATOMIC_RELEASE);
	lgpu_mover_wake();
}

// This is before the program's cuInit, in which the driver says what it does at exit: what is said first is done last.
bool lgpu_mover_start(void) { return lgpu_thread_start(move, lgpu_attached()) && __cxa_atexit(end, NULL, NULL) == 0; }

void lgpu_mover_reset(void)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		letters[i] = (struct letter){.keep = false};
		answers[i] = (struct answer){.owed = false};
	}
	letters_lock = unread = event = waiting = errands = ending = 0;
	holds = false;
	shutting = 0;
}
