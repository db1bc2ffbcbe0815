// SPDX-License-Identifier: Apache-2.0

// Launches: a kernel's parameters are gathered into bytes by the layout that its function has.
#define LGPU_CUDA_PLAIN
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "simc.h"
#include "hand_gen.h"

// Where each parameter of a function lies. Function handles are never used twice, so that a layout stays true.
struct layout {
	CUfunction f;
	unsigned count, bytes;
	struct layout *next;
	lgpusim_param params[];
};

enum { BUCKETS = 256, FIRST_GUESS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct layout *layouts[BUCKETS];

static struct layout **bucket_of(CUfunction f)
{
	return &layouts[((uintptr_t)f >> 4 ^ (uintptr_t)f >> 12) % BUCKETS];
}

// A function's layout, which lives for ever.
static CUresult layout_of(CUfunction f, const struct layout **out)
{
	unsigned room = FIRST_GUESS;
	struct layout *l;

	pthread_mutex_lock(&lock);
	for (l = *bucket_of(f); l && l->f != f; l = l->next)
		;
	pthread_mutex_unlock(&lock);
	while (!l) {
		CUresult r;

		if (!(l = calloc(1, sizeof *l + room * sizeof l->params[0])))
			return CUDA_ERROR_OUT_OF_MEMORY;
		l->f = f;
		r = simc_rpc_FuncParamLayout(f, l->params, room, &l->count, &l->bytes);
		if (r != CUDA_SUCCESS) {
			free(l);
			return r;
		}
		if (l->count > room) {
			room = l->count;
			free(l);
			l = NULL;
			continue;
		}
		pthread_mutex_lock(&lock);
		l->next = *bucket_of(f);
		*bucket_of(f) = l;
		pthread_mutex_unlock(&lock);
	}
	*out = l;
	return CUDA_SUCCESS;
}

// Finds the buffer among the extra options.
static CUresult buffer_of(void **extra, const void **buffer, size_t *size)
{
	*buffer = NULL;
	*size = 0;
	for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			*buffer = extra[1];
		else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1])
			*size = *(size_t *)extra[1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult simc_gather_params(CUfunction f, void **kernelParams, void **extra, unsigned char **bytes, unsigned *size)
{
	const struct layout *l;
	const void *buffer = NULL;
	size_t have = 0;
	CUresult r;
	unsigned i;

	*bytes = NULL;
	*size = 0;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if (kernelParams && extra)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = layout_of(f, &l)) != CUDA_SUCCESS)
		return r;
	if (extra && (r = buffer_of(extra, &buffer, &have)) != CUDA_SUCCESS)
		return r;
	if (!l->count)
		return CUDA_SUCCESS;
	if (!kernelParams && (!buffer || have < l->bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!(*bytes = calloc(1, l->bytes)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*size = l->bytes;
	if (buffer) {
		memcpy(*bytes, buffer, l->bytes);
		return CUDA_SUCCESS;
	}
	for (i = 0; i < l->count; i++) {
		if (!kernelParams[i]) {
			free(*bytes);
			*bytes = NULL;
			return CUDA_ERROR_INVALID_VALUE;
		}
		memcpy(*bytes + l->params[i].offset, kernelParams[i], l->params[i].size);
	}
	return CUDA_SUCCESS;
}

CUresult simc_scatter_params(CUfunction f, unsigned char *bytes, unsigned size, void ***pointers)
{
	const struct layout *l;
	CUresult r;
	unsigned i;

	*pointers = NULL;
	if ((r = layout_of(f, &l)) != CUDA_SUCCESS || !l->count)
		return r;
	if (size < l->bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!(*pointers = calloc(l->count, sizeof **pointers)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (i = 0; i < l->count; i++)
		(*pointers)[i] = bytes + l->params[i].offset;
	return CUDA_SUCCESS;
}

static CUresult launch(const lgpusim_launch *shape, CUstream stream, void **kernelParams, void **extra,
		       const CUlaunchAttribute *attrs, unsigned numAttrs)
{
	unsigned char *params;
	unsigned size;
	CUresult r = simc_gather_params(shape->function, kernelParams, extra, &params, &size);

	if (r != CUDA_SUCCESS)
		return r;
	r = simc_rpc_Launch(shape, stream, params, size, attrs, numAttrs);
	free(params);
	return r;
}

CUresult simc_cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
		unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes,
		CUstream hStream, void **kernelParams, void **extra)
{
	lgpusim_launch shape = {f, {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, 0};

	return launch(&shape, hStream, kernelParams, extra, NULL, 0);
}

CUresult simc_cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
		unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
		unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
	lgpusim_launch shape = {f, {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, 1};

	return launch(&shape, hStream, kernelParams, NULL, NULL, 0);
}

CUresult simc_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
	lgpusim_launch shape;
	unsigned i;

	if (!config || (config->numAttrs && !config->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	shape = (lgpusim_launch){f, {config->gridDimX, config->gridDimY, config->gridDimZ},
				 {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes, 0};
	for (i = 0; i < config->numAttrs; i++)
		if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && config->attrs[i].value.cooperative)
			shape.cooperative = 1;
	return launch(&shape, simc_stream(config->hStream), kernelParams, extra, config->attrs, config->numAttrs);
}

// Blocks of several devices that wait for each other: only one device a launch can promise that here.
CUresult simc_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
		unsigned int flags)
{
	const CUDA_LAUNCH_PARAMS *p = launchParamsList;

	if (!p || !numDevices || flags > 3)
		return CUDA_ERROR_INVALID_VALUE;
	if (numDevices > 1)
		return CUDA_ERROR_NOT_SUPPORTED;
	return simc_cuLaunchCooperativeKernel(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX,
					      p->blockDimY, p->blockDimZ, p->sharedMemBytes, p->hStream, p->kernelParams);
}

CUresult simc_cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
		CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
		unsigned int flags)
{
	int max, sms, best = 0, size;
	CUdevice dev;
	CUresult r;

	if (!minGridSize || !blockSize)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = simc_rpc_FuncGetAttribute(&max, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, func)) != CUDA_SUCCESS ||
	    (r = simc_cuCtxGetDevice(&dev)) != CUDA_SUCCESS ||
	    (r = simc_rpc_DeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev)) != CUDA_SUCCESS)
		return r;
	if (blockSizeLimit > 0 && blockSizeLimit < max)
		max = blockSizeLimit;
	*blockSize = *minGridSize = 0;
	// The largest block that keeps the most threads on a unit, in steps of a warp.
	for (size = (max + 31) / 32 * 32; size > 0; size -= 32) {
		int try = size < max ? size : max, blocks;
		size_t shared = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(try) : dynamicSMemSize;

		r = simc_rpc_OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, func, try, shared, flags);
		if (r != CUDA_SUCCESS)
			return r;
		if (blocks * try > best) {
			best = blocks * try;
			*blockSize = try;
			*minGridSize = blocks * sms;
		}
	}
	return CUDA_SUCCESS;
}

