/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, built by hand and by capture. */
#include "suite.h"

static int host_calls;

static void count_call(void *arg)
{
	host_calls += (int)(intptr_t)arg;
}

CASE(graph_by_hand)
{
	enum { N = 512 };
	CUDA_MEMSET_NODE_PARAMS set = {.elementSize = 4, .width = N, .height = 1, .value = 0};
	CUDA_KERNEL_NODE_PARAMS k, back;
	CUDA_HOST_NODE_PARAMS host = {count_call, (void *)1};
	CUDA_MEMCPY3D copy;
	CUgraph g, clone;
	CUgraphNode set_node, kernel, copy_node, host_node, list[8], from[8], to[8];
	CUgraphExec exec;
	CUgraphNodeType type;
	uint64_t n = N;
	uint32_t seed = 9, seed2 = 10, out[N], one;
	CUcontext ctx = suite_context();
	CUdeviceptr p;
	void *args[] = {&p, &n, &seed};
	size_t count;

	OK(cuMemAlloc(&p, N * 4));
	OK(cuGraphCreate(&g, 0));
	set.dst = p;
	OK(cuGraphAddMemsetNode(&set_node, g, NULL, 0, &set, ctx));
	memset(&k, 0, sizeof k);
	k.func = suite_kernel("linear", "fill");
	k.gridDimX = 2;
	k.gridDimY = k.gridDimZ = k.blockDimY = k.blockDimZ = 1;
	k.blockDimX = 128;
	k.kernelParams = args;
	OK(cuGraphAddKernelNode(&kernel, g, &set_node, 1, &k));
	memset(&copy, 0, sizeof copy);
	copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	copy.srcDevice = p;
	copy.dstMemoryType = CU_MEMORYTYPE_HOST;
	copy.dstHost = out;
	copy.WidthInBytes = sizeof out;
	copy.Height = copy.Depth = 1;
	OK(cuGraphAddMemcpyNode(&copy_node, g, &kernel, 1, &copy, ctx));
	OK(cuGraphAddHostNode(&host_node, g, &copy_node, 1, &host));
	OK(cuGraphGetNodes(g, NULL, &count));
	EQUAL(count, 4);
	count = 8;
	OK(cuGraphGetNodes(g, list, &count));
	EQUAL(count, 4);
	OK(cuGraphGetEdges(g, NULL, NULL, NULL, &count));
	EQUAL(count, 3);
	OK(cuGraphGetEdges(g, from, to, NULL, &count));
	count = 8;
	OK(cuGraphNodeGetDependencies(kernel, list, NULL, &count));
	EQUAL(count, 1);
	CHECK(list[0] == set_node);
	OK(cuGraphNodeGetType(copy_node, &type));
	EQUAL(type, CU_GRAPH_NODE_TYPE_MEMCPY);
	OK(cuGraphKernelNodeGetParams(kernel, &back));
	CHECK(back.gridDimX == 2 && back.blockDimX == 128 && *(uint32_t *)back.kernelParams[2] == 9);
	OK(cuGraphClone(&clone, g));
	OK(cuGraphInstantiate(&exec, g, 0));
	OK(cuGraphLaunch(exec, NULL));
	OK(cuCtxSynchronize());
	EQUAL(host_calls, 1);
	one = out[1];
	CHECK(one != 0);
	args[2] = &seed2;
	OK(cuGraphExecKernelNodeSetParams(exec, kernel, &k));
	OK(cuGraphLaunch(exec, NULL));
	OK(cuCtxSynchronize());
	EQUAL(host_calls, 2);
	CHECK(out[1] != one);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphAddDependencies(g, &host_node, &set_node, NULL, 1)); /* a circle, which shows when it is to run */
	CHECK(cuGraphInstantiate(&exec, g, 0) != CUDA_SUCCESS);
	OK(cuGraphDestroyNode(host_node));
	OK(cuGraphDestroy(g));
	OK(cuGraphDestroy(clone));
}

