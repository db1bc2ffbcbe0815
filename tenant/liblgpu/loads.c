#include "loads.h"

#include <stdlib.h>

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

static CUresult graph_loads(CUgraph graph, int depth)
{
	size_t count = 0;
	CUresult r = CUDA_SUCCESS;
	if (depth > 16 || LGPU_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
		return r;
	CUgraphNode *nodes = calloc(count, sizeof *nodes);
	if (nodes == NULL || LGPU_REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
		count = 0;
	for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++) {
		CUgraphNodeType type;
		CUDA_KERNEL_NODE_PARAMS params;
		CUgraph child;
		if (LGPU_REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
			continue;
		if (type == CU_GRAPH_NODE_TYPE_KERNEL && LGPU_REAL(cuGraphKernelNodeGetParams_v2)(nodes[i], &params) == CUDA_SUCCESS)
			r = loads_in(params.ctx, params.func != NULL ? params.func : (CUfunction)params.kern);
		else if (type == CU_GRAPH_NODE_TYPE_GRAPH && LGPU_REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
			r = graph_loads(child, depth + 1);
	}
	free(nodes);
	return r;
}

CUresult lgpu_graph_loads(CUgraph graph)
{
	return lgpu_attached() != NULL && graph != NULL ? graph_loads(graph, 0) : CUDA_SUCCESS;
}
