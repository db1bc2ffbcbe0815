// SPDX-License-Identifier: Apache-2.0

// Gates that are closed whatever the daemon says, while the program leaves its devices.
//
// What is launched before that has ended when the gate is halted: launches that were under way are waited for, and so is
// the work of all contexts, since a gate that was free has no record of it. Grants go on to be taken and are given back at
// once. A watcher that had to ask a locked driver something would never return, and keep the gate's locks.
#include "gate/parts.h"

bool lgpu_halt_rests(const struct lgpu_gate *g)
{
	return g->halted && !g->flush && !lgpu_gate_busy(g) && g->prepared.streams == 0 && !(g->linked && g->grant.granted);
}

static void halt(struct lgpu_gate *g)
{
	if (g->halted)
		return;
	g->halted = g->flush = true;
	g->freed = g->free;
	g->open = g->grant.asked = false;
	g->grant.seeps = 0;
	lgpu_prepare_go(g, lgpu_now());
	lgpu_gate_set_free(g, false);
	lgpu_gate_watch(g);
	lgpu_gate_kick(g);
}

void lgpu_halt_ends(struct lgpu_gate *g)
{
	if (!g->halted)
		return;
	g->halted = g->away = false;
	if (g->freed)
		lgpu_gate_set_free(g, true);
	lgpu_gate_wake(g);
	lgpu_gate_kick(g);
}

// begin makes a gate one that no daemon knows yet. The clock may be another one's.
static void begin(struct lgpu_gate *g)
{
	int64_t now = lgpu_now();
	g->grant = (struct lgpu_grant){0};
	g->linked = true;
	g->freed = g->hold.holding = false;
	g->charged = g->idle = g->flight.completed = g->flight.looked = now;
}

void lgpu_gate_halt(void)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	for (uint32_t i = 0; all != NULL && i < LGPU_MAX_DEVICES; i++)
		if (all->device[i] != NULL) {
			lgpu_lock(&all->device[i]->lock);
			halt(all->device[i]);
			lgpu_unlock(&all->device[i]->lock);
		}
}

bool lgpu_gate_halted(void)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	bool halted = true;
	for (uint32_t i = 0; all != NULL && halted && i < LGPU_MAX_DEVICES; i++)
		if (all->device[i] != NULL) {
			lgpu_lock(&all->device[i]->lock);
			halted = all->device[i]->halted && all->device[i]->away;
			lgpu_unlock(&all->device[i]->lock);
		}
	return halted;
}

void lgpu_gate_proceed(bool fresh)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	for (uint32_t i = 0; all != NULL && i < LGPU_MAX_DEVICES; i++)
		if (all->device[i] != NULL) {
			lgpu_lock(&all->device[i]->lock);
			if (fresh)
				begin(all->device[i]);
			lgpu_halt_ends(all->device[i]);
			lgpu_unlock(&all->device[i]->lock);
		}
}
