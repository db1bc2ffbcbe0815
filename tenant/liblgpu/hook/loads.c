// SPDX-License-Identifier: Apache-2.0

// What a launch would make the driver load: a library's code, larger stacks.
#include "hook/hook.h"

// loads does it in the current context.
static CUresult loads(CUfunction f)
{
	CUresult r = lgpu_libraries_large ? lgpu_kernel_use(f) : CUDA_SUCCESS;
	return r == CUDA_SUCCESS && lgpu_stacks_large ? lgpu_stacks_use(f) : r;
}

// loads_in does it in a context; NULL: the current one. A capture that this thread
// has under way forbids some of the calls, unless it is told that they are safe.
static CUresult loads_in(CUcontext context, CUfunction f)
{
	CUcontext popped;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (context != NULL && LGPU_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	CUresult r = loads(f);
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	if (context != NULL)
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	return r;
}

CUresult lgpu_launch_loads(CUfunction f, CUstream stream)
{
	CUcontext context = NULL;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	bool common = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
	// What is captured is loaded when its graph is instantiated.
	if (LGPU_REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE ||
	    (!common && LGPU_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS))
		return CUDA_SUCCESS;
	return loads_in(context, f);
}

static CUresult node_loads(CUgraphNode node, CUgraphNodeType type, void *arg)
{
	(void)arg;
	CUDA_KERNEL_NODE_PARAMS params;
	if (type != CU_GRAPH_NODE_TYPE_KERNEL || LGPU_REAL(cuGraphKernelNodeGetParams_v2)(node, &params) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	return loads_in(params.ctx, params.func != NULL ? params.func : (CUfunction)params.kern);
}

CUresult lgpu_graph_loads(CUgraph graph)
{
	return lgpu_attached() != NULL && graph != NULL ? lgpu_graph_walk(graph, node_loads, NULL) : CUDA_SUCCESS;
}
