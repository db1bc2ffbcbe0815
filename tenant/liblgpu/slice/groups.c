// SPDX-License-Identifier: Apache-2.0

// The channel groups of this process, as they were noticed.
//
// Groups come and go in the middle of the driver's calls, on any thread, also while
// another thread asks the driver about one. So the table is locked for a few loads
// and stores only; who has more to do takes a copy, and writes it back if the entry
// still is of the same group.
#include "base/futex.h"
#include "slice/parts.h"

static bool same(const struct lgpu_slice_group *a, const struct lgpu_slice_group *b)
{
	return a->driver == b->driver && a->context == b->context && a->client == b->client && a->handle == b->handle;
}

// device_of is the device of a group that has been made: that of another group of the
// same parent, or the only one of the lgpu. -1: it is not known yet.
static int device_of(const struct lgpu_slices *all, const struct lgpu_slice_group *g)
{
	const struct lgpu_state *s = lgpu_attached();
	if (g->device >= 0)
		return g->device;
	if (s != NULL && s->limits->devices == 1)
		return 0;
	for (uint32_t i = 0; i < all->used; i++) {
		const struct lgpu_slice_group *o = &all->group[i];
		if (o->serial != 0 && o->device >= 0 && o->client == g->client && o->parent == g->parent)
			return o->device;
	}
	return -1;
}

void lgpu_groups_add(struct lgpu_slices *all, const struct lgpu_slice_group *g)
{
	bool missed = false;
	lgpu_lock(&all->table);
	uint32_t room = all->used;
	bool known = false;
	for (uint32_t i = 0; i < all->used && !known; i++) {
		known = all->group[i].serial != 0 && same(&all->group[i], g);
		if (all->group[i].serial == 0 && i < room)
			room = i;
	}
	if (known) {
		// Both ways in have noticed it.
	} else if (room == LGPU_SLICE_GROUPS) {
		missed = !all->missed;
		all->missed = true;
	} else {
		struct lgpu_slice_group *e = &all->group[room];
		*e = *g;
		e->device = device_of(all, g);
		e->serial = ++all->serial;
		all->used += room == all->used;
		all->learned = true;
	}
	lgpu_unlock(&all->table);
	if (missed)
		lgpu_log(LGPU_LOG_ERROR, "slice: more than %d channel groups; the slices of the rest stay as they are", LGPU_SLICE_GROUPS);
}

static void drop(struct lgpu_slices *all, uint32_t i)
{
	all->group[i].serial = 0;
	while (all->used > 0 && all->group[all->used - 1].serial == 0)
		all->used--;
}

void lgpu_groups_free(struct lgpu_slices *all, uint32_t client, uint32_t object)
{
	lgpu_lock(&all->table);
	for (uint32_t i = all->used; i-- > 0;) {
		const struct lgpu_slice_group *e = &all->group[i];
		if (e->serial != 0 && e->driver == &lgpu_slice_rm && e->client == client &&
		    (object == e->handle || object == e->parent || object == client))
			drop(all, i);
	}
	lgpu_unlock(&all->table);
}

void lgpu_groups_ended(struct lgpu_slices *all, CUcontext context)
{
	lgpu_lock(&all->table);
	for (uint32_t i = all->used; i-- > 0;)
		if (all->group[i].serial != 0 && all->group[i].driver == &lgpu_slice_sim && all->group[i].context == context)
			drop(all, i);
	lgpu_unlock(&all->table);
}

bool lgpu_groups_settle(struct lgpu_slices *all, int32_t thread, int device)
{
	bool any = false;
	lgpu_lock(&all->table);
	for (uint32_t i = 0; i < all->used; i++) {
		struct lgpu_slice_group *e = &all->group[i];
		if (e->serial == 0 || e->settled || e->thread != thread)
			continue;
		e->device = device;
		e->settled = any = true;
	}
	lgpu_unlock(&all->table);
	return any;
}

bool lgpu_groups_settle_old(struct lgpu_slices *all, int64_t before)
{
	bool any = false;
	lgpu_lock(&all->table);
	for (uint32_t i = 0; i < all->used && __atomic_load_n(&all->making, __ATOMIC_ACQUIRE) == 0; i++) {
		struct lgpu_slice_group *e = &all->group[i];
		if (e->serial == 0 || e->settled || e->made >= before)
			continue;
		e->device = device_of(all, e);
		if (e->device >= 0)
			e->settled = any = true;
	}
	lgpu_unlock(&all->table);
	return any;
}

bool lgpu_groups_next(struct lgpu_slices *all, int device, uint32_t *i, struct lgpu_slice_group *copy)
{
	bool found = false;
	lgpu_lock(&all->table);
	for (; *i < all->used && !found; *i += !found) {
		const struct lgpu_slice_group *e = &all->group[*i];
		found = e->serial != 0 && e->settled && e->device == device;
		if (found)
			*copy = *e;
	}
	lgpu_unlock(&all->table);
	return found;
}

void lgpu_groups_keep(struct lgpu_slices *all, uint32_t i, const struct lgpu_slice_group *copy)
{
	lgpu_lock(&all->table);
	if (all->group[i].serial == copy->serial)
		all->group[i] = *copy;
	lgpu_unlock(&all->table);
}

void lgpu_groups_forget(struct lgpu_slices *all, uint32_t i, const struct lgpu_slice_group *copy)
{
	lgpu_lock(&all->table);
	if (all->group[i].serial == copy->serial)
		drop(all, i);
	lgpu_unlock(&all->table);
}
