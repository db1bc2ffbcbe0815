// SPDX-License-Identifier: Apache-2.0

// The gate with a daemon, which grants device time and is told when a grant is over.
#include "daemon/daemon.h"
#include "gate/parts.h"

static uint64_t busy_of(const struct lgpu_gate *g) { return __atomic_load_n(&g->usage->busy, __ATOMIC_RELAXED); }

static bool say(const struct lgpu_gate *g, uint64_t kind, uint64_t flags)
{
	struct lgpu_message m = {
		.kind = (uint16_t)kind,
		.device = g->index,
		.flags = (uint32_t)flags,
		.serial = g->grant.serial,
		.value = busy_of(g),
	};
	return lgpu_daemon_send(&m);
}

void lgpu_linked_ask(struct lgpu_gate *g)
{
	struct lgpu_grant *grant = &g->grant;
	if (grant->asked || grant->granted) // the end of the grant will be reported, with those that wait
		return;
	lgpu_daemon_listen();
	if (!grant->attached)
		grant->attached = say(g, LGPU_LINK_GATE, 0);
	grant->asked = grant->attached && say(g, LGPU_LINK_WANT, 0);
	grant->beat = (struct lgpu_beat){0};
}

void lgpu_linked_doubt(struct lgpu_gate *g, int64_t now)
{
	if (!g->grant.asked ||
	    !lgpu_beat_silent(&g->grant.beat, __atomic_load_n(&g->limits->beat, __ATOMIC_RELAXED), now))
		return;
	g->grant.beat = (struct lgpu_beat){0};
	lgpu_daemon_cut();
}

// report ends a grant once the gate is closed and the device all but drained:
// the next in line gets to know of it when it is.
static void report(struct lgpu_gate *g, int64_t now)
{
	struct lgpu_grant *grant = &g->grant;
	if (g->waiters == 0)
		grant->seeps = 0; // the launch was refused, or was let through meanwhile
	if (!grant->granted || g->open || g->flush || grant->seeps != 0 || lgpu_flight_drains(&g->flight, now) > LGPU_GATE_LEAD)
		return;
	grant->granted = false;
	grant->ended = grant->serial;
	bool more = !g->halted && (g->waiters != 0 || g->prepared.streams != 0);
	grant->asked = say(g, LGPU_LINK_CLOSED, more ? LGPU_LINK_FLAG_WAITING : 0) && more;
	grant->beat = (struct lgpu_beat){0};
}

bool lgpu_linked_spent(const struct lgpu_gate *g, int64_t now, int64_t nanos)
{
	return busy_of(g) + (uint64_t)lgpu_flight_remaining(&g->flight, now) + (uint64_t)nanos >= g->grant.target;
}

int64_t lgpu_linked_left(const struct lgpu_gate *g, int64_t now)
{
	uint64_t busy = busy_of(g);
	if (g->grant.target <= busy)
		return 0;
	uint64_t left = g->grant.target - busy < INT64_MAX ? g->grant.target - busy : INT64_MAX;
	return (int64_t)left - lgpu_clamp(now - g->charged, 0, LGPU_NANOS) - lgpu_flight_remaining(&g->flight, now);
}

// close_if_spent closes the gate when what is in flight uses the grant up, or
// when others wait and there is nothing to run.
static void close_if_spent(struct lgpu_gate *g, int64_t now)
{
	int64_t linger = g->grant.patient ? (int64_t)LGPU_LINK_PATIENCE : LGPU_GATE_LINGER;
	bool idle = !lgpu_gate_busy(g) && g->waiters == 0 && now - g->idle >= linger;
	if (lgpu_linked_spent(g, now, 0) || (g->grant.wanted && idle)) {
		if (g->open)
			lgpu_prepare_closed(g, now);
		g->open = false;
	}
	report(g, now);
}

bool lgpu_linked_watch(struct lgpu_gate *g, int64_t now)
{
	if (g->grant.granted)
		close_if_spent(g, now);
	return lgpu_gate_busy(g) || (g->grant.granted && (g->grant.wanted || !g->open));
}

// began starts a new grant.
static void began(struct lgpu_gate *g, const struct lgpu_message *m)
{
	g->grant.serial = m->serial;
	g->grant.granted = true;
	g->grant.asked = false;
	g->grant.seeps = 0;
	lgpu_gate_patient(g);
	g->idle = lgpu_now();
}

