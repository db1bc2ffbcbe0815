// SPDX-License-Identifier: Apache-2.0

// flight.h: what is in flight on a device, and for how long it will be.
//
// After each launch an untimed event is recorded. A look collects the events that
// have been reached, and learns how long the same work will take when it is launched
// again. This header is private to the gate; callers hold the gate's lock.
#ifndef LGPU_FLIGHT_H
#define LGPU_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "process/process.h"

// Launches in flight at once. A power of two.
#define LGPU_FLIGHT_RING 256
#define LGPU_FLIGHT_ESTIMATES 2048
// A launch may join the work in flight in any case when so much of it is left, ns.
#define LGPU_FLIGHT_AHEAD INT64_C(500000)

static inline int64_t lgpu_clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

// A context of a gate's device.
struct lgpu_gate;
struct lgpu_gate_context {
	CUcontext context; // NULL: free
	struct lgpu_gate *gate;
	uint32_t flushing; // lock: the context is waited for, or about to be destroyed
	uint32_t free;     // events to be used again
	CUevent events[LGPU_FLIGHT_RING];
};

struct lgpu_launch {
	struct lgpu_gate_context *context;
	CUevent event;    // NULL: seen to be done, out of order
	int64_t expected; // its part of lgpu_flight.expected
	uint32_t estimate;
	bool unknown;
};

struct lgpu_estimate {
	uint64_t key;
	int64_t nanos; // 0: unknown
};

struct lgpu_flight {
	uint32_t pending;    // on their way in: no event has been recorded yet
	uint32_t unknown;    // of all of them, those with an unknown duration
	uint32_t head, tail; // ring of launches in flight: tail..head
	uint32_t looks;
	int64_t expected;  // sum over the ring
	int64_t looked;    // when the driver was asked last
	int64_t completed; // when the last completion was seen, or the oldest launch issued
	struct lgpu_launch ring[LGPU_FLIGHT_RING];
	struct lgpu_estimate estimates[LGPU_FLIGHT_ESTIMATES];
};

static inline uint32_t lgpu_flight_count(const struct lgpu_flight *f) { return f->head - f->tail; }
static inline bool lgpu_flight_busy(const struct lgpu_flight *f) { return lgpu_flight_count(f) != 0 || f->pending != 0; }
static inline bool lgpu_flight_room(const struct lgpu_flight *f) { return lgpu_flight_count(f) + f->pending < LGPU_FLIGHT_RING; }

// lgpu_flight_oldest is how long the oldest launch is expected to run on, negative
// when it is late. There is one.
static inline int64_t lgpu_flight_oldest(const struct lgpu_flight *f, int64_t now)
{
	return f->ring[f->tail % LGPU_FLIGHT_RING].expected - (now - f->completed);
}

// lgpu_flight_remaining is how long the work in flight is expected to keep the
// device busy.
static inline int64_t lgpu_flight_remaining(const struct lgpu_flight *f, int64_t now)
{
	if (lgpu_flight_count(f) == 0)
		return 0;
	int64_t head = f->ring[f->tail % LGPU_FLIGHT_RING].expected, ran = now - f->completed;
	return f->expected - (ran < head ? ran : head);
}

// lgpu_flight_drains is how long the work in flight will be on the device, or
// INT64_MAX where that cannot be told.
int64_t lgpu_flight_drains(const struct lgpu_flight *f, int64_t now);

// lgpu_flight_estimate finds, or makes, the estimate of some work: the same function
// with as many blocks, or the same graph.
uint32_t lgpu_flight_estimate(struct lgpu_flight *f, const void *work, uint64_t size);

// lgpu_flight_admits says whether a launch may join what is in flight.
bool lgpu_flight_admits(const struct lgpu_flight *f, uint32_t estimate, int64_t now);

// lgpu_flight_event returns an event for a launch, from the context's store or new,
// or NULL.
CUevent lgpu_flight_event(struct lgpu_gate_context *c);

// lgpu_flight_enter counts a launch that is on its way in, and returns whether its
// duration is unknown; lgpu_flight_launched notes what has been launched,
// lgpu_flight_failed what has not: then the event is used again, unless it is of a
// context that is gone.
bool lgpu_flight_enter(struct lgpu_flight *f, uint32_t estimate);
void lgpu_flight_launched(struct lgpu_flight *f, const struct lgpu_launch *l);
void lgpu_flight_failed(struct lgpu_flight *f, const struct lgpu_launch *l, bool gone);

// lgpu_flight_look collects what has completed, and returns how much. Until then the
// device was busy. Where launches wait, all in flight is asked now and then: between
// different streams completions may come out of order. punctual: what has ended has
// done so just now.
uint32_t lgpu_flight_look(struct lgpu_flight *f, int64_t now, bool punctual, bool waited, int64_t *until);

// lgpu_flight_forget drops what is in flight of a context, with its events, which
// are destroyed with it.
void lgpu_flight_forget(struct lgpu_flight *f, struct lgpu_gate_context *c);

#endif
