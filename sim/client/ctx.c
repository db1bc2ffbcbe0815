// SPDX-License-Identifier: Apache-2.0

// Devices and contexts. The stack of current contexts is the thread's own; the hardware hears of it with each call.
#define LGPU_CUDA_PLAIN
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "simc.h"
#include "hand_gen.h"

// The contexts that this process has, so that making one current needs no message.
struct known {
	CUcontext ctx;
	CUdevice dev;
	unsigned attached; // cuCtxAttach, beyond the creation
	struct known *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct known *contexts;

static CUresult remember(CUcontext ctx, CUdevice dev)
{
	struct known *k;

	pthread_mutex_lock(&lock);
	for (k = contexts; k && k->ctx != ctx; k = k->next)
		;
	if (!k && (k = calloc(1, sizeof *k)) != NULL) {
		k->ctx = ctx;
		k->dev = dev;
		k->next = contexts;
		contexts = k;
	}
	pthread_mutex_unlock(&lock);
	return k ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void forget(CUcontext ctx)
{
	struct known **at, *k;

	pthread_mutex_lock(&lock);
	for (at = &contexts; (k = *at) != NULL && k->ctx != ctx; at = &k->next)
		;
	if (k) {
		*at = k->next;
		free(k);
	}
	pthread_mutex_unlock(&lock);
}

// Finds a context; dev, where wanted, is its device.
static int is_known(CUcontext ctx, CUdevice *dev)
{
	struct known *k;

	pthread_mutex_lock(&lock);
	for (k = contexts; k && k->ctx != ctx; k = k->next)
		;
	if (k && dev)
		*dev = k->dev;
	pthread_mutex_unlock(&lock);
	return k != NULL;
}

static CUcontext primary_of(CUdevice dev, CUcontext *primaries)
{
	return dev >= 0 && dev < 64 ? primaries[dev] : NULL;
}

static CUcontext primaries[64]; // by device, guarded by lock

enum { STACK = 256 }; // contexts that a thread can push

static pthread_key_t stack_key;
static pthread_once_t stack_once = PTHREAD_ONCE_INIT;

// A thread ends, and its stack with it, one round later than all else that goes with threads: that may still be used, or freed,
// in a context.
static void free_stack(void *stack)
{
	if (!simc_tls.ending) {
		simc_tls.ending = 1;
		pthread_setspecific(stack_key, stack);
		return;
	}
	simc_tls.stack = NULL;
	simc_tls.depth = 0;
	simc_tls.ending = 0;
	free(stack);
}

static void make_stack_key(void) { pthread_key_create(&stack_key, free_stack); }

// Whether one context more can be pushed.
static int has_room(void)
{
	if (!simc_tls.stack) {
		pthread_once(&stack_once, make_stack_key);
		if ((simc_tls.stack = malloc(STACK * sizeof *simc_tls.stack)) == NULL)
			return 0;
		pthread_setspecific(stack_key, simc_tls.stack);
	}
	return simc_tls.depth < STACK;
}

static CUresult push(CUcontext ctx)
{
	if (!has_room())
		return CUDA_ERROR_OUT_OF_MEMORY;
	simc_tls.stack[simc_tls.depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult simc_cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	CUresult r;

	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = simc_start_service()) != CUDA_SUCCESS || (r = simc_rpc_DevicePrimaryCtxRetain(pctx, dev)) != CUDA_SUCCESS)
		return r;
	pthread_mutex_lock(&lock);
	if (dev >= 0 && dev < 64)
		primaries[dev] = *pctx;
	pthread_mutex_unlock(&lock);
	return remember(*pctx, dev);
}

// The hardware has taken a primary context's resources away; the context itself may come back.
static void primary_gone(CUdevice dev)
{
	CUcontext ctx;

	pthread_mutex_lock(&lock);
	ctx = primary_of(dev, primaries);
	pthread_mutex_unlock(&lock);
	if (ctx)
		simc_forget_context_memory(ctx);
}

CUresult simc_cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	unsigned flags;
	int active = 1;
	CUresult r = simc_rpc_DevicePrimaryCtxRelease(dev);

