#define _GNU_SOURCE
#include "gate.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include "beat.h"
#include "core.h"
#include "credit.h"
#include "futex.h"
#include "turn.h"

// Work in flight at once, in launches. A power of two.
#define RING 256
// Launches whose duration is not known yet, in flight at once.
#define UNKNOWN_AT_ONCE 2
#define ESTIMATES 2048
#define CONTEXTS 64

// Times in ns.
#define IN_FLIGHT INT64_C(1000000)    // device time that may be in flight
#define AHEAD INT64_C(500000)         // a launch may join in any case when so little is left
#define LEAD INT64_C(600000)          // what word of a grant's end takes to become the next one's first kernel
#define SLICE INT64_C(10000000)       // turn kept while other lgpus wait
#define SLICE_OWN INT64_C(40000000)   // turn kept while processes of this lgpu wait
#define LINGER INT64_C(1000000)       // idle turn kept while nobody waits
#define LINGER_WANTED ((int64_t)LGPU_LINK_LINGER) // idle turn kept while somebody waits; shorter pauses are charged
#define POLL_SHORTEST INT64_C(20000)
#define POLL_LONGEST INT64_C(200000)
#define POLL_SHARE 8                  // a look may cost this part of the time between two
#define CAPTURE_PATIENCE INT64_C(200000000) // of a capture, for a wait to have begun
#define OVERDUE INT64_C(200000000)    // without a completion, a launch passes a closed gate
#define OVERDUE_LONGEST (64 * OVERDUE)

struct flight {
	struct lgpu_gate_context *context;
	CUevent event; // NULL: seen to be done, out of order
	int64_t expected; // share of lgpu_gate.expected
	uint32_t estimate;
	bool unknown;
};

struct estimate {
	uint64_t key;
	int64_t nanos; // 0: unknown
};

struct lgpu_gate_context {
	CUcontext context; // NULL: free
	struct lgpu_gate *gate;
	uint32_t flushing; // lock: the context is waited for, or about to be destroyed
	uint32_t free;
	CUevent events[RING];
};

struct lgpu_gate {
	uint32_t lock; // guards everything below
	uint32_t wake; // event count: launchers sleep here
	uint32_t kick; // event count: a parked watcher sleeps here
	bool watched;  // the watcher thread runs
	bool parked;
	bool open; // launches may pass
	bool free; // they need not even pass here

	// With a daemon.
	bool linked;    // it decides
	bool attached;  // it has been told of this gate
	bool asked;     // it has been told that launches wait
	struct lgpu_beat beat; // of the daemon, since it has been told
	bool granted;   // it is owed a Closed
	bool wanted;    // others wait for the device
	bool flush;     // work may be in flight of which there is no record
	uint32_t seeps; // launches that may pass though the gate is closed
	uint64_t serial, ended; // of the newest grant, and of the newest that has ended
	uint64_t target;        // the grant ends when usage->busy gets there

	// Without one.
	bool holding; // the turn is ours
	bool shared;  // other processes of the lgpu want the turn too

	uint32_t waiters;
	uint32_t pending; // entered, not left
	uint32_t unknown;
	uint32_t head, tail; // ring of launches in flight: tail..head
	uint32_t looks;
	int64_t expected;  // sum over the ring
	int64_t charged;   // busy time is charged up to here
	int64_t looked;    // when the driver was asked last
	int64_t completed; // when the last completion was seen, or the oldest launch issued
	int64_t patience;  // a launch passes the closed gate when nothing has completed for so long
	bool hasty;        // one has, and what was in flight before has not completed since
	int64_t taken;  // when the turn became ours
	int64_t waited; // for how long we had waited then
	int64_t idle;   // since when nothing is in flight
	int64_t cost;  // what a look takes: next to nothing, unless the driver is far away
	uint32_t index; // in the limits
	const struct lgpu_device_limits *limits;
	struct lgpu_device_usage *usage;
	struct lgpu_turn_seat seat;
	struct flight ring[RING];
	struct estimate estimates[ESTIMATES];
};

// All state of the gates. The kernel wipes it in a forked child, which cannot
// use the driver it inherited.
struct gates {
	bool ready;
	uint32_t captures;
	uint32_t contexts_lock;
	struct lgpu_gate *device[LGPU_MAX_DEVICES]; // by index in Limits; NULL: not gated
	struct lgpu_gate_context context[CONTEXTS];
};

bool lgpu_gated;
static struct gates *gates;

static void *map_wiped(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size, MADV_WIPEONFORK);
	return p;
}

