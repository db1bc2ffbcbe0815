// SPDX-License-Identifier: Apache-2.0

// Launches that are prepared behind a closed gate.
//
// A program runs ahead of its device: while the device works, it launches what comes next. A gate that closes at the end
// of a grant would stop both, and when it opens the device would have to wait for the first launches, which natively had
// been queued by then. So as much work as was queued when the gate closed may be launched behind it. It waits in its
// stream, by a memory operation, for a word that is written when the gate opens. Nothing of it runs before, so it is
// neither charged nor waited for.
//
// A program that the device waits for has next to nothing queued. It may lose the time that it takes to wake up at each
// opening, so a little may be prepared in any case. That this gains something is not shown yet (docs/benchmarks.md).
//
// This is for grants that end because they are used up (compute.max) while nobody else wants the device.
#include <sys/mman.h>

#include "daemon/daemon.h"
#include "gate/parts.h"

#define PAGE 4096
#define LEAST INT64_C(400000) // so much work may be prepared whatever was queued, ns

// named says whether a stream is one that can be told from others by its handle, or the legacy one.
static bool named(CUstream stream) { return stream != CU_STREAM_PER_THREAD; }

void lgpu_prepare_word(struct lgpu_gate_context *c, CUstream stream)
{
	const struct lgpu_gate *g = c->gate;
	if (c->unwilling || __atomic_load_n(&c->word, __ATOMIC_ACQUIRE) != NULL || !g->linked || g->free || !named(stream) ||
	    lgpu_gate_cap(g) == LGPU_FULL_COMPUTE || g->limits->overcommit != 0 || lgpu_gate_capturing())
		return;
	CUcontext popped;
	lgpu_lock(&lgpu_gates->contexts_lock);
	if (c->word == NULL && !c->unwilling && c->context != NULL && LGPU_REAL(cuCtxPushCurrent_v2)(c->context) == CUDA_SUCCESS) {
		uint32_t *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		c->unwilling = page == MAP_FAILED ||
			       LGPU_REAL(cuMemHostRegister_v2)(page, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP) != CUDA_SUCCESS ||
			       LGPU_REAL(cuMemHostGetDevicePointer_v2)(&c->at, page, 0) != CUDA_SUCCESS;
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
		if (!c->unwilling) {
			*page = g->prepared.value; // read without the lock: it only grows, and a stream never waits for less
			__atomic_store_n(&c->word, page, __ATOMIC_RELEASE);
		} else if (page != MAP_FAILED) {
			munmap(page, PAGE);
		}
	}
	lgpu_unlock(&lgpu_gates->contexts_lock);
}

void lgpu_prepare_closed(struct lgpu_gate *g, int64_t now)
{
	g->prepared.ahead = g->grant.wanted || g->flush ? 0 : lgpu_clamp(lgpu_flight_remaining(&g->flight, now), LEAST, LGPU_FLIGHT_DEEP);
	if (g->prepared.ahead != 0)
		lgpu_gate_wake(g); // who waits because so much was in flight
}

static bool waits(const struct lgpu_prepared *p, CUstream stream)
{
	for (uint32_t i = 0; i < p->streams; i++)
		if (p->stream[i] == stream)
			return true;
	return false;
}

bool lgpu_prepare_admits(const struct lgpu_gate *g, const struct lgpu_gate_context *c, CUstream stream, uint32_t estimate)
{
	const struct lgpu_prepared *p = &g->prepared;
	int64_t nanos = g->flight.estimates[estimate].nanos;
	return !g->open && g->linked && p->ahead > 0 && nanos != 0 && g->flight.held + nanos / 2 <= p->ahead && named(stream) &&
	       g->grant.seeps == 0 && c->word != NULL && g->flight.count < LGPU_FLIGHT_RUNS / 2 &&
	       !lgpu_gate_capturing() && (p->streams < LGPU_PREPARE_STREAMS || waits(p, stream));
}

struct lgpu_entry lgpu_prepare_enter(struct lgpu_gate *g, struct lgpu_gate_context *c, CUstream stream, uint32_t estimate, int64_t now)
{
	struct lgpu_prepared *p = &g->prepared;
	struct lgpu_run *before[LGPU_FLIGHT_OPEN];
	uint32_t open = lgpu_flight_seal(&g->flight, false, stream, before);
	struct lgpu_entry e = lgpu_flight_hold(&g->flight, c, stream, estimate, now);
	uint32_t value = p->value + 1;
	bool first = !waits(p, stream);
	if (first) {
		p->stream[p->streams++] = stream;
		lgpu_gate_kick(g);
	}
	g->entered++;
	lgpu_unlock(&g->lock);
	for (uint32_t i = 0; i < open; i++)
		lgpu_flight_leave(before[i]);
	if (!first || LGPU_REAL(cuStreamWaitValue32_v2)(stream, c->at, value, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS)
		return e;
	// It runs at once, then, and so may the others.
	lgpu_lock(&g->lock);
	c->unwilling = true;
	lgpu_prepare_go(g, lgpu_now());
	lgpu_gate_kick(g);
	lgpu_unlock(&g->lock);
	return e;
}

void lgpu_prepare_go(struct lgpu_gate *g, int64_t now)
{
	struct lgpu_prepared *p = &g->prepared;
	p->ahead = 0;
	if (p->streams == 0)
		return;
	if (!lgpu_gate_busy(g) && now > g->charged)
		g->charged = now;
	lgpu_flight_go(&g->flight, now);
	p->streams = 0;
	p->value++;
	for (uint32_t i = 0, n = lgpu_gate_contexts(); i < n; i++) {
		struct lgpu_gate_context *c = &lgpu_gates->context[i];
		uint32_t *word = c->gate == g ? __atomic_load_n(&c->word, __ATOMIC_ACQUIRE) : NULL;
		if (word != NULL)
			__atomic_store_n(word, p->value, __ATOMIC_RELEASE);
	}
}

int64_t lgpu_prepare_watch(struct lgpu_gate *g, int64_t now)
{
	bool stuck = lgpu_gate_busy(g) && now - g->flight.completed > g->patience;
	if (stuck || __atomic_load_n(&g->limits->compute, __ATOMIC_RELAXED) == 0)
		lgpu_prepare_go(g, now);
	else
		lgpu_linked_doubt(g, now);
	return now + LGPU_BEAT_LOOK;
}

void lgpu_prepare_stream_gone(struct lgpu_gate *g, CUstream stream)
{
	struct lgpu_prepared *p = &g->prepared;
	lgpu_lock(&g->lock);
	for (uint32_t i = 0; i < p->streams; i++)
		if (p->stream[i] == stream && p->streams > 1)
			p->stream[i--] = p->stream[--p->streams];
		else if (p->stream[i] == stream)
			p->stream[i] = CU_STREAM_PER_THREAD; // one at least says that something waits
	lgpu_unlock(&g->lock);
}

void lgpu_prepare_context_gone(struct lgpu_gate_context *c)
{
	if (c->word != NULL) {
		LGPU_REAL(cuMemHostUnregister)(c->word);
		munmap(c->word, PAGE);
	}
	c->word = NULL;
	c->unwilling = false;
}
