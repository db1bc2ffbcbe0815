// SPDX-License-Identifier: Apache-2.0

// The gate of a device: launches enter and leave, and a thread watches what they
// have in flight.
#include "gate/gate.h"

#include <sys/prctl.h>

#include "alone/credit.h"
#include "gate/parts.h"

// Times in ns.
#define POLL_SHORTEST INT64_C(20000)
#define POLL_LONGEST INT64_C(200000)
#define POLL_SHARE 8               // a look may cost this part of the time between two
#define OVERDUE INT64_C(200000000) // without a completion, a launch passes a closed gate
#define OVERDUE_LONGEST (64 * OVERDUE)
#define DOZE INT64_C(2000000) // after the last work the watcher looks on for so long, so that launches need not wake it
#define SPINS 100             // tries for the lock before a launch sleeps for it
#define LAZY INT64_C(2000000) // while launches come and nobody waits to know, the watcher looks so rarely
#define FOLLOW 8              // launches into a new run before one asks for what was recorded before
#define FOLLOW_LONGER 3       // or so many, of kernels that take longer than FOLLOW_SHORT
#define FOLLOW_SHORT INT64_C(5000)
#define TOLL_MOST INT64_C(1000) // of one launch: what takes longer was an interruption
#define OWN_MOST 8            // part of the time that is not charged at most
#define OWED_MOST INT64_C(2000000) // of what is still to be taken off

bool lgpu_gated;
struct lgpu_gates *lgpu_gates;

uint32_t lgpu_gate_cap(const struct lgpu_gate *g)
{
	uint32_t cap = __atomic_load_n(&g->limits->compute, __ATOMIC_RELAXED);
	return cap >= 1 && cap <= LGPU_FULL_COMPUTE ? cap : 1;
}

void lgpu_gate_wake(struct lgpu_gate *g)
{
	if (g->waiters == 0)
		return;
	__atomic_fetch_add(&g->wake, 1, __ATOMIC_RELAXED);
	lgpu_futex_wake(&g->wake, INT32_MAX);
}

void lgpu_gate_kick(struct lgpu_gate *g)
{
	if (!g->parked || g->away)
		return;
	g->parked = false; // it may take its time to wake up; nobody else need wake it
	g->kick++;
	lgpu_futex_wake(&g->kick, 1);
}

// If two gates change at once, the last of the two updates sees both.
static void gated_update(void)
{
	bool gated = false;
	for (uint32_t i = 0; i < LGPU_MAX_DEVICES; i++) {
		const struct lgpu_gate *g = lgpu_gates->device[i];
		gated = gated || (g != NULL && !__atomic_load_n(&g->free, __ATOMIC_RELAXED));
	}
	__atomic_store_n(&lgpu_gated, gated, __ATOMIC_RELEASE);
}

void lgpu_gate_set_free(struct lgpu_gate *g, bool is_free)
{
	if (is_free) {
		lgpu_prepare_go(g, lgpu_now());
		lgpu_flight_release(&g->flight);
	}
	__atomic_store_n(&g->free, is_free, __ATOMIC_SEQ_CST);
	gated_update();
}

// ---- patience

void lgpu_gate_patient(struct lgpu_gate *g)
{
	g->hasty = false;
	g->patience = OVERDUE;
}

// calm makes launches wait longer before they pass the closed gate. The last launch
// that did had no need to: kernels were only slow, as they are beside those of other
// processes. Without this a process with long kernels would never drain.
static void calm(struct lgpu_gate *g)
{
	g->hasty = false;
	g->patience = 2 * g->patience < OVERDUE_LONGEST ? 2 * g->patience : OVERDUE_LONGEST;
}

// overdue says that a launch has waited for long while nothing of what is in
// flight has completed. A flush, which may be of much, is given longer.
static bool overdue(const struct lgpu_gate *g, int64_t began, int64_t now)
{
	if (g->flush)
		return now - began > 5 * g->patience;
	return lgpu_gate_busy(g) && now - began > g->patience && now - g->flight.completed > g->patience;
}

// ---- device time

