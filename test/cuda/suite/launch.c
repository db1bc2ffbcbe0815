/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, functions and launches. */
#include "suite.h"

#include <pthread.h>

CASE(module_loading)
{
	char *text, log[4096] = "";
	CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_MAX_REGISTERS};
	void *values[] = {log, (void *)(uintptr_t)sizeof log, (void *)(uintptr_t)64};
	unsigned count;
	CUmodule m;
	CUfunction f, fs[64];
	CUdeviceptr g;
	size_t size;
	int v = 0;

	suite_context();
	text = suite_ptx("control");
	OK(cuModuleLoadDataEx(&m, text, 3, names, values));
	OK(cuModuleGetFunction(&f, m, "collatz"));
	RETURNS(cuModuleGetFunction(&f, m, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
	RETURNS(cuModuleGetFunction(NULL, m, "collatz"), CUDA_ERROR_INVALID_VALUE);
	OK(cuModuleGetGlobal(&g, &size, m, "counter"));
	EQUAL(size, 4);
	OK(cuMemcpyDtoH(&v, g, 4));
	RETURNS(cuModuleGetGlobal(&g, &size, m, "no_such_variable"), CUDA_ERROR_NOT_FOUND);
	OK(cuModuleGetFunctionCount(&count, m));
	CHECK(count >= 5 && count <= 64);
	OK(cuModuleEnumerateFunctions(fs, count, m));
	OK(cuModuleUnload(m));
	values[1] = (void *)(uintptr_t)sizeof log;
	RETURNS(cuModuleLoadDataEx(&m, ".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry k() { frobnicate.u32 %r1; ret; }\n",
				   2, names, values), CUDA_ERROR_INVALID_PTX);
	CHECK(strstr(log, "frobnicate") != NULL);
	CHECK(cuModuleLoadData(&m, "\177ELF\2\1\1") != CUDA_SUCCESS);
	RETURNS(cuModuleLoadData(&m, NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuModuleLoad(&m, "/nonexistent.ptx"), CUDA_ERROR_FILE_NOT_FOUND);
	free(text);
}

CASE(library_loading)
{
	char *text = suite_ptx("linear");
	const char *name;
	unsigned count;
	CUlibrary lib, of;
	CUkernel k;
	CUfunction f;
	CUmodule m;
	size_t offset, size;
	int v;

	OK(cuInit(0));
	OK(cuLibraryLoadData(&lib, text, NULL, NULL, 0, NULL, NULL, 0)); /* needs no context */
	OK(cuLibraryGetKernel(&k, lib, "saxpy"));
	RETURNS(cuLibraryGetKernel(&k, lib, "nothing"), CUDA_ERROR_NOT_FOUND);
	OK(cuLibraryGetKernelCount(&count, lib));
	CHECK(count >= 4);
	suite_context();
	OK(cuLibraryGetModule(&m, lib));
	OK(cuKernelGetFunction(&f, k));
	OK(cuKernelGetName(&name, k));
	CHECK(strcmp(name, "saxpy") == 0);
	OK(cuFuncGetName(&name, f));
	CHECK(strcmp(name, "saxpy") == 0);
	OK(cuKernelGetLibrary(&of, k));
	CHECK(of == lib);
	OK(cuKernelGetParamInfo(k, 2, &offset, &size));
	EQUAL(offset, 8);
	EQUAL(size, 8);
	RETURNS(cuKernelGetParamInfo(k, 4, &offset, &size), CUDA_ERROR_INVALID_VALUE);
	OK(cuKernelGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, k, 0));
	CHECK(v > 0 && v <= 1024);
	{
		/* A kernel is launched as a function. */
		uint32_t n = 256;
		float a = 2, h[256], g[256];
		CUdeviceptr x, y;
		unsigned i;

		for (i = 0; i < n; i++)
			h[i] = (float)i;
		OK(cuMemAlloc(&x, sizeof h));
		OK(cuMemAlloc(&y, sizeof h));
		OK(cuMemcpyHtoD(x, h, sizeof h));
		OK(cuMemcpyHtoD(y, h, sizeof h));
		LAUNCH((CUfunction)k, 1, 256, NULL, &n, &a, &x, &y);
		OK(cuMemcpyDtoH(g, y, sizeof g));
		for (i = 0; i < n; i++)
			CHECK(g[i] == 3 * h[i]);
	}
	OK(cuLibraryUnload(lib));
	free(text);
}

CASE(linker)
{
	char *text = suite_ptx("linear");
	CUlinkState l;
	CUmodule m;
	CUfunction f;
	void *image;
	size_t size;

	suite_context();
	OK(cuLinkCreate(0, NULL, NULL, &l));
	OK(cuLinkAddData(l, CU_JIT_INPUT_PTX, text, strlen(text) + 1, "linear", 0, NULL, NULL));
	OK(cuLinkComplete(l, &image, &size));
	CHECK(size > 0);
	OK(cuModuleLoadData(&m, image));
	OK(cuLinkDestroy(l));
	OK(cuModuleGetFunction(&f, m, "saxpy"));
	free(text);
}

CASE(function_attributes)
{
	CUfunction f;
	int v;

	suite_context();
	f = suite_kernel("compute", "matmul");
	OK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f));
	EQUAL(v, 2048);
	OK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
	CHECK(v >= 256);
	OK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_NUM_REGS, f));
	CHECK(v > 0);
	OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096));
	OK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
	EQUAL(v, 4096);
	OK(cuFuncSetCacheConfig(f, CU_FUNC_CACHE_PREFER_SHARED));
	RETURNS(cuFuncGetAttribute(&v, (CUfunction_attribute)1000, f), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS, 1), CUDA_ERROR_INVALID_VALUE);
}