	if (r == CUDA_SUCCESS && simc_rpc_DevicePrimaryCtxGetState(dev, &flags, &active) == CUDA_SUCCESS && !active)
		primary_gone(dev);
	return r;
}

CUresult simc_cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	CUresult r = simc_rpc_DevicePrimaryCtxReset(dev);

	if (r == CUDA_SUCCESS)
		primary_gone(dev);
	return r;
}

CUresult simc_cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	CUresult r;

	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!has_room())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if ((r = simc_start_service()) != CUDA_SUCCESS)
		return r;
	if ((r = simc_rpc_CtxCreate(pctx, flags, dev)) != CUDA_SUCCESS)
		return r;
	if ((r = remember(*pctx, dev)) != CUDA_SUCCESS) {
		simc_rpc_CtxDestroy(*pctx);
		return r;
	}
	return push(*pctx);
}

CUresult simc_cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
		CUdevice dev)
{
	if (numParams < 0 || (numParams > 0 && !paramsArray))
		return CUDA_ERROR_INVALID_VALUE;
	if (numParams > 0)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return simc_cuCtxCreate_v2(pctx, flags, dev);
}

CUresult simc_cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
	if (ctxCreateParams && ctxCreateParams->cigParams)
		return CUDA_ERROR_NOT_SUPPORTED;
	return simc_cuCtxCreate_v3(pctx, ctxCreateParams ? ctxCreateParams->execAffinityParams : NULL,
				   ctxCreateParams ? ctxCreateParams->numExecAffinityParams : 0, flags, dev);
}

CUresult simc_cuCtxDestroy_v2(CUcontext ctx)
{
	CUresult r;

	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_known(ctx, NULL))
		return CUDA_ERROR_INVALID_CONTEXT;
	if ((r = simc_rpc_CtxDestroy(ctx)) != CUDA_SUCCESS)
		return r;
	forget(ctx);
	simc_forget_context_memory(ctx);
	if (simc_current() == ctx)
		simc_tls.depth--;
	return CUDA_SUCCESS;
}