// unpaid counts the time from since to now as device time of the lgpu, and
// returns how much of it other processes of the lgpu have not counted already.
static int64_t unpaid(struct lgpu_device_usage *u, int64_t since, int64_t now)
{
	uint64_t until = __atomic_load_n(&u->charged, __ATOMIC_RELAXED);
	do {
		if ((int64_t)until >= now && (int64_t)until < now + LGPU_NANOS) // later than that is no time
			return 0;
	} while (!__atomic_compare_exchange_n(&u->charged, &until, (uint64_t)now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return now - ((int64_t)until > since && (int64_t)until < now ? (int64_t)until : since);
}

// charge takes the device time from the last charge to now out of the lgpu's
// credit, less up to own ns, in which the program could not launch because of us. It returns how much less.
static int64_t charge(struct lgpu_gate *g, int64_t now, int64_t own)
{
	if (now <= g->charged)
		return 0;
	struct lgpu_device_usage *u = g->usage;
	int64_t spent = unpaid(u, g->charged, now);
	own = own < spent / OWN_MOST ? own : spent / OWN_MOST;
	spent -= own;
	g->charged = now;
	if (spent == 0)
		return own;
	uint64_t horizon = __atomic_load_n(&u->horizon, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&u->horizon, &horizon,
					    (uint64_t)lgpu_credit_charge((int64_t)horizon, now, lgpu_gate_cap(g), spent, g->hold.waited), 0,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	__atomic_fetch_add(&u->busy, (uint64_t)spent, __ATOMIC_RELAXED);
	uint64_t epoch = (uint64_t)now / LGPU_WINDOW_NANOS;
	struct lgpu_window *w = &u->history[epoch % LGPU_WINDOWS];
	if (__atomic_exchange_n(&w->epoch, epoch, __ATOMIC_RELAXED) != epoch)
		__atomic_store_n(&w->busy, 0, __ATOMIC_RELAXED);
	__atomic_fetch_add(&w->busy, (uint64_t)spent, __ATOMIC_RELAXED);
	return own;
}

// What the gate costs the program is no use of the device. While the device waits for launches, each of which waits for
// the gate, that is the charge for more time than the same launches take without a gate. So it is taken off: for each
// launch what one takes in here, by a sample from each run, and for events, looks and launches that join no run what they
// took. A program that has work queued loses nothing at once, but does when the device has run out of work before the
// program has waited for it: then all that it has cost since is taken off. Once the program has waited, for the device or
// at the gate, it was ahead, and has lost nothing.

// own is what the gate has cost since the last call of it.
static int64_t own(struct lgpu_gate *g)
{
	int64_t ns = g->passed * __atomic_load_n(&g->toll, __ATOMIC_RELAXED) + __atomic_exchange_n(&g->taken, 0, __ATOMIC_RELAXED);
	g->passed = 0;
	return ns;
}

// settled charges up to a moment up to which work is known to have run.
static void settled(struct lgpu_gate *g, int64_t until, enum lgpu_look how)
{
	int64_t cost = own(g);
	// Who launches asks a few launches after an event: if it has happened, the device has waited for these launches.
	// Who has waited for the device has it wait now.
	bool kept_up = how == LGPU_LOOK_LAUNCHER ? lgpu_flight_kept_up(&g->flight) : !lgpu_gate_busy(g);
	if (how == LGPU_LOOK_WAITED) {
		charge(g, until, kept_up ? cost : 0);
		g->owed = 0;
		return;
	}
	g->owed = lgpu_clamp(g->owed + cost, 0, OWED_MOST);
	g->owed -= charge(g, until, kept_up ? g->owed : 0);
	if (how == LGPU_LOOK_LAUNCHER)
		g->flight.roomy = kept_up && g->linked && !g->grant.wanted;
}

// collect is called with the collect lock, which it releases, and returns when it asked.
static int64_t collect(struct lgpu_gate *g, enum lgpu_look how)
{
	int64_t now = lgpu_now(), until;
	bool launcher = how == LGPU_LOOK_LAUNCHER, all = !launcher && __atomic_load_n(&g->waiters, __ATOMIC_RELAXED) != 0 && ++g->looks % 8 == 0;
	lgpu_flight_ask(&g->flight, &g->lock, all, !launcher && !lgpu_gate_capturing());
	lgpu_lock(&g->lock);
	if (lgpu_gate_busy(g)) {
		if (lgpu_flight_settle(&g->flight, now, how, &until) != 0) {
			if (g->hasty)
				calm(g);
			if (!lgpu_gate_busy(g))
				g->idle = until;
			lgpu_gate_wake(g);
		}
		settled(g, until, how);
	}
	lgpu_unlock(&g->lock);
	lgpu_unlock(&g->collect);
	return now;
}

int64_t lgpu_gate_observe(struct lgpu_gate *g, enum lgpu_look how)
{
	lgpu_lock(&g->collect);
	return collect(g, how);
}

// follow is a look by one who launches, and has all at hand that it takes. So the watcher, on another processor, need not
// look while launches come.
static void follow(struct lgpu_gate *g)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; // somebody else may begin a capture meanwhile
	if (lgpu_gate_capturing() || !lgpu_try_lock(&g->collect))
		return;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	int64_t began = collect(g, LGPU_LOOK_LAUNCHER);
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	__atomic_store_n(&g->sample, true, __ATOMIC_RELAXED);
	__atomic_fetch_add(&g->taken, lgpu_now() - began, __ATOMIC_RELAXED);
}

// The event is recorded by this thread, whatever context it has.
void lgpu_gate_record(struct lgpu_gate *g, bool all, CUstream stream)
{
	struct lgpu_run *runs[LGPU_FLIGHT_OPEN];
	CUcontext popped;
	lgpu_lock(&g->collect);
	lgpu_lock(&g->lock);
	uint32_t count = lgpu_flight_seal(&g->flight, all, stream, runs);
	lgpu_unlock(&g->lock);
	for (uint32_t i = 0; i < count; i++) {
		bool entered = LGPU_REAL(cuCtxPushCurrent_v2)(runs[i]->context->context) == CUDA_SUCCESS;
		lgpu_flight_leave(runs[i]);
		if (entered)
			LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	}
	lgpu_unlock(&g->collect);
}

// ---- the watcher

// poll_interval is short when a completion is near, or the end of the grant or
// of the credit where nobody waits to know of completions.
static int64_t poll_interval(const struct lgpu_gate *g, int64_t now)
{
	if (!lgpu_gate_busy(g))
		return g->open ? POLL_SHORTEST * 2 : POLL_LONGEST;
	if (g->open && g->waiters == 0 && g->linked && !g->grant.wanted)
		return lgpu_clamp(lgpu_linked_left(g, now), POLL_SHORTEST, POLL_LONGEST);
	if (g->open && g->waiters == 0 && !g->linked)
		return lgpu_unlinked_spent(g, now, POLL_LONGEST) ? POLL_SHORTEST : POLL_LONGEST;
	int64_t remaining = lgpu_flight_remaining(&g->flight, now), next = lgpu_flight_oldest(&g->flight, now);
	if (g->grant.granted && !g->open && remaining - LGPU_GATE_LEAD < next)
		next = remaining - LGPU_GATE_LEAD;
	else if (g->waiters != 0 && remaining - lgpu_flight_ahead(&g->flight) < next)
		next = remaining - lgpu_flight_ahead(&g->flight);
	int64_t shortest = lgpu_clamp(g->cost * POLL_SHARE, POLL_SHORTEST, 10 * POLL_LONGEST);
	return lgpu_clamp((next < 0 ? -next : next) / 4, shortest, shortest > POLL_LONGEST ? shortest : POLL_LONGEST);
}

// park has the watcher sleep until it is kicked, or for nanos unless that is
// negative. Called with the gate's lock, which is released meanwhile.
static void park(struct lgpu_gate *g, int64_t nanos)
{
	uint32_t kick = g->kick;
	g->parked = true;
	lgpu_unlock(&g->lock);
	lgpu_futex_wait(&g->kick, kick, nanos);
	lgpu_lock(&g->lock);
	g->parked = false;
}

// What a round of the watcher has found.
struct round {
	int64_t now;
	int64_t again; // when to try to open the gate, 0 where that is not waited for
	bool lazy;     // it has not looked
	bool running;  // there is something to watch
	bool queued;   // for the turn
};

// followed says whether the watcher may leave it to those who launch to see what is done: launches have come since it was
// asked last, somebody has looked not long ago, nobody waits to know, and the grant lasts for longer.
static bool followed(struct lgpu_gate *g, int64_t now)
{
	bool come = g->entered != g->seen;
	g->seen = g->entered;
	return come && g->linked && g->open && g->waiters == 0 && !g->flush && !g->grant.wanted && lgpu_gate_busy(g) &&
	       g->flight.unknown == 0 && now - g->flight.looked < LAZY && lgpu_linked_left(g, now) > 0;
}

// look is called with the gate's lock, which is released meanwhile.
static struct round look(struct lgpu_gate *g)
{
	struct round r = {.now = lgpu_now()};
	r.lazy = followed(g, r.now);
	if (!r.lazy) {
		lgpu_unlock(&g->lock);
		r.now = lgpu_gate_observe(g, LGPU_LOOK_WATCHER);
		lgpu_lock(&g->lock);
	}
	if (!r.lazy && lgpu_gate_busy(g))
		g->cost += (lgpu_now() - r.now - g->cost) / 8;
	if (g->prepared.streams != 0)
		r.again = lgpu_prepare_watch(g, r.now);
	if (g->flush) {
		lgpu_prepare_go(g, r.now);
		lgpu_unlock(&g->lock);
		lgpu_gate_flush(g);
		lgpu_lock(&g->lock);
		g->flush = false;
		g->idle = r.now = lgpu_now();
	}
	if (g->waiters != 0 && (g->open || !g->linked) && lgpu_flight_remaining(&g->flight, r.now) <= lgpu_flight_ahead(&g->flight))
		lgpu_gate_wake(g);
	r.running = g->linked ? lgpu_linked_watch(g, r.now) : lgpu_unlinked_watch(g, r.now, &r.again);
	r.queued = lgpu_unlinked_queued(g);
	return r;
}

// dozes says whether the watcher looks on although there is nothing to see.
static bool dozes(const struct lgpu_gate *g, int64_t now)
{
	return g->linked && g->open && now - g->idle < DOZE && !lgpu_linked_spent(g, now, 2 * POLL_LONGEST);
}

static void *watch(void *arg)
{
	struct lgpu_gate *g = arg;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	// Queries must not spoil a capture that the program has under way, and
	// short sleeps must be short.
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
	lgpu_lock(&g->lock);
	for (;;) {
		if (lgpu_halt_rests(g)) {
			g->away = true;
			park(g, -1);
			g->away = false;
			continue;
		}
		struct round r = look(g);
		if (r.lazy || (!r.running && !r.queued && dozes(g, r.now))) {
			g->dozing = true;
			park(g, r.lazy ? lgpu_clamp(lgpu_linked_left(g, r.now), POLL_SHORTEST, 2 * POLL_LONGEST) : POLL_LONGEST);
			g->dozing = false;
			continue;
		}
		if (lgpu_halt_rests(g))
			continue;
		if (!r.running && !r.queued) {
			// Until there will be credit, or for good: if a launch passes before, as
			// the daemon may let it, its time must be charged as it runs.
			park(g, r.again > r.now ? r.again - r.now : -1);
			continue;
		}
		int64_t pause = r.running ? poll_interval(g, r.now) : 0;
		if (r.again > r.now && r.again - r.now < pause)
			pause = r.again - r.now;
		lgpu_unlock(&g->lock);
		if (!r.running) {
			lgpu_turn_wait(&g->hold.queue, 2 * POLL_LONGEST);
		} else if (pause > 0) {
			struct timespec t = {pause / LGPU_NANOS, pause % LGPU_NANOS};
			nanosleep(&t, NULL);
		}
		lgpu_lock(&g->lock);
	}
	return NULL;
}

void lgpu_gate_watch(struct lgpu_gate *g)
{
	if (!g->watched)
		g->watched = lgpu_thread_start(watch, g);
}

static struct lgpu_gate *gate_make(const struct lgpu_state *state, uint32_t index)
{
	struct lgpu_gate *g = lgpu_pages(sizeof *g);
	if (g == NULL)
		return NULL;
	g->index = index;
	g->limits = &state->limits->device[index];
	g->usage = &state->usage->device[index];
	g->linked = state->linked;
	lgpu_gate_patient(g);
	if (!state->linked)
		lgpu_turn_open(&g->hold.queue, state->turns, g->limits->uuid, state->limits->id);
	return g;
}

bool lgpu_gate_init(const struct lgpu_state *state)
{
	struct lgpu_gates *all = lgpu_pages(sizeof *all);
	if (all == NULL) {
		lgpu_log(LGPU_LOG_ERROR, "gate: out of memory");
		return false;
	}
	for (uint32_t i = 0; i < state->limits->devices && i < LGPU_MAX_DEVICES; i++) {
		if (!state->linked && state->limits->device[i].compute >= LGPU_FULL_COMPUTE)
			continue;
		all->device[i] = gate_make(state, i);
		if (all->device[i] == NULL) {
			lgpu_log(LGPU_LOG_ERROR, "gate: out of memory");
			return false;
		}
	}
	all->ready = true;
	__atomic_store_n(&lgpu_gates, all, __ATOMIC_RELEASE);
	gated_update();
	return true;
}

// ---- launches

// handled says whether a stream's handle is its own; others stand for a stream of the current context.
static bool handled(CUstream stream) { return stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD; }

// stream_context is the context in which work launched into stream runs.
static CUcontext stream_context(CUstream stream)
{
	CUcontext context = NULL;
	if (!handled(stream)) {
		if (LGPU_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
			return NULL;
	} else if (LGPU_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS) {
		return NULL;
	}
	return context;
}

static bool capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	if (__atomic_load_n(&lgpu_gates->captures, __ATOMIC_RELAXED) == 0)
		return false;
	return LGPU_REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// passes says whether a launch may pass now, at a gate that is not free.
static bool passes(struct lgpu_gate *g, uint32_t estimate, int64_t began, int64_t now)
{
	if (g->halted)
		return false;
	if (!g->open && g->linked)
		lgpu_linked_ask(g);
	else if (!g->open && !lgpu_gate_busy(g))
		lgpu_unlinked_open(g, now);
	if (g->open && lgpu_flight_admits(&g->flight, estimate, now))
		return true;
	if (!lgpu_flight_room(&g->flight))
		return false;
	if (g->grant.seeps != 0) {
		g->grant.seeps--;
		return true;
	}
	// Work in flight may itself wait for this launch (kernels that talk
	// to each other). Then the device is ours anyway, and its time is
	// being charged.
	if (!overdue(g, began, now))
		return false;
	if (g->flush)
		calm(g); // what completes goes unseen
	g->hasty = !g->open && !g->flush;
	return true;
}

// await sleeps until something has changed at the gate, or is to be looked at. Called
// with the gate's lock, which is released meanwhile.
static void await(struct lgpu_gate *g, int64_t now)
{
	if (g->linked)
		lgpu_linked_doubt(g, now);
	uint32_t wake = __atomic_load_n(&g->wake, __ATOMIC_RELAXED);
	g->waiters++;
	g->owed = 0; // it is ahead of the device
	g->flight.roomy = false;
	lgpu_gate_kick(g);
	lgpu_unlock(&g->lock);
	lgpu_futex_wait(&g->wake, wake, LGPU_BEAT_LOOK);
	lgpu_lock(&g->lock);
	g->waiters--;
}

// lock_soon takes the gate's lock, which nobody holds for long: who sleeps for it waits longer than it is held.
static void lock_soon(struct lgpu_gate *g)
{
	for (int i = 0; i < SPINS; i++)
		if (__atomic_load_n(&g->lock, __ATOMIC_RELAXED) == 0 && lgpu_try_lock(&g->lock))
			return;
	lgpu_lock(&g->lock);
}

// enter counts a launch that may pass. Called with the gate's lock, which it releases.
static struct lgpu_pass enter(struct lgpu_gate *g, struct lgpu_gate_context *c, CUstream stream, uint32_t estimate, int64_t now)
{
	if (!lgpu_gate_busy(g) && now - g->charged > LGPU_GATE_LINGER)
		g->charged = now;
	// Only the calling thread can ask for its own stream, and nobody for one that may be captured. Behind a closed gate
	// the end is waited for.
	bool at_once = stream == CU_STREAM_PER_THREAD || !g->open || lgpu_gate_capturing();
	struct lgpu_entry e = lgpu_flight_enter(&g->flight, c, stream, estimate, at_once, now);
	g->entered++;
	bool parked = g->parked && !g->dozing;
	if (parked) {
		g->parked = false;
		g->kick++;
	}
	lgpu_unlock(&g->lock);
	if (parked)
		lgpu_futex_wake(&g->kick, 1);
	if (e.before != NULL)
		lgpu_flight_leave(e.before);
	__atomic_fetch_add(&g->usage->launches, 1, __ATOMIC_RELAXED);
	return (struct lgpu_pass){.gate = g, .run = e.run, .place = e.place, .first = e.first, .seals = e.seals};
}

// join lets a launch pass that follows others into their stream, and is known to be short: without a look at the clock,
// and without a call of the driver. c is the stream's context, or NULL: the stream's name says enough, as its runs are
// sealed before it is destroyed.
static bool join(struct lgpu_gate *g, const struct lgpu_gate_context *c, CUstream stream, const void *work, uint64_t size, struct lgpu_pass *pass)
{
	struct lgpu_entry e = {0};
	lock_soon(g);
	if (g->open && !g->free && (!g->parked || g->dozing) && !lgpu_gate_capturing() &&
	    __atomic_load_n(&g->limits->compute, __ATOMIC_RELAXED) != 0) {
		uint32_t estimate = lgpu_flight_estimate(&g->flight, work, size);
		e = lgpu_flight_join(&g->flight, c, stream, estimate);
		bool brief = g->flight.estimates[estimate].nanos < FOLLOW_SHORT;
		pass->follows = e.place == (brief ? FOLLOW : FOLLOW_LONGER) && g->flight.oldest != e.run;
		g->passed += e.run != NULL;
		g->entered += e.run != NULL;
	}
	lgpu_unlock(&g->lock);
	if (e.run == NULL)
		return false;
	__atomic_fetch_add(&g->usage->launches, 1, __ATOMIC_RELAXED);
	pass->gate = g;
	pass->run = e.run;
	pass->place = e.place;
	return true;
}

// ---- what a launch takes in here

static int64_t sample_begin(struct lgpu_gate *g)
{
	return __atomic_load_n(&g->sample, __ATOMIC_RELAXED) && __atomic_exchange_n(&g->sample, false, __ATOMIC_RELAXED) ? lgpu_now() : 0;
}

// sample_middle notes what has passed since sample_begin, less a look at the clock.
static void sample_middle(struct lgpu_pass *pass, int64_t began)
{
	int64_t now = lgpu_now();
	pass->clock = lgpu_now() - now;
	pass->took = now - began - pass->clock;
	pass->sampled = true;
}

static void sample_end(struct lgpu_gate *g, const struct lgpu_pass *pass, int64_t left)
{
	int64_t took = lgpu_clamp(pass->took + lgpu_now() - left - pass->clock, 0, TOLL_MOST), toll = __atomic_load_n(&g->toll, __ATOMIC_RELAXED);
	__atomic_store_n(&g->toll, toll == 0 ? took : toll + (took - toll) / 8, __ATOMIC_RELAXED);
}

// prepare counts a launch that waits in its stream. Called with the gate's lock, which it releases.
static struct lgpu_pass prepare(struct lgpu_gate *g, struct lgpu_gate_context *c, CUstream stream, uint32_t estimate, int64_t now)
{
	struct lgpu_entry e = lgpu_prepare_enter(g, c, stream, estimate, now);
	__atomic_fetch_add(&g->usage->launches, 1, __ATOMIC_RELAXED);
	return (struct lgpu_pass){.gate = g, .run = e.run, .place = e.place, .first = e.first, .seals = e.seals};
}

struct lgpu_pass lgpu_gate_enter(CUstream stream, const void *work, uint64_t size)
{
	struct lgpu_pass pass = {0};
	struct lgpu_gates *all = lgpu_gates;
	if (!all->ready)
		return pass;
	struct lgpu_gate *recent = __atomic_load_n(&all->recent, __ATOMIC_RELAXED);
	int64_t sampled = recent != NULL ? sample_begin(recent) : 0;
	if (recent != NULL && handled(stream) && join(recent, NULL, stream, work, size, &pass)) {
		if (sampled != 0)
			sample_middle(&pass, sampled);
		return pass;
	}
	if (capturing(stream))
		return pass;
	CUcontext context = stream_context(stream);
	struct lgpu_gate_context *c = context != NULL ? lgpu_gate_context_of(context) : NULL;
	if (c == NULL)
		return pass;
	struct lgpu_gate *g = c->gate;
	if (stream == CU_STREAM_LEGACY)
		stream = NULL;
	if (stream == NULL && join(g, c, stream, work, size, &pass)) {
		if (sampled != 0 && recent == g)
			sample_middle(&pass, sampled);
		return pass;
	}
	if (recent != g)
		__atomic_store_n(&all->recent, g, __ATOMIC_RELAXED);
	lgpu_prepare_word(c, stream);
	int64_t now = lgpu_now(), began = now;
	bool waited = false;
	lock_soon(g);
	lgpu_gate_watch(g);
	uint32_t estimate = lgpu_flight_estimate(&g->flight, work, size);
	for (;; now = lgpu_now()) {
		if (g->free || __atomic_load_n(&g->limits->compute, __ATOMIC_RELAXED) == 0) {
			pass.refused = !g->free;
			lgpu_unlock(&g->lock);
			if (pass.refused)
				lgpu_log(LGPU_LOG_ERROR, "this lgpu has no compute on device %u: nothing can be launched", g->index);
			return pass;
		}
		if (passes(g, estimate, began, now))
			break;
		if (lgpu_prepare_admits(g, c, stream, estimate))
			return prepare(g, c, stream, estimate, now);
		await(g, now);
		waited = true;
	}
	pass = enter(g, c, stream, estimate, now);
	if (!waited)
		__atomic_fetch_add(&g->taken, lgpu_now() - began, __ATOMIC_RELAXED);
	return pass;
}

void lgpu_gate_leave(struct lgpu_pass *pass, CUresult result)
{
	struct lgpu_gate *g = pass->gate;
	if (g == NULL)
		return;
	if (result != CUDA_SUCCESS) {
		lgpu_lock(&g->lock);
		lgpu_flight_refused(&g->flight, pass->run, pass->place);
		lgpu_unlock(&g->lock);
	} else if (pass->first) {
		__atomic_store_n(&pass->run->began, lgpu_now(), __ATOMIC_RELAXED); // what the launch itself took is not the device's
	}
	if (!pass->seals && !pass->sampled) {
		lgpu_flight_leave(pass->run);
	} else {
		int64_t left = lgpu_now();
		lgpu_flight_leave(pass->run);
		if (pass->sampled)
			sample_end(g, pass, left);
		else
			__atomic_fetch_add(&g->taken, lgpu_now() - left, __ATOMIC_RELAXED);
	}
	if (pass->follows && result == CUDA_SUCCESS)
		follow(g);
}

void lgpu_gate_look(void)
{
	if (!lgpu_gates->ready)
		return;
	for (uint32_t i = 0; i < LGPU_MAX_DEVICES; i++) {
		struct lgpu_gate *g = lgpu_gates->device[i];
		if (g != NULL && lgpu_gate_busy(g))
			lgpu_gate_observe(g, LGPU_LOOK_WAITED);
	}
}
