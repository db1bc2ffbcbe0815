// SPDX-License-Identifier: Apache-2.0

// A driver whose device only takes time, for the path of a launch: a kernel with N blocks runs for N ns, one kernel after
// the other, at most 1024 of them queued. What calls cost the host, and kernels and events the device besides, is in the
// environment, in ns: CARD_LAUNCH, CARD_RECORD, CARD_QUERY; CARD_KERNEL, CARD_EVENT. Streams can be held (card.h): their
// work does not end.
//
// It ends the program with a message where a stream is used that is destroyed, where an event is recorded into a stream
// that is being captured, and where a stream is queried while any is.
#include "testdata/card.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lgpu_nvml.h"

#define STREAMS 64
#define QUEUE 1024
#define EVENTS 4096

static struct stream {
	bool made, destroyed, capturing, held;
	int64_t end; // of its last work
	// While it waits for a word to have a value: the work that it has had since.
	const volatile uint32_t *word;
	uint32_t value;
	int64_t behind;
} streams[STREAMS]; // 0 is the legacy stream, 1 that of all threads
static struct event {
	int64_t end;
	struct stream *stream;
	bool held; // it waits for what its stream held
	bool behind; // its stream waits for a word; end is from then on
} events[EVENTS];
static int made_events, captures, launches;
static int64_t queue[QUEUE], device_end;
static uint64_t recorded, waited;
static int locked;
static _Thread_local CUcontext stack[8];
static _Thread_local int depth;

// Held so shortly that who waits does not sleep: that would cost more than any call.
static void lock(void)
{
	for (int tries = 1; __atomic_exchange_n(&locked, 1, __ATOMIC_ACQUIRE) != 0; tries++)
		if (tries % 1000 == 0)
			sched_yield();
}

static void unlock(void) { __atomic_store_n(&locked, 0, __ATOMIC_RELEASE); }

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

// price is what the environment says; *ns is 0 until it has been read.
static int64_t price(const char *name, int64_t *ns)
{
	int64_t known = __atomic_load_n(ns, __ATOMIC_RELAXED);
	if (known == 0) {
		const char *text = getenv(name);
		known = text != NULL ? atoll(text) : -1;
		__atomic_store_n(ns, known, __ATOMIC_RELAXED);
	}
	return known > 0 ? known : 0;
}

// spend has a call cost the host so much.
static void spend(int64_t ns)
{
	for (int64_t end = ns > 0 ? now() + ns : 0; end != 0 && now() < end;)
		;
}

static struct stream *stream_of(CUstream handle, const char *call)
{
	uintptr_t n = (uintptr_t)handle;
	if (n <= 1)
		return &streams[0];
	if (n == 2)
		return &streams[1];
	struct stream *s = n >= 0x100 && n < 0x100 + STREAMS ? &streams[n - 0x100] : NULL;
	if (s == NULL || !s->made || s->destroyed) {
		fprintf(stderr, "card: %s of a stream that is destroyed\n", call);
		abort();
	}
	return s;
}

static void forbid(bool wrong, const char *what)
{
	if (!wrong)
		return;
	fprintf(stderr, "card: %s\n", what);
	abort();
}

uint64_t card_recorded(void)
{
	lock();
	uint64_t n = recorded;
	unlock();
	return n;
}

uint64_t card_waited(void)
{
	lock();
	uint64_t n = waited;
	unlock();
	return n;
}

void card_hold(CUstream stream, bool held)
{
	lock();
	struct stream *s = &streams[(uintptr_t)stream >= 0x100 ? (uintptr_t)stream - 0x100 : 0]; // also one that is destroyed
	s->held = held;
	for (int i = 0; i < made_events && !held; i++)
		if (events[i].stream == s)
			events[i].held = false;
	unlock();
}

