// SPDX-License-Identifier: Apache-2.0

// flight.h: what is in flight on a device, and for how long it will be.
//
// Launches into one stream, one after the other, form a run, of which one untimed event tells: it is recorded after the
// run's last launch. A launch that is long, or of unknown duration, ends its run. Until a run has its event it is open;
// an open run, which may be all that a stream has, is seen to be done when its stream is. So what has left no event is
// in flight as well. A look learns from runs how long the same work will take when it is launched again.
//
// This header is private to the gate. Two locks: the gate's lock guards everything here, for a short time only. Its
// collect lock is held by the one thread that asks the driver what has been done, which may take long; launches never
// wait for it. Whoever needs both takes collect first.
#ifndef LGPU_FLIGHT_H
#define LGPU_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "process/process.h"

// Runs in flight at once.
#define LGPU_FLIGHT_RUNS 256
// Launches of a run.
#define LGPU_FLIGHT_RUN 256
// Streams that have an open run at once; launches into others have an event each.
#define LGPU_FLIGHT_OPEN 16
#define LGPU_FLIGHT_ESTIMATES 2048
// A launch may join the work in flight in any case when so much of it is left, ns; and so much where nobody waits for it
// to be done: programs that launch many small kernels then go on through pauses of their own.
#define LGPU_FLIGHT_AHEAD INT64_C(500000)
#define LGPU_FLIGHT_DEEP INT64_C(4000000)

static inline int64_t lgpu_clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

// A context of a gate's device.
struct lgpu_gate;
struct lgpu_gate_context {
	CUcontext context; // NULL: free
	struct lgpu_gate *gate;
	uint32_t flushing; // lock: the context is waited for, or about to be destroyed
	uint32_t free;     // events to be used again
	CUevent events[LGPU_FLIGHT_RUNS];
	uint32_t *word;  // streams wait for its value (prepare.c); NULL: there is none yet
	CUdeviceptr at;  // its address for the device
	bool unwilling;  // there can be none
	size_t own;      // of lgpu_gate_each_context's caller
};

enum lgpu_run_state {
	LGPU_RUN_OPEN,     // launches may join
	LGPU_RUN_SEALED,   // none does; the last launch that leaves records the event
	LGPU_RUN_RECORDED, // the event tells when it is done
	LGPU_RUN_LOST,     // the event could not be recorded: the context is gone
	LGPU_RUN_ENDED,    // in flight no more
};

struct lgpu_launch {
	uint32_t expected; // ns
	uint32_t estimate; // LGPU_FLIGHT_ESTIMATES: the driver refused it
};

struct lgpu_run {
	struct lgpu_run *next; // younger, or not in use; atomic
	struct lgpu_gate_context *context;
	CUstream stream;
	CUevent event;    // NULL until it is sealed, or made by who records it
	int64_t expected; // its part of lgpu_flight.expected
	int64_t issued;   // when its first launch entered
	int64_t began;    // when that was launched, if nothing else was in flight then; atomic
	uint32_t state;   // changes under the gate's lock, from SEALED by who records; atomic
	uint32_t inside;  // launches that have entered and not left, and whether it is sealed; atomic
	uint32_t count;
	uint32_t late; // looks, one after the other, at which it was open, late, and not done; the collector's
	bool unknown; // of one launch, whose duration is not known
	bool held;    // it waits in its stream for the gate; all behind it do, too; atomic
	bool reached; // seen to be done; the collector's
	struct lgpu_launch launch[LGPU_FLIGHT_RUN];
};

// Who looks at what is done.
enum lgpu_look {
	LGPU_LOOK_WATCHER,  // now and then
	LGPU_LOOK_WAITED,   // one who has just waited for the device: what has ended has done so just now
	LGPU_LOOK_LAUNCHER, // one who launches, a few launches after an event, and at events only
};

struct lgpu_estimate {
	uint64_t key;
	int64_t nanos; // 0: unknown
};

struct lgpu_flight {
	struct lgpu_run *oldest, *newest; // of those in flight, in the order in which they began; oldest: atomic
	struct lgpu_run *spare;           // those not in use, but for those that never were
	uint32_t count, used;             // in flight; ever in use
	uint32_t unknown;                 // of those in flight, with an unknown duration
	uint32_t opens;
	uint32_t wary;     // so many launches more have an event each
	bool roomy;        // runs may be longer: the device waits for launches, and nobody for the device
	bool coarse;       // others use the device at the same time, and what is charged is what its hardware notes
	bool deep;         // nobody waits for the work in flight: the hardware lets others in before it is done
	int64_t expected;  // sum over those in flight, but for
	int64_t held;      // the sum over those that are held
	int64_t budget;    // so much may join before somebody looks at the clock again
	int64_t looked;    // when the driver was asked last
	int64_t completed; // when the last completion was seen, or the oldest run issued
	struct lgpu_run *open[LGPU_FLIGHT_OPEN];
	struct lgpu_run runs[LGPU_FLIGHT_RUNS];
	struct lgpu_estimate estimates[LGPU_FLIGHT_ESTIMATES];
};

// lgpu_flight_busy says whether anything is in flight that is not held. It may be asked without the lock, too: runs are
// never freed.
static inline bool lgpu_flight_busy(const struct lgpu_flight *f)
{
	const struct lgpu_run *oldest = __atomic_load_n(&f->oldest, __ATOMIC_RELAXED);
	return oldest != NULL && !__atomic_load_n(&oldest->held, __ATOMIC_RELAXED);
}
// lgpu_flight_ahead is how much work may be in flight whatever joins it, ns.
static inline int64_t lgpu_flight_ahead(const struct lgpu_flight *f) { return f->deep ? LGPU_FLIGHT_DEEP : LGPU_FLIGHT_AHEAD; }