CASE(graph_by_capture)
{
	CUstreamCaptureStatus status;
	const CUgraphNode *deps;
	CUgraphExecUpdateResultInfo info;
	CUgraph g, g2, of;
	CUgraphExec exec;
	CUstream s, t;
	CUevent fork_event, join;
	CUfunction f;
	CUdeviceptr p, q;
	cuuint64_t id;
	uint64_t n = 1024;
	uint32_t seed = 4, a = 0, b = 0;
	size_t count;
	int i;

	suite_context();
	f = suite_kernel("linear", "fill");
	OK(cuMemAlloc(&p, n * 4));
	OK(cuMemAlloc(&q, n * 4));
	OK(cuMemsetD32(p, 0, n));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
	for (i = 0; i < 2; i++) {
		OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
		LAUNCH(f, 2, 128, s, &p, &n, &seed);
		OK(cuEventRecord(fork_event, s));
		OK(cuStreamWaitEvent(t, fork_event, 0));
		OK(cuMemsetD32Async(q, 77, n, t));
		OK(cuEventRecord(join, t));
		OK(cuStreamWaitEvent(s, join, 0));
		OK(cuStreamIsCapturing(t, &status));
		EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
		OK(cuStreamGetCaptureInfo(s, &status, &id, &of, &deps, NULL, &count));
		EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
		CHECK(count >= 1);
		OK(cuMemcpyDtoDAsync(p, q, 4, s));
		OK(cuStreamEndCapture(s, i ? &g2 : &g));
		seed++;
	}
	OK(cuMemcpyDtoH(&a, p + 4, 4));
	EQUAL(a, 0); /* a capture runs nothing */
	OK(cuGraphInstantiateWithFlags(&exec, g, 0));
	OK(cuGraphUpload(exec, s));
	OK(cuGraphLaunch(exec, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(&a, p, 4));
	EQUAL(a, 77);
	OK(cuMemcpyDtoH(&a, p + 4, 4));
	CHECK(a != 0);
	OK(cuGraphExecUpdate(exec, g2, &info));
	EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
	OK(cuGraphLaunch(exec, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(&b, p + 4, 4));
	CHECK(a != b);
	OK(cuStreamIsCapturing(s, &status));
	EQUAL(status, CU_STREAM_CAPTURE_STATUS_NONE);
	RETURNS(cuStreamEndCapture(s, &g), CUDA_ERROR_ILLEGAL_STATE);
}

CASE(capture_refuses)
{
	CUstream s;
	CUgraph g;

	suite_context();
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	RETURNS(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	RETURNS(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	RETURNS(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

CASE(graph_memory)
{
	CUDA_MEM_ALLOC_NODE_PARAMS alloc;
	CUgraphNode a, set, release;
	CUDA_MEMSET_NODE_PARAMS fill = {.elementSize = 4, .width = 16, .height = 1, .value = 5};
	CUcontext ctx = suite_context();
	CUgraphExec exec;
	CUgraph g;
	size_t before, after, total;

	memset(&alloc, 0, sizeof alloc);
	alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	alloc.bytesize = 8 << 20;
	OK(cuMemGetInfo(&before, &total));
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemAllocNode(&a, g, NULL, 0, &alloc));
	CHECK(alloc.dptr != 0);
	fill.dst = alloc.dptr;
	OK(cuGraphAddMemsetNode(&set, g, &a, 1, &fill, ctx));
	OK(cuGraphAddMemFreeNode(&release, g, &set, 1, alloc.dptr));
	OK(cuGraphInstantiate(&exec, g, 0));
	OK(cuGraphLaunch(exec, NULL));
	OK(cuGraphLaunch(exec, NULL));
	OK(cuCtxSynchronize());
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(g));
	OK(cuDeviceGraphMemTrim(0));
	OK(cuMemGetInfo(&after, &total));
	EQUAL(after, before);
}

CASE(graph_node_of_any_kind)
{
	CUgraphNodeParams p;
	CUgraphNode a, b;
	CUgraphExec exec;
	CUgraph g, child;

	suite_context();
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphCreate(&child, 0));
	memset(&p, 0, sizeof p);
	p.type = CU_GRAPH_NODE_TYPE_HOST;
	p.host.fn = count_call;
	p.host.userData = (void *)10;
	OK(cuGraphAddNode(&a, child, NULL, NULL, 0, &p));
	OK(cuGraphAddEmptyNode(&a, g, NULL, 0));
	OK(cuGraphAddChildGraphNode(&b, g, &a, 1, child));
	OK(cuGraphInstantiate(&exec, g, 0));
	host_calls = 0;
	OK(cuGraphLaunch(exec, NULL));
	OK(cuCtxSynchronize());
	EQUAL(host_calls, 10);
	RETURNS(cuGraphCreate(NULL, 0), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuGraphCreate(&g, 7), CUDA_ERROR_INVALID_VALUE);
}