CUresult simc_cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
		CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit)
{
	return simc_cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
							      dynamicSMemSize, blockSizeLimit, CU_OCCUPANCY_DEFAULT);
}

// The device has no clusters of blocks.
CUresult simc_cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func, const CUlaunchConfig *config)
{
	if (!clusterSize || !func || !config)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult simc_cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func, const CUlaunchConfig *config)
{
	if (!numClusters || !func || !config)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_ERROR_NOT_SUPPORTED;
}

// ---- launches as before CUDA 4.0: their shape and parameters belong to the function, and calls of their own set them.
// Programs that use threads guard a function's state themselves; the lock is for the list.

enum { MAX_PARAMS = 32764 }; // of a kernel, in bytes

struct prepared {
	CUfunction f;
	unsigned block[3], shared, size;
	unsigned char params[MAX_PARAMS];
	struct prepared *next;
};

static struct prepared *prepared;

// What has been set for a function.
static CUresult prepared_of(CUfunction f, struct prepared **out)
{
	const struct layout *l;
	CUresult r;

	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if ((r = layout_of(f, &l)) != CUDA_SUCCESS)
		return r;
	pthread_mutex_lock(&lock);
	for (*out = prepared; *out && (*out)->f != f; *out = (*out)->next)
		;
	if (!*out && (*out = calloc(1, sizeof **out))) {
		(*out)->f = f;
		(*out)->next = prepared;
		prepared = *out;
	}
	pthread_mutex_unlock(&lock);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult simc_cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
	struct prepared *p;
	CUresult r = prepared_of(hfunc, &p);

	if (r != CUDA_SUCCESS)
		return r;
	if (x <= 0 || y <= 0 || z <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	p->block[0] = (unsigned)x;
	p->block[1] = (unsigned)y;
	p->block[2] = (unsigned)z;
	return CUDA_SUCCESS;
}

CUresult simc_cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes)
{
	struct prepared *p;
	CUresult r = prepared_of(hfunc, &p);

	if (r == CUDA_SUCCESS)
		p->shared = bytes;
	return r;
}

CUresult simc_cuParamSetSize(CUfunction hfunc, unsigned int numbytes)
{
	struct prepared *p;
	CUresult r = prepared_of(hfunc, &p);

	if (r != CUDA_SUCCESS)
		return r;
	if (numbytes > MAX_PARAMS)
		return CUDA_ERROR_INVALID_VALUE;
	p->size = numbytes;
	return CUDA_SUCCESS;
}

CUresult simc_cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes)
{
	struct prepared *p;
	CUresult r = prepared_of(hfunc, &p);

	if (r != CUDA_SUCCESS)
		return r;
	if (offset < 0 || offset > MAX_PARAMS || numbytes > (unsigned)(MAX_PARAMS - offset) || (!ptr && numbytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (numbytes)
		memcpy(p->params + offset, ptr, numbytes);
	return CUDA_SUCCESS;
}

CUresult simc_cuParamSeti(CUfunction hfunc, int offset, unsigned int value)
{
	return simc_cuParamSetv(hfunc, offset, &value, sizeof value);
}

CUresult simc_cuParamSetf(CUfunction hfunc, int offset, float value)
{
	return simc_cuParamSetv(hfunc, offset, &value, sizeof value);
}

CUresult simc_cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
	struct prepared *p;
	CUresult r = prepared_of(f, &p);
	size_t size;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, NULL, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};

	if (r != CUDA_SUCCESS)
		return r;
	if (grid_width <= 0 || grid_height <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	extra[1] = p->params;
	size = p->size;
	return simc_cuLaunchKernel(f, (unsigned)grid_width, (unsigned)grid_height, 1, p->block[0], p->block[1], p->block[2],
				   p->shared, hStream, NULL, extra);
}

CUresult simc_cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
	return simc_cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}

CUresult simc_cuLaunch(CUfunction f)
{
	return simc_cuLaunchGridAsync(f, 1, 1, NULL);
}
