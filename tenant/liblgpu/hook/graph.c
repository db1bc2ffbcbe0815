// SPDX-License-Identifier: Apache-2.0

// Memory that executable graphs allocate.
//
// A graph with allocation nodes takes memory from the device when it is first
// uploaded or launched, and the driver keeps it for the next launch. What the
// driver has reserved for the graphs of a device can be read; how much one
// graph may add is known from its nodes.
#include <stdlib.h>

#include "base/futex.h"
#include "hook/hook.h"
#include "memory/pools.h"
#include "residence/residence.h"

bool lgpu_graphs_allocate;

static struct lgpu_reserve graphs[LGPU_MAX_DEVICES];
static CUdevice devices[LGPU_MAX_DEVICES]; // CUdevice + 1 of each index in use
// Charged for launches that the driver has not yet been given, or has not yet
// reserved for; under the lock of graphs[].
static uint64_t pending[LGPU_MAX_DEVICES];
// Counts how often unused memory of graphs was given back. A graph that was
// launched since then has its memory; 0 is none yet.
static uint16_t trims = 1;

void lgpu_graphs_reset(void)
{
	trims = 1;
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		graphs[i] = (struct lgpu_reserve){.device = i};
		devices[i] = 0;
		pending[i] = 0;
	}
	lgpu_graphs_allocate = false;
}

// look charges what the driver has reserved for graphs. The caller has the lock.
static void look(struct lgpu_state *s, int index)
{
	cuuint64_t reserved = 0;
	if (LGPU_REAL(cuDeviceGetGraphMemAttribute)(devices[index] - 1, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS)
		lgpu_reserve_settle(s, &graphs[index], reserved + pending[index]);
}

void lgpu_graphs_look(struct lgpu_state *s)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		if (__atomic_load_n(&devices[i], __ATOMIC_ACQUIRE) == 0)
			continue;
		lgpu_lock(&graphs[i].lock);
		look(s, i);
		lgpu_unlock(&graphs[i].lock);
	}
}

static CUresult walk(CUgraph graph, int depth, lgpu_graph_visit visit, void *arg)
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
		CUgraph child;
		if (LGPU_REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
			continue;
		if (type != CU_GRAPH_NODE_TYPE_GRAPH)
			r = visit(nodes[i], type, arg);
		else if (LGPU_REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
			r = walk(child, depth + 1, visit, arg);
	}
	free(nodes);
	return r;
}

CUresult lgpu_graph_walk(CUgraph graph, lgpu_graph_visit visit, void *arg) { return walk(graph, 0, visit, arg); }

// What the nodes of a graph allocate, and where.
struct allocations {
	uint64_t bytes;
	CUdevice device;
};

static CUresult add_allocation(CUgraphNode node, CUgraphNodeType type, void *arg)
{
	struct allocations *a = arg;
	CUDA_MEM_ALLOC_NODE_PARAMS params;
	if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || LGPU_REAL(cuGraphMemAllocNodeGetParams)(node, &params) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	if (params.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		a->device = params.poolProps.location.id;
	a->bytes += lgpu_round_up(params.bytesize, UINT64_C(2) << 20);
	return CUDA_SUCCESS;
}

// instantiated notes an executable graph that allocates.
static CUresult instantiated(CUgraphExec *exec, CUgraph graph, CUresult r)
{
	struct lgpu_state *s = lgpu_attached();
	struct allocations a = {0};
	if (s != NULL && r == CUDA_SUCCESS && exec != NULL)
		lgpu_graph_walk(graph, add_allocation, &a);
	int index = a.bytes != 0 ? lgpu_limits_index(a.device) : -1;
	if (index < 0)
		return r;
	CUcontext context = NULL;
	LGPU_REAL(cuCtxGetCurrent)(&context);
	struct lgpu_entry e = {.key = (uint64_t)*exec, .bytes = a.bytes, .context = context, .device = index, .kind = LGPU_KIND_GRAPH};
	if (!lgpu_accounts_put(&e, NULL)) {
		LGPU_TOUCHED(LGPU_REAL(cuGraphExecDestroy)(*exec));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	lgpu_lock(&graphs[index].lock);
	graphs[index].device = index;
	__atomic_store_n(&devices[index], a.device + 1, __ATOMIC_RELEASE);
	look(s, index);
	lgpu_unlock(&graphs[index].lock);
	__atomic_store_n(&lgpu_graphs_allocate, true, __ATOMIC_RELEASE);
	return r;
}

// A kernel may be loaded when it is put into a graph.
static CUresult added(CUfunction f) { return lgpu_loads_any() ? lgpu_launch_loads(f, NULL) : CUDA_SUCCESS; }

LGPU_EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
					  size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
	CUresult r = nodeParams != NULL ? added(nodeParams->func) : CUDA_SUCCESS;
	return r != CUDA_SUCCESS ? r : LGPU_TOUCHED(LGPU_REAL(cuGraphAddKernelNode)(phGraphNode, hGraph, dependencies, numDependencies, nodeParams));
}

LGPU_EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
					     size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
	CUresult r = CUDA_SUCCESS;
	if (nodeParams != NULL)
		r = added(nodeParams->func != NULL ? nodeParams->func : (CUfunction)nodeParams->kern);
	return r != CUDA_SUCCESS ? r : LGPU_TOUCHED(LGPU_REAL(cuGraphAddKernelNode_v2)(phGraphNode, hGraph, dependencies, numDependencies, nodeParams));
}

