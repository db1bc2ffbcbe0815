// SPDX-License-Identifier: Apache-2.0

// Captures of streams, events, and the end of streams.
//
// Launches into a capturing stream are recorded, not run. A capture begins inside the residence lock: so none does while
// the lock is shut and contexts are synchronised. Each is noted under the stream on which it has begun, whose end, or that
// of its context, is the end of the capture too.
#include <pthread.h>

#include "arena/arena.h"
#include "gate/gate.h"
#include "hook/hook.h"
#include "memory/freed.h"
#include "residence/residence.h"

static inline CUstream as_is(CUstream stream) { return stream; }
static inline CUstream ptsz(CUstream stream) { return stream != NULL ? stream : CU_STREAM_PER_THREAD; }

// key_of is under what a stream is noted: each thread has another per-thread stream.
static uint64_t key_of(CUstream stream)
{
	return stream == CU_STREAM_PER_THREAD ? (uint64_t)pthread_self() : (uint64_t)(uintptr_t)stream;
}

void lgpu_capture_ended(void)
{
	lgpu_gate_capture_ended();
	lgpu_residence_capture_ended();
}

// begin notes a capture that is about to begin on a stream. False: there is no memory for the note.
static bool begin(CUstream stream, bool *noted)
{
	struct lgpu_entry e = {.key = key_of(stream), .device = LGPU_HOST, .kind = LGPU_KIND_CAPTURE}, before;
	CUcontext context = NULL;
	LGPU_REAL(cuStreamGetCtx)(stream, &context);
	e.context = context;
	if (!lgpu_accounts_put(&e, &before))
		return false;
	*noted = before.kind == 0; // else it is being captured already, which the driver will say
	lgpu_gate_capture_begins();
	lgpu_residence_capture_begins();
	return true;
}

static void unnote(CUstream stream)
{
	struct lgpu_entry e;
	if (lgpu_accounts_take(LGPU_KIND_CAPTURE, key_of(stream), &e))
		lgpu_capture_ended();
}

#define BEGIN_CAPTURE(name, stream_of, parameters, ...)                                                            \
	LGPU_EXPORT CUresult name parameters                                                                       \
	{                                                                                                          \
		bool noted;                                                                                        \
		if (lgpu_attached() == NULL)                                                                       \
			return LGPU_REAL(name)(__VA_ARGS__);                                                       \
		lgpu_touch_begin();                                                                                \
		CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                                        \
		if (begin(stream_of(stream), &noted)) {                                                            \
			result = LGPU_REAL(name)(__VA_ARGS__);                                                     \
			if (result != CUDA_SUCCESS && noted)                                                       \
				unnote(stream_of(stream));                                                         \
			else if (!noted)                                                                           \
				lgpu_capture_ended();                                                              \
		}                                                                                                  \
		lgpu_touch_end();                                                                                  \
		return result;                                                                                     \
	}
// A capture that was begun on another stream is not ended by this call.
#define END_CAPTURE(name, stream_of)                                                                               \
	LGPU_EXPORT CUresult name(CUstream stream, CUgraph *graph)                                                 \
	{                                                                                                          \
		CUresult result = LGPU_REAL(name)(stream, graph);                                                  \
		CUstreamCaptureStatus after;                                                                       \
		if (lgpu_gate_captures() && LGPU_REAL(cuStreamIsCapturing)(stream_of(stream), &after) == CUDA_SUCCESS && \
		    after == CU_STREAM_CAPTURE_STATUS_NONE)                                                        \
			unnote(stream_of(stream));                                                                 \
		return result;                                                                                     \
	}

BEGIN_CAPTURE(cuStreamBeginCapture, as_is, (CUstream stream), stream)
BEGIN_CAPTURE(cuStreamBeginCapture_ptsz, ptsz, (CUstream stream), stream)
BEGIN_CAPTURE(cuStreamBeginCapture_v2, as_is, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
BEGIN_CAPTURE(cuStreamBeginCapture_v2_ptsz, ptsz, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
BEGIN_CAPTURE(cuStreamBeginCaptureToGraph, as_is,
	      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
	       CUstreamCaptureMode mode),
	      stream, graph, nodes, edges, count, mode)
BEGIN_CAPTURE(cuStreamBeginCaptureToGraph_ptsz, ptsz,
	      (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
	       CUstreamCaptureMode mode),
	      stream, graph, nodes, edges, count, mode)
END_CAPTURE(cuStreamEndCapture, as_is)
END_CAPTURE(cuStreamEndCapture_ptsz, ptsz)

// ---- events, by which one stream comes after what was freed on another

static CUresult recorded(CUevent event, CUstream stream, CUresult r)
{
	if (r == CUDA_SUCCESS)
		lgpu_arena_event_recorded(event, stream);
	return r;
}

static CUresult awaits(CUstream stream, CUevent event, CUresult r)
{
	if (r == CUDA_SUCCESS)
		lgpu_arena_stream_waits(stream, event);
	return r;
}

LGPU_EXPORT CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
{
	return recorded(hEvent, hStream, LGPU_REAL(cuEventRecord)(hEvent, hStream));
}

LGPU_EXPORT CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream)
{
	return recorded(hEvent, ptsz(hStream), LGPU_REAL(cuEventRecord_ptsz)(hEvent, hStream));
}

LGPU_EXPORT CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags)
{
	return recorded(hEvent, hStream, LGPU_REAL(cuEventRecordWithFlags)(hEvent, hStream, flags));
}

LGPU_EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags)
{
	return recorded(hEvent, ptsz(hStream), LGPU_REAL(cuEventRecordWithFlags_ptsz)(hEvent, hStream, flags));
}

LGPU_EXPORT CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
	return awaits(hStream, hEvent, LGPU_REAL(cuStreamWaitEvent)(hStream, hEvent, Flags));
}

LGPU_EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
	return awaits(ptsz(hStream), hEvent, LGPU_REAL(cuStreamWaitEvent_ptsz)(hStream, hEvent, Flags));
}

// ---- the end of streams

// A stream is forgotten before it is no more.
static CUresult destroy(CUstream stream, CUresult (*driver)(CUstream))
{
	CUstreamCaptureStatus after;
	if (lgpu_attached() == NULL)
		return driver(stream);
	lgpu_freed_stream_ends(stream);
	lgpu_arena_stream_ends(stream);
	lgpu_gate_stream_gone(stream);
	CUresult r = driver(stream);
	// A stream that could not be ended may go on being captured.
	if (lgpu_gate_captures() && (r == CUDA_SUCCESS || LGPU_REAL(cuStreamIsCapturing)(stream, &after) != CUDA_SUCCESS ||
				     after == CU_STREAM_CAPTURE_STATUS_NONE))
		unnote(stream);
	return r;
}

LGPU_EXPORT CUresult cuStreamDestroy(CUstream hStream) { return destroy(hStream, LGPU_REAL(cuStreamDestroy)); }
LGPU_EXPORT CUresult cuStreamDestroy_v2(CUstream hStream) { return destroy(hStream, LGPU_REAL(cuStreamDestroy_v2)); }
