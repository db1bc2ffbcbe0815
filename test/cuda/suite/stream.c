/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, host functions, and waits on memory. */
#include "suite.h"

#include <pthread.h>

/* A kernel that runs until the flag has the value: the tests' way of knowing that work has not ended. */
struct gate {
	CUdeviceptr flag, done;
	uint32_t *host;
	CUfunction f;
};

static struct gate make_gate(void)
{
	struct gate g;

	OK(cuMemHostAlloc((void **)&g.host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	memset(g.host, 0, 4096);
	OK(cuMemHostGetDevicePointer(&g.flag, g.host, 0));
	g.done = g.flag + 64;
	g.f = suite_kernel("control", "wait_flag");
	return g;
}

static void close_gate(struct gate *g, CUstream s)
{
	uint32_t value = 1;

	__atomic_store_n(g->host, 0, __ATOMIC_SEQ_CST);
	LAUNCH(g->f, 1, 1, s, &g->flag, &value, &g->done);
}

static void open_gate(struct gate *g)
{
	__atomic_store_n(g->host, 1, __ATOMIC_SEQ_CST);
}

CASE(streams)
{
	CUstream s, p;
	CUcontext ctx = suite_context(), of;
	unsigned flags;
	int least, greatest, priority;
	unsigned long long a, b;
	struct gate g = make_gate();

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuCtxGetStreamPriorityRange(&least, &greatest));
	OK(cuStreamCreateWithPriority(&p, CU_STREAM_NON_BLOCKING, greatest));
	OK(cuStreamGetPriority(p, &priority));
	EQUAL(priority, greatest);
	OK(cuStreamGetFlags(s, &flags));
	EQUAL(flags, CU_STREAM_NON_BLOCKING);
	OK(cuStreamGetCtx(s, &of));
	CHECK(of == ctx);
	OK(cuStreamGetId(s, &a));
	OK(cuStreamGetId(p, &b));
	CHECK(a != b);
	close_gate(&g, s);
	RETURNS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	OK(cuStreamQuery(p));
	open_gate(&g);
	OK(cuStreamSynchronize(s));
	OK(cuStreamQuery(s));
	OK(cuStreamDestroy(s));
	OK(cuStreamDestroy(p));
	RETURNS(cuStreamCreate(&s, 0x100), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuStreamCreate(NULL, 0), CUDA_ERROR_INVALID_VALUE);
}

/* The legacy default stream waits for the others and they for it, except those that do not block. */
CASE(legacy_stream_orders)
{
	struct gate g;
	CUstream blocking, free_one;

	suite_context();
	g = make_gate();
	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
	close_gate(&g, blocking);
	OK(cuMemsetD32Async(g.done + 64, 7, 1, CU_STREAM_LEGACY));
	RETURNS(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
	OK(cuMemsetD32Async(g.done + 128, 7, 1, free_one));
	OK(cuStreamSynchronize(free_one));
	RETURNS(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
	open_gate(&g);
	OK(cuStreamSynchronize(NULL));
	OK(cuStreamQuery(blocking));
}

CASE(events)
{
	struct gate g;
	CUevent a, b, c;
	CUstream s, t;
	float ms = -1;

	suite_context();
	g = make_gate();
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&a, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&b, CU_EVENT_BLOCKING_SYNC));
	OK(cuEventCreate(&c, CU_EVENT_DISABLE_TIMING));
	OK(cuEventQuery(a));
	OK(cuEventRecord(a, s));
	close_gate(&g, s);
	OK(cuEventRecord(b, s));
	RETURNS(cuEventQuery(b), CUDA_ERROR_NOT_READY);
	RETURNS(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
	OK(cuStreamWaitEvent(t, b, 0));
	OK(cuMemsetD32Async(g.done + 64, 9, 1, t));
	RETURNS(cuStreamQuery(t), CUDA_ERROR_NOT_READY);
	open_gate(&g);
	OK(cuEventSynchronize(b));
	OK(cuStreamSynchronize(t));
	EQUAL(g.host[32], 9);
	OK(cuEventElapsedTime(&ms, a, b));
	CHECK(ms >= 0);
	OK(cuEventRecord(c, s));
	OK(cuEventSynchronize(c));
	RETURNS(cuEventElapsedTime(&ms, a, c), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventDestroy(a));
	OK(cuEventDestroy(b));
	OK(cuEventDestroy(c));
	RETURNS(cuEventCreate(&a, 0x1000), CUDA_ERROR_INVALID_VALUE);
}

CASE(event_time_is_the_devices)
{
	CUevent a, b;
	CUfunction f;
	uint64_t ns = 20000000;
	float ms;

	suite_context();
	f = suite_kernel("control", "spin");
	OK(cuEventCreate(&a, 0));
	OK(cuEventCreate(&b, 0));
	OK(cuEventRecord(a, NULL));
	LAUNCH(f, 1, 1, NULL, &ns);
	OK(cuEventRecord(b, NULL));
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	CHECK(ms >= 19.9f);
}

static struct {
	pthread_mutex_t lock;
	int calls, order[8];
	pthread_t thread;
	CUresult status;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_host(void *arg)
{
	pthread_mutex_lock(&seen.lock);
	seen.order[seen.calls++ & 7] = (int)(intptr_t)arg;
	seen.thread = pthread_self();
	pthread_mutex_unlock(&seen.lock);
}

static void on_stream(CUstream s, CUresult status, void *arg)
{
	(void)s;
	seen.status = status;
	on_host(arg);
}

CASE(host_functions)
{
	struct gate g;
	CUstream s;

	suite_context();
	g = make_gate();
	seen.status = CUDA_ERROR_UNKNOWN;
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	close_gate(&g, s);
	OK(cuLaunchHostFunc(s, on_host, (void *)1));
	OK(cuStreamAddCallback(s, on_stream, (void *)2, 0));
	OK(cuLaunchHostFunc(s, on_host, (void *)3));
	EQUAL(seen.calls, 0);
	open_gate(&g);
	OK(cuStreamSynchronize(s));
	EQUAL(seen.calls, 3);
	EQUAL(seen.order[0], 1);
	EQUAL(seen.order[1], 2);
	EQUAL(seen.order[2], 3);
	EQUAL(seen.status, CUDA_SUCCESS);
	CHECK(!pthread_equal(seen.thread, pthread_self()));
	RETURNS(cuLaunchHostFunc(s, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
}

CASE(waits_on_memory)
{
	CUdeviceptr p;
	CUstream s, t;
	CUstreamBatchMemOpParams ops[2];
	uint32_t v;

	suite_context();
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&p, 4096));
	OK(cuMemsetD32(p, 0, 1024));
	OK(cuStreamWaitValue32(s, p, 5, CU_STREAM_WAIT_VALUE_GEQ));
	OK(cuStreamWriteValue32(s, p + 4, 11, 0));
	RETURNS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	OK(cuStreamWriteValue32(t, p, 4, 0));
	OK(cuStreamSynchronize(t));
	RETURNS(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	OK(cuStreamWriteValue32(t, p, 6, 0));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(&v, p + 4, 4));
	EQUAL(v, 11);
	memset(ops, 0, sizeof ops);
	ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	ops[0].writeValue.address = p + 8;
	ops[0].writeValue.value = 21;
	ops[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	ops[1].waitValue.address = p + 8;
	ops[1].waitValue.value = 21;
	ops[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
	OK(cuStreamBatchMemOp(s, 2, ops, 0));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(&v, p + 8, 4));
	EQUAL(v, 21);
	RETURNS(cuStreamWaitValue32(s, p + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(per_thread_stream)
{
	CUresult (*set)(CUdeviceptr, unsigned, size_t, CUstream), (*sync)(CUstream);
	CUdriverProcAddressQueryResult st;
	struct gate g;
	CUstream s;
	void *p;

	suite_context();
	g = make_gate();
	OK(cuGetProcAddress("cuMemsetD32Async", &p, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &st));
	memcpy(&set, &p, sizeof set);
	OK(cuGetProcAddress("cuStreamSynchronize", &p, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &st));
	memcpy(&sync, &p, sizeof sync);
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	close_gate(&g, CU_STREAM_PER_THREAD);
	OK(set(g.done + 64, 3, 1, NULL));
	RETURNS(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
	OK(cuStreamQuery(s));
	open_gate(&g);
	OK(sync(NULL));
	EQUAL(g.host[32], 3);
}
