// SPDX-License-Identifier: Apache-2.0

// The residence lock.
//
// A thread has a place, which no other thread writes while the lock is open. Whoever
// shuts the lock says so first and then looks at all places; a touch takes its place
// first and then looks whether the lock is shut. One of the two sees the other, as between
// the two steps of the one who shuts, all threads pass a barrier (membarrier(2)). So
// touches need none of their own: one after a call of the driver would wait until the
// device has taken what the call wrote to it, a microsecond. Where the kernel has no such
// call, touches have barriers.
//
// A thread that ends keeps its place until somebody needs it, or finds it inside: then
// the kernel is asked whether there is such a thread.
#include "residence/parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "driver/driver.h"
#include "gate/gate.h"

#define LOOK INT64_C(10000000) // between two looks whether those inside are alive, ns
#define NAP 1000000            // until there is memory for a place, ns

bool lgpu_managed;
struct lgpu_residence *lgpu_residence;

// Initial-exec: the library is linked with libc only, and this much room every loader has.
static __thread struct lgpu_place *mine __attribute__((tls_model("initial-exec")));

// membarrier makes a call of membarrier(2).
static bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

bool lgpu_residence_manage(void)
{
	const char *unknown = lgpu_procaddress_strict();
	if (unknown != NULL) {
		lgpu_log(LGPU_LOG_ERROR, "the driver's newest form of %s is not known to this build of lgpu, and the program has it: there is no GPU "
			 "for this process in an lgpu with --overcommit", unknown);
		return false;
	}
	if (lgpu_residence == NULL)
		__atomic_store_n(&lgpu_residence, lgpu_pages(sizeof *lgpu_residence), __ATOMIC_RELEASE);
	if (lgpu_residence == NULL) {
		lgpu_log(LGPU_LOG_ERROR, "residence: out of memory; there is no GPU for this process");
		return false;
	}
	bool light = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	__atomic_store_n(&lgpu_residence->light, light, __ATOMIC_SEQ_CST);
	__atomic_store_n(&lgpu_managed, true, __ATOMIC_RELEASE);
	return true;
}

static uint32_t shut_now(const struct lgpu_residence *r) { return __atomic_load_n(&r->shut, __ATOMIC_SEQ_CST); }

// ---- places

static uint32_t owner_of(const struct lgpu_place *p) { return (uint32_t)__atomic_load_n(&p->owner, __ATOMIC_SEQ_CST); }

static struct lgpu_places *after(const struct lgpu_places *some) { return __atomic_load_n(&some->next, __ATOMIC_SEQ_CST); }

// zombie says whether the main thread has ended while others go on: the kernel keeps its number.
static bool zombie(void)
{
	char text[256];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	const char *name = strrchr(text, ')'); // which may have any characters
	return name != NULL && strncmp(name, ") Z", 3) == 0;
}

static bool alive(uint32_t thread)
{
	pid_t process = getpid();
	if (syscall(SYS_tgkill, process, (pid_t)thread, 0) != 0 && errno == ESRCH)
		return false;
	return (pid_t)thread != process || !zombie();
}

