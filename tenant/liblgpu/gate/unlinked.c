// SPDX-License-Identifier: Apache-2.0

// The gate without a daemon: this process opens it when its lgpu has credit and the
// device is its own for a turn.
#include "alone/credit.h"
#include "gate/parts.h"

// Times in ns.
#define SLICE ((int64_t)LGPU_POLICY_SLICE)            // turn kept while other lgpus wait
#define SLICE_OWN ((int64_t)LGPU_POLICY_PROCESS_TURN) // turn kept while processes of this lgpu wait
#define LINGER INT64_C(1000000)                       // idle turn kept while nobody waits

static int64_t horizon_of(const struct lgpu_gate *g)
{
	return (int64_t)__atomic_load_n(&g->usage->horizon, __ATOMIC_RELAXED);
}

int64_t lgpu_unlinked_open(struct lgpu_gate *g, int64_t now)
{
	struct lgpu_hold *h = &g->hold;
	int64_t due = lgpu_credit_due(horizon_of(g), lgpu_gate_cap(g), LGPU_CREDIT_QUANTUM);
	if (due > now && (h->holding || h->queue.asked == 0))
		return due;
	if (!h->holding) {
		int64_t asked = h->queue.asked;
		if (!lgpu_turn_try(&h->queue, now))
			return now;
		if (due > now) { // queued with credit that another process has spent since
			lgpu_turn_leave(&h->queue, now);
			return due;
		}
		h->holding = true;
		h->taken = now;
		h->waited = asked != 0 ? now - asked : 0;
		h->shared = lgpu_turn_shared(&h->queue);
	}
	g->open = true;
	g->idle = now;
	lgpu_gate_patient(g);
	lgpu_gate_wake(g);
	return now;
}

bool lgpu_unlinked_spent(const struct lgpu_gate *g, int64_t now, int64_t nanos)
{
	return lgpu_credit(horizon_of(g), now, lgpu_gate_cap(g)) <= lgpu_flight_remaining(&g->flight, now) + nanos;
}

// close_if_due closes the gate when the credit in hand covers no more than
// what is in flight, when others have waited for a slice, or when there is
// nothing to run. A closed gate that has drained gives up its turn; but the
// processes of one lgpu, which run dry together, change turns only every
// SLICE_OWN, since a device that changes contexts loses time.
static void close_if_due(struct lgpu_gate *g, int64_t now)
{
	struct lgpu_hold *h = &g->hold;
	enum lgpu_turn_wanted wanted = lgpu_turn_wanted(&h->queue);
	int64_t held = now - h->taken, idle = lgpu_gate_busy(g) || g->waiters != 0 ? 0 : now - g->idle;
	bool over = !lgpu_turn_kept(&h->queue) || (wanted == LGPU_TURN_WANTED_BY_OTHERS && held >= SLICE) ||
		    (wanted == LGPU_TURN_WANTED_BY_OWN && held >= SLICE_OWN) ||
		    idle >= (wanted == LGPU_TURN_UNWANTED ? LINGER : LGPU_GATE_LINGER);
	if (over || lgpu_unlinked_spent(g, now, 0))
		g->open = false;
	if (g->open || lgpu_gate_busy(g))
		return;
	if (over || !h->shared || held >= SLICE_OWN || wanted == LGPU_TURN_WANTED_BY_OTHERS) {
		h->holding = false;
		lgpu_turn_leave(&h->queue, now);
	}
}

bool lgpu_unlinked_watch(struct lgpu_gate *g, int64_t now, int64_t *again)
{
	if (g->hold.holding)
		close_if_due(g, now);
	*again = 0;
	if (!g->open && !lgpu_gate_busy(g) && (g->waiters != 0 || g->hold.queue.asked != 0))
		*again = lgpu_unlinked_open(g, now);
	return g->hold.holding || lgpu_gate_busy(g);
}

bool lgpu_unlinked_queued(const struct lgpu_gate *g) { return !g->linked && !g->hold.holding && g->hold.queue.asked != 0; }
