// SPDX-License-Identifier: Apache-2.0

// Graphs: kernel nodes with their parameters, the one call for all kinds of node, lists, older forms.
#define LGPU_CUDA_PLAIN
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "simc.h"
#include "hand_gen.h"

// ---- kernel nodes

static CUresult flatten(const CUDA_KERNEL_NODE_PARAMS *p, lgpusim_kernel_node *node, unsigned char **params,
			unsigned *size)
{
	CUfunction f;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	f = p->func ? p->func : (CUfunction)(void *)p->kern;
	*node = (lgpusim_kernel_node){p->func, p->kern, p->ctx, {p->gridDimX, p->gridDimY, p->gridDimZ},
				      {p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes, 0};
	return simc_gather_params(f, p->kernelParams, p->extra, params, size);
}

static CUDA_KERNEL_NODE_PARAMS newer(const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	return (CUDA_KERNEL_NODE_PARAMS){p->func, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY,
					 p->blockDimZ, p->sharedMemBytes, p->kernelParams, p->extra, NULL, NULL};
}

static int null_list(const void *list, size_t n)
{
	return n && !list;
}

CUresult simc_cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
		size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	lgpusim_kernel_node node;
	unsigned char *params;
	unsigned size;
	CUresult r;

	if (!phGraphNode || null_list(dependencies, numDependencies))
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = flatten(nodeParams, &node, &params, &size)) != CUDA_SUCCESS)
		return r;
	r = simc_rpc_GraphAddKernelNode(phGraphNode, hGraph, dependencies, numDependencies, &node, params, size);
	free(params);
	return r;
}

CUresult simc_cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
		size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUDA_KERNEL_NODE_PARAMS p;

	if (!nodeParams)
		return CUDA_ERROR_INVALID_VALUE;
	p = newer(nodeParams);
	return simc_cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &p);
}

CUresult simc_cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	lgpusim_kernel_node node;
	unsigned char *params;
	unsigned size;
	CUresult r = flatten(nodeParams, &node, &params, &size);

	if (r != CUDA_SUCCESS)
		return r;
	r = simc_rpc_GraphKernelNodeSetParams(hNode, &node, params, size);
	free(params);
	return r;
}

CUresult simc_cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUDA_KERNEL_NODE_PARAMS p;

	if (!nodeParams)
		return CUDA_ERROR_INVALID_VALUE;
	p = newer(nodeParams);
	return simc_cuGraphKernelNodeSetParams_v2(hNode, &p);
}

CUresult simc_cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
		const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	lgpusim_kernel_node node;
	unsigned char *params;
	unsigned size;
	CUresult r = flatten(nodeParams, &node, &params, &size);

	if (r != CUDA_SUCCESS)
		return r;
	r = simc_rpc_GraphExecKernelNodeSetParams(hGraphExec, hNode, &node, params, size);
	free(params);
	return r;
}

CUresult simc_cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
		const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUDA_KERNEL_NODE_PARAMS p;

	if (!nodeParams)
		return CUDA_ERROR_INVALID_VALUE;
	p = newer(nodeParams);
	return simc_cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &p);
}

// The parameters that a program has asked for belong to the node: one place a node, filled again at each question.
struct kept {
	CUgraphNode node;
	unsigned char bytes[4096];
	void **pointers;
	struct kept *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *kept;

static struct kept *place_of(CUgraphNode node)
{
	struct kept *k;

	for (k = kept; k && k->node != node; k = k->next)
		;
	if (!k && (k = calloc(1, sizeof *k)) != NULL) {
		k->node = node;
		k->next = kept;
		kept = k;
	}
	return k;
}

CUresult simc_cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	lgpusim_kernel_node n;
	struct kept *k;
	void **pointers;
	CUresult r;

