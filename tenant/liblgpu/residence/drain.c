// SPDX-License-Identifier: Apache-2.0

// Waiting until all contexts are idle, for a bounded time.
//
// A context cannot be synchronised while one of its streams is captured: that fails, and
// spoils the capture. Only the beginning of a synchronise does so. One that has begun may
// go on after the lock was opened again, because a kernel did not end in time.
#include <stdlib.h>

#include "driver/driver.h"
#include "residence/parts.h"

#define BEGINNING INT64_C(200000000) // of a synchronise: after so long it has surely begun, ns

// finish ends what the thread does with a context.
static void finish(struct lgpu_drain *d)
{
	lgpu_lock(&d->lock);
	d->current = NULL;
	__atomic_store_n(&d->began, 0, __ATOMIC_SEQ_CST);
	lgpu_unlock(&d->lock);
	__atomic_fetch_add(&d->step, 1, __ATOMIC_SEQ_CST);
	lgpu_futex_wake(&d->step, INT32_MAX);
}

// synchronise waits for the context with an index, for a shutting that still waits. False: there is no such context, or
// nobody waits.
static bool synchronise(struct lgpu_drain *d, uint32_t wanted, size_t index, bool *idle)
{
	CUcontext popped;
	lgpu_lock(&d->lock);
	bool waited = d->wanted == wanted, more = index < d->count;
	if (waited && more) {
		d->current = d->contexts[index];
		__atomic_store_n(&d->began, lgpu_now(), __ATOMIC_SEQ_CST);
	}
	lgpu_unlock(&d->lock);
	if (!waited || !more) {
		*idle = *idle && waited;
		return false;
	}
	if (LGPU_REAL(cuCtxPushCurrent_v2)(d->current) == CUDA_SUCCESS) {
		// What fails in another way has nothing running any more.
		*idle = LGPU_REAL(cuCtxSynchronize)() != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && *idle;
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	}
	finish(d);
	return true;
}

static void *drainer(void *arg)
{
	struct lgpu_drain *d = arg;
	for (uint32_t last = 0;;) {
		uint32_t kick = __atomic_load_n(&d->kick, __ATOMIC_SEQ_CST), wanted = __atomic_load_n(&d->wanted, __ATOMIC_SEQ_CST);
		if (wanted == 0 || wanted == last) {
			lgpu_futex_wait(&d->kick, kick, -1);
			continue;
		}
		bool idle = true;
		for (size_t i = 0; synchronise(d, wanted, i, &idle); i++)
			;
		last = wanted;
		if (!idle)
			continue;
		__atomic_store_n(&d->done, wanted, __ATOMIC_SEQ_CST);
		__atomic_fetch_add(&d->step, 1, __ATOMIC_SEQ_CST);
		lgpu_futex_wake(&d->step, INT32_MAX);
	}
	return NULL;
}

static void want(struct lgpu_drain *d, uint32_t number)
{
	__atomic_store_n(&d->wanted, number, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&d->kick, 1, __ATOMIC_SEQ_CST);
	lgpu_futex_wake(&d->kick, 1);
}

bool lgpu_drain(struct lgpu_residence *r, uint32_t number, int64_t deadline)
{
	struct lgpu_drain *d = &r->drain;
	lgpu_lock(&d->lock);
	bool any = d->count != 0;
	if (any && !d->runs)
		d->runs = lgpu_thread_start(drainer, d);
	bool can = d->runs;
	if (any && can)
		want(d, number);
	lgpu_unlock(&d->lock);
	bool done = !any;
	while (!done && can) {
		uint32_t step = __atomic_load_n(&d->step, __ATOMIC_SEQ_CST);
		done = __atomic_load_n(&d->done, __ATOMIC_SEQ_CST) == number;
		int64_t rest = deadline - lgpu_now();
		if (done || rest <= 0)
			break;
		lgpu_futex_wait(&d->step, step, rest);
	}
	lgpu_lock(&d->lock);
	__atomic_store_n(&d->wanted, 0, __ATOMIC_SEQ_CST); // nothing new is begun
	lgpu_unlock(&d->lock);
	return done;
}

// ---- contexts and captures

bool lgpu_residence_context_made(CUcontext context)
{
	if (!lgpu_touch_counts())
		return true;
	struct lgpu_drain *d = &lgpu_residence->drain;
	bool noted = false;
	lgpu_lock(&d->lock);
	for (size_t i = 0; i < d->count && !noted; i++)
		noted = d->contexts[i] == context;
	if (!noted && d->count == d->room) {
		size_t room = d->room == 0 ? 16 : 2 * d->room;
		CUcontext *larger = realloc(d->contexts, room * sizeof(CUcontext));
		if (larger != NULL) {
			d->contexts = larger;
			d->room = room;
		}
	}
	if (!noted && d->count < d->room) {
		d->contexts[d->count++] = context;
		noted = true;
	}
	lgpu_unlock(&d->lock);
	if (!noted)
		lgpu_log(LGPU_LOG_ERROR, "residence: no memory to note a context");
	return noted;
}

void lgpu_residence_context_gone(CUcontext context)
{
	if (!lgpu_touch_counts())
		return;
	struct lgpu_drain *d = &lgpu_residence->drain;
	lgpu_lock(&d->lock);
	for (size_t i = 0; i < d->count; i++)
		if (d->contexts[i] == context)
			d->contexts[i--] = d->contexts[--d->count];
	// A synchronise for a shutting that was given up may still wait for it.
	while (d->current == context && context != NULL) {
		uint32_t step = __atomic_load_n(&d->step, __ATOMIC_SEQ_CST);
		lgpu_unlock(&d->lock);
		lgpu_futex_wait(&d->step, step, -1);
		lgpu_lock(&d->lock);
	}
	lgpu_unlock(&d->lock);
}

CUcontext lgpu_residence_context_at(size_t index)
{
	struct lgpu_drain *d = &lgpu_residence->drain;
	lgpu_lock(&d->lock);
	CUcontext found = index < d->count ? d->contexts[index] : NULL;
	lgpu_unlock(&d->lock);
	return found;
}

CUcontext lgpu_residence_context_of(CUdevice ordinal)
{
	struct lgpu_drain *d = &lgpu_residence->drain;
	CUcontext found = NULL, popped;
	CUdevice device;
	lgpu_lock(&d->lock);
	for (size_t i = 0; i < d->count && found == NULL; i++) {
		if (LGPU_REAL(cuCtxPushCurrent_v2)(d->contexts[i]) != CUDA_SUCCESS)
			continue;
		if (LGPU_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS && device == ordinal)
			found = d->contexts[i];
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	}
	lgpu_unlock(&d->lock);
	return found;
}

void lgpu_residence_capture_begins(void)
{
	if (!lgpu_touch_counts())
		return;
	struct lgpu_drain *d = &lgpu_residence->drain;
	for (;;) {
		uint32_t step = __atomic_load_n(&d->step, __ATOMIC_SEQ_CST);
		int64_t began = __atomic_load_n(&d->began, __ATOMIC_SEQ_CST), rest = began + BEGINNING - lgpu_now();
		if (began == 0 || rest <= 0)
			return;
		lgpu_futex_wait(&d->step, step, rest);
	}
}
