/* SPDX-License-Identifier: Apache-2.0 */
/* Start, devices, contexts, and how symbols are found. */
#include "suite.h"

#include <pthread.h>
#include <unistd.h>

CASE(init_comes_first)
{
	int n;
	CUdevice d;
	CUcontext c;
	CUdeviceptr p;

	OK(cuDriverGetVersion(&n));
	CHECK(n >= 12000);
	RETURNS(cuDriverGetVersion(NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	RETURNS(cuDeviceGet(&d, 0), CUDA_ERROR_NOT_INITIALIZED);
	RETURNS(cuMemAlloc(&p, 1), CUDA_ERROR_NOT_INITIALIZED);
	RETURNS(cuCtxGetCurrent(&c), CUDA_ERROR_NOT_INITIALIZED);
	RETURNS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
	OK(cuInit(0));
	OK(cuInit(0));
	OK(cuCtxGetCurrent(&c));
	CHECK(c == NULL);
	RETURNS(cuMemAlloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
}

CASE(error_names)
{
	const char *s;

	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &s));
	CHECK(strcmp(s, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
	OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &s));
	CHECK(strcmp(s, "out of memory") == 0);
	OK(cuGetErrorString(CUDA_SUCCESS, &s));
	CHECK(strcmp(s, "no error") == 0);
	RETURNS(cuGetErrorName((CUresult)123456, &s), CUDA_ERROR_INVALID_VALUE);
}

CASE(device_describes_itself)
{
	char name[64], bus[32];
	CUdevice d, again;
	CUuuid u, v;
	size_t total;
	int n, major, minor, x;

	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	CHECK(n >= 1);
	OK(cuDeviceGet(&d, 0));
	RETURNS(cuDeviceGet(&d, n), CUDA_ERROR_INVALID_DEVICE);
	RETURNS(cuDeviceGet(&d, -1), CUDA_ERROR_INVALID_DEVICE);
	OK(cuDeviceGet(&d, 0));
	OK(cuDeviceGetName(name, sizeof name, d));
	CHECK(strlen(name) > 3);
	RETURNS(cuDeviceGetName(name, sizeof name, n), CUDA_ERROR_INVALID_DEVICE);
	OK(cuDeviceGetUuid(&u, d));
	OK(cuDeviceGetUuid(&v, d));
	CHECK(memcmp(&u, &v, sizeof u) == 0);
	OK(cuDeviceTotalMem(&total, d));
	CHECK(total >= 64 << 20);
	OK(cuDeviceGetPCIBusId(bus, sizeof bus, d));
	OK(cuDeviceGetByPCIBusId(&again, bus));
	EQUAL(again, d);
	RETURNS(cuDeviceGetByPCIBusId(&again, "ffff:ff:1f.0"), CUDA_ERROR_INVALID_DEVICE);
	OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d));
	OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d));
	OK(cuDeviceComputeCapability(&n, &x, d));
	EQUAL(n, major);
	EQUAL(x, minor);
	EQUAL(suite_attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
	CHECK(suite_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) > 0);
	EQUAL(suite_attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
	RETURNS(cuDeviceGetAttribute(&x, (CUdevice_attribute)100000, d), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, d), CUDA_ERROR_INVALID_VALUE);
}

