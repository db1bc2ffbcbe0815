// SPDX-License-Identifier: Apache-2.0

// Memory that is freed in stream order comes back to its pool when the stream reaches
// the free. It comes back to the device only after the program has also waited for
// that: a trim gives back only frees that the driver knows of from a synchronise. A
// program that never synchronises would find its lgpu full. So the streams of frees
// are noted. When memory is short, an event is recorded on each of them, and waited for
// once it has happened, which takes no time.
#include "memory/freed.h"

#include <pthread.h>

#include "base/futex.h"

// A power of two. Two streams of one index displace each other; what was
// freed on the one that is forgotten comes back at the program's next synchronise.
#define STREAMS 256

static struct noted {
	CUstream stream;
	CUcontext context; // NULL: free
	uint64_t thread;   // whose own stream it is, or 0
	CUevent event;     // recorded after the frees so far; NULL: none yet
	bool again;        // something was freed since
} noted[STREAMS];
static uint32_t lock; // guards the notes, and the streams while they are used

// thread_of tells the threads apart whose own stream is meant; 0 for other streams.
static uint64_t thread_of(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (uint64_t)pthread_self() : 0; }

static struct noted *noted_at(CUstream stream, CUcontext context)
{
	uint64_t h = ((uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)context << 7 ^ thread_of(stream)) * UINT64_C(0x9e3779b97f4a7c15);
	return &noted[h >> 32 & (STREAMS - 1)];
}

// clear forgets a stream. The caller has the lock, and the context is current.
static void clear(struct noted *p)
{
	if (p->event != NULL)
		LGPU_REAL(cuEventDestroy_v2)(p->event);
	p->event = NULL;
	p->again = false;
	__atomic_store_n(&p->context, NULL, __ATOMIC_RELEASE);
}

// record puts an event after what was freed. A stream that is being captured
// runs nothing. The caller has the lock, and the context is current.
static bool record(struct noted *p)
{
	CUstreamCaptureStatus status;
	__atomic_store_n(&p->again, false, __ATOMIC_RELEASE);
	if (LGPU_REAL(cuStreamIsCapturing)(p->stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE ||
	    (p->event == NULL && LGPU_REAL(cuEventCreate)(&p->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS))
		return false;
	return LGPU_REAL(cuEventRecord)(p->event, p->stream) == CUDA_SUCCESS;
}

// take notes a stream. The caller has the lock.
static void take(struct noted *p, CUstream stream, CUcontext context)
{
	CUcontext popped;
	if (p->context != NULL && LGPU_REAL(cuCtxPushCurrent_v2)(p->context) == CUDA_SUCCESS) {
		clear(p);
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	}
	p->stream = stream;
	p->thread = thread_of(stream);
	p->event = NULL;
	__atomic_store_n(&p->context, context, __ATOMIC_RELEASE);
}

// holds reports whether p is the note of a stream. Without the lock the answer may be
// out of date at once. Only the streams that every context has are told apart by it.
static bool holds(const struct noted *p, CUstream stream, CUcontext context, bool common)
{
	return __atomic_load_n(&p->context, __ATOMIC_ACQUIRE) != NULL && p->stream == stream && p->thread == thread_of(stream) &&
	       (!common || p->context == context);
}

void lgpu_freed_note(CUstream stream)
{
	CUcontext context = NULL;
	bool common = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
	if (common)
		LGPU_REAL(cuCtxGetCurrent)(&context);
	struct noted *p = noted_at(stream, context);
	if (stream != CU_STREAM_PER_THREAD && holds(p, stream, context, common)) {
		__atomic_store_n(&p->again, true, __ATOMIC_RELEASE);
		return;
	}
	if (!common && LGPU_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
		return;
	lgpu_lock(&lock);
	if (!holds(p, stream, context, common))
		take(p, stream, context);
	// Nobody else can put an event on a thread's own stream.
	if (p->thread != 0 && !record(p))
		clear(p);
	lgpu_unlock(&lock);
}

// settle looks at one stream. The caller has the lock.
static enum lgpu_freed settle(struct noted *p)
{
	CUcontext popped;
	enum lgpu_freed found = LGPU_FREED_NONE;
	if (LGPU_REAL(cuCtxPushCurrent_v2)(p->context) != CUDA_SUCCESS) {
		p->context = NULL;
		return found;
	}
	if (p->event == NULL && !record(p)) {
		clear(p);
	} else if (LGPU_REAL(cuEventQuery)(p->event) == CUDA_ERROR_NOT_READY) {
		found = LGPU_FREED_COMING;
	} else {
		LGPU_REAL(cuEventSynchronize)(p->event);
		found = LGPU_FREED_SETTLED;
		if (__atomic_load_n(&p->again, __ATOMIC_ACQUIRE)) {
			LGPU_REAL(cuEventDestroy_v2)(p->event);
			p->event = NULL;
		} else {
			clear(p);
		}
	}
	LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	return found;
}

enum lgpu_freed lgpu_freed_settle(void)
{
	enum lgpu_freed found = LGPU_FREED_NONE;
	// A capture that this thread has under way must not be spoilt.
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	lgpu_lock(&lock);
	for (struct noted *p = noted; p < noted + STREAMS; p++) {
		if (p->context == NULL)
			continue;
		enum lgpu_freed one = settle(p);
		// What has come back is looked at before anything is waited for.
		if (found != LGPU_FREED_SETTLED && one != LGPU_FREED_NONE)
			found = one;
	}
	lgpu_unlock(&lock);
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	return found;
}

// forget drops the notes of a stream, or of all of a context.
static void forget(CUstream stream, CUcontext context)
{
	CUcontext popped;
	lgpu_lock(&lock);
	for (struct noted *p = noted; p < noted + STREAMS; p++) {
		if (p->context == NULL || (context != NULL ? p->context != context : p->stream != stream))
			continue;
		bool current = LGPU_REAL(cuCtxPushCurrent_v2)(p->context) == CUDA_SUCCESS;
		clear(p);
		if (current)
			LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	}
	lgpu_unlock(&lock);
}

void lgpu_freed_ended(CUcontext context) { forget(NULL, context); }

void lgpu_freed_stream_ends(CUstream stream) { forget(stream, NULL); }

void lgpu_freed_reset(void)
{
	lock = 0;
	for (struct noted *p = noted; p < noted + STREAMS; p++)
		*p = (struct noted){.context = NULL};
}
