// SPDX-License-Identifier: Apache-2.0

// What the daemon asks for, and what is in force.
//
// That the driver takes a slice proves nothing, and the program may set another. So
// every group is read back, and what was read is what the daemon is told.
#include "slice/slice.h"

#include <string.h>

#include "base/futex.h"
#include "daemon/daemon.h"
#include "slice/parts.h"

// Times in ns. A slice that the program has changed is put right within the sum of
// LOOK and the time for which the thread that hears the daemon waits (daemon.c).
#define LOOK (LGPU_NANOS / 2)
#define SETTLING LGPU_NANOS // a group whose context nobody has seen being made is complete by then

struct lgpu_slices *lgpu_slices;

bool lgpu_slice_init(void)
{
	struct lgpu_slices *all = __atomic_load_n(&lgpu_slices, __ATOMIC_ACQUIRE);
	if (all == NULL)
		all = lgpu_pages(sizeof *all);
	if (all == NULL) {
		lgpu_log(LGPU_LOG_ERROR, "slice: out of memory");
		return false;
	}
	memset(all, 0, sizeof *all); // where the kernel does not wipe it at a fork
	__atomic_store_n(&all->ready, true, __ATOMIC_RELEASE);
	__atomic_store_n(&lgpu_slices, all, __ATOMIC_RELEASE);
	if (!lgpu_sim_find())
		lgpu_rm_hook();
	return true;
}

// What a round over the groups of a device has found.
struct round {
	uint64_t before, after; // the longest slice in force, µs
	bool changed;           // one was not what it had been after it was set
	bool unreadable, refused;
};

static uint64_t longer(uint64_t a, uint64_t b) { return a > b ? a : b; }

// right says whether a group's slice, which has been read if known, needs no setting.
// Without again, what the driver has refused or ignored before is not tried once more.
static bool right(const struct lgpu_slice_group *g, uint64_t asked, bool known, uint64_t now, bool again)
{
	if (!g->set)
		return asked == 0;
	if (known && asked != 0 && now == asked)
		return true;
	return !again && (known ? now : 0) == g->seen;
}

// add counts a group whose slice is known as far as it can be.
static void add(const struct lgpu_slice_group *g, struct round *r)
{
	r->after = longer(r->after, g->seen);
	r->unreadable = r->unreadable || g->seen == 0;
	r->refused = r->refused || g->refused;
}

// put sees to it that a group has the slice that is asked for, and reads it back.
// False: there is no such group any more.
static bool put(struct lgpu_slice_group *g, uint64_t asked, bool again, struct round *r)
{
	uint64_t now = 0;
	enum lgpu_slice_answer a = g->driver->get(g, &now);
	if (a == LGPU_SLICE_GONE)
		return false;
	bool known = a == LGPU_SLICE_DONE;
	r->before = longer(r->before, known ? now : 0);
	r->changed = r->changed || (g->set && known && g->seen != 0 && now != g->seen);
	if (!right(g, asked, known, now, again)) {
		if (!g->set)
			g->own = known && now != 0 ? now : LGPU_SLICE_DEFAULT;
		a = g->driver->set(g, asked != 0 ? asked : g->own);
		if (a == LGPU_SLICE_GONE)
			return false;
		g->refused = a == LGPU_SLICE_REFUSED;
		g->set = asked != 0 || g->refused; // own is not yet back
		now = 0;
		a = g->driver->get(g, &now);
		if (a == LGPU_SLICE_GONE)
			return false;
		known = a == LGPU_SLICE_DONE;
	}
	g->seen = known ? now : 0;
	g->refused = g->refused && g->seen != asked;
	add(g, r);
	return true;
}

// Which groups of a device a round is over.
enum scope {
	FRESH,  // those that have not been set
	LOOKED, // all, but what was refused or ignored is not tried again
	TOLD,   // all
};

static struct round put_all(struct lgpu_slices *all, int device, enum scope scope)
{
	struct round r = {.after = 0};
	struct lgpu_slice_group g;
	for (uint32_t i = 0; lgpu_groups_next(all, device, &i, &g); i++) {
		if (scope == FRESH && g.set)
			add(&g, &r);
		else if (put(&g, all->device[device].asked, scope == TOLD, &r))
			lgpu_groups_keep(all, i, &g);
		else
			lgpu_groups_forget(all, i, &g);
	}
	return r;
}

// say tells the daemon what is in force, unless it knows that. It is asked to only
// after a Slice on this connection (protocol.go, Versions).
static void say(struct lgpu_slices *all, int device, uint64_t value, bool refused, bool always)
{
	struct lgpu_slice_device *d = &all->device[device];
	uint32_t flags = refused ? (uint32_t)LGPU_LINK_FLAG_REFUSED : 0;
	if (!always && value == d->value && flags == d->flags)
		return;
	d->value = value;
	d->flags = flags;
	lgpu_daemon_send(&(struct lgpu_message){
		.kind = (uint16_t)LGPU_LINK_SLICED,
		.device = (uint32_t)device,
		.flags = flags,
		.value = value,
	});
}

