// SPDX-License-Identifier: Apache-2.0

// The contexts of the gates' devices, and the captures in them.
#include "gate/parts.h"

#define CAPTURE_PATIENCE INT64_C(200000000) // of a capture, for a wait to have begun, ns
#define CAPTURE_LOOK 20000                  // between two looks whether it has, ns

struct lgpu_gate_context *lgpu_gate_context_of(CUcontext context)
{
	for (uint32_t i = 0, n = lgpu_gate_contexts(); i < n; i++) {
		struct lgpu_gate_context *c = &lgpu_gates->context[i];
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
	lgpu_lock(&lgpu_gates->contexts_lock);
	for (uint32_t i = 0; i < LGPU_GATE_CONTEXTS && found == NULL; i++) {
		struct lgpu_gate_context *c = &lgpu_gates->context[i];
		if (c->context == NULL || c->context == context) {
			found = c;
			c->gate = lgpu_gates->device[index];
			__atomic_store_n(&c->context, context, __ATOMIC_RELEASE);
			if (i >= lgpu_gates->contexts)
				__atomic_store_n(&lgpu_gates->contexts, i + 1, __ATOMIC_RELEASE);
		}
	}
	lgpu_unlock(&lgpu_gates->contexts_lock);
	if (found == NULL)
		lgpu_log(LGPU_LOG_ERROR, "gate: more than %d contexts; launches in the others are not limited", LGPU_GATE_CONTEXTS);
	return found != NULL && found->gate != NULL ? found : NULL;
}

// visit calls f in the contexts of a gate, or of all. A context in which a stream is being captured cannot be waited for, as
// that would end the capture; what it runs meanwhile goes unseen. Either this sees the capture, or the capture sees that a
// context is being waited for (lgpu_gate_capture_begins).
static void visit(struct lgpu_gate *g, void (*f)(size_t *own))
{
	for (uint32_t i = 0, n = lgpu_gate_contexts(); i < n; i++) {
		struct lgpu_gate_context *c = &lgpu_gates->context[i];
		if (__atomic_load_n(&c->context, __ATOMIC_ACQUIRE) == NULL)
			continue;
		lgpu_lock(&c->flushing);
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		CUcontext context = __atomic_load_n(&c->context, __ATOMIC_ACQUIRE), popped;
		if (context != NULL && (g == NULL || c->gate == g) && !lgpu_gate_capturing() &&
		    LGPU_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
			f(&c->own);
			LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
		}
		lgpu_unlock(&c->flushing);
	}
}

static void flush(size_t *own)
{
	(void)own;
	LGPU_FAULT_POINT("flush");
	LGPU_REAL(cuCtxSynchronize)();
}

void lgpu_gate_flush(struct lgpu_gate *g) { visit(g, flush); }

void lgpu_gate_each_context(void (*f)(size_t *own))
{
	if (lgpu_gates_ready() != NULL)
		visit(NULL, f);
}

void lgpu_gate_capture_begins(void)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	if (all == NULL)
		return;
	__atomic_fetch_add(&all->captures, 1, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	// From now on nobody opens a run. Those that are open get their event before any stream is captured, as a thread that
	// begins a capture at the same time waits for this one's records; and a stream that is asked for now is so before.
	for (uint32_t i = 0; i < LGPU_MAX_DEVICES; i++)
		if (all->device[i] != NULL)
			lgpu_gate_record(all->device[i], true, NULL);
	// A wait that has begun may well go on: only its beginning hurts. It may even
	// be for something that this thread is to do next.
	for (int64_t end = lgpu_now() + CAPTURE_PATIENCE, now = 0; now < end; now = lgpu_now()) {
		bool flushing = false;
		for (uint32_t i = 0, n = lgpu_gate_contexts(); i < n; i++)
			flushing = flushing || __atomic_load_n(&all->context[i].flushing, __ATOMIC_SEQ_CST) != 0;
		if (!flushing)
			return;
		nanosleep(&(struct timespec){0, CAPTURE_LOOK}, NULL);
	}
}

void lgpu_gate_capture_ended(void)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	if (all != NULL)
		__atomic_fetch_sub(&all->captures, 1, __ATOMIC_SEQ_CST);
}

bool lgpu_gate_captures(void) { return lgpu_gates_ready() != NULL && lgpu_gate_capturing(); }

void lgpu_gate_stream_gone(CUstream stream)
{
	struct lgpu_gates *all = lgpu_gates_ready();
	if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
		return;
	for (uint32_t i = 0; all != NULL && i < LGPU_MAX_DEVICES; i++)
		if (all->device[i] != NULL) {
			lgpu_gate_record(all->device[i], false, stream);
			lgpu_prepare_stream_gone(all->device[i], stream);
		}
}

void lgpu_gate_context_made(CUcontext context)
{
	if (lgpu_gates_ready() != NULL)
		lgpu_gate_context_of(context);
}

// drain waits for what a context runs, and forgets what of it is in flight. The
// driver's destroy waits for the context's work, too; waiting here keeps that work
// in flight, and charged, until it has ended.
static void drain(struct lgpu_gate_context *c, CUcontext context)
{
	struct lgpu_gate *g = c->gate;
	CUcontext popped;
	lgpu_lock(&g->lock);
	lgpu_prepare_go(g, lgpu_now());
	lgpu_unlock(&g->lock);
	if (LGPU_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
		LGPU_REAL(cuCtxSynchronize)();
		lgpu_lock(&g->lock);
		lgpu_prepare_context_gone(c);
		lgpu_unlock(&g->lock);
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	}
	lgpu_gate_observe(g, LGPU_LOOK_WAITED);
	lgpu_lock(&g->collect);
	lgpu_lock(&g->lock);
	lgpu_flight_forget(&g->flight, c);
	c->gate = NULL;
	if (!lgpu_gate_busy(g))
		g->idle = lgpu_now();
	lgpu_gate_wake(g);
	lgpu_unlock(&g->lock);
	lgpu_unlock(&g->collect);
}

void lgpu_gate_context_gone(CUcontext context)
{
	if (lgpu_gates_ready() == NULL)
		return;
	for (uint32_t k = 0, n = lgpu_gate_contexts(); k < n; k++) {
		struct lgpu_gate_context *c = &lgpu_gates->context[k];
		if (c->context != context || context == NULL)
			continue;
		lgpu_lock(&c->flushing);
		if (c->gate != NULL)
			drain(c, context);
		c->own = 0;
		__atomic_store_n(&c->context, NULL, __ATOMIC_RELEASE);
		lgpu_unlock(&c->flushing);
	}
}
