// SPDX-License-Identifier: Apache-2.0

#include "gate/flight.h"

#include "base/base.h"
#include "base/futex.h"

#define ESTIMATES LGPU_FLIGHT_ESTIMATES
#define WAYS 4 // estimates that may be at each other's place
// Launches whose duration is not known yet, in flight at once.
#define UNKNOWN_AT_ONCE 2
// Device time of a run, and of a launch that ends its run, ns.
#define RUN INT64_C(200000)
#define LONG INT64_C(50000)
// Of a run where lgpu_flight.roomy: fewer than one launch in a hundred then has to do with its event.
#define ROOMY INT64_C(2500000)
// An open run that is late by so many ns, and is so at so many looks, has something else behind it in its stream, a copy
// perhaps, or is slow. Then so many launches have an event each. At a single look it may just have got a launch, after
// pauses. Where others run on the device at the same time, all are late by some time slices.
#define LATE INT64_C(200000)
#define LATE_AMONG_OTHERS INT64_C(10000000)
#define LATE_LOOKS 3
#define WARY 64
// With so little room, those that are done are taken out from between those that are not.
#define SCARCE (LGPU_FLIGHT_RUNS / 4)
// In lgpu_run.inside.
#define SEALED (UINT32_C(1) << 31)

static inline uint32_t state_of(const struct lgpu_run *run) { return __atomic_load_n(&run->state, __ATOMIC_ACQUIRE); }
static inline void set_state(struct lgpu_run *run, uint32_t state) { __atomic_store_n(&run->state, state, __ATOMIC_RELEASE); }
static inline uint32_t inside(const struct lgpu_run *run) { return __atomic_load_n(&run->inside, __ATOMIC_ACQUIRE) & ~SEALED; }

int64_t lgpu_flight_drains(const struct lgpu_flight *f, int64_t now)
{
	if (!lgpu_flight_busy(f))
		return 0;
	if (f->unknown != 0 || lgpu_flight_oldest(f, now) < 0)
		return INT64_MAX;
	for (const struct lgpu_run *run = f->oldest; run != NULL && !run->held; run = run->next)
		if (inside(run) != 0)
			return INT64_MAX;
	return lgpu_flight_remaining(f, now);
}

// ---- estimates

uint32_t lgpu_flight_estimate(struct lgpu_flight *f, const void *work, uint64_t size)
{
	uint64_t key = ((uint64_t)(uintptr_t)work ^ size * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd) | 1;
	uint32_t first = (uint32_t)(key >> 40) % ESTIMATES & ~(uint32_t)(WAYS - 1), at = first + (uint32_t)(key >> 32) % WAYS;
	for (uint32_t i = first; i < first + WAYS; i++) {
		if (f->estimates[i].key == key)
			return i;
		if (f->estimates[i].key == 0)
			at = i;
	}
	f->estimates[at] = (struct lgpu_estimate){key, 0};
	return at;
}

bool lgpu_flight_admits(const struct lgpu_flight *f, uint32_t estimate, int64_t now)
{
	if (!lgpu_flight_room(f))
		return false;
	if (f->estimates[estimate].nanos == 0 && f->unknown >= UNKNOWN_AT_ONCE)
		return false;
	int64_t remaining = lgpu_flight_remaining(f, now);
	int64_t ahead = lgpu_flight_ahead(f);
	return remaining <= ahead || remaining + f->estimates[estimate].nanos <= 2 * ahead;
}

// learn folds an observed duration into an estimate. A single launch seen to
// take longer counts more than an average over many.
static void learn(struct lgpu_flight *f, uint32_t index, int64_t nanos, bool alone)
{
	struct lgpu_estimate *e = &f->estimates[index];
	if (nanos < 1)
		nanos = 1;
	if (e->nanos == 0)
		e->nanos = nanos;
	else
		e->nanos += (nanos - e->nanos) / (alone && nanos > e->nanos ? 2 : 8);
}

// ---- events