	if (!nodeParams)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (!(k = place_of(hNode))) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
		goto out;
	}
	if ((r = simc_rpc_GraphKernelNodeGetParams(hNode, &n, k->bytes, sizeof k->bytes)) != CUDA_SUCCESS)
		goto out;
	r = simc_scatter_params(n.func ? n.func : (CUfunction)(void *)n.kern, k->bytes, sizeof k->bytes, &pointers);
	if (r != CUDA_SUCCESS)
		goto out;
	free(k->pointers);
	k->pointers = pointers;
	*nodeParams = (CUDA_KERNEL_NODE_PARAMS){n.func, n.grid[0], n.grid[1], n.grid[2], n.block[0], n.block[1],
						n.block[2], n.sharedMemBytes, pointers, NULL, n.kern, n.ctx};
out:
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult simc_cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUDA_KERNEL_NODE_PARAMS p;
	CUresult r;

	if (!nodeParams)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = simc_cuGraphKernelNodeGetParams_v2(hNode, &p)) != CUDA_SUCCESS)
		return r;
	*nodeParams = (CUDA_KERNEL_NODE_PARAMS_v1){p.func, p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY,
						   p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra};
	return CUDA_SUCCESS;
}

// ---- memory nodes

CUresult simc_cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
		size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
	CUDA_MEM_ALLOC_NODE_PARAMS *p = nodeParams;

	if (!phGraphNode || !p || null_list(dependencies, numDependencies) ||
	    null_list(p->accessDescs, p->accessDescCount))
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_GraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies, &p->poolProps,
					     p->accessDescs, p->accessDescCount, p->bytesize, &p->dptr);
}

CUresult simc_cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
	if (!params_out)
		return CUDA_ERROR_INVALID_VALUE;
	params_out->accessDescs = NULL;
	params_out->accessDescCount = 0;
	return simc_rpc_GraphMemAllocNodeGetParams(hNode, &params_out->poolProps, &params_out->bytesize, &params_out->dptr);
}

CUresult simc_cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
		size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
	if (!phGraphNode || !nodeParams || null_list(dependencies, numDependencies) ||
	    null_list(nodeParams->paramArray, nodeParams->count))
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_GraphAddBatchMemOpNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams->ctx,
					       nodeParams->paramArray, nodeParams->count, nodeParams->flags);
}

// ---- the one call for all kinds

CUresult simc_cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
		size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	CUgraphNodeParams *p = nodeParams;

	if (!phGraphNode || !p || null_list(dependencies, numDependencies))
		return CUDA_ERROR_INVALID_VALUE;
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		_Static_assert(sizeof p->kernel == sizeof(CUDA_KERNEL_NODE_PARAMS), "the same layout");
		return simc_cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies,
						    (const CUDA_KERNEL_NODE_PARAMS *)&p->kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return simc_rpc_GraphAddMemcpyNode(phGraphNode, hGraph, dependencies, numDependencies,
						   &p->memcpy.copyParams, p->memcpy.copyCtx);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return simc_rpc_GraphAddMemsetNode(phGraphNode, hGraph, dependencies, numDependencies,
						   (const CUDA_MEMSET_NODE_PARAMS *)&p->memset, p->memset.ctx);
	case CU_GRAPH_NODE_TYPE_HOST:
		return simc_rpc_GraphAddHostNode(phGraphNode, hGraph, dependencies, numDependencies,
						 (const CUDA_HOST_NODE_PARAMS *)&p->host);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return simc_rpc_GraphAddChildGraphNode(phGraphNode, hGraph, dependencies, numDependencies, p->graph.graph);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return simc_rpc_GraphAddEmptyNode(phGraphNode, hGraph, dependencies, numDependencies);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return simc_rpc_GraphAddEventWaitNode(phGraphNode, hGraph, dependencies, numDependencies,
						      p->eventWait.event);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return simc_rpc_GraphAddEventRecordNode(phGraphNode, hGraph, dependencies, numDependencies,
							p->eventRecord.event);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return simc_cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies,
						   (CUDA_MEM_ALLOC_NODE_PARAMS *)&p->alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return simc_rpc_GraphAddMemFreeNode(phGraphNode, hGraph, dependencies, numDependencies, p->free.dptr);
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return simc_cuGraphAddBatchMemOpNode(phGraphNode, hGraph, dependencies, numDependencies,
						     (const CUDA_BATCH_MEM_OP_NODE_PARAMS *)&p->memOp);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

