// Memory freed in stream order comes back to its pool when the stream has got
// there, and to the device when, after that, the program has waited for it: a
// trim gives back only what a synchronise has told the driver of. A program that
// goes on without one would find its lgpu full. So streams of frees are noted, and
// when memory is short, an event is recorded on each; one that has happened is
// waited for, which takes no time.
#include "freed.h"

#include <pthread.h>

#include "futex.h"

// A power of two. Two streams that share a place displace each other; what was
// freed on the one that is forgotten comes back at the program's next synchronise.
#define PLACES 256

static struct place {
	CUstream stream;
	CUcontext context; // NULL: free
	uint64_t thread;   // whose own stream it is, or 0
	CUevent event;     // recorded after the frees so far; NULL: none yet
	bool again;        // something was freed since
} places[PLACES];
static uint32_t lock; // what streams are in places; who has it may use them

// thread_of tells the threads apart whose own stream is meant; 0 for other streams.
static uint64_t thread_of(CUstream stream) { return stream == CU_STREAM_PER_THREAD ? (uint64_t)pthread_self() : 0; }

static struct place *place_of(CUstream stream, CUcontext context)
{
	uint64_t h = ((uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)context << 7 ^ thread_of(stream)) * UINT64_C(0x9e3779b97f4a7c15);
	return &places[h >> 32 & (PLACES - 1)];
}

// clear forgets a place. The caller has the lock, and the context is current.
static void clear(struct place *p)
{
	if (p->event != NULL)
		LGPU_REAL(cuEventDestroy_v2)(p->event);
	p->event = NULL;
	p->again = false;
	__atomic_store_n(&p->context, NULL, __ATOMIC_RELEASE);
}

// record puts an event behind what was freed. A stream that is being captured
// runs nothing. The caller has the lock, and the context is current.
static bool record(struct place *p)
{
	CUstreamCaptureStatus status;
	__atomic_store_n(&p->again, false, __ATOMIC_RELEASE);
	if (LGPU_REAL(cuStreamIsCapturing)(p->stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE ||
	    (p->event == NULL && LGPU_REAL(cuEventCreate)(&p->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS))
		return false;
	return LGPU_REAL(cuEventRecord)(p->event, p->stream) == CUDA_SUCCESS;
}

// take gives a place to a stream. The caller has the lock.
static void take(struct place *p, CUstream stream, CUcontext context)
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

// holds reports whether a place is a stream's. Without the lock the answer may be
// out of date at once. Only the streams that every context has are told apart by it.
static bool holds(const struct place *p, CUstream stream, CUcontext context, bool common)
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
	struct place *p = place_of(stream, context);
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

// settle looks at one place. The caller has the lock.
static enum lgpu_freed settle(struct place *p)
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
	for (struct place *p = places; p < places + PLACES; p++) {
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

// forget drops the places of a stream, or of all of a context.
static void forget(CUstream stream, CUcontext context)
{
	CUcontext popped;
	lgpu_lock(&lock);
	for (struct place *p = places; p < places + PLACES; p++) {
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

void lgpu_freed_reset(void)
{
	lock = 0;
	for (struct place *p = places; p < places + PLACES; p++)
		*p = (struct place){.context = NULL};
}

// A stream is forgotten before it is no more.
LGPU_EXPORT CUresult cuStreamDestroy(CUstream hStream)
{
	if (lgpu_attached() != NULL)
		forget(hStream, NULL);
	return LGPU_REAL(cuStreamDestroy)(hStream);
}

LGPU_EXPORT CUresult cuStreamDestroy_v2(CUstream hStream)
{
	if (lgpu_attached() != NULL)
		forget(hStream, NULL);
	return LGPU_REAL(cuStreamDestroy_v2)(hStream);
}