CASE(occupancy)
{
	CUfunction f;
	int n, grid, block;
	size_t bytes;

	suite_context();
	f = suite_kernel("compute", "matmul");
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, f, 256, 0));
	CHECK(n >= 1 && n <= 32);
	OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, NULL, 0, 0));
	CHECK(block >= 32 && grid >= 1);
	OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, f, 1, 256));
	CHECK(bytes >= 16 << 10);
	RETURNS(cuOccupancyMaxActiveBlocksPerMultiprocessor(NULL, f, 256, 0), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, f, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

/* y = a x + y by each way of giving parameters. */
CASE(launch_forms)
{
	enum { N = 1000 };
	struct {
		uint32_t n;
		float a;
		CUdeviceptr x, y;
	} args = {N, 3, 0, 0};
	size_t size = sizeof args;
	void *params[] = {&args.n, &args.a, &args.x, &args.y};
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &args, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
	CUlaunchConfig config = {.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1,
				 .blockDimZ = 1};
	CUlaunchAttribute attr = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
	float h[N], g[N];
	CUfunction f;
	unsigned i;

	suite_context();
	f = suite_kernel("linear", "saxpy");
	for (i = 0; i < N; i++)
		h[i] = (float)i;
	OK(cuMemAlloc(&args.x, sizeof h));
	OK(cuMemAlloc(&args.y, sizeof h));
	OK(cuMemcpyHtoD(args.x, h, sizeof h));
	OK(cuMemsetD32(args.y, 0, N));
	OK(cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
	OK(cuLaunchKernel(f, 4, 1, 1, 256, 1, 1, 0, CU_STREAM_PER_THREAD, NULL, extra));
	OK(cuCtxSynchronize());
	OK(cuLaunchKernelEx(&config, f, params, NULL));
	attr.value.cooperative = 1;
	config.attrs = &attr;
	config.numAttrs = 1;
	OK(cuLaunchKernelEx(&config, f, params, NULL));
	OK(cuLaunchCooperativeKernel(f, 4, 1, 1, 256, 1, 1, 0, NULL, params));
	OK(cuMemcpyDtoH(g, args.y, sizeof g));
	for (i = 0; i < N; i++)
		CHECK(g[i] == 15 * h[i]);
}

CASE(launch_refusals)
{
	uint32_t n = 1;
	float a = 1;
	CUdeviceptr x, y;
	void *params[] = {&n, &a, &x, &y};
	CUfunction f;

	suite_context();
	f = suite_kernel("linear", "saxpy");
	OK(cuMemAlloc(&x, 16));
	y = x;
	RETURNS(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuLaunchKernel(f, 1, 1, 1, 0, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuLaunchKernel(f, 1, 65536, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuLaunchKernel(f, 0xffffffffu, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 1 << 30, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_HANDLE);
	RETURNS(cuLaunchCooperativeKernel(f, 1000000, 1, 1, 1024, 1, 1, 0, NULL, params),
		CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	OK(cuCtxSynchronize());
}

CASE(shared_memory_and_atomics)
{
	enum { N = 4096 };
	float h[N], sum;
	uint32_t n = N, rev[256];
	CUdeviceptr x, s;
	CUfunction f;
	unsigned i;

	suite_context();
	for (i = 0; i < N; i++)
		h[i] = 1;
	OK(cuMemAlloc(&x, sizeof h));
	OK(cuMemAlloc(&s, 4));
	OK(cuMemcpyHtoD(x, h, sizeof h));
	OK(cuMemsetD32(s, 0, 1));
	f = suite_kernel("compute", "reduce_sum");
	LAUNCH(f, 4, 256, NULL, &n, &x, &s);
	OK(cuMemcpyDtoH(&sum, s, 4));
	CHECK(sum == N);
	f = suite_kernel("compute", "dynamic_reverse");
	for (i = 0; i < 256; i++)
		rev[i] = i;
	OK(cuMemcpyHtoD(x, rev, sizeof rev));
	{
		void *p[] = {&x};

		OK(cuLaunchKernel(f, 1, 1, 1, 256, 1, 1, 1024, NULL, p, NULL));
	}
	OK(cuMemcpyDtoH(rev, x, sizeof rev));
	for (i = 0; i < 256; i++)
		EQUAL(rev[i], 255 - i);
}

CASE(module_variables)
{
	CUmodule m;
	CUfunction f;
	CUdeviceptr g;
	uint32_t n = 300, v = 5;
	size_t size;

	suite_context();
	m = suite_module("control");
	OK(cuModuleGetFunction(&f, m, "count"));
	OK(cuModuleGetGlobal(&g, &size, m, "counter"));
	OK(cuMemcpyHtoD(g, &v, 4));
	LAUNCH(f, 2, 256, NULL, &n);
	OK(cuMemcpyDtoH(&v, g, 4));
	EQUAL(v, 305);
}

/* A fault ends all that the process has on the device: every call says so from then on. */
CASE(illegal_address)
{
	CUcontext other;
	CUfunction f;
	CUdeviceptr p;
	uint64_t offset = 1ull << 38;
	int x;

	suite_context();
	OK(cuMemAlloc(&p, 4096));
	f = suite_kernel("control", "out_of_bounds");
	LAUNCH(f, 1, 1, NULL, &p, &offset);
	RETURNS(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	RETURNS(cuMemcpyDtoH(&x, p, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
	RETURNS(cuMemAlloc(&p, 4096), CUDA_ERROR_ILLEGAL_ADDRESS);
	cuDevicePrimaryCtxReset(0);
	RETURNS(cuDevicePrimaryCtxRetain(&other, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
}

struct worker {
	CUcontext ctx;
	CUfunction f;
	int rounds;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	uint32_t seed = 2, got;
	uint64_t n = 1024;
	CUdeviceptr p;
	CUstream s;
	int i;

	OK(cuCtxSetCurrent(w->ctx));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	for (i = 0; i < w->rounds; i++) {
		OK(cuMemAlloc(&p, n * 4));
		OK(cuMemsetD32Async(p, 0, n, s));
		LAUNCH(w->f, 1, 128, s, &p, &n, &seed);
		OK(cuMemcpyDtoHAsync(&got, p + 4, 4, s));
		OK(cuStreamSynchronize(s));
		CHECK(got != 0);
		OK(cuMemFree(p));
	}
	OK(cuStreamDestroy(s));
	return NULL;
}

CASE(many_threads)
{
	struct worker w = {suite_context(), NULL, 5};
	pthread_t t[32];
	unsigned i;

	w.f = suite_kernel("linear", "fill");
	for (i = 0; i < 32; i++)
		CHECK(pthread_create(&t[i], NULL, work, &w) == 0);
	for (i = 0; i < 32; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
}
