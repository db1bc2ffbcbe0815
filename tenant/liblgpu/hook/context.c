// SPDX-License-Identifier: Apache-2.0

// Contexts: memory that programs do not ask for by size. When a context ends, all that
// was allocated in it ends.
#include "arena/arena.h"
#include "base/futex.h"
#include "gate/gate.h"
#include "hook/hook.h"
#include "memory/freed.h"
#include "memory/pools.h"
#include "residence/residence.h"
#include "slice/slice.h"

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

static void uncharge(const struct lgpu_entry *e, void *state)
{
	if (e->kind == LGPU_KIND_CAPTURE)
		lgpu_capture_ended();
	else
		lgpu_uncharge(state, e->device, e->kind == LGPU_KIND_GRAPH ? 0 : e->bytes);
}

// context_begins is called when a context has been made, by the thread that made it.
static void context_begins(int device, CUcontext context)
{
	lgpu_gate_context_made(context);
	lgpu_slice_context_made(device, context);
}

// context_ends is called before a context ends, or may do so.
static void context_ends(CUcontext context)
{
	lgpu_freed_ended(context);
	lgpu_gate_context_gone(context);
	lgpu_residence_context_gone(context);
	lgpu_slice_context_gone(context);
	lgpu_arena_context_ends(context);
}

// ended forgets a context that is no more.
static void ended(struct lgpu_state *s, int device, CUcontext context)
{
	if (context != NULL)
		lgpu_accounts_sweep(context, uncharge, s);
	lgpu_arena_context_ended(context);
	lgpu_arena_shares_context_ended(context);
	lgpu_libraries_ended(s, context);
	lgpu_pools_ended(s, device);
	lgpu_graphs_look(s);
	lgpu_overhead_context_gone(s, device);
}

// A context in the making: what was free before.
struct making {
	struct lgpu_state *state; // NULL: not counted
	int device;
	uint64_t free;
	bool slices; // of lgpu_slice_making
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
	m->slices = lgpu_slice_making();
	return true;
}

// make_end returns false if the context, once made, is too much; NULL: it was not made.
static bool make_end(const struct making *m, CUcontext context)
{
	uint64_t now, seen = 0;
	if (m->state == NULL)
		return true;
	lgpu_slice_making_ended(m->slices);
	if (context == NULL) {
		lgpu_overhead_context_gone(m->state, m->device);
		return true;
	}
	if (m->free != 0 && lgpu_overhead_free_bytes(m->state, m->device, &now) && now < m->free)
		seen = m->free - now;
	return lgpu_overhead_context_made(m->state, m->device, seen) && lgpu_arena_context_fits(m->state, m->device) &&
	       lgpu_residence_context_made(context);
}

static CUresult created(const struct making *m, CUcontext *context, CUresult r)
{
	if (!make_end(m, r == CUDA_SUCCESS ? *context : NULL)) {
		LGPU_TOUCHED(LGPU_REAL(cuCtxDestroy_v2)(*context));
		lgpu_overhead_context_gone(m->state, m->device);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r == CUDA_SUCCESS && m->state != NULL)
		context_begins(m->device, *context);
	return r;
}

LGPU_EXPORT CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	struct making m;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return !make_begin(&m, dev) ? CUDA_ERROR_OUT_OF_MEMORY : created(&m, pctx, LGPU_TOUCHED(LGPU_REAL(cuCtxCreate)(pctx, flags, dev)));
}

LGPU_EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	struct making m;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return !make_begin(&m, dev) ? CUDA_ERROR_OUT_OF_MEMORY : created(&m, pctx, LGPU_TOUCHED(LGPU_REAL(cuCtxCreate_v2)(pctx, flags, dev)));
}

LGPU_EXPORT CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
				    CUdevice dev)
{
	struct making m;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return !make_begin(&m, dev) ? CUDA_ERROR_OUT_OF_MEMORY :
				      created(&m, pctx, LGPU_TOUCHED(LGPU_REAL(cuCtxCreate_v3)(pctx, paramsArray, numParams, flags, dev)));
}

LGPU_EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
	struct making m;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	return !make_begin(&m, dev) ? CUDA_ERROR_OUT_OF_MEMORY :
				      created(&m, pctx, LGPU_TOUCHED(LGPU_REAL(cuCtxCreate_v4)(pctx, ctxCreateParams, flags, dev)));
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
		context_ends(context);
	CUresult r = driver(context);
	if (device >= 0 && r == CUDA_SUCCESS)
		ended(s, device, context);
	else if (device >= 0)
		lgpu_residence_context_made(context);
	return r;
}