// Edges that say more than "after" are for programmatic launches, which the device does not have.
static int plain_edges(const CUgraphEdgeData *edges, size_t n)
{
	size_t i;

	for (i = 0; edges && i < n; i++)
		if (edges[i].from_port || edges[i].to_port || edges[i].type)
			return 0;
	return 1;
}

CUresult simc_cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
		const CUgraphEdgeData *dependencyData, size_t numDependencies, CUgraphNodeParams *nodeParams)
{
	if (!plain_edges(dependencyData, numDependencies))
		return CUDA_ERROR_NOT_SUPPORTED;
	return simc_cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult simc_cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	CUgraphNodeParams *p = nodeParams;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return simc_cuGraphKernelNodeSetParams_v2(hNode, (const CUDA_KERNEL_NODE_PARAMS *)&p->kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return simc_rpc_GraphMemcpyNodeSetParams(hNode, &p->memcpy.copyParams);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return simc_rpc_GraphMemsetNodeSetParams(hNode, (const CUDA_MEMSET_NODE_PARAMS *)&p->memset);
	case CU_GRAPH_NODE_TYPE_HOST:
		return simc_rpc_GraphHostNodeSetParams(hNode, (const CUDA_HOST_NODE_PARAMS *)&p->host);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return simc_rpc_GraphEventWaitNodeSetEvent(hNode, p->eventWait.event);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return simc_rpc_GraphEventRecordNodeSetEvent(hNode, p->eventRecord.event);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult simc_cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
	CUgraphNodeParams *p = nodeParams;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return simc_cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode,
							      (const CUDA_KERNEL_NODE_PARAMS *)&p->kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return simc_rpc_GraphExecMemcpyNodeSetParams(hGraphExec, hNode, &p->memcpy.copyParams, p->memcpy.copyCtx);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return simc_rpc_GraphExecMemsetNodeSetParams(hGraphExec, hNode, (const CUDA_MEMSET_NODE_PARAMS *)&p->memset,
							     p->memset.ctx);
	case CU_GRAPH_NODE_TYPE_HOST:
		return simc_rpc_GraphExecHostNodeSetParams(hGraphExec, hNode, (const CUDA_HOST_NODE_PARAMS *)&p->host);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return simc_rpc_GraphExecChildGraphNodeSetParams(hGraphExec, hNode, p->graph.graph);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return simc_rpc_GraphExecEventWaitNodeSetEvent(hGraphExec, hNode, p->eventWait.event);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return simc_rpc_GraphExecEventRecordNodeSetEvent(hGraphExec, hNode, p->eventRecord.event);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

// ---- dependencies and lists

CUresult simc_cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
		size_t numDependencies)
{
	if (null_list(from, numDependencies) || null_list(to, numDependencies))
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_GraphAddDependencies(hGraph, from, to, NULL, numDependencies);
}

CUresult simc_cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
		size_t numDependencies)
{
	if (null_list(from, numDependencies) || null_list(to, numDependencies))
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_GraphRemoveDependencies(hGraph, from, to, NULL, numDependencies);
}

// A list is asked for with its room in *n and answered with how many entries were written; without an array, with how
// many there are. Entries beyond the end become zero.
static CUresult listed(CUresult r, CUgraphNode *a, CUgraphNode *b, size_t room, const size_t *count, size_t *n)
{
	size_t i;

	if (r != CUDA_SUCCESS)
		return r;
	for (i = *count; i < room; i++) {
		if (a)
			a[i] = NULL;
		if (b)
			b[i] = NULL;
	}
	*n = a && *count > room ? room : *count;
	return CUDA_SUCCESS;
}

CUresult simc_cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
	size_t count = 0, room;

	if (!numNodes)
		return CUDA_ERROR_INVALID_VALUE;
	room = nodes ? *numNodes : 0;
	return listed(simc_rpc_GraphGetNodes(hGraph, nodes, room, &count), nodes, NULL, room, &count, numNodes);
}