// gated puts a gate back that was free: what was launched so far left no record.
static void gated(struct lgpu_gate *g)
{
	g->freed = false;
	if (!g->free)
		return;
	g->flush = true;
	lgpu_gate_set_free(g, false);
}

static void told(struct lgpu_gate *g, const struct lgpu_message *m)
{
	struct lgpu_grant *grant = &g->grant;
	bool current = grant->granted && m->serial == grant->serial, is_free = g->free || (g->halted && g->freed);
	switch (m->kind) {
	case LGPU_LINK_FREE:
		grant->granted = grant->asked = false;
		if (g->halted)
			g->freed = true;
		else
			lgpu_gate_set_free(g, true);
		break;
	case LGPU_LINK_OPEN:
		if (!current && m->serial == grant->ended)
			break; // it crossed our Closed
		if (!current)
			began(g, m);
		gated(g);
		grant->target = m->value;
		grant->wanted = (m->flags & LGPU_LINK_FLAG_WANTED) != 0;
		grant->patient = (m->flags & LGPU_LINK_FLAG_PATIENT) != 0;
		g->flight.deep = grant->patient && !grant->wanted;
		g->flight.coarse = (m->flags & LGPU_LINK_FLAG_NOTED) != 0;
		g->open = !g->halted && busy_of(g) < grant->target;
		if (g->open)
			lgpu_prepare_go(g, lgpu_now());
		report(g, lgpu_now());
		break;
	case LGPU_LINK_CLOSE:
		if (!current && !is_free)
			break;
		if (is_free)
			began(g, m);
		gated(g);
		g->open = false;
		report(g, lgpu_now());
		break;
	case LGPU_LINK_SEEP:
		if (!current) {
			began(g, m);
			g->open = false;
		}
		lgpu_prepare_go(g, lgpu_now());
		if (g->waiters != 0 && !g->halted)
			grant->seeps = 1;
		report(g, lgpu_now());
		break;
	}
}

// lost makes a gate do without the daemon, found puts it back under one.
static void lost(struct lgpu_gate *g, const struct lgpu_message *m)
{
	(void)m;
	lgpu_prepare_go(g, lgpu_now());
	g->linked = g->grant.asked = g->grant.granted = g->grant.wanted = g->flight.deep = g->flight.coarse = false;
	g->hold.holding = g->open;
	g->hold.taken = lgpu_now();
	if (lgpu_gate_cap(g) == LGPU_FULL_COMPUTE)
		lgpu_gate_set_free(g, true);
}

static void found(struct lgpu_gate *g, const struct lgpu_message *m)
{
	struct lgpu_grant *grant = &g->grant;
	(void)m;
	g->linked = true;
	g->hold.holding = g->open = false;
	grant->seeps = 0;
	g->flush = g->flush || g->free;
	grant->serial = grant->ended = 0;
	// The new daemon hears when what runs now has drained.
	grant->granted = grant->attached = grant->attached && say(g, LGPU_LINK_GATE, LGPU_LINK_FLAG_RUNNING);
	lgpu_gate_set_free(g, false);
	report(g, lgpu_now());
}

// change applies act to a gate, and has the launches that wait there look again.
static void change(struct lgpu_gate *g, void (*act)(struct lgpu_gate *, const struct lgpu_message *), const struct lgpu_message *m)
{
	if (g == NULL)
		return;
	lgpu_lock(&g->lock);
	act(g, m);
	lgpu_gate_wake(g);
	lgpu_gate_kick(g);
	lgpu_unlock(&g->lock);
}

void lgpu_gate_told(const struct lgpu_message *m)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	if (all != NULL && m->device < LGPU_MAX_DEVICES)
		change(all->device[m->device], told, m);
}

void lgpu_gate_alone(void)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	for (uint32_t i = 0; all != NULL && i < LGPU_MAX_DEVICES; i++)
		change(all->device[i], lost, NULL);
}

void lgpu_gate_together(void)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	for (uint32_t i = 0; all != NULL && i < LGPU_MAX_DEVICES; i++)
		change(all->device[i], found, NULL);
}