CUresult simc_cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
	struct known *k;

	if (!pctx || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!simc_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	for (k = contexts; k && k->ctx != simc_current(); k = k->next)
		;
	if (k)
		k->attached++;
	pthread_mutex_unlock(&lock);
	*pctx = simc_current();
	return k ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult simc_cuCtxDetach(CUcontext ctx)
{
	struct known *k;
	int last = 0;

	if (!ctx || simc_current() != ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	for (k = contexts; k && k->ctx != ctx; k = k->next)
		;
	if (k && k->attached)
		k->attached--;
	else
		last = k != NULL;
	pthread_mutex_unlock(&lock);
	if (!k)
		return CUDA_ERROR_INVALID_CONTEXT;
	return last ? simc_cuCtxDestroy_v2(ctx) : CUDA_SUCCESS;
}

CUresult simc_cuCtxPushCurrent_v2(CUcontext ctx)
{
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	return is_known(ctx, NULL) ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult simc_cuCtxPopCurrent_v2(CUcontext *pctx)
{
	if (!simc_tls.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	simc_tls.depth--;
	if (pctx)
		*pctx = simc_tls.stack[simc_tls.depth];
	return CUDA_SUCCESS;
}

CUresult simc_cuCtxSetCurrent(CUcontext ctx)
{
	if (!ctx) {
		if (simc_tls.depth)
			simc_tls.depth--;
		return CUDA_SUCCESS;
	}
	if (!is_known(ctx, NULL))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!simc_tls.depth)
		return push(ctx);
	simc_tls.stack[simc_tls.depth - 1] = ctx;
	return CUDA_SUCCESS;
}

CUresult simc_cuCtxGetCurrent(CUcontext *pctx)
{
	if (!pctx)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = simc_current();
	return CUDA_SUCCESS;
}

CUresult simc_cuCtxGetDevice(CUdevice *device)
{
	return simc_cuCtxGetDevice_v2(device, simc_current());
}

CUresult simc_cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ctx)
		ctx = simc_current();
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	return is_known(ctx, device) ? CUDA_SUCCESS : simc_rpc_CtxGetDevice(device, ctx);
}

CUresult simc_cuCtxSynchronize_v2(CUcontext ctx)
{
	if (!ctx)
		ctx = simc_current();
	return ctx ? simc_rpc_CtxSynchronizeContext(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult simc_cuCtxGetExecAffinity(CUexecAffinityParam *pExecAffinity, CUexecAffinityType type)
{
	if (!pExecAffinity || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

// Asks for a zero-terminated text of which at most len bytes are wanted.
static CUresult device_text(CUresult (*ask)(CUdevice, char *, unsigned int), CUdevice dev, char *out, int len)
{
	char text[256];
	CUresult r;

	if (!out || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	memset(text, 0, sizeof text);
	if ((r = ask(dev, text, sizeof text - 1)) != CUDA_SUCCESS)
		return r;
	strncpy(out, text, (size_t)len);
	out[len - 1] = 0;
	return CUDA_SUCCESS;
}

CUresult simc_cuDeviceGetName(char *name, int len, CUdevice dev)
{
	return device_text(simc_rpc_DeviceGetName, dev, name, len);
}

CUresult simc_cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
	return device_text(simc_rpc_DeviceGetPCIBusId, dev, pciBusId, len);
}

CUresult simc_cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
	static const CUdevice_attribute attributes[] = {
		CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
		CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
		CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
		CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
		CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, CU_DEVICE_ATTRIBUTE_WARP_SIZE, CU_DEVICE_ATTRIBUTE_MAX_PITCH,
		CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
		CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT,
	};
	int values[sizeof attributes / sizeof attributes[0]];
	unsigned i;

	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
		CUresult r = simc_rpc_DeviceGetAttribute(&values[i], attributes[i], dev);

		if (r != CUDA_SUCCESS)
			return r;
	}
	_Static_assert(sizeof values == sizeof *prop, "one attribute a member, in order");
	memcpy(prop, values, sizeof values);
	return CUDA_SUCCESS;
}

CUresult simc_cuDeviceGetLuid(char *luid, unsigned int *deviceNodeMask, CUdevice dev)
{
	(void)luid;
	(void)deviceNodeMask;
	(void)dev;
	return CUDA_ERROR_NOT_SUPPORTED; // an identity of another operating system's
}

// Asks for an attribute only to learn whether dev is a device.
static CUresult check_device(CUdevice dev)
{
	int warp;

	return simc_rpc_DeviceGetAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, dev);
}

CUresult simc_cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
	if (!pi || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	*pi = 0;
	return check_device(dev);
}

CUresult simc_cuDeviceGetTexture1DLinearMaxWidth(size_t *maxWidthInElements, CUarray_format format,
		unsigned numChannels, CUdevice dev)
{
	(void)format;
	if (!maxWidthInElements || (numChannels != 1 && numChannels != 2 && numChannels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	*maxWidthInElements = (size_t)1 << 28;
	return check_device(dev);
}

CUresult simc_cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value)
{
	unsigned long long v;
	CUresult r;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = simc_rpc_DeviceGetGraphMemAttribute(device, attr, &v)) == CUDA_SUCCESS)
		memcpy(value, &v, sizeof v);
	return r;
}

CUresult simc_cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value)
{
	unsigned long long v;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&v, value, sizeof v);
	return simc_rpc_DeviceSetGraphMemAttribute(device, attr, v);
}

CUresult simc_cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
		CUflushGPUDirectRDMAWritesScope scope)
{
	(void)scope;
	if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS; // other devices' writes are visible as soon as they are made
}