static inline bool lgpu_flight_room(const struct lgpu_flight *f) { return f->count < LGPU_FLIGHT_RUNS; }

// lgpu_flight_since is when the oldest run began to keep the device busy. There is one.
static inline int64_t lgpu_flight_since(const struct lgpu_flight *f)
{
	int64_t began = __atomic_load_n(&f->oldest->began, __ATOMIC_RELAXED);
	return began > f->completed ? began : f->completed;
}

// lgpu_flight_kept_up says whether nothing is in flight, as far as is known, but the last launches of each stream, which
// have no event yet.
static inline bool lgpu_flight_kept_up(const struct lgpu_flight *f) { return f->count == f->opens; }

// lgpu_flight_oldest is how long the oldest run is expected to run on, negative
// when it is late. There is one.
static inline int64_t lgpu_flight_oldest(const struct lgpu_flight *f, int64_t now)
{
	return f->oldest->expected - (now - lgpu_flight_since(f));
}

// lgpu_flight_remaining is how long the work in flight is expected to keep the
// device busy.
static inline int64_t lgpu_flight_remaining(const struct lgpu_flight *f, int64_t now)
{
	if (!lgpu_flight_busy(f))
		return 0;
	int64_t oldest = f->oldest->expected, ran = now - lgpu_flight_since(f);
	return f->expected - (ran < oldest ? ran : oldest);
}

// lgpu_flight_drains is how long the work in flight will be on the device, or
// INT64_MAX where that cannot be told.
int64_t lgpu_flight_drains(const struct lgpu_flight *f, int64_t now);

// lgpu_flight_estimate finds, or makes, the estimate of some work: the same function
// with as many blocks, or the same graph.
uint32_t lgpu_flight_estimate(struct lgpu_flight *f, const void *work, uint64_t size);

// lgpu_flight_admits says whether a launch may join what is in flight.
bool lgpu_flight_admits(const struct lgpu_flight *f, uint32_t estimate, int64_t now);

// What lgpu_flight_enter has made of a launch.
struct lgpu_entry {
	struct lgpu_run *run;    // that it is part of
	struct lgpu_run *before; // the stream's former run, to be left before the launch; NULL: none
	uint32_t place;          // in the run
	bool first;              // nothing else was in flight
	bool seals;              // no launch joins the run after this one
};

// lgpu_flight_enter counts a launch into stream, which is on its way in from now on. at_once: its event is recorded as
// soon as it is launched.
struct lgpu_entry lgpu_flight_enter(struct lgpu_flight *f, struct lgpu_gate_context *c, CUstream stream, uint32_t estimate,
				    bool at_once, int64_t now);

// lgpu_flight_hold is lgpu_flight_enter for a launch that waits in its stream until lgpu_flight_go. Until then it is not
// in flight for lgpu_flight_busy, lgpu_flight_remaining and lgpu_flight_drains. The stream has no open run.
struct lgpu_entry lgpu_flight_hold(struct lgpu_flight *f, struct lgpu_gate_context *c, CUstream stream, uint32_t estimate, int64_t now);
void lgpu_flight_go(struct lgpu_flight *f, int64_t now);

// lgpu_flight_join counts a launch that may be in flight whatever the time is, and that needs no event: it is known to be
// short, and its stream has an open run, of this context unless that is NULL. Otherwise the entry has no run, and the
// launch has to enter.
struct lgpu_entry lgpu_flight_join(struct lgpu_flight *f, const struct lgpu_gate_context *c, CUstream stream, uint32_t estimate);

// lgpu_flight_leave says that a launch of the run has been issued, or that one who has sealed it is done with it. The
// last to leave a sealed run records its event, into the stream. Called without the gate's lock, but for the event of a
// legacy stream with its context current.
void lgpu_flight_leave(struct lgpu_run *run);

// lgpu_flight_refused takes a launch that the driver has refused out of its run, before it leaves.
void lgpu_flight_refused(struct lgpu_flight *f, struct lgpu_run *run, uint32_t place);

// lgpu_flight_seal seals the open runs of a stream, or of all, and stores them. The caller must leave each.
uint32_t lgpu_flight_seal(struct lgpu_flight *f, bool all, CUstream stream, struct lgpu_run *runs[LGPU_FLIGHT_OPEN]);

// lgpu_flight_release drops the open runs: nobody wants to know when they are done.
void lgpu_flight_release(struct lgpu_flight *f);

// lgpu_flight_ask asks the driver what has been done, in the order of the runs, up to the first that is not, or all:
// between different streams completions may come out of order. Without streams open runs are left alone. Called with
// the collect lock only.
void lgpu_flight_ask(struct lgpu_flight *f, uint32_t *lock, bool all, bool streams);

// lgpu_flight_settle takes out what has been seen to be done, and returns how many runs. Until then the device was
// busy. now is when the driver was asked. Called with both locks.
uint32_t lgpu_flight_settle(struct lgpu_flight *f, int64_t now, enum lgpu_look how, int64_t *until);

// lgpu_flight_forget drops what is in flight of a context, with its events, which
// are destroyed with it. Called with both locks.
void lgpu_flight_forget(struct lgpu_flight *f, struct lgpu_gate_context *c);

#endif