// INSTANTIATE makes an executable graph by a call. What its kernels would make
// the driver load is loaded before that, and may not fit.
#define INSTANTIATE(exec, graph, call)                                                                             \
	do {                                                                                                       \
		CUresult loaded = lgpu_loads_any() ? lgpu_graph_loads(graph) : CUDA_SUCCESS;                       \
		return loaded != CUDA_SUCCESS ? loaded : instantiated(exec, graph, call);                          \
	} while (0)

LGPU_EXPORT CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
					size_t bufferSize)
{
	INSTANTIATE(phGraphExec, hGraph, LGPU_TOUCHED(LGPU_REAL(cuGraphInstantiate)(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize)));
}

LGPU_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
					   size_t bufferSize)
{
	INSTANTIATE(phGraphExec, hGraph, LGPU_TOUCHED(LGPU_REAL(cuGraphInstantiate_v2)(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize)));
}

LGPU_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
	INSTANTIATE(phGraphExec, hGraph, LGPU_TOUCHED(LGPU_REAL(cuGraphInstantiateWithFlags)(phGraphExec, hGraph, flags)));
}

LGPU_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
						  CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	INSTANTIATE(phGraphExec, hGraph, LGPU_TOUCHED(LGPU_REAL(cuGraphInstantiateWithParams)(phGraphExec, hGraph, instantiateParams)));
}

LGPU_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
						       CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
	INSTANTIATE(phGraphExec, hGraph, LGPU_TOUCHED(LGPU_REAL(cuGraphInstantiateWithParams_ptsz)(phGraphExec, hGraph, instantiateParams)));
}

LGPU_EXPORT CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_GRAPH, (uint64_t)hGraphExec);
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuGraphExecDestroy)(hGraphExec));
	if (f.state == NULL)
		return r;
	if (r != CUDA_SUCCESS)
		lgpu_accounts_restore(&f.entry);
	else
		lgpu_graphs_look(f.state);
	return r;
}

// trimmed notes that graphs may have lost what they do not use.
static void trimmed(void)
{
	if (__atomic_add_fetch(&trims, 1, __ATOMIC_ACQ_REL) == 0)
		__atomic_add_fetch(&trims, 1, __ATOMIC_ACQ_REL);
}

// find returns the state if the graph allocates, with its entry.
static struct lgpu_state *find(CUgraphExec graph, struct lgpu_entry *e)
{
	struct lgpu_state *s = lgpu_attached();
	bool any = s != NULL && __atomic_load_n(&lgpu_graphs_allocate, __ATOMIC_ACQUIRE);
	return any && lgpu_accounts_get(LGPU_KIND_GRAPH, (uint64_t)graph, e) ? s : NULL;
}

CUresult lgpu_graph_memory_begin(CUgraphExec graph, struct lgpu_graph_charge *charge)
{
	struct lgpu_entry e;
	charge->bytes = 0;
	struct lgpu_state *s = find(graph, &e);
	if (s == NULL || e.launched == __atomic_load_n(&trims, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	struct lgpu_reserve *r = &graphs[e.device];
	lgpu_lock(&r->lock);
	look(s, e.device);
	bool fits = lgpu_reserve(s, e.device, e.bytes);
	if (!fits) {
		LGPU_REAL(cuDeviceGraphMemTrim)(devices[e.device] - 1);
		trimmed();
		look(s, e.device);
		fits = lgpu_reserve(s, e.device, e.bytes);
	}
	if (fits) {
		r->charged += e.bytes;
		pending[e.device] += e.bytes;
		*charge = (struct lgpu_graph_charge){e.bytes, e.device};
	}
	lgpu_unlock(&r->lock);
	return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void lgpu_graph_memory_end(CUgraphExec graph, CUresult result, const struct lgpu_graph_charge *charge)
{
	struct lgpu_state *s = lgpu_attached();
	struct lgpu_entry e;
	if (s == NULL || charge->bytes == 0)
		return;
	uint16_t now = __atomic_load_n(&trims, __ATOMIC_ACQUIRE);
	lgpu_lock(&graphs[charge->device].lock);
	pending[charge->device] -= charge->bytes;
	look(s, charge->device);
	lgpu_reserved(s, charge->device, charge->bytes);
	lgpu_unlock(&graphs[charge->device].lock);
	if (result == CUDA_SUCCESS && lgpu_accounts_take(LGPU_KIND_GRAPH, (uint64_t)graph, &e)) {
		e.launched = now;
		lgpu_accounts_restore(&e);
	}
}

static CUresult upload(CUgraphExec graph, CUstream stream, CUresult (*driver)(CUgraphExec, CUstream))
{
	struct lgpu_graph_charge charge;
	CUresult r = lgpu_graph_memory_begin(graph, &charge);
	if (r != CUDA_SUCCESS)
		return r;
	r = LGPU_TOUCHED(driver(graph, stream));
	lgpu_graph_memory_end(graph, r, &charge);
	return r;
}

LGPU_EXPORT CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream)
{
	return upload(hGraphExec, hStream, LGPU_REAL(cuGraphUpload));
}

LGPU_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
	return upload(hGraphExec, hStream, LGPU_REAL(cuGraphUpload_ptsz));
}

LGPU_EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuDeviceGraphMemTrim)(device));
	struct lgpu_state *s = lgpu_attached();
	if (s != NULL) {
		trimmed();
		lgpu_graphs_look(s);
	}
	return r;
}