static uint32_t cap_of(const struct lgpu_gate *g)
{
	uint32_t cap = __atomic_load_n(&g->limits->compute, __ATOMIC_RELAXED);
	return cap >= 1 && cap <= LGPU_FULL_COMPUTE ? cap : 1;
}

static inline uint32_t in_flight(const struct lgpu_gate *g) { return g->head - g->tail; }
static inline bool busy(const struct lgpu_gate *g) { return in_flight(g) != 0 || g->pending != 0; }

// remaining is how long the work in flight is expected to keep the device
// busy.
static int64_t remaining(const struct lgpu_gate *g, int64_t now)
{
	if (in_flight(g) == 0)
		return 0;
	int64_t head = g->ring[g->tail % RING].expected, ran = now - g->completed;
	return g->expected - (ran < head ? ran : head);
}

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
// credit.
static void charge(struct lgpu_gate *g, int64_t now)
{
	if (now <= g->charged)
		return;
	struct lgpu_device_usage *u = g->usage;
	int64_t spent = unpaid(u, g->charged, now);
	g->charged = now;
	if (spent == 0)
		return;
	uint64_t horizon = __atomic_load_n(&u->horizon, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&u->horizon, &horizon,
					    (uint64_t)lgpu_credit_charge((int64_t)horizon, now, cap_of(g), spent, g->waited), 0,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	__atomic_fetch_add(&u->busy, (uint64_t)spent, __ATOMIC_RELAXED);
	uint64_t epoch = (uint64_t)now / LGPU_WINDOW_NANOS;
	struct lgpu_window *w = &u->history[epoch % LGPU_WINDOWS];
	if (__atomic_exchange_n(&w->epoch, epoch, __ATOMIC_RELAXED) != epoch)
		__atomic_store_n(&w->busy, 0, __ATOMIC_RELAXED);
	__atomic_fetch_add(&w->busy, (uint64_t)spent, __ATOMIC_RELAXED);
}

static int64_t horizon_of(const struct lgpu_gate *g)
{
	return (int64_t)__atomic_load_n(&g->usage->horizon, __ATOMIC_RELAXED);
}

// learn folds an observed duration into an estimate. A single launch seen to
// take longer counts more than an average over many.
static void learn(struct lgpu_gate *g, uint32_t index, int64_t nanos, bool alone)
{
	struct estimate *e = &g->estimates[index];
	if (nanos < 1)
		nanos = 1;
	if (e->nanos == 0)
		e->nanos = nanos;
	else
		e->nanos += (nanos - e->nanos) / (alone && nanos > e->nanos ? 2 : 8);
}

// finished asks the driver whether an event has been reached. Any error means
// that its context is beyond running anything: done as well.
static bool finished(struct flight *f)
{
	CUresult r = LGPU_REAL(cuEventQuery)(f->event);
	if (r == CUDA_ERROR_NOT_READY)
		return false;
	if (r == CUDA_SUCCESS && f->context->free < RING)
		f->context->events[f->context->free++] = f->event;
	f->event = NULL;
	return true;
}

// wake lets the launchers that wait look again.
static void wake(struct lgpu_gate *g)
{
	if (g->waiters == 0)
		return;
	__atomic_fetch_add(&g->wake, 1, __ATOMIC_RELAXED);
	lgpu_futex_wake(&g->wake, INT32_MAX);
}

// kick gets a parked watcher going.
static void kick(struct lgpu_gate *g)
{
	if (!g->parked)
		return;
	g->kick++;
	lgpu_futex_wake(&g->kick, 1);
}

static int64_t clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

// calm makes launches wait longer before they pass the closed gate, as the
// last to do so had no need to: kernels were only slow. Else a process of which
// each kernel takes longer than that, as they do beside others', would never
// drain.
static void calm(struct lgpu_gate *g)
{
	g->hasty = false;
	g->patience = 2 * g->patience < OVERDUE_LONGEST ? 2 * g->patience : OVERDUE_LONGEST;
}

static void patience_reset(struct lgpu_gate *g)
{
	g->hasty = false;
	g->patience = OVERDUE;
}

// look collects completed launches, and returns until when the device was busy.
// Between different streams completions may come out of order; everything in
// flight is asked only now and then, and only while a launcher waits for room.
// punctual: what has ended has done so just now.
static int64_t look(struct lgpu_gate *g, int64_t now, bool punctual)
{
	if (in_flight(g) == 0)
		return now;
	bool all = g->waiters != 0 && ++g->looks % 8 == 0;
	CUcontext current = NULL;
	int64_t expected = 0;
	uint32_t first = g->tail, known = 0;
	for (uint32_t i = g->tail; i != g->head; i++) {
		struct flight *f = &g->ring[i % RING];
		if (f->event != NULL) {
			if (f->context->context != current) {
				if (current != NULL)
					LGPU_REAL(cuCtxPopCurrent_v2)(&current);
				current = f->context->context;
				if (LGPU_REAL(cuCtxPushCurrent_v2)(current) != CUDA_SUCCESS)
					current = NULL;
			}
			if (!finished(f)) {
				if (!all)
					break;
				continue;
			}
			g->expected -= f->expected;
			g->unknown -= f->unknown;
		}
		if (i == g->tail) {
			g->tail++;
			expected += f->expected;
			known += !f->unknown;
		}
	}
	if (current != NULL)
		LGPU_REAL(cuCtxPopCurrent_v2)(&current);
	uint32_t done = g->tail - first;
	int64_t looked = g->looked, end = now;
	g->looked = now;
	if (done == 0)
		return now;
	if (g->hasty)
		calm(g);
	// Otherwise it has ended at some time since the last look.
	if (!punctual && !busy(g) && known == done)
		end = clamp(g->completed + expected, looked > g->completed ? looked : g->completed, now);
	int64_t took = end - g->completed;
	for (uint32_t i = first; i != g->tail; i++) {
		struct flight *f = &g->ring[i % RING];
		learn(g, f->estimate, known == done && expected > 0 ? (int64_t)((__int128)took * f->expected / expected) : took / done,
		      done == 1);
	}
	g->completed = end;
	if (!busy(g))
		g->idle = end;
	wake(g);
	return end;
}

static void observe(struct lgpu_gate *g, int64_t now, bool punctual)
{
	if (busy(g))
		charge(g, look(g, now, punctual));
}

// ---- with a daemon

static uint64_t busy_of(const struct lgpu_gate *g) { return __atomic_load_n(&g->usage->busy, __ATOMIC_RELAXED); }

static bool say(const struct lgpu_gate *g, uint64_t kind, uint64_t flags)
{
	struct lgpu_message m = {
		.kind = (uint16_t)kind, .device = g->index, .flags = (uint32_t)flags, .serial = g->serial, .value = busy_of(g),
	};
	return lgpu_daemon_send(&m);
}

// ask tells the daemon that launches wait.
static void ask(struct lgpu_gate *g)
{
	if (g->asked || g->granted) // who is granted will report, with whoever waits
		return;
	lgpu_daemon_listen();
	if (!g->attached)
		g->attached = say(g, LGPU_LINK_GATE, 0);
	g->asked = g->attached && say(g, LGPU_LINK_WANT, 0);
	g->beat = (struct lgpu_beat){0};
}

// doubt ends the connection to a daemon that hangs while launches wait for it.
static void doubt(struct lgpu_gate *g, int64_t now)
{
	if (!g->linked || !g->asked || !lgpu_beat_silent(&g->beat, __atomic_load_n(&g->limits->beat, __ATOMIC_RELAXED), now))
		return;
	g->beat = (struct lgpu_beat){0};
	lgpu_daemon_cut();
}

// drains_in is how long the work in flight will be on the device, or INT64_MAX
// where that cannot be told.
static int64_t drains_in(const struct lgpu_gate *g, int64_t now)
{
	if (!busy(g))
		return 0;
	if (g->pending != 0 || g->unknown != 0 || now - g->completed > g->ring[g->tail % RING].expected)
		return INT64_MAX;
	return remaining(g, now);
}

// report ends a grant once the gate is closed and the device all but drained:
// the next in line gets to know of it when it is.
static void report(struct lgpu_gate *g, int64_t now)
{
	if (g->waiters == 0)
		g->seeps = 0; // who waited was refused, or gate and launch crossed
	if (!g->granted || g->open || g->flush || g->seeps != 0 || drains_in(g, now) > LEAD)
		return;
	g->granted = false;
	g->ended = g->serial;
	g->asked = say(g, LGPU_LINK_CLOSED, g->waiters != 0 ? LGPU_LINK_FLAG_WAITING : 0) && g->waiters != 0;
	g->beat = (struct lgpu_beat){0};
}

// close_if_spent closes the gate when what is in flight uses the grant up, or
// when others wait and there is nothing to run.
static void close_if_spent(struct lgpu_gate *g, int64_t now)
{
	uint64_t used = busy_of(g) + (uint64_t)remaining(g, now);
	bool idle = !busy(g) && g->waiters == 0 && now - g->idle >= LINGER_WANTED;
	if (used >= g->target || (g->wanted && idle))
		g->open = false;
	report(g, now);
}

// flush waits for all work of the device's contexts, however it got there.
// Called without the gate's lock. A context in which a stream is being captured
// cannot be waited for, as that would end the capture; what it runs meanwhile
// goes unseen. Either this sees the capture, or the capture sees that a context
// is being waited for (lgpu_gate_capture).
static void flush(struct lgpu_gate *g)
{
	for (uint32_t i = 0; i < CONTEXTS; i++) {
		struct lgpu_gate_context *c = &gates->context[i];
		if (__atomic_load_n(&c->context, __ATOMIC_ACQUIRE) == NULL)
			continue;
		lgpu_lock(&c->flushing);
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		CUcontext context = __atomic_load_n(&c->context, __ATOMIC_ACQUIRE), popped;
		if (context != NULL && c->gate == g && __atomic_load_n(&gates->captures, __ATOMIC_SEQ_CST) == 0 &&
		    LGPU_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
			LGPU_FAULT_POINT("flush");
			LGPU_REAL(cuCtxSynchronize)();
			LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
		}
		lgpu_unlock(&c->flushing);
	}
}

// ---- without one

// open_if_allowed opens a closed gate when the lgpu has a quantum of credit and
// the turn is ours. Otherwise it returns when to try again: now for as soon as the turn
// changes hands.
static int64_t open_if_allowed(struct lgpu_gate *g, int64_t now)
{
	uint32_t cap = cap_of(g);
	int64_t due = lgpu_credit_due(horizon_of(g), cap, LGPU_CREDIT_QUANTUM);
	if (due > now && (g->holding || g->seat.asked == 0))
		return due;
	if (!g->holding) {
		int64_t asked = g->seat.asked;
		if (!lgpu_turn_try(&g->seat, now))
			return now;
		if (due > now) { // queued with credit that another process has spent since
			lgpu_turn_leave(&g->seat, now);
			return due;
		}
		g->holding = true;
		g->taken = now;
		g->waited = asked != 0 ? now - asked : 0;
		g->shared = lgpu_turn_shared(&g->seat);
	}
	g->open = true;
	g->idle = now;
	patience_reset(g);
	wake(g);
	return now;
}

// close_if_due closes the gate when the credit in hand covers no more than
// what is in flight, when others have waited for a slice, or when there is
// nothing to run. A closed gate that has drained gives up its turn; but the
// processes of one lgpu, which run dry together, change turns only every
// SLICE_OWN, since a device that changes contexts loses time.
static void close_if_due(struct lgpu_gate *g, int64_t now)
{
	enum lgpu_turn_wanted wanted = lgpu_turn_wanted(&g->seat);
	int64_t held = now - g->taken, idle = busy(g) || g->waiters != 0 ? 0 : now - g->idle;
	bool over = !lgpu_turn_kept(&g->seat) || (wanted == LGPU_TURN_WANTED_BY_OTHERS && held >= SLICE) ||
		    (wanted == LGPU_TURN_WANTED_BY_OWN && held >= SLICE_OWN) ||
		    idle >= (wanted == LGPU_TURN_UNWANTED ? LINGER : LINGER_WANTED);
	bool dry = lgpu_credit(horizon_of(g), now, cap_of(g)) <= remaining(g, now);
	if (over || dry)
		g->open = false;
	if (g->open || busy(g))
		return;
	if (over || !g->shared || held >= SLICE_OWN || wanted == LGPU_TURN_WANTED_BY_OTHERS) {
		g->holding = false;
		lgpu_turn_leave(&g->seat, now);
	}
}

// poll_interval is short when a completion is near, or the end of the grant
// where nobody waits to know of completions.
static int64_t poll_interval(const struct lgpu_gate *g, int64_t now)
{
	if (in_flight(g) == 0)
		return g->open ? POLL_SHORTEST * 2 : POLL_LONGEST;
	int64_t left = g->ring[g->tail % RING].expected - (now - g->completed), shortest = g->cost * POLL_SHARE;
	if (g->linked && g->open && !g->wanted && g->waiters == 0) {
		uint64_t used = busy_of(g) + (uint64_t)remaining(g, now);
		return used + (uint64_t)POLL_LONGEST < g->target ? POLL_LONGEST : POLL_SHORTEST;
	}
	if (g->granted && !g->open && remaining(g, now) - LEAD < left)
		left = remaining(g, now) - LEAD;
	else if (g->waiters != 0 && remaining(g, now) - AHEAD < left)
		left = remaining(g, now) - AHEAD;
	shortest = clamp(shortest, POLL_SHORTEST, 10 * POLL_LONGEST);
	return clamp((left < 0 ? -left : left) / 4, shortest, shortest > POLL_LONGEST ? shortest : POLL_LONGEST);
}

static void gated_update(void)
{
	bool gated = false;
	for (uint32_t i = 0; i < LGPU_MAX_DEVICES; i++)
		gated = gated || (gates->device[i] != NULL && !__atomic_load_n(&gates->device[i]->free, __ATOMIC_RELAXED));
	__atomic_store_n(&lgpu_gated, gated, __ATOMIC_RELEASE);
}

// set_free opens a gate for good, or puts it back. Of two gates that change at
// once, whoever updates last has seen both.
static void set_free(struct lgpu_gate *g, bool is_free)
{
	__atomic_store_n(&g->free, is_free, __ATOMIC_SEQ_CST);
	gated_update();
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
		int64_t now = lgpu_now(), again = 0;
		observe(g, now, false);
		if (in_flight(g) != 0)
			g->cost += (lgpu_now() - now - g->cost) / 8;
		if (g->flush) {
			lgpu_unlock(&g->lock);
			flush(g);
			lgpu_lock(&g->lock);
			g->flush = false;
			g->idle = now = lgpu_now();
		}
		bool running, queued = false;
		if (g->waiters != 0 && (g->open || !g->linked) && remaining(g, now) <= AHEAD)
			wake(g);
		if (g->linked) {
			if (g->granted)
				close_if_spent(g, now);
			running = busy(g) || (g->granted && (g->wanted || !g->open));
		} else {
			if (g->holding)
				close_if_due(g, now);
			if (!g->open && !busy(g) && (g->waiters != 0 || g->seat.asked != 0))
				again = open_if_allowed(g, now);
			queued = !g->holding && g->seat.asked != 0;
			running = g->holding || busy(g);
		}
		if (!running && !queued) {
			// Until there will be credit, or for good: if a launch passes before, as
			// the daemon may let it, its time must be charged as it runs.
			park(g, again > now ? again - now : -1);
			continue;
		}
		int64_t pause = running ? poll_interval(g, now) : 0;
		if (again > now && again - now < pause)
			pause = again - now;
		lgpu_unlock(&g->lock);
		if (!running) {
			lgpu_turn_wait(&g->seat, 2 * POLL_LONGEST);
		} else if (pause > 0) {
			struct timespec t = {pause / LGPU_NANOS, pause % LGPU_NANOS};
			nanosleep(&t, NULL);
		}
		lgpu_lock(&g->lock);
	}
	return NULL;
}