CASE(primary_context)
{
	CUcontext a, b;
	unsigned flags;
	int active;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQUAL(active, 0);
	OK(cuDevicePrimaryCtxRetain(&a, 0));
	OK(cuDevicePrimaryCtxRetain(&b, 0));
	CHECK(a == b);
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQUAL(active, 1);
	OK(cuDevicePrimaryCtxRelease(0));
	OK(cuDevicePrimaryCtxRelease(0));
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	EQUAL(active, 0);
	RETURNS(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
}

CASE(context_stack)
{
	CUcontext a, b, c;
	CUdevice d;
	unsigned v;
	unsigned long long id1, id2;

	OK(cuInit(0));
	RETURNS(cuCtxPopCurrent(&c), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxCreate(&a, NULL, 0, 0));
	OK(cuCtxCreate(&b, NULL, CU_CTX_SCHED_YIELD, 0));
	CHECK(a != b);
	OK(cuCtxGetCurrent(&c));
	CHECK(c == b);
	OK(cuCtxGetFlags(&v));
	EQUAL(v & CU_CTX_SCHED_MASK, CU_CTX_SCHED_YIELD);
	OK(cuCtxPopCurrent(&c));
	CHECK(c == b);
	OK(cuCtxGetCurrent(&c));
	CHECK(c == a);
	OK(cuCtxPushCurrent(b));
	OK(cuCtxGetDevice(&d));
	EQUAL(d, 0);
	OK(cuCtxGetApiVersion(b, &v));
	CHECK(v > 0);
	OK(cuCtxGetId(a, &id1));
	OK(cuCtxGetId(b, &id2));
	CHECK(id1 != id2);
	RETURNS(cuCtxPushCurrent(NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxDestroy(b));
	OK(cuCtxGetCurrent(&c));
	CHECK(c == a);
	OK(cuCtxDestroy(a));
	OK(cuCtxGetCurrent(&c));
	CHECK(c == NULL);
	RETURNS(cuCtxDestroy(NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuCtxCreate(&a, NULL, 0, 1000), CUDA_ERROR_INVALID_DEVICE);
}

CASE(context_costs_memory)
{
	CUcontext a, b;
	size_t before, after, total;

	OK(cuInit(0));
	OK(cuCtxCreate(&a, NULL, 0, 0));
	OK(cuMemGetInfo(&before, &total));
	CHECK(before < total);
	OK(cuCtxCreate(&b, NULL, 0, 0));
	OK(cuMemGetInfo(&after, &total));
	CHECK(after < before);
	OK(cuCtxDestroy(b));
	OK(cuMemGetInfo(&after, &total));
	EQUAL(after, before);
}

CASE(context_limits)
{
	int least, greatest;
	CUfunc_cache cache;
	size_t v;

	suite_context();
	OK(cuCtxGetLimit(&v, CU_LIMIT_STACK_SIZE));
	OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
	OK(cuCtxGetLimit(&v, CU_LIMIT_STACK_SIZE));
	CHECK(v >= 4096);
	RETURNS(cuCtxGetLimit(&v, (CUlimit)1000), CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxGetCacheConfig(&cache));
	OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
	OK(cuCtxGetStreamPriorityRange(&least, &greatest));
	CHECK(greatest <= least);
	OK(cuCtxSynchronize());
}

static void *current_of_thread(void *arg)
{
	CUcontext c;

	OK(cuCtxGetCurrent(&c));
	CHECK(c == NULL);
	OK(cuCtxSetCurrent(arg));
	OK(cuCtxGetCurrent(&c));
	CHECK(c == arg);
	return NULL;
}

CASE(current_context_is_the_threads)
{
	CUcontext ctx = suite_context();
	pthread_t t[16];
	unsigned i;

	for (i = 0; i < 16; i++)
		CHECK(pthread_create(&t[i], NULL, current_of_thread, ctx) == 0);
	for (i = 0; i < 16; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
}

CASE(forked_child_is_refused)
{
	int pid, n;
	CUdeviceptr p;

	suite_context();
	if ((pid = fork()) == 0)
		_exit(cuMemAlloc(&p, 1) == CUDA_ERROR_NOT_INITIALIZED && cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
	EQUAL(suite_wait(pid), 0);
	OK(cuMemAlloc(&p, 1));
}

CASE(fork_before_init)
{
	int pid, n;

	if ((pid = fork()) == 0)
		_exit(cuInit(0) == CUDA_SUCCESS && cuDeviceGetCount(&n) == CUDA_SUCCESS && n > 0 ? 0 : 1);
	EQUAL(suite_wait(pid), 0);
	OK(cuInit(0));
}

CASE(proc_address)
{
	CUdriverProcAddressQueryResult st;
	CUresult (*get)(CUdeviceptr *, size_t);
	void *v1, *v2, *pt, *p;
	CUdeviceptr d;

	OK(cuGetProcAddress("cuMemAlloc", &v2, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &st));
	EQUAL(st, CU_GET_PROC_ADDRESS_SUCCESS);
	OK(cuGetProcAddress("cuMemAlloc", &v1, 2000, CU_GET_PROC_ADDRESS_DEFAULT, &st));
	CHECK(v1 != v2);
	OK(cuGetProcAddress("cuLaunchKernel", &p, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &st));
	OK(cuGetProcAddress("cuLaunchKernel", &pt, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &st));
	CHECK(p != pt);
	OK(cuGetProcAddress("cuMemAlloc", &p, 1000, 0, &st));
	EQUAL(st, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	CHECK(p == NULL);
	OK(cuGetProcAddress("cuNoSuchCall", &p, 12000, 0, &st));
	EQUAL(st, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CHECK(p == NULL);
	RETURNS(cuGetProcAddress("cuMemAlloc", &p, 999000, 0, &st), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuGetProcAddress("cuNoSuchCall", &p, 999000, 0, &st), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuGetProcAddress("cuMemAlloc", &p, 12000, 7, &st), CUDA_ERROR_INVALID_VALUE);
	OK(cuGetProcAddress("cuNoSuchCall", &p, 12000, 0, NULL));
	CHECK(p == NULL);
	suite_context();
	memcpy(&get, &v2, sizeof get);
	OK(get(&d, 4096));
	OK(cuMemFree(d));
}

CASE(peer_access)
{
	int n, can;

	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	OK(cuDeviceCanAccessPeer(&can, 0, 0));
	EQUAL(can, 0);
	if (n < 2)
		suite_skip("one device");
	OK(cuDeviceCanAccessPeer(&can, 0, 1));
	if (can) {
		CUcontext a, b;
		CUdeviceptr p, q;
		int x = 41, y = 0;

		OK(cuDevicePrimaryCtxRetain(&a, 0));
		OK(cuDevicePrimaryCtxRetain(&b, 1));
		OK(cuCtxSetCurrent(b));
		OK(cuMemAlloc(&q, 4096));
		OK(cuCtxSetCurrent(a));
		OK(cuCtxEnablePeerAccess(b, 0));
		RETURNS(cuCtxEnablePeerAccess(b, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
		OK(cuMemAlloc(&p, 4096));
		OK(cuMemcpyHtoD(p, &x, sizeof x));
		OK(cuMemcpyPeer(q, b, p, a, sizeof x));
		OK(cuMemcpyDtoH(&y, q, sizeof y));
		EQUAL(y, 41);
		OK(cuCtxDisablePeerAccess(b));
		RETURNS(cuCtxDisablePeerAccess(b), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	}
}
