// Contexts, and the code that is loaded into them: memory that programs do not
// ask for by size. When a context ends, all that was allocated in it ends.
#include "accounts.h"
#include "futex.h"
#include "gate.h"
#include "memory.h"

// What is known of the primary context of each device.
static struct primary {
	uint32_t lock;
	uint32_t uses; // retained and not yet released
	CUcontext context;
} primaries[LGPU_MAX_DEVICES];

void lgpu_contexts_reset(void)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++)
		primaries[i] = (struct primary){.lock = 0};
}

static void uncharge(const struct lgpu_entry *e, void *state) { lgpu_uncharge(state, e->device, e->kind == LGPU_KIND_GRAPH ? 0 : e->bytes); }

// ended forgets a context that is no more.
static void ended(struct lgpu_state *s, int device, CUcontext context)
{
	if (context != NULL)
		lgpu_accounts_sweep(context, uncharge, s);
	lgpu_pools_ended(s, device);
	lgpu_graphs_look(s);
	lgpu_overhead_context_gone(s, device);
}

// A context in the making: what was free before.
struct making {
	struct lgpu_state *state; // NULL: not counted
	int device;
	uint64_t free;
};

// refused reports whether this process may have no context of a device: it is
// not the lgpu's, or nothing is this process's.
static bool refused(CUdevice dev)
{
	const struct lgpu_process *p = lgpu_process;
	return p != NULL && (p->broken || (p->initialised && lgpu_attached() != NULL && lgpu_limits_index(dev) < 0));
}

static bool make_begin(struct making *m, CUdevice dev)
{
	m->state = lgpu_attached();
	m->device = m->state != NULL ? lgpu_limits_index(dev) : -1;
	if (m->device < 0) {
		m->state = NULL;
		return true;
	}
	if (!lgpu_overhead_context_reserve(m->state, m->device))
		return false;
	m->free = 0;
	if (__atomic_load_n(&m->state->usage->device[m->device].context, __ATOMIC_RELAXED) == 0)
		lgpu_overhead_free_bytes(m->state, m->device, &m->free);
	return true;
}

// make_end returns false if the context, once made, is too much.
static bool make_end(const struct making *m, bool made)
{
	uint64_t now, seen = 0;
	if (m->state == NULL)
		return true;
	if (!made) {
		lgpu_overhead_context_gone(m->state, m->device);
		return true;
	}
	if (m->free != 0 && lgpu_overhead_free_bytes(m->state, m->device, &now) && now < m->free)
		seen = m->free - now;
	return lgpu_overhead_context_made(m->state, m->device, seen);
}

static CUresult created(const struct making *m, CUcontext *context, CUresult r)
{
	if (!make_end(m, r == CUDA_SUCCESS)) {
		LGPU_REAL(cuCtxDestroy_v2)(*context);
		lgpu_overhead_context_gone(m->state, m->device);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS && m->state != NULL)
		lgpu_gate_context_made(*context);
	return r;
}

LGPU_EXPORT CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	struct making m;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return !make_begin(&m, dev) ? CUDA_ERROR_OUT_OF_MEMORY : created(&m, pctx, LGPU_REAL(cuCtxCreate)(pctx, flags, dev));
}

LGPU_EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	struct making m;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return !make_begin(&m, dev) ? CUDA_ERROR_OUT_OF_MEMORY : created(&m, pctx, LGPU_REAL(cuCtxCreate_v2)(pctx, flags, dev));
}

LGPU_EXPORT CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
				    CUdevice dev)
{
	struct making m;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return !make_begin(&m, dev) ? CUDA_ERROR_OUT_OF_MEMORY :
				      created(&m, pctx, LGPU_REAL(cuCtxCreate_v3)(pctx, paramsArray, numParams, flags, dev));
}

LGPU_EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
	struct making m;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return !make_begin(&m, dev) ? CUDA_ERROR_OUT_OF_MEMORY :
				      created(&m, pctx, LGPU_REAL(cuCtxCreate_v4)(pctx, ctxCreateParams, flags, dev));
}

// index_of returns the index of a context's device, or -1.
static int index_of(CUcontext context)
{
	CUcontext popped;
	CUdevice device;
	if (context == NULL || LGPU_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return -1;
	CUresult r = LGPU_REAL(cuCtxGetDevice)(&device);
	LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	return r == CUDA_SUCCESS ? lgpu_limits_index(device) : -1;
}

static CUresult destroy(CUcontext context, CUresult (*driver)(CUcontext))
{
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL ? index_of(context) : -1;
	if (device >= 0)
		lgpu_gate_context_gone(context);
	CUresult r = driver(context);
	if (device >= 0 && r == CUDA_SUCCESS)
		ended(s, device, context);
	return r;
}

LGPU_EXPORT CUresult cuCtxDestroy(CUcontext ctx) { return destroy(ctx, LGPU_REAL(cuCtxDestroy)); }
LGPU_EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx) { return destroy(ctx, LGPU_REAL(cuCtxDestroy_v2)); }
LGPU_EXPORT CUresult cuCtxDetach(CUcontext ctx) { return destroy(ctx, LGPU_REAL(cuCtxDetach)); }

// ---- primary contexts