CUresult cuInit(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
CUresult cuDriverGetVersion(int *v) { return *v = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d) { return *bytes = (size_t)1 << 30, (void)d, CUDA_SUCCESS; }
CUresult cuMemGetInfo_v2(size_t *left, size_t *total) { return *left = *total = (size_t)1 << 30, CUDA_SUCCESS; }
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice d)
{
	(void)d;
	for (int i = 0; i < 16; i++)
		uuid->bytes[i] = (char)(0x10 + i);
	return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice d) { return cuDeviceGetUuid(uuid, d); }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute a, CUdevice d) { return *value = 1, (void)a, (void)d, CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult r, const char **text) { return *text = "of the card", (void)r, CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { return *c = (CUcontext)(uintptr_t)(0x1000 + d), CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext c)
{
	depth = depth > 0 ? depth : 1;
	stack[depth - 1] = c;
	return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *c) { return *c = depth > 0 ? stack[depth - 1] : NULL, CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(CUcontext c)
{
	forbid(depth == 8, "contexts are not popped");
	return stack[depth++] = c, CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext *c)
{
	forbid(depth == 0, "no context to pop");
	return *c = stack[--depth], CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *d) { return *d = 0, depth > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
CUresult cuStreamGetCtx(CUstream s, CUcontext *c) { return *c = (CUcontext)0x1000, (void)s, CUDA_SUCCESS; }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) { return (void)mode, CUDA_SUCCESS; }
CUresult cuModuleLoadData(CUmodule *m, const void *image) { return *m = (CUmodule)0x2000, (void)image, CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { return *f = (CUfunction)0x3000, (void)m, (void)name, CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute a, CUfunction f) { return *value = 0, (void)a, (void)f, CUDA_SUCCESS; }

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	(void)flags;
	lock();
	for (int i = 2; i < STREAMS; i++) {
		if (streams[i].made && !streams[i].destroyed)
			continue;
		streams[i] = (struct stream){.made = true};
		*stream = (CUstream)(uintptr_t)(0x100 + i);
		unlock();
		return CUDA_SUCCESS;
	}
	unlock();
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	lock();
	stream_of(stream, "cuStreamDestroy")->destroyed = true;
	unlock();
	return CUDA_SUCCESS;
}

// look has a stream go on whose word has the value that it waits for.
static struct stream *look(struct stream *s)
{
	if (s->word == NULL || (int32_t)(*s->word - s->value) < 0)
		return s;
	int64_t start = later(now(), device_end);
	for (int i = 0; i < made_events; i++) {
		if (events[i].stream == s && events[i].behind)
			events[i].end += start;
		events[i].behind = events[i].behind && events[i].stream != s;
	}
	s->word = NULL;
	s->end = device_end = start + s->behind;
	return s;
}

// enqueue has some work run in a stream, and returns its end.
static int64_t enqueue(struct stream *s, int64_t nanos)
{
	if (look(s)->word != NULL)
		return s->behind += nanos;
	int64_t start = later(later(now(), device_end), s->end);
	return s->end = device_end = start + nanos;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
			CUstream stream, void **params, void **extra)
{
	static int64_t host, device;
	(void)f, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params, (void)extra;
	spend(price("CARD_LAUNCH", &host));
	for (;; sched_yield()) {
		lock();
		if (queue[launches % QUEUE] <= now())
			break;
		unlock();
	}
	struct stream *s = stream_of(stream, "cuLaunchKernel");
	waited += look(s)->word != NULL;
	if (!s->capturing)
		queue[launches++ % QUEUE] = enqueue(s, gx + price("CARD_KERNEL", &device)); // too early where the stream waits
	unlock();
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	return cuLaunchKernel(f, c->gridDimX, 1, 1, 1, 1, 1, 0, c->hStream, params, extra);
}

// A graph is a kernel.
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph g, unsigned long long flags)
{
	return *exec = (CUgraphExec)0x4000, (void)g, (void)flags, CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return (void)exec, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	(void)flags;
	lock();
	CUresult r = made_events < EVENTS ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS)
		*event = (CUevent)&events[made_events++];
	unlock();
	return r;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	static int64_t host, device;
	spend(price("CARD_RECORD", &host));
	lock();
	struct stream *s = stream_of(stream, "cuEventRecord");
	forbid(s->capturing, "an event is recorded into a capture");
	int64_t end = enqueue(s, price("CARD_EVENT", &device));
	*(struct event *)event = (struct event){end, s, s->held, s->word != NULL};
	recorded++;
	unlock();
	return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
	static int64_t ns;
	spend(price("CARD_QUERY", &ns));
	lock();
	const struct event *e = (const struct event *)event;
	if (e->stream != NULL)
		look(e->stream);
	bool done = !e->held && !e->behind && e->end <= now();
	unlock();
	return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static bool done(struct stream *s) { return !s->held && look(s)->word == NULL && s->end <= now(); }

CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) { return (void)p, (void)bytes, (void)flags, CUDA_SUCCESS; }
CUresult cuMemHostUnregister(void *p) { return (void)p, CUDA_SUCCESS; }
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *at, void *p, unsigned flags) { return *at = (CUdeviceptr)p, (void)flags, CUDA_SUCCESS; }
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
	if (getenv("CARD_NO_WAIT") != NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	lock();
	struct stream *s = stream_of(stream, "cuStreamWaitValue32");
	forbid(flags != CU_STREAM_WAIT_VALUE_GEQ || look(s)->word != NULL, "a stream waits twice");
	s->word = (const volatile uint32_t *)at;
	s->value = value;
	s->behind = 0;
	unlock();
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
	static int64_t ns;
	spend(price("CARD_QUERY", &ns));
	lock();
	forbid(captures != 0, "a stream is queried during a capture");
	bool all = done(stream_of(stream, "cuStreamQuery"));
	unlock();
	return all ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult await(CUstream stream, bool all)
{
	for (bool waits = true; waits;) {
		lock();
		waits = !all && !done(stream_of(stream, "cuStreamSynchronize"));
		for (int i = 0; i < STREAMS && all; i++)
			waits = waits || !done(&streams[i]);
		unlock();
		if (waits)
			nanosleep(&(struct timespec){0, 1000}, NULL);
	}
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) { return await(stream, false); }
CUresult cuCtxSynchronize(void) { return await(NULL, true); }

static CUresult capture(CUstream stream, bool capturing)
{
	lock();
	stream_of(stream, "a capture")->capturing = capturing;
	captures += capturing ? 1 : -1;
	unlock();
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) { return (void)mode, capture(stream, true); }
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { return *graph = NULL, capture(stream, false); }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	lock();
	bool capturing = stream_of(stream, "cuStreamIsCapturing")->capturing;
	unlock();
	*status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

// ---- NVML, as far as the library and the daemon need it

nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { return (void)flags, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *d) { return *d = (nvmlDevice_t)0x5000, (void)index, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned length)
{
	(void)d;
	snprintf(uuid, length, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
	return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *memory)
{
	*memory = (nvmlMemory_t){1 << 30, 1 << 30, 0};
	return (void)d, NVML_SUCCESS;
}
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t r) { return (void)r, "of the card"; }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned length) { return snprintf(name, length, "card"), (void)d, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) { return *major = 9, *minor = 0, (void)d, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor) { return *minor = 0, (void)d, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t d, unsigned *cores) { return *cores = 128, (void)d, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *rates) { return *rates = (nvmlUtilization_t){0}, (void)d, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
	*pci = (nvmlPciInfo_t){.busId = "00000000:01:00.0"};
	return (void)d, NVML_SUCCESS;
}