// bury frees the place of a thread that has ended. What its depth was the next owner clears.
static bool bury(struct lgpu_place *p)
{
	uint64_t owner = __atomic_load_n(&p->owner, __ATOMIC_SEQ_CST);
	return (uint32_t)owner != 0 && !alive((uint32_t)owner) &&
	       __atomic_compare_exchange_n(&p->owner, &owner, owner >> 32 << 32, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void set_sure(struct lgpu_place *p, bool sure) { __atomic_store_n(&p->sure, sure, __ATOMIC_RELAXED); }

// take makes a place the thread's if nobody has it, or if a thread had it whose number was given out anew.
static bool take(struct lgpu_place *p, uint32_t thread)
{
	uint64_t owner = __atomic_load_n(&p->owner, __ATOMIC_SEQ_CST);
	if (((uint32_t)owner != 0 && (uint32_t)owner != thread) ||
	    !__atomic_compare_exchange_n(&p->owner, &owner, ((owner >> 32) + 1) << 32 | thread, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return false;
	set_sure(p, false);
	__atomic_exchange_n(&p->depth, 0, __ATOMIC_SEQ_CST); // who shuts the lock sees what both owners have done
	return true;
}

// more adds places, or frees some. False: there is no memory.
static bool more(struct lgpu_residence *r)
{
	bool freed = false;
	struct lgpu_places *last = &r->places, *none = NULL;
	for (struct lgpu_places *some = &r->places; some != NULL; last = some, some = after(some))
		for (uint32_t i = 0; i < LGPU_PLACES; i++)
			freed = bury(&some->place[i]) || freed;
	if (freed)
		return true;
	struct lgpu_places *new = lgpu_pages(sizeof *new);
	if (new == NULL)
		return false;
	if (!__atomic_compare_exchange_n(&last->next, &none, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		munmap(new, sizeof *new); // another thread was quicker
	return true;
}

static struct lgpu_place *place_find(struct lgpu_residence *r, uint32_t thread)
{
	for (struct lgpu_places *some = &r->places; some != NULL; some = after(some))
		for (uint32_t i = 0; i < LGPU_PLACES; i++)
			if (take(&some->place[i], thread))
				return &some->place[i];
	return NULL;
}

// place returns the calling thread's. In a forked child the parent's is wiped.
static struct lgpu_place *place(struct lgpu_residence *r)
{
	if (mine != NULL && owner_of(mine) != 0)
		return mine;
	uint32_t thread = (uint32_t)syscall(SYS_gettid);
	for (;;) {
		struct lgpu_place *p = place_find(r, thread);
		if (p != NULL) {
			mine = p;
			return p;
		}
		if (!more(r))
			nanosleep(&(struct timespec){0, NAP}, NULL);
	}
}

static uint32_t depth_of(const struct lgpu_place *p) { return __atomic_load_n(&p->depth, __ATOMIC_SEQ_CST); }

// set_depth is what a touch does before it looks whether the lock is shut.
static void set_depth(const struct lgpu_residence *r, struct lgpu_place *p, uint32_t depth)
{
	if (__atomic_load_n(&r->light, __ATOMIC_RELAXED)) {
		__atomic_store_n(&p->depth, depth, __ATOMIC_RELEASE);
		__atomic_signal_fence(__ATOMIC_SEQ_CST); // the processor may look first, the compiler may not
	} else {
		__atomic_exchange_n(&p->depth, depth, __ATOMIC_SEQ_CST);
	}
}

// meet has all threads pass a barrier. False: the kernel, which could, cannot.
static bool meet(struct lgpu_residence *r)
{
	return !__atomic_load_n(&r->light, __ATOMIC_SEQ_CST) || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
	       membarrier(MEMBARRIER_CMD_GLOBAL);
}

// ---- touches

// tell_left has the one who shuts the lock look again.
static void tell_left(struct lgpu_residence *r)
{
	__atomic_fetch_add(&r->left, 1, __ATOMIC_SEQ_CST);
	lgpu_futex_wake(&r->left, INT32_MAX);
}

static bool try_enter(struct lgpu_residence *r, struct lgpu_place *p)
{
	for (;;) {
		uint32_t depth = depth_of(p);
		// Depth without being sure: this is a signal's handler, and the thread is about to look, or about to leave.
		if (depth != 0 && __atomic_load_n(&p->sure, __ATOMIC_RELAXED)) {
			__atomic_store_n(&p->depth, depth + 1, __ATOMIC_RELAXED);
			return true;
		}
		set_sure(p, false);
		set_depth(r, p, depth + 1);
		if (shut_now(r) != 0)
			break;
		set_sure(p, true);
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		// Until then a handler that found the lock shut may have taken the depth away, as one that fails does.
		if (depth_of(p) == depth + 1)
			return true;
	}
	set_sure(p, false);
	__atomic_exchange_n(&p->depth, 0, __ATOMIC_SEQ_CST);
	tell_left(r);
	return false;
}

// await sleeps until the lock is open, or may be. Signals' handlers run meanwhile.
static void await(struct lgpu_residence *r)
{
	uint32_t shut = shut_now(r), asked = __atomic_load_n(&r->asked, __ATOMIC_SEQ_CST);
	if (shut == 0)
		return;
	if (asked != shut && __atomic_compare_exchange_n(&r->asked, &asked, shut, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
	    lgpu_residence_handlers.wanted != NULL)
		lgpu_residence_handlers.wanted();
	lgpu_futex_wait(&r->shut, shut, -1);
}

bool lgpu_touch_try_enter(void) { return try_enter(lgpu_residence, place(lgpu_residence)); }

void lgpu_touch_enter(void)
{
	struct lgpu_residence *r = lgpu_residence;
	struct lgpu_place *p = place(r);
	while (!try_enter(r, p))
		await(r);
}

void lgpu_touch_leave(void)
{
	struct lgpu_place *p = mine;
	uint32_t depth = p != NULL ? depth_of(p) : 0;
	if (depth == 0)
		return; // it began before this process was managed, or was forked
	if (depth > 1) {
		__atomic_store_n(&p->depth, depth - 1, __ATOMIC_RELAXED);
		return;
	}
	set_depth(lgpu_residence, p, 0);
	set_sure(p, false);
	if (shut_now(lgpu_residence) != 0)
		tell_left(lgpu_residence);
}

void lgpu_touch_wait(void)
{
	struct lgpu_residence *r = lgpu_residence;
	while (shut_now(r) != 0 && depth_of(place(r)) == 0)
		await(r);
}

// ---- shutting

// inside reports whether any thread is. With look, those of them are forgotten that have ended.
static bool inside(struct lgpu_residence *r, bool look)
{
	bool found = false;
	for (struct lgpu_places *some = &r->places; some != NULL; some = after(some))
		for (uint32_t i = 0; i < LGPU_PLACES; i++) {
			struct lgpu_place *p = &some->place[i];
			found = (depth_of(p) != 0 && owner_of(p) != 0 && !(look && bury(p))) || found;
		}
	return found;
}

// emptied waits until nobody is inside.
static bool emptied(struct lgpu_residence *r, int64_t deadline)
{
	for (bool look = false;; look = true) {
		uint32_t left = __atomic_load_n(&r->left, __ATOMIC_SEQ_CST);
		if (!inside(r, look))
			return true;
		int64_t rest = deadline - lgpu_now();
		if (rest <= 0)
			return false;
		lgpu_futex_wait(&r->left, left, rest < LOOK ? rest : LOOK);
	}
}

// captured waits until no stream is being captured. False: one still is.
static bool captured(struct lgpu_residence *r, int64_t deadline)
{
	for (;;) {
		uint32_t ended = __atomic_load_n(&r->ended, __ATOMIC_SEQ_CST);
		if (!lgpu_gate_captures())
			return true;
		int64_t rest = deadline - lgpu_now();
		if (rest <= 0)
			return false;
		lgpu_futex_wait(&r->ended, ended, rest);
	}
}

bool lgpu_residence_captures(void) { return lgpu_gate_captures(); }

void lgpu_residence_capture_ended(void)
{
	if (!lgpu_touch_counts())
		return;
	__atomic_fetch_add(&lgpu_residence->ended, 1, __ATOMIC_SEQ_CST);
	lgpu_futex_wake(&lgpu_residence->ended, INT32_MAX);
}

// Captures begin inside. So if none is under way while the lock is shut and nobody is inside, none is until it is open
// again; and only then a context is synchronised.
enum lgpu_shut lgpu_residence_shut(int64_t nanos)
{
	struct lgpu_residence *r = lgpu_residence;
	int64_t deadline = lgpu_now() + nanos;
	if (shut_now(r) != 0)
		return LGPU_SHUT_DONE;
	uint32_t number = r->number + 1 != 0 ? r->number + 1 : 1;
	__atomic_store_n(&r->number, number, __ATOMIC_SEQ_CST);
	for (;;) {
		if (!captured(r, deadline))
			return LGPU_SHUT_CAPTURE;
		__atomic_store_n(&r->shut, number, __ATOMIC_SEQ_CST);
		bool empty = meet(r) && emptied(r, deadline), capture = lgpu_gate_captures();
		if (empty && !capture && lgpu_drain(r, number, deadline))
			return LGPU_SHUT_DONE;
		lgpu_residence_open();
		if (!capture)
			return LGPU_SHUT_BUSY;
	}
}

void lgpu_residence_open(void)
{
	__atomic_store_n(&lgpu_residence->shut, 0, __ATOMIC_SEQ_CST);
	lgpu_futex_wake(&lgpu_residence->shut, INT32_MAX);
}

bool lgpu_residence_is_shut(void) { return lgpu_touch_counts() && shut_now(lgpu_residence) != 0; }

// Where the kernel could not wipe the pages, places of the parent's threads lie in them.
void lgpu_residence_reset(void)
{
	if (!lgpu_touch_counts())
		return;
	memset(lgpu_residence, 0, sizeof *lgpu_residence);
	mine = NULL;
	if (lgpu_residence_handlers.forked != NULL)
		lgpu_residence_handlers.forked();
}
