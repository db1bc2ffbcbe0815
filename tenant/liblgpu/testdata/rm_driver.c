// SPDX-License-Identifier: Apache-2.0

// The contexts of the stub driver that has channel groups, which it makes as NVIDIA's
// does: a group that computes and one that copies, a channel below each, and at the
// end the driver's own time slice. STUB_SIM: with the software GPU's functions for
// slices.
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "lgpu_cuda.h"
#include "testdata/rm_standin.h"

#define DEVICES 4
#define CONTEXTS 2048
#define STACK 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int control = -1;
static uint32_t client, device[DEVICES];
static struct context {
	bool used;
	int device;
	uint32_t compute, copy;
} contexts[CONTEXTS];
static struct primary {
	int uses;
	CUcontext context;
} primaries[DEVICES];
static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

static void must(bool good)
{
	if (!good)
		abort();
}

// object makes one, by the short or the long form of the request, which may leave out
// the size of the parameters.
static uint32_t object(uint32_t parent, uint32_t class, const void *parameters, uint32_t size, bool rights)
{
	struct standin_alloc a = {client, parent, 0, class, (uintptr_t)parameters, size, 0};
	struct standin_alloc_rights r = {client, parent, 0, class, (uintptr_t)parameters, 0, 0, 0, 0, 0};
	must(rights ? ioctl(control, STANDIN_ALLOC_RIGHTS, &r) == 0 && r.status == 0 :
		      ioctl(control, STANDIN_ALLOC, &a) == 0 && a.status == 0);
	return rights ? r.object : a.object;
}

static uint32_t group(int dev, uint32_t engine, bool rights)
{
	uint32_t parameters[5] = {0, 0, 0, engine, 0};
	uint32_t g = object(device[dev], STANDIN_GROUP, parameters, rights ? 0 : sizeof parameters, rights);
	object(g, STANDIN_CHANNEL, NULL, 0, rights);
	return g;
}

static uint32_t slice(uint32_t g, uint32_t command, uint64_t *micros)
{
	struct standin_control c = {client, g, command, 0, (uintptr_t)micros, sizeof *micros, 0};
	must(ioctl(control, STANDIN_CONTROL, &c) == 0);
	return c.status;
}

static void end(uint32_t parent, uint32_t handle)
{
	struct standin_free f = {client, parent, handle, 0};
	must(ioctl(control, STANDIN_FREE, &f) == 0 && f.status == 0);
}

static CUcontext make(int dev)
{
	uint64_t own = STANDIN_OWN_SLICE;
	int i = 0;
	if (control < 0) {
		control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
		must(control >= 0);
		client = object(0, STANDIN_CLIENT, NULL, 0, false);
	}
	if (device[dev] == 0)
		device[dev] = object(client, STANDIN_DEVICE, NULL, 0, true);
	while (contexts[i].used)
		must(++i < CONTEXTS);
	contexts[i] = (struct context){true, dev, group(dev, STANDIN_COMPUTE, i % 2 != 0), group(dev, STANDIN_COPY, i % 2 == 0)};
	must(slice(contexts[i].compute, STANDIN_SET, &own) == 0 && slice(contexts[i].copy, STANDIN_SET, &own) == 0);
	return (CUcontext)(uintptr_t)(0x1000 + i);
}

static struct context *context_of(CUcontext c)
{
	uintptr_t i = (uintptr_t)c - 0x1000;
	return i < CONTEXTS && contexts[i].used ? &contexts[i] : NULL;
}

static CUresult destroy(CUcontext handle)
{
	struct context *c = context_of(handle);
	if (c == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	end(device[c->device], c->compute);
	end(device[c->device], c->copy);
	c->used = false;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	*pctx = make(dev);
	pthread_mutex_unlock(&lock);
	return cuCtxSetCurrent(*pctx);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	CUresult r = destroy(ctx);
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	pthread_mutex_lock(&lock);
	struct primary *p = &primaries[dev];
	if (p->uses++ == 0)
		p->context = make(dev);
	*pctx = p->context;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	pthread_mutex_lock(&lock);
	struct primary *p = &primaries[dev];
	CUresult r = p->uses == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
	if (p->uses != 0 && --p->uses == 0)
		r = destroy(p->context);
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	must(depth < STACK);
	cuCtxGetCurrent(&stack[depth++]);
	return cuCtxSetCurrent(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
	must(depth > 0);
	cuCtxGetCurrent(pctx);
	return cuCtxSetCurrent(stack[--depth]);
}

CUresult cuCtxGetDevice(CUdevice *dev)
{
	CUcontext current;
	cuCtxGetCurrent(&current);
	struct context *c = context_of(current);
	if (c == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	*dev = c->device;
	return CUDA_SUCCESS;
}

#ifdef STUB_SIM
static CUresult simulated(CUcontext ctx, uint32_t command, uint64_t *micros)
{
	pthread_mutex_lock(&lock);
	struct context *c = context_of(ctx);
	CUresult r = c == NULL ? CUDA_ERROR_INVALID_CONTEXT :
		     slice(c->compute, command, micros) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult lgpusimSetTimeslice(CUcontext ctx, uint64_t micros)
{
	uint64_t m = micros != 0 ? micros : STANDIN_OWN_SLICE;
	return simulated(ctx, STANDIN_SET, &m);
}
CUresult lgpusimGetTimeslice(CUcontext ctx, uint64_t *micros) { return simulated(ctx, STANDIN_GET, micros); }
#endif