static struct lgpu_gate *gate_make(const struct lgpu_state *state, uint32_t index)
{
	struct lgpu_gate *g = map_wiped(sizeof *g);
	if (g == NULL)
		return NULL;
	g->index = index;
	g->patience = OVERDUE;
	g->limits = &state->limits->device[index];
	g->usage = &state->usage->device[index];
	g->linked = state->linked;
	if (!state->linked)
		lgpu_turn_open(&g->seat, state->turns, g->limits->uuid, state->limits->id);
	return g;
}

bool lgpu_gate_init(const struct lgpu_state *state)
{
	struct gates *all = map_wiped(sizeof *all);
	if (all == NULL) {
		lgpu_log(LGPU_LOG_ERROR, "gate: no memory");
		return false;
	}
	for (uint32_t i = 0; i < state->limits->devices && i < LGPU_MAX_DEVICES; i++) {
		if (!state->linked && state->limits->device[i].compute >= LGPU_FULL_COMPUTE)
			continue;
		all->device[i] = gate_make(state, i);
		if (all->device[i] == NULL) {
			lgpu_log(LGPU_LOG_ERROR, "gate: no memory");
			return false;
		}
	}
	all->ready = true;
	__atomic_store_n(&gates, all, __ATOMIC_RELEASE);
	gated_update();
	return true;
}