LGPU_EXPORT CUresult cuCtxDestroy(CUcontext ctx) { return LGPU_TOUCHED(destroy(ctx, LGPU_REAL(cuCtxDestroy))); }
LGPU_EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx) { return LGPU_TOUCHED(destroy(ctx, LGPU_REAL(cuCtxDestroy_v2))); }
LGPU_EXPORT CUresult cuCtxDetach(CUcontext ctx) { return LGPU_TOUCHED(destroy(ctx, LGPU_REAL(cuCtxDetach))); }

// ---- primary contexts

LGPU_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL ? lgpu_limits_index(dev) : -1;
	if (refused(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (device < 0 || pctx == NULL)
		return LGPU_TOUCHED(LGPU_REAL(cuDevicePrimaryCtxRetain)(pctx, dev));
	struct primary *p = &primaries[device];
	lgpu_touch_begin();
	lgpu_lock(&p->lock);
	struct making m = {.state = NULL};
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	if (p->uses == 0 && !make_begin(&m, dev))
		goto out;
	r = LGPU_REAL(cuDevicePrimaryCtxRetain)(pctx, dev);
	if (!make_end(&m, r == CUDA_SUCCESS ? *pctx : NULL)) {
		LGPU_REAL(cuDevicePrimaryCtxRelease_v2)(dev);
		lgpu_overhead_context_gone(s, device);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (r == CUDA_SUCCESS) {
		p->uses++;
		p->context = *pctx;
		context_begins(device, *pctx);
	}
out:
	lgpu_unlock(&p->lock);
	lgpu_touch_end();
	return r;
}

// end ends one use of a primary context, or all: a reset ends the context whoever
// retains it. They retain a new one then, which the driver makes when it is first
// used.
static CUresult end(CUdevice dev, bool all, CUresult (*driver)(CUdevice))
{
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL ? lgpu_limits_index(dev) : -1;
	if (device < 0)
		return driver(dev);
	struct primary *p = &primaries[device];
	lgpu_lock(&p->lock);
	bool last = p->uses == 1 || (all && p->uses != 0);
	if (last)
		context_ends(p->context);
	CUresult r = driver(dev);
	if (r == CUDA_SUCCESS && p->uses != 0)
		p->uses = all ? 0 : p->uses - 1;
	if (r == CUDA_SUCCESS && last)
		ended(s, device, p->context);
	else if (last)
		lgpu_residence_context_made(p->context);
	lgpu_unlock(&p->lock);
	return r;
}

LGPU_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return LGPU_TOUCHED(end(dev, false, LGPU_REAL(cuDevicePrimaryCtxRelease))); }
LGPU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) { return LGPU_TOUCHED(end(dev, false, LGPU_REAL(cuDevicePrimaryCtxRelease_v2))); }
LGPU_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return LGPU_TOUCHED(end(dev, true, LGPU_REAL(cuDevicePrimaryCtxReset))); }
LGPU_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) { return LGPU_TOUCHED(end(dev, true, LGPU_REAL(cuDevicePrimaryCtxReset_v2))); }

// ---- what grows a context

// limit_bytes is what a limit of so much takes of the device. A stack is had by
// as many threads as the device can run at once.
static uint64_t limit_bytes(CUlimit limit, size_t value)
{
	return limit == CU_LIMIT_STACK_SIZE ? lgpu_stacks_bytes(value) : value;
}

// Larger stacks are taken from the device at once, a larger heap or buffer when
// code that uses it is loaded; either must fit now.
static CUresult set_limit(CUlimit limit, size_t value)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	size_t before = 0;
	bool grows = limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_STACK_SIZE;
	int device = s != NULL && grows ? lgpu_current(&context) : -1;
	if (device < 0 || LGPU_REAL(cuCtxGetLimit)(&before, limit) != CUDA_SUCCESS || value == before)
		return LGPU_REAL(cuCtxSetLimit)(limit, value);
	uint64_t more = value > before ? limit_bytes(limit, value) - limit_bytes(limit, before) : 0;
	if (!lgpu_reserve(s, device, more))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = LGPU_REAL(cuCtxSetLimit)(limit, value);
	lgpu_overhead_grow(s, device, more);
	return r;
}

// A call about the limit of stacks waits while they rest.
static void limit_begins(CUlimit limit)
{
	if (limit == CU_LIMIT_STACK_SIZE)
		lgpu_stacks_lock();
}

static void limit_ends(CUlimit limit)
{
	if (limit == CU_LIMIT_STACK_SIZE)
		lgpu_stacks_unlock();
}

static CUresult set_in_order(CUlimit limit, size_t value)
{
	limit_begins(limit);
	CUresult r = set_limit(limit, value);
	limit_ends(limit);
	return r;
}

LGPU_EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return LGPU_TOUCHED(set_in_order(limit, value)); }

LGPU_EXPORT CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
	limit_begins(limit);
	CUresult r = LGPU_REAL(cuCtxGetLimit)(pvalue, limit);
	limit_ends(limit);
	return r;
}