// report says what a round has found. A context whose groups nobody has noticed keeps
// its slice, and so do groups for which there was no room.
static void report(struct lgpu_slices *all, int device, const struct round *r, bool always)
{
	bool blind = all->device[device].contexts && !__atomic_load_n(&all->learned, __ATOMIC_RELAXED);
	bool missed = __atomic_load_n(&all->missed, __ATOMIC_RELAXED);
	if (r->changed)
		say(all, device, r->before, false, true);
	say(all, device, r->unreadable ? 0 : r->after, r->refused || blind || missed, always);
}

static void update_asked(struct lgpu_slices *all)
{
	bool asked = false;
	for (uint32_t i = 0; i < LGPU_MAX_DEVICES; i++)
		asked = asked || all->device[i].asked != 0;
	__atomic_store_n(&all->asked, asked, __ATOMIC_RELAXED);
}

void lgpu_slice_told(const struct lgpu_message *m)
{
	struct lgpu_slices *all = lgpu_slices_ready();
	if (all == NULL || m->device >= LGPU_MAX_DEVICES)
		return;
	int device = (int)m->device;
	lgpu_lock(&all->lock);
	all->device[device].asked = m->value;
	update_asked(all);
	lgpu_groups_settle_old(all, lgpu_now() - SETTLING);
	struct round r = put_all(all, device, TOLD);
	r.changed = false; // what was before is of no interest
	report(all, device, &r, true);
	all->looked = lgpu_now();
	lgpu_unlock(&all->lock);
}

void lgpu_slice_look(void)
{
	struct lgpu_slices *all = lgpu_slices_ready();
	if (all == NULL || !__atomic_load_n(&all->asked, __ATOMIC_RELAXED))
		return;
	int64_t now = lgpu_now();
	lgpu_lock(&all->lock);
	if (now - all->looked >= LOOK) {
		lgpu_groups_settle_old(all, now - SETTLING);
		for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
			if (all->device[i].asked == 0)
				continue;
			struct round r = put_all(all, i, LOOKED);
			report(all, i, &r, false);
		}
		all->looked = lgpu_now();
	}
	lgpu_unlock(&all->lock);
}

void lgpu_slice_release(void)
{
	struct lgpu_slices *all = lgpu_slices_ready();
	if (all == NULL)
		return;
	lgpu_lock(&all->lock);
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		struct lgpu_slice_device *d = &all->device[i];
		if (d->asked == 0)
			continue;
		d->asked = 0;
		put_all(all, i, TOLD);
	}
	update_asked(all);
	lgpu_unlock(&all->lock);
}

bool lgpu_slice_making(void)
{
	struct lgpu_slices *all = lgpu_slices_ready();
	if (all == NULL)
		return false;
	__atomic_fetch_add(&all->making, 1, __ATOMIC_ACQ_REL);
	return true;
}

void lgpu_slice_making_ended(bool making)
{
	struct lgpu_slices *all = lgpu_slices_ready();
	if (all != NULL && making)
		__atomic_fetch_sub(&all->making, 1, __ATOMIC_ACQ_REL);
}

void lgpu_slice_context_made(int device, CUcontext context)
{
	struct lgpu_slices *all = lgpu_slices_ready();
	if (all == NULL || device < 0 || device >= (int)LGPU_MAX_DEVICES)
		return;
	lgpu_lock(&all->lock);
	struct lgpu_slice_device *d = &all->device[device];
	bool fresh = !d->contexts;
	d->contexts = true;
	if (lgpu_sim_there()) {
		lgpu_groups_add(all, &(struct lgpu_slice_group){
			.driver = &lgpu_slice_sim, .context = context, .device = device, .settled = true,
		});
		fresh = true;
	} else {
		fresh = lgpu_groups_settle(all, (int32_t)syscall(SYS_gettid), device) || fresh;
	}
	if (d->asked != 0 && fresh) {
		struct round r = put_all(all, device, FRESH);
		report(all, device, &r, false);
	}
	lgpu_unlock(&all->lock);
}

void lgpu_slice_context_gone(CUcontext context)
{
	struct lgpu_slices *all = lgpu_slices_ready();
	if (all == NULL || !lgpu_sim_there())
		return;
	lgpu_lock(&all->lock); // whoever asks the driver about the context has its answer by then
	lgpu_groups_ended(all, context);
	lgpu_unlock(&all->lock);
}
