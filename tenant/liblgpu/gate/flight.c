// SPDX-License-Identifier: Apache-2.0

#include "gate/flight.h"

#include "base/futex.h"

#define RING LGPU_FLIGHT_RING
// Launches whose duration is not known yet, in flight at once.
#define UNKNOWN_AT_ONCE 2
// Device time that may be in flight, ns.
#define IN_FLIGHT INT64_C(1000000)

int64_t lgpu_flight_drains(const struct lgpu_flight *f, int64_t now)
{
	if (!lgpu_flight_busy(f))
		return 0;
	if (f->pending != 0 || f->unknown != 0 || lgpu_flight_oldest(f, now) < 0)
		return INT64_MAX;
	return lgpu_flight_remaining(f, now);
}

uint32_t lgpu_flight_estimate(struct lgpu_flight *f, const void *work, uint64_t size)
{
	uint64_t key = ((uint64_t)(uintptr_t)work ^ size * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd) | 1;
	uint32_t index = (uint32_t)(key >> 40) % LGPU_FLIGHT_ESTIMATES;
	if (f->estimates[index].key != key)
		f->estimates[index] = (struct lgpu_estimate){key, 0};
	return index;
}

bool lgpu_flight_admits(const struct lgpu_flight *f, uint32_t estimate, int64_t now)
{
	if (!lgpu_flight_room(f))
		return false;
	if (f->estimates[estimate].nanos == 0 && f->unknown >= UNKNOWN_AT_ONCE)
		return false;
	int64_t remaining = lgpu_flight_remaining(f, now);
	return remaining <= LGPU_FLIGHT_AHEAD || remaining + f->estimates[estimate].nanos <= IN_FLIGHT;
}

CUevent lgpu_flight_event(struct lgpu_gate_context *c)
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

static void event_back(struct lgpu_gate_context *c, CUevent event)
{
	if (event != NULL && c->free < RING)
		c->events[c->free++] = event;
}

bool lgpu_flight_enter(struct lgpu_flight *f, uint32_t estimate)
{
	bool unknown = f->estimates[estimate].nanos == 0;
	f->pending++;
	f->unknown += unknown;
	return unknown;
}

void lgpu_flight_launched(struct lgpu_flight *f, const struct lgpu_launch *l)
{
	if (lgpu_flight_count(f) == 0)
		f->completed = lgpu_now();
	struct lgpu_launch *entry = &f->ring[f->head++ % RING];
	*entry = *l;
	entry->expected = f->estimates[l->estimate].nanos;
	f->expected += entry->expected;
	f->pending--;
}

void lgpu_flight_failed(struct lgpu_flight *f, const struct lgpu_launch *l, bool gone)
{
	f->pending--;
	f->unknown -= l->unknown;
	if (gone)
		l->context->free = 0;
	else
		event_back(l->context, l->event);
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

// finished asks the driver whether an event has been reached. Any error means
// that its context is beyond running anything: done as well.
static bool finished(struct lgpu_launch *l)
{
	CUresult r = LGPU_REAL(cuEventQuery)(l->event);
	if (r == CUDA_ERROR_NOT_READY)
		return false;
	if (r == CUDA_SUCCESS)
		event_back(l->context, l->event);
	l->event = NULL;
	return true;
}

// What was collected from the ring's end: how long it was expected to take, and of
// how many that was known.
struct collected {
	int64_t expected;
	uint32_t known;
};

// collect asks the driver about the launches in flight, in their order, up to the
// first that has not completed, or about all.
static struct collected collect(struct lgpu_flight *f, bool all)
{
	struct collected c = {0};
	CUcontext current = NULL;
	for (uint32_t i = f->tail; i != f->head; i++) {
		struct lgpu_launch *l = &f->ring[i % RING];
		if (l->event != NULL) {
			if (l->context->context != current) {
				if (current != NULL)
					LGPU_REAL(cuCtxPopCurrent_v2)(&current);
				current = l->context->context;
				if (LGPU_REAL(cuCtxPushCurrent_v2)(current) != CUDA_SUCCESS)
					current = NULL;
			}
			if (!finished(l)) {
				if (!all)
					break;
				continue;
			}
			f->expected -= l->expected;
			f->unknown -= l->unknown;
		}
		if (i == f->tail) {
			f->tail++;
			c.expected += l->expected;
			c.known += !l->unknown;
		}
	}
	if (current != NULL)
		LGPU_REAL(cuCtxPopCurrent_v2)(&current);
	return c;
}

uint32_t lgpu_flight_look(struct lgpu_flight *f, int64_t now, bool punctual, bool waited, int64_t *until)
{
	*until = now;
	if (lgpu_flight_count(f) == 0)
		return 0;
	uint32_t first = f->tail;
	struct collected c = collect(f, waited && ++f->looks % 8 == 0);
	uint32_t done = f->tail - first;
	int64_t looked = f->looked, end = now;
	f->looked = now;
	if (done == 0)
		return 0;
	// Otherwise it has ended at some time since the last look.
	if (!punctual && !lgpu_flight_busy(f) && c.known == done)
		end = lgpu_clamp(f->completed + c.expected, looked > f->completed ? looked : f->completed, now);
	int64_t took = end - f->completed;
	for (uint32_t i = first; i != f->tail; i++) {
		const struct lgpu_launch *l = &f->ring[i % RING];
		bool shared = c.known == done && c.expected > 0;
		learn(f, l->estimate, shared ? (int64_t)((__int128)took * l->expected / c.expected) : took / done, done == 1);
	}
	f->completed = end;
	*until = end;
	return done;
}

void lgpu_flight_forget(struct lgpu_flight *f, struct lgpu_gate_context *c)
{
	for (uint32_t i = f->tail; i != f->head; i++) {
		struct lgpu_launch *l = &f->ring[i % RING];
		if (l->context == c && l->event != NULL) {
			l->event = NULL;
			f->expected -= l->expected;
			f->unknown -= l->unknown;
		}
	}
	while (f->tail != f->head && f->ring[f->tail % RING].event == NULL)
		f->tail++;
	c->free = 0;
}