CUresult simc_cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
	size_t count = 0, room;

	if (!numRootNodes)
		return CUDA_ERROR_INVALID_VALUE;
	room = rootNodes ? *numRootNodes : 0;
	return listed(simc_rpc_GraphGetRootNodes(hGraph, rootNodes, room, &count), rootNodes, NULL, room, &count,
		      numRootNodes);
}

CUresult simc_cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edgeData,
		size_t *numEdges)
{
	size_t count = 0, room;

	if (!numEdges || !from != !to)
		return CUDA_ERROR_INVALID_VALUE;
	room = from ? *numEdges : 0;
	return listed(simc_rpc_GraphGetEdges(hGraph, from, to, edgeData, room, &count), from, to, room, &count, numEdges);
}

CUresult simc_cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges)
{
	return simc_cuGraphGetEdges_v2(hGraph, from, to, NULL, numEdges);
}

CUresult simc_cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies, CUgraphEdgeData *edgeData,
		size_t *numDependencies)
{
	size_t count = 0, room;

	if (!numDependencies)
		return CUDA_ERROR_INVALID_VALUE;
	room = dependencies ? *numDependencies : 0;
	return listed(simc_rpc_GraphNodeGetDependencies(hNode, dependencies, edgeData, room, &count), dependencies, NULL,
		      room, &count, numDependencies);
}

CUresult simc_cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies)
{
	return simc_cuGraphNodeGetDependencies_v2(hNode, dependencies, NULL, numDependencies);
}

CUresult simc_cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
		CUgraphEdgeData *edgeData, size_t *numDependentNodes)
{
	size_t count = 0, room;

	if (!numDependentNodes)
		return CUDA_ERROR_INVALID_VALUE;
	room = dependentNodes ? *numDependentNodes : 0;
	return listed(simc_rpc_GraphNodeGetDependentNodes(hNode, dependentNodes, edgeData, room, &count), dependentNodes,
		      NULL, room, &count, numDependentNodes);
}

CUresult simc_cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes, size_t *numDependentNodes)
{
	return simc_cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, NULL, numDependentNodes);
}

// ---- executable graphs

CUresult simc_cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	CUgraphInstantiateResult result;
	CUgraphNode node;

	if (!phGraphExec)
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_GraphInstantiate(phGraphExec, hGraph, flags, &node, &result);
}

CUresult simc_cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
		size_t bufferSize)
{
	CUgraphInstantiateResult result;
	CUgraphNode node = NULL;
	CUresult r;

	if (!phGraphExec)
		return CUDA_ERROR_INVALID_VALUE;
	if (logBuffer && bufferSize)
		*logBuffer = 0;
	r = simc_rpc_GraphInstantiate(phGraphExec, hGraph, 0, &node, &result);
	if (phErrorNode)
		*phErrorNode = r == CUDA_SUCCESS ? NULL : node;
	return r;
}

CUresult simc_cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
		CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS *p = instantiateParams;
	CUresult r;

	if (!phGraphExec || !p)
		return CUDA_ERROR_INVALID_VALUE;
	p->hErrNode_out = NULL;
	p->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
	r = simc_rpc_GraphInstantiate(phGraphExec, hGraph, p->flags, &p->hErrNode_out, &p->result_out);
	if (r == CUDA_SUCCESS && (p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
		r = simc_rpc_GraphUpload(*phGraphExec, simc_stream(p->hUploadStream));
	return r;
}

CUresult simc_cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
	if (!resultInfo)
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_GraphExecUpdate(hGraphExec, hGraph, resultInfo);
}

CUresult simc_cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
		CUgraphExecUpdateResult *updateResult_out)
{
	CUgraphExecUpdateResultInfo info;
	CUresult r;

	if (!updateResult_out)
		return CUDA_ERROR_INVALID_VALUE;
	memset(&info, 0, sizeof info);
	r = simc_rpc_GraphExecUpdate(hGraphExec, hGraph, &info);
	*updateResult_out = info.result;
	if (hErrorNode_out)
		*hErrorNode_out = info.errorNode;
	return r;
}