// context_of finds, or adds, what is known about a context. NULL when its
// device has no gate.
static struct lgpu_gate_context *context_of(CUcontext context)
{
	for (uint32_t i = 0; i < CONTEXTS; i++) {
		struct lgpu_gate_context *c = &gates->context[i];
		if (__atomic_load_n(&c->context, __ATOMIC_ACQUIRE) == context)
			return c->gate != NULL ? c : NULL;
	}
	CUdevice device;
	CUcontext popped;
	if (LGPU_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return NULL;
	CUresult r = LGPU_REAL(cuCtxGetDevice)(&device);
	LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	int index = r == CUDA_SUCCESS ? lgpu_limits_index(device) : -1;
	if (index < 0)
		return NULL;
	struct lgpu_gate_context *found = NULL;
	lgpu_lock(&gates->contexts_lock);
	for (uint32_t i = 0; i < CONTEXTS && found == NULL; i++) {
		struct lgpu_gate_context *c = &gates->context[i];
		if (c->context == NULL || c->context == context) {
			found = c;
			c->gate = gates->device[index];
			__atomic_store_n(&c->context, context, __ATOMIC_RELEASE);
		}
	}
	lgpu_unlock(&gates->contexts_lock);
	if (found == NULL)
		lgpu_log(LGPU_LOG_ERROR, "gate: more than %d contexts; launches in the rest are not capped", CONTEXTS);
	return found != NULL && found->gate != NULL ? found : NULL;
}

// stream_context is the context in which work launched into stream runs.
static CUcontext stream_context(CUstream stream)
{
	CUcontext context = NULL;
	if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
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
	if (__atomic_load_n(&gates->captures, __ATOMIC_RELAXED) == 0)
		return false;
	return LGPU_REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static uint32_t estimate_of(struct lgpu_gate *g, const void *work, uint64_t size)
{
	uint64_t key = ((uint64_t)(uintptr_t)work ^ size * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd) | 1;
	uint32_t index = (uint32_t)(key >> 40) % ESTIMATES;
	if (g->estimates[index].key != key)
		g->estimates[index] = (struct estimate){key, 0};
	return index;
}

// admits says whether a launch may join what is in flight.
static bool admits(const struct lgpu_gate *g, uint32_t estimate, int64_t now)
{
	if (in_flight(g) + g->pending >= RING)
		return false;
	if (g->estimates[estimate].nanos == 0 && g->unknown >= UNKNOWN_AT_ONCE)
		return false;
	int64_t left = remaining(g, now);
	return left <= AHEAD || left + g->estimates[estimate].nanos <= IN_FLIGHT;
}

// overdue says that a launch has waited for long while nothing of what is in
// flight has completed. A flush, which may be of much, is given longer.
static bool overdue(const struct lgpu_gate *g, int64_t began, int64_t now)
{
	if (g->flush)
		return now - began > 5 * g->patience;
	return busy(g) && now - began > g->patience && now - g->completed > g->patience;
}

// An event for the launch, from the context's store or new.
static CUevent event_take(struct lgpu_gate_context *c)
{
	if (c->free != 0)
		return c->events[--c->free];
	CUevent event = NULL;
	CUcontext popped;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (LGPU_REAL(cuCtxPushCurrent_v2)(c->context) != CUDA_SUCCESS)
		return NULL;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	if (LGPU_REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		event = NULL;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	return event;
}

struct lgpu_pass lgpu_gate_enter(CUstream stream, const void *work, uint64_t size)
{
	struct lgpu_pass pass = {0};
	if (!gates->ready || capturing(stream))
		return pass;
	CUcontext context = stream_context(stream);
	struct lgpu_gate_context *c = context != NULL ? context_of(context) : NULL;
	if (c == NULL)
		return pass;
	struct lgpu_gate *g = c->gate;
	lgpu_lock(&g->lock);
	if (!g->watched)
		g->watched = lgpu_thread_start(watch, g);
	uint32_t estimate = estimate_of(g, work, size);
	int64_t now = lgpu_now(), began = now;
	for (;;) {
		if (g->free || __atomic_load_n(&g->limits->compute, __ATOMIC_RELAXED) == 0) {
			pass.refused = !g->free;
			lgpu_unlock(&g->lock);
			if (pass.refused)
				lgpu_log(LGPU_LOG_ERROR, "this lgpu has no compute on device %u: nothing can be launched", g->index);
			return pass;
		}
		if (!g->open && g->linked)
			ask(g);
		else if (!g->open && !busy(g))
			open_if_allowed(g, now);
		if (g->open && admits(g, estimate, now))
			break;
		if (g->seeps != 0 && in_flight(g) + g->pending < RING) {
			g->seeps--;
			break;
		}
		// Work in flight may itself wait for this launch (kernels that talk
		// to each other). Then the device is ours anyway, and its time is
		// being charged.
		if (overdue(g, began, now) && in_flight(g) + g->pending < RING) {
			if (g->flush)
				calm(g); // what completes goes unseen
			g->hasty = !g->open && !g->flush;
			break;
		}
		doubt(g, now);
		uint32_t wake = __atomic_load_n(&g->wake, __ATOMIC_RELAXED);
		g->waiters++;
		kick(g);
		lgpu_unlock(&g->lock);
		lgpu_futex_wait(&g->wake, wake, LGPU_BEAT_LOOK);
		lgpu_lock(&g->lock);
		g->waiters--;
		now = lgpu_now();
	}
	if (!busy(g) && now - g->charged > LINGER_WANTED)
		g->charged = now;
	kick(g);
	pass = (struct lgpu_pass){g, c, stream, event_take(c), estimate, g->estimates[estimate].nanos == 0, false};
	g->pending++;
	g->unknown += pass.unknown;
	__atomic_fetch_add(&g->usage->launches, 1, __ATOMIC_RELAXED);
	lgpu_unlock(&g->lock);
	return pass;
}

void lgpu_gate_leave(struct lgpu_pass *pass, CUresult result)
{
	struct lgpu_gate *g = pass->gate;
	if (g == NULL)
		return;
	bool launched = result == CUDA_SUCCESS && pass->event != NULL &&
			LGPU_REAL(cuEventRecord)(pass->event, pass->stream) == CUDA_SUCCESS;
	lgpu_lock(&g->lock);
	g->pending--;
	if (launched) {
		int64_t expected = g->estimates[pass->estimate].nanos;
		if (in_flight(g) == 0)
			g->completed = lgpu_now();
		g->ring[g->head++ % RING] =
			(struct flight){pass->context, pass->event, expected, pass->estimate, pass->unknown};
		g->expected += expected;
	} else {
		g->unknown -= pass->unknown;
		// An event that cannot be recorded is of a context that is gone, and
		// so are the others of the store.
		if (result == CUDA_SUCCESS)
			pass->context->free = 0;
		else if (pass->event != NULL && pass->context->free < RING)
			pass->context->events[pass->context->free++] = pass->event;
		if (!busy(g))
			g->idle = lgpu_now();
		wake(g);
	}
	lgpu_unlock(&g->lock);
}

void lgpu_gate_look(void)
{
	if (!gates->ready)
		return;
	for (uint32_t i = 0; i < LGPU_MAX_DEVICES; i++) {
		struct lgpu_gate *g = gates->device[i];
		if (g == NULL || __atomic_load_n(&g->head, __ATOMIC_RELAXED) == __atomic_load_n(&g->tail, __ATOMIC_RELAXED))
			continue;
		lgpu_lock(&g->lock);
		observe(g, lgpu_now(), true);
		lgpu_unlock(&g->lock);
	}
}

// gates_ready returns the gates of this process, or NULL: there are none, or
// they are those of the process that it was forked from.
static struct gates *gates_ready(void)
{
	struct gates *all = __atomic_load_n(&gates, __ATOMIC_ACQUIRE);
	return all != NULL && all->ready ? all : NULL;
}

void lgpu_gate_capture_begins(void)
{
	struct gates *all = gates_ready();
	if (all == NULL)
		return;
	__atomic_fetch_add(&all->captures, 1, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	// A wait that has begun may well go on: only its beginning hurts. It may even
	// be for something that this thread is to do next.
	for (int64_t end = lgpu_now() + CAPTURE_PATIENCE, now = 0; now < end; now = lgpu_now()) {
		bool flushing = false;
		for (uint32_t i = 0; i < CONTEXTS; i++)
			flushing = flushing || __atomic_load_n(&all->context[i].flushing, __ATOMIC_SEQ_CST) != 0;
		if (!flushing)
			return;
		nanosleep(&(struct timespec){0, POLL_SHORTEST}, NULL);
	}
}

void lgpu_gate_capture_ended(void)
{
	struct gates *all = gates_ready();
	if (all != NULL)
		__atomic_fetch_sub(&all->captures, 1, __ATOMIC_SEQ_CST);
}

bool lgpu_gate_captures(void)
{
	struct gates *all = gates_ready();
	return all != NULL && __atomic_load_n(&all->captures, __ATOMIC_RELAXED) != 0;
}

// began starts a new grant.
static void began(struct lgpu_gate *g, const struct lgpu_message *m)
{
	g->serial = m->serial;
	g->granted = true;
	g->asked = false;
	g->seeps = 0;
	patience_reset(g);
	g->idle = lgpu_now();
}

void lgpu_gate_told(const struct lgpu_message *m)
{
	struct gates *all = gates_ready();
	struct lgpu_gate *g = all != NULL && m->device < LGPU_MAX_DEVICES ? all->device[m->device] : NULL;
	if (g == NULL)
		return;
	lgpu_lock(&g->lock);
	bool current = g->granted && m->serial == g->serial;
	switch (m->kind) {
	case LGPU_LINK_FREE:
		g->granted = g->asked = false;
		set_free(g, true);
		break;
	case LGPU_LINK_OPEN:
		if (!current && m->serial == g->ended)
			break; // it crossed our Closed
		if (!current)
			began(g, m);
		if (g->free) {
			g->flush = true; // what was launched so far left no record
			set_free(g, false);
		}
		g->target = m->value;
		g->wanted = (m->flags & LGPU_LINK_FLAG_WANTED) != 0;
		g->open = busy_of(g) < g->target;
		report(g, lgpu_now());
		break;
	case LGPU_LINK_CLOSE:
		if (!current && !g->free)
			break;
		if (g->free) {
			began(g, m);
			g->flush = true;
			set_free(g, false);
		}
		g->open = false;
		report(g, lgpu_now());
		break;
	case LGPU_LINK_SEEP:
		if (!current) {
			began(g, m);
			g->open = false;
		}
		if (g->waiters != 0)
			g->seeps = 1;
		report(g, lgpu_now());
		break;
	}
	wake(g);
	kick(g);
	lgpu_unlock(&g->lock);
}

void lgpu_gate_alone(void)
{
	struct gates *all = gates_ready();
	for (uint32_t i = 0; all != NULL && i < LGPU_MAX_DEVICES; i++) {
		struct lgpu_gate *g = all->device[i];
		if (g == NULL)
			continue;
		lgpu_lock(&g->lock);
		g->linked = g->asked = g->granted = g->wanted = false;
		g->holding = g->open;
		g->taken = lgpu_now();
		if (cap_of(g) == LGPU_FULL_COMPUTE)
			set_free(g, true);
		wake(g);
		kick(g);
		lgpu_unlock(&g->lock);
	}
}

void lgpu_gate_together(void)
{
	struct gates *all = gates_ready();
	for (uint32_t i = 0; all != NULL && i < LGPU_MAX_DEVICES; i++) {
		struct lgpu_gate *g = all->device[i];
		if (g == NULL)
			continue;
		lgpu_lock(&g->lock);
		g->linked = true;
		g->holding = g->open = false;
		g->seeps = 0;
		g->flush = g->flush || g->free;
		g->serial = g->ended = 0;
		// The new daemon hears when what runs now has drained.
		g->granted = g->attached = g->attached && say(g, LGPU_LINK_GATE, LGPU_LINK_FLAG_RUNNING);
		set_free(g, false);
		report(g, lgpu_now());
		wake(g);
		kick(g);
		lgpu_unlock(&g->lock);
	}
}

void lgpu_gate_context_made(CUcontext context)
{
	if (gates_ready() != NULL)
		context_of(context);
}

void lgpu_gate_context_gone(CUcontext context)
{
	if (gates_ready() == NULL)
		return;
	for (uint32_t k = 0; k < CONTEXTS; k++) {
		struct lgpu_gate_context *c = &gates->context[k];
		if (c->context != context || context == NULL)
			continue;
		lgpu_lock(&c->flushing);
		struct lgpu_gate *g = c->gate;
		if (g != NULL) {
			// The driver's destroy waits for the context's work. Waiting here
			// keeps that work in flight, and charged, until it has ended.
			CUcontext popped;
			if (LGPU_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
				LGPU_REAL(cuCtxSynchronize)();
				LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
			}
			lgpu_lock(&g->lock);
			observe(g, lgpu_now(), true);
			for (uint32_t i = g->tail; i != g->head; i++) {
				struct flight *f = &g->ring[i % RING];
				if (f->context == c && f->event != NULL) {
					f->event = NULL; // destroyed with the context
					g->expected -= f->expected;
					g->unknown -= f->unknown;
				}
			}
			while (g->tail != g->head && g->ring[g->tail % RING].event == NULL)
				g->tail++;
			c->free = 0;
			c->gate = NULL;
			if (!busy(g))
				g->idle = lgpu_now();
			wake(g);
			lgpu_unlock(&g->lock);
		}
		__atomic_store_n(&c->context, NULL, __ATOMIC_RELEASE);
		lgpu_unlock(&c->flushing);
	}
}
