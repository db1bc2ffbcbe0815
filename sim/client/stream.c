// SPDX-License-Identifier: Apache-2.0

// Streams: older forms, and what a capture has gathered so far.
#define LGPU_CUDA_PLAIN
#include <pthread.h>
#include <stdlib.h>

#include "simc.h"
#include "hand_gen.h"

CUresult simc_cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
	if (!phStream)
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_StreamCreate(phStream, Flags, 0);
}

CUresult simc_cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx)
{
	if (!pCtx)
		return CUDA_ERROR_INVALID_VALUE;
	if (pGreenCtx)
		*pGreenCtx = NULL;
	return simc_rpc_StreamGetCtx(hStream, pCtx);
}

// The first form knew no modes and was as strict as can be.
CUresult simc_cuStreamBeginCapture(CUstream hStream)
{
	return simc_rpc_StreamBeginCapture(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult simc_cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies, size_t numDependencies,
		unsigned int flags)
{
	if (numDependencies && !dependencies)
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_StreamUpdateCaptureDependencies(hStream, dependencies, NULL, numDependencies, flags);
}

// The arrays that the last question of a thread was answered with: programs may read them until the next.
struct answer {
	CUgraphNode *nodes;
	CUgraphEdgeData *edges;
	unsigned room;
};

static pthread_key_t answer_key;
static pthread_once_t answer_once = PTHREAD_ONCE_INIT;

static void free_answer(void *arg)
{
	struct answer *a = arg;

	free(a->nodes);
	free(a->edges);
	free(a);
}

static void make_key(void)
{
	pthread_key_create(&answer_key, free_answer);
}

static struct answer *my_answer(void)
{
	struct answer *a;

	pthread_once(&answer_once, make_key);
	a = pthread_getspecific(answer_key);
	if (!a && (a = calloc(1, sizeof *a)) != NULL)
		pthread_setspecific(answer_key, a);
	return a;
}

static int grow(struct answer *a, unsigned room)
{
	CUgraphNode *nodes = realloc(a->nodes, room * sizeof *nodes);
	CUgraphEdgeData *edges;

	if (!nodes)
		return -1;
	a->nodes = nodes;
	if (!(edges = realloc(a->edges, room * sizeof *edges)))
		return -1;
	a->edges = edges;
	a->room = room;
	return 0;
}

CUresult simc_cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
		cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
		const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
{
	struct answer *a = my_answer();
	cuuint64_t id;
	CUgraph graph;
	size_t n;
	CUresult r;

	if (!captureStatus_out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!a || (!a->room && grow(a, 16) != 0))
		return CUDA_ERROR_OUT_OF_MEMORY;
	while ((r = simc_rpc_StreamGetCaptureInfo(hStream, captureStatus_out, &id, &graph, a->nodes, a->edges, a->room,
						  &n)) == CUDA_SUCCESS && n > a->room)
		if (n > UINT32_MAX / 16 || grow(a, (unsigned)n) != 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
	if (r != CUDA_SUCCESS || *captureStatus_out != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return r;
	if (id_out)
		*id_out = id;
	if (graph_out)
		*graph_out = graph;
	if (dependencies_out)
		*dependencies_out = a->nodes;
	if (edgeData_out)
		*edgeData_out = a->edges;
	if (numDependencies_out)
		*numDependencies_out = n;
	return CUDA_SUCCESS;
}

CUresult simc_cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
		cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out, size_t *numDependencies_out)
{
	return simc_cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out, dependencies_out, NULL,
					      numDependencies_out);
}

CUresult simc_cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out)
{
	return simc_cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, NULL, NULL, NULL, NULL);
}