LGPU_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL ? lgpu_limits_index(dev) : -1;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (device < 0 || pctx == NULL)
		return LGPU_REAL(cuDevicePrimaryCtxRetain)(pctx, dev);
	struct primary *p = &primaries[device];
	lgpu_lock(&p->lock);
	struct making m = {.state = NULL};
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	if (p->uses == 0 && !make_begin(&m, dev))
		goto out;
	r = LGPU_REAL(cuDevicePrimaryCtxRetain)(pctx, dev);
	if (!make_end(&m, r == CUDA_SUCCESS)) {
		LGPU_REAL(cuDevicePrimaryCtxRelease_v2)(dev);
		lgpu_overhead_context_gone(s, device);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (r == CUDA_SUCCESS) {
		p->uses++;
		p->context = *pctx;
		lgpu_gate_context_made(*pctx);
	}
out:
	lgpu_unlock(&p->lock);
	return r;
}

static CUresult release(CUdevice dev, CUresult (*driver)(CUdevice))
{
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL ? lgpu_limits_index(dev) : -1;
	if (device < 0)
		return driver(dev);
	struct primary *p = &primaries[device];
	lgpu_lock(&p->lock);
	if (p->uses == 1)
		lgpu_gate_context_gone(p->context);
	CUresult r = driver(dev);
	if (r == CUDA_SUCCESS && p->uses > 0 && --p->uses == 0)
		ended(s, device, p->context);
	lgpu_unlock(&p->lock);
	return r;
}

LGPU_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return release(dev, LGPU_REAL(cuDevicePrimaryCtxRelease)); }
LGPU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) { return release(dev, LGPU_REAL(cuDevicePrimaryCtxRelease_v2)); }

// A reset ends the context whoever retains it; they retain a new one then,
// which the driver makes when it is first used.
static CUresult reset(CUdevice dev, CUresult (*driver)(CUdevice))
{
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL ? lgpu_limits_index(dev) : -1;
	if (device < 0)
		return driver(dev);
	struct primary *p = &primaries[device];
	lgpu_lock(&p->lock);
	if (p->uses > 0)
		lgpu_gate_context_gone(p->context);
	CUresult r = driver(dev);
	if (r == CUDA_SUCCESS && p->uses > 0) {
		p->uses = 0;
		ended(s, device, p->context);
	}
	lgpu_unlock(&p->lock);
	return r;
}

LGPU_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return reset(dev, LGPU_REAL(cuDevicePrimaryCtxReset)); }
LGPU_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) { return reset(dev, LGPU_REAL(cuDevicePrimaryCtxReset_v2)); }

// ---- what grows a context

// A larger heap is taken from the device when code that uses it is loaded; it
// must fit now, and is charged when it is there.
LGPU_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	size_t before = 0;
	int device = s != NULL && (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE) ? lgpu_current(&context) : -1;
	if (device < 0 || LGPU_REAL(cuCtxGetLimit)(&before, limit) != CUDA_SUCCESS || value <= before)
		return LGPU_REAL(cuCtxSetLimit)(limit, value);
	if (!lgpu_charge(s, device, value - before))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = LGPU_REAL(cuCtxSetLimit)(limit, value);
	lgpu_uncharge(s, device, value - before);
	lgpu_overhead_now(s, device);
	return r;
}

// loaded is called when code has been loaded: undo is what takes it out again.
static CUresult module_loaded(CUmodule *module, CUresult r)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL && r == CUDA_SUCCESS ? lgpu_current(&context) : -1;
	if (device < 0 || lgpu_overhead_now(s, device))
		return r;
	LGPU_REAL(cuModuleUnload)(*module);
	lgpu_overhead_now(s, device);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

LGPU_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
	return module_loaded(module, LGPU_REAL(cuModuleLoad)(module, fname));
}

LGPU_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	return module_loaded(module, LGPU_REAL(cuModuleLoadData)(module, image));
}

LGPU_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
					void **optionValues)
{
	return module_loaded(module, LGPU_REAL(cuModuleLoadDataEx)(module, image, numOptions, options, optionValues));
}

LGPU_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	return module_loaded(module, LGPU_REAL(cuModuleLoadFatBinary)(module, fatCubin));
}

LGPU_EXPORT CUresult cuModuleUnload(CUmodule hmod)
{
	CUresult r = LGPU_REAL(cuModuleUnload)(hmod);
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL && r == CUDA_SUCCESS ? lgpu_current(&context) : -1;
	if (device >= 0)
		lgpu_overhead_now(s, device);
	return r;
}

// A library is loaded into contexts as its kernels are used, mostly later than
// here. A program loads hundreds at its start; one measurement a second does.
static CUresult library_loaded(CUresult r)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL && r == CUDA_SUCCESS ? lgpu_current(&context) : -1;
	if (device >= 0)
		lgpu_overhead_measure(s, device);
	return r;
}

LGPU_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
				       unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
				       unsigned int numLibraryOptions)
{
	return library_loaded(LGPU_REAL(cuLibraryLoadData)(library, code, jitOptions, jitOptionsValues, numJitOptions,
							   libraryOptions, libraryOptionValues, numLibraryOptions));
}

LGPU_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
					   void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
					   void **libraryOptionValues, unsigned int numLibraryOptions)
{
	return library_loaded(LGPU_REAL(cuLibraryLoadFromFile)(library, fileName, jitOptions, jitOptionsValues, numJitOptions,
							       libraryOptions, libraryOptionValues, numLibraryOptions));
}

LGPU_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	return library_loaded(LGPU_REAL(cuLibraryUnload)(library));
}