static CUevent event_make(CUcontext context)
{
	CUevent event = NULL;
	CUcontext popped;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (LGPU_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return NULL;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	if (LGPU_REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
		event = NULL;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	return event;
}

static void event_back(struct lgpu_gate_context *c, CUevent event)
{
	if (event != NULL && c->free < LGPU_FLIGHT_RUNS)
		c->events[c->free++] = event;
}

static void record(struct lgpu_run *run)
{
	uint32_t sealed = LGPU_RUN_SEALED, next = LGPU_RUN_RECORDED;
	if (state_of(run) != LGPU_RUN_SEALED) // its context is gone
		return;
	if (run->event == NULL)
		run->event = event_make(run->context->context);
	if (run->event == NULL || LGPU_REAL(cuEventRecord)(run->event, run->stream) != CUDA_SUCCESS)
		next = LGPU_RUN_LOST;
	__atomic_compare_exchange_n(&run->state, &sealed, next, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

// ---- runs

// shut takes a run out of the open ones.
static void shut(struct lgpu_flight *f, const struct lgpu_run *run)
{
	for (uint32_t i = 0; i < f->opens; i++) {
		if (f->open[i] == run) {
			f->open[i] = f->open[--f->opens];
			return;
		}
	}
}

// seal is called by one who is inside, and leaves later.
static void seal(struct lgpu_flight *f, struct lgpu_run *run)
{
	struct lgpu_gate_context *c = run->context;
	shut(f, run);
	run->event = c->free != 0 ? c->events[--c->free] : NULL;
	set_state(run, LGPU_RUN_SEALED);
	__atomic_fetch_or(&run->inside, SEALED, __ATOMIC_RELEASE);
}

// sum is the sum that a run counts in.
static int64_t *sum(struct lgpu_flight *f, const struct lgpu_run *run) { return run->held ? &f->held : &f->expected; }

// end takes a run out of the sums. It stays among those in flight until it is the oldest, and nobody inside.
static void end(struct lgpu_flight *f, struct lgpu_run *run)
{
	*sum(f, run) -= run->expected;
	f->unknown -= run->unknown;
	set_state(run, LGPU_RUN_ENDED);
}

// open_run is the open run of a stream; of any context where c is NULL.
static struct lgpu_run *open_run(const struct lgpu_flight *f, const struct lgpu_gate_context *c, CUstream stream)
{
	for (uint32_t i = 0; i < f->opens; i++)
		if (f->open[i]->stream == stream && (c == NULL || f->open[i]->context == c))
			return f->open[i];
	return NULL;
}

static struct lgpu_run *begin(struct lgpu_flight *f, struct lgpu_gate_context *c, CUstream stream, int64_t now)
{
	struct lgpu_run *run = f->spare;
	if (run != NULL)
		f->spare = run->next;
	else
		run = &f->runs[f->used++];
	run->next = NULL;
	run->context = c;
	run->stream = stream;
	run->event = NULL;
	run->issued = now;
	run->expected = run->began = 0;
	run->inside = run->count = run->late = 0;
	run->unknown = run->reached = run->held = false;
	run->state = LGPU_RUN_OPEN;
	if (f->count++ == 0)
		f->completed = now;
	__atomic_store_n(f->newest != NULL ? &f->newest->next : &f->oldest, run, __ATOMIC_RELEASE);
	f->newest = run;
	return run;
}

// detach takes a run out of those in flight; before is the one before it, or NULL.
static void detach(struct lgpu_flight *f, struct lgpu_run *run, struct lgpu_run *before)
{
	__atomic_store_n(before != NULL ? &before->next : &f->oldest, run->next, __ATOMIC_RELEASE);
	if (f->newest == run)
		f->newest = before;
	f->count--;
	run->next = f->spare;
	f->spare = run;
}

static int64_t longest(const struct lgpu_flight *f) { return f->roomy ? ROOMY : RUN; }

// add puts a launch into a run, and returns its place.
static uint32_t add(struct lgpu_flight *f, struct lgpu_run *run, uint32_t estimate, int64_t nanos)
{
	run->launch[run->count] = (struct lgpu_launch){nanos < UINT32_MAX ? (uint32_t)nanos : UINT32_MAX, estimate};
	run->expected += nanos;
	*sum(f, run) += nanos;
	__atomic_fetch_add(&run->inside, 1, __ATOMIC_RELAXED);
	return run->count++;
}

struct lgpu_entry lgpu_flight_join(struct lgpu_flight *f, const struct lgpu_gate_context *c, CUstream stream, uint32_t estimate)
{
	int64_t nanos = f->estimates[estimate].nanos;
	struct lgpu_run *run = open_run(f, c, stream);
	// What is expected to be left in flight only falls with time, so the budget was not too large then.
	if (run == NULL || nanos == 0 || nanos >= LONG || nanos > f->budget || run->expected + nanos >= longest(f) ||
	    run->count + 1 >= LGPU_FLIGHT_RUN || f->wary != 0)
		return (struct lgpu_entry){0};
	f->budget -= nanos;
	return (struct lgpu_entry){.run = run, .place = add(f, run, estimate, nanos)};
}

struct lgpu_entry lgpu_flight_enter(struct lgpu_flight *f, struct lgpu_gate_context *c, CUstream stream, uint32_t estimate,
				    bool at_once, int64_t now)
{
	int64_t nanos = f->estimates[estimate].nanos;
	struct lgpu_entry e = {.run = open_run(f, c, stream), .first = !lgpu_flight_busy(f)};
	bool fresh = e.run == NULL;
	if (!fresh && nanos == 0) { // what is not known yet is measured alone
		e.before = e.run;
		__atomic_fetch_add(&e.before->inside, 1, __ATOMIC_RELAXED);
		seal(f, e.before);
		fresh = true;
	}
	if (fresh)
		e.run = begin(f, c, stream, now);
	struct lgpu_run *run = e.run;
	e.place = add(f, run, estimate, nanos);
	f->budget = lgpu_flight_ahead(f) - lgpu_flight_remaining(f, now);
	if (nanos == 0) {
		run->unknown = true;
		f->unknown++;
	}
	if (f->wary != 0) {
		f->wary--;
		at_once = true;
	}
	e.seals = at_once || nanos == 0 || nanos >= LONG || run->expected >= longest(f) || run->count == LGPU_FLIGHT_RUN ||
		  (fresh && f->opens == LGPU_FLIGHT_OPEN);
	if (e.seals)
		seal(f, run);
	else if (fresh)
		f->open[f->opens++] = run;
	return e;
}

struct lgpu_entry lgpu_flight_hold(struct lgpu_flight *f, struct lgpu_gate_context *c, CUstream stream, uint32_t estimate, int64_t now)
{
	struct lgpu_entry e = {.run = begin(f, c, stream, now), .first = !lgpu_flight_busy(f), .seals = true};
	__atomic_store_n(&e.run->held, true, __ATOMIC_RELAXED);
	e.place = add(f, e.run, estimate, f->estimates[estimate].nanos);
	seal(f, e.run);
	return e;
}

void lgpu_flight_go(struct lgpu_flight *f, int64_t now)
{
	if (!lgpu_flight_busy(f))
		f->completed = now;
	for (struct lgpu_run *run = f->oldest; run != NULL; run = run->next)
		__atomic_store_n(&run->held, false, __ATOMIC_RELAXED);
	f->expected += f->held;
	f->held = 0;
}

void lgpu_flight_leave(struct lgpu_run *run)
{
	uint32_t all = __atomic_load_n(&run->inside, __ATOMIC_ACQUIRE);
	while (all != (SEALED | 1))
		if (__atomic_compare_exchange_n(&run->inside, &all, all - 1, 0, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
			return;
	record(run); // the last: nobody else joins, or leaves
	__atomic_fetch_sub(&run->inside, 1, __ATOMIC_RELEASE);
}

void lgpu_flight_refused(struct lgpu_flight *f, struct lgpu_run *run, uint32_t place)
{
	struct lgpu_launch *l = &run->launch[place];
	if (state_of(run) != LGPU_RUN_ENDED) {
		run->expected -= l->expected;
		*sum(f, run) -= l->expected;
	}
	*l = (struct lgpu_launch){0, ESTIMATES};
}

uint32_t lgpu_flight_seal(struct lgpu_flight *f, bool all, CUstream stream, struct lgpu_run *runs[LGPU_FLIGHT_OPEN])
{
	uint32_t count = 0;
	for (uint32_t i = f->opens; i-- > 0;) { // the last takes the place of what is shut
		struct lgpu_run *run = f->open[i];
		if (!all && run->stream != stream)
			continue;
		__atomic_fetch_add(&run->inside, 1, __ATOMIC_RELAXED);
		seal(f, run);
		runs[count++] = run;
	}
	return count;
}

// drop ends a run of which nothing can be learned.
static void drop(struct lgpu_flight *f, struct lgpu_run *run)
{
	end(f, run);
	run->expected = run->count = 0;
}

void lgpu_flight_release(struct lgpu_flight *f)
{
	for (uint32_t i = 0; i < f->opens; i++)
		drop(f, f->open[i]);
	f->opens = 0;
}

// ---- what is done

// enter_context makes a context current; *current is the one that was made so before, or NULL.
static void enter_context(CUcontext context, CUcontext *current)
{
	if (context == *current)
		return;
	if (*current != NULL)
		LGPU_REAL(cuCtxPopCurrent_v2)(current);
	*current = context;
	if (LGPU_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		*current = NULL;
}

// reached asks about the event of a run. Any error means that its context is beyond running anything: done as well.
static bool reached(struct lgpu_run *run)
{
	CUresult r = LGPU_REAL(cuEventQuery)(run->event);
	if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
		run->event = NULL;
	return r != CUDA_ERROR_NOT_READY;
}

// quiet says whether nobody is inside an open run, and it still has so many launches. Called with the gate's lock.
static bool quiet(const struct lgpu_run *run, uint32_t count)
{
	return state_of(run) == LGPU_RUN_OPEN && inside(run) == 0 && run->count == count;
}

// drained asks whether a stream is done with all that it had when its open run had so many launches.
static bool drained(struct lgpu_flight *f, uint32_t *lock, struct lgpu_run *run, uint32_t count)
{
	CUresult r = LGPU_REAL(cuStreamQuery)(run->stream);
	if (r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && r <= CUDA_ERROR_CAPTURED_EVENT)
		return false;
	lgpu_lock(lock);
	bool done = r != CUDA_ERROR_NOT_READY && quiet(run, count);
	if (done) {
		shut(f, run);
		set_state(run, LGPU_RUN_SEALED); // without an event: it is not needed any more
	} else if (run == f->oldest && lgpu_flight_oldest(f, lgpu_now()) < -(f->coarse ? LATE_AMONG_OTHERS : LATE) &&
		   ++run->late >= LATE_LOOKS) {
		f->wary = WARY;
	}
	lgpu_unlock(lock);
	return done;
}

static bool done(struct lgpu_flight *f, uint32_t *lock, struct lgpu_run *run, bool streams, CUcontext *current)
{
	uint32_t state = state_of(run);
	if (state == LGPU_RUN_RECORDED) {
		enter_context(run->context->context, current);
		return reached(run);
	}
	if (state != LGPU_RUN_OPEN)
		return state != LGPU_RUN_SEALED;
	lgpu_lock(lock);
	uint32_t count = run->count;
	bool idle = quiet(run, count);
	lgpu_unlock(lock);
	if (!streams || !idle)
		return false;
	enter_context(run->context->context, current);
	LGPU_FAULT_POINT("query");
	return drained(f, lock, run, count);
}

void lgpu_flight_ask(struct lgpu_flight *f, uint32_t *lock, bool all, bool streams)
{
	CUcontext current = NULL;
	struct lgpu_run *run = __atomic_load_n(&f->oldest, __ATOMIC_ACQUIRE);
	for (; run != NULL; run = __atomic_load_n(&run->next, __ATOMIC_ACQUIRE)) {
		if (!run->reached)
			run->reached = done(f, lock, run, streams, &current);
		if (!run->reached && !all)
			break;
	}
	if (current != NULL)
		LGPU_REAL(cuCtxPopCurrent_v2)(&current);
}

// What is taken out together: how many launches, of how many the duration was known, and how long all were expected to
// take.
struct taken {
	uint32_t runs, launches, known;
	int64_t expected;
};

// settled says whether a run is done, and nobody is inside. The first time it is taken out of the sums.
static bool settled(struct lgpu_flight *f, struct lgpu_run *run)
{
	if (run->reached && state_of(run) != LGPU_RUN_ENDED) {
		if (state_of(run) == LGPU_RUN_LOST)
			run->context->free = 0; // its other events are gone, too
		else
			event_back(run->context, run->event);
		end(f, run);
	}
	return state_of(run) == LGPU_RUN_ENDED && inside(run) == 0;
}

// settle_all settles what is done, and returns the last of the oldest runs that are, or NULL.
static struct lgpu_run *settle_all(struct lgpu_flight *f, struct taken *t)
{
	struct lgpu_run *last = NULL;
	bool leads = true;
	for (struct lgpu_run *run = f->oldest; run != NULL; run = run->next) {
		leads = settled(f, run) && leads;
		if (!leads)
			continue;
		last = run;
		t->runs++;
		t->expected += run->expected;
		t->launches += run->count;
		t->known += run->unknown ? 0 : run->count;
	}
	return last;
}

// make_room takes out what is done behind what is not. Of that it is not known when it was done: nothing is learned but
// how long it has taken at most, where that is all there is to know.
static void make_room(struct lgpu_flight *f, int64_t now)
{
	for (struct lgpu_run *before = f->oldest, *run; before != NULL && (run = before->next) != NULL;) {
		if (!settled(f, run)) {
			before = run;
			continue;
		}
		if (run->unknown && run->count != 0 && run->launch[0].estimate != ESTIMATES)
			learn(f, run->launch[0].estimate, now - run->issued, true);
		detach(f, run, before);
	}
}

// take_out takes out the oldest runs up to last, and learns how long what they launched took.
static void take_out(struct lgpu_flight *f, const struct lgpu_run *last, const struct taken *t, int64_t took, bool kept_up)
{
	bool known = t->known == t->launches && t->expected > 0;
	double rate = known ? (double)took / (double)t->expected : 0;
	for (bool more = true; more;) {
		struct lgpu_run *run = f->oldest;
		more = run != last;
		for (uint32_t k = 0; k < run->count; k++) {
			const struct lgpu_launch *l = &run->launch[k];
			int64_t nanos = known ? (int64_t)(rate * l->expected) : took / t->launches;
			// Where the device waited for launches, the time is not its own.
			if (l->estimate != ESTIMATES && !(kept_up && known && nanos > f->estimates[l->estimate].nanos))
				learn(f, l->estimate, nanos, t->launches == 1);
		}
		detach(f, run, NULL);
	}
}

uint32_t lgpu_flight_settle(struct lgpu_flight *f, int64_t now, enum lgpu_look how, int64_t *until)
{
	*until = now;
	if (!lgpu_flight_busy(f))
		return 0;
	struct taken t = {0};
	uint32_t count = f->count;
	int64_t since = lgpu_flight_since(f), looked = f->looked, ended = now;
	struct lgpu_run *last = settle_all(f, &t);
	f->looked = now;
	if (f->count > LGPU_FLIGHT_RUNS - SCARCE && last == NULL)
		make_room(f, now);
	if (last == NULL)
		return count - f->count;
	// Otherwise it has ended at some time since the last look.
	bool all = last == f->newest || last->next->held;
	if (how != LGPU_LOOK_WAITED && all && t.known == t.launches)
		ended = lgpu_clamp(since + t.expected, looked > since ? looked : since, now > since ? now : since);
	take_out(f, last, &t, ended - since, how == LGPU_LOOK_LAUNCHER && f->count - t.runs == f->opens);
	f->completed = ended;
	*until = ended;
	return count - f->count;
}

void lgpu_flight_forget(struct lgpu_flight *f, struct lgpu_gate_context *c)
{
	for (struct lgpu_run *run = f->oldest; run != NULL; run = run->next) {
		if (run->context != c || state_of(run) == LGPU_RUN_ENDED)
			continue;
		shut(f, run);
		drop(f, run);
	}
	while (f->oldest != NULL && settled(f, f->oldest))
		detach(f, f->oldest, NULL);
	c->free = 0;
}
