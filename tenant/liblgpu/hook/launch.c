// SPDX-License-Identifier: Apache-2.0

// Launches, and the calls around them that the gate must know of.
#include "alone/hami.h"
#include "arena/arena.h"
#include "gate/gate.h"
#include "hook/hook.h"
#include "memory/pools.h"
#include "residence/residence.h"

// pass_begin lets a launch through the gate, and then begins its touch. A launch that waits for the residence lock is not
// counted as work in flight: it leaves the gate first, and comes again. False: it is refused.
static inline bool pass_begin(struct lgpu_pass *pass, CUstream stream, const void *work, uint64_t size)
{
	for (;;) {
		lgpu_touch_await();
		*pass = lgpu_gate_enter(stream, work, size);
		if (pass->refused)
			return false;
		if (lgpu_touch_try())
			return true;
		lgpu_gate_leave(pass, CUDA_ERROR_NOT_READY);
	}
}

// PASS runs one launch through the gate, and inside the residence lock. A stream of 0 means the legacy
// default stream, and in the _ptsz forms the calling thread's own.
#define PASS(stream, work, size, call)                                                                             \
	do {                                                                                                       \
		if (lgpu_hami_watched)                                                                             \
			lgpu_hami_launched();                                                                      \
		if (!lgpu_gated)                                                                                   \
			return LGPU_TOUCHED(call);                                                                 \
		struct lgpu_pass pass;                                                                             \
		if (!pass_begin(&pass, stream, work, size))                                                        \
			return LGPU_GATE_REFUSAL;                                                                  \
		CUresult result = call;                                                                            \
		lgpu_touch_end();                                                                                  \
		lgpu_gate_leave(&pass, result);                                                                    \
		return result;                                                                                     \
	} while (0)

static inline CUstream ptsz(CUstream stream) { return stream != NULL ? stream : CU_STREAM_PER_THREAD; }

static inline uint64_t blocks(unsigned x, unsigned y, unsigned z) { return (uint64_t)x * y * z; }

// LOADS returns if what a launch of f would make the driver load does not fit.
#define LOADS(f, stream)                                                                                           \
	do {                                                                                                       \
		if (__builtin_expect(lgpu_loads_any(), 0)) {                                                       \
			CUresult loaded = lgpu_launch_loads(f, stream);                                            \
			if (loaded != CUDA_SUCCESS)                                                                \
				return loaded;                                                                     \
		}                                                                                                  \
	} while (0)

#define KERNEL(name, stream_of)                                                                                    \
	LGPU_EXPORT CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,   \
				unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)        \
	{                                                                                                          \
		LOADS(f, stream_of(stream));                                                                       \
		PASS(stream_of(stream), f, blocks(gx, gy, gz),                                                     \
		     LGPU_REAL(name)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));                   \
	}
#define COOPERATIVE(name, stream_of)                                                                               \
	LGPU_EXPORT CUresult name(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,   \
				unsigned bz, unsigned shared, CUstream stream, void **params)                      \
	{                                                                                                          \
		LOADS(f, stream_of(stream));                                                                       \
		PASS(stream_of(stream), f, blocks(gx, gy, gz),                                                     \
		     LGPU_REAL(name)(f, gx, gy, gz, bx, by, bz, shared, stream, params));                          \
	}
#define CONFIGURED(name, stream_of)                                                                                \
	LGPU_EXPORT CUresult name(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)         \
	{                                                                                                          \
		if (config == NULL)                                                                                \
			return LGPU_REAL(name)(config, f, params, extra);                                          \
		LOADS(f, stream_of(config->hStream));                                                              \
		PASS(stream_of(config->hStream), f, blocks(config->gridDimX, config->gridDimY, config->gridDimZ),  \
		     LGPU_REAL(name)(config, f, params, extra));                                                   \
	}
// A graph that allocates is charged for what it adds before it runs.
#define GRAPH(name, stream_of)                                                                                     \
	static CUresult gated_##name(CUgraphExec graph, CUstream stream)                                           \
	{                                                                                                          \
		PASS(stream_of(stream), graph, 0, LGPU_REAL(name)(graph, stream));                                 \
	}                                                                                                          \
	LGPU_EXPORT CUresult name(CUgraphExec graph, CUstream stream)                                              \
	{                                                                                                          \
		if (!lgpu_graphs_allocate)                                                                         \
			return gated_##name(graph, stream);                                                        \
		struct lgpu_graph_charge charge;                                                                   \
		CUresult result = lgpu_graph_memory_begin(graph, &charge);                                         \
		if (result != CUDA_SUCCESS)                                                                        \
			return result;                                                                             \
		result = gated_##name(graph, stream);                                                              \
		lgpu_graph_memory_end(graph, result, &charge);                                                     \
		return result;                                                                                     \
	}
#define AS_IS(stream) (stream)

KERNEL(cuLaunchKernel, AS_IS)
KERNEL(cuLaunchKernel_ptsz, ptsz)
COOPERATIVE(cuLaunchCooperativeKernel, AS_IS)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, ptsz)
CONFIGURED(cuLaunchKernelEx, AS_IS)
CONFIGURED(cuLaunchKernelEx_ptsz, ptsz)
GRAPH(cuGraphLaunch, AS_IS)
GRAPH(cuGraphLaunch_ptsz, ptsz)

LGPU_EXPORT CUresult cuLaunch(CUfunction f)
{
	LOADS(f, NULL);
	PASS(NULL, f, 1, LGPU_REAL(cuLaunch)(f));
}

LGPU_EXPORT CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
	LOADS(f, NULL);
	PASS(NULL, f, blocks((unsigned)width, (unsigned)height, 1), LGPU_REAL(cuLaunchGrid)(f, width, height));
}

LGPU_EXPORT CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
	LOADS(f, stream);
	PASS(stream, f, blocks((unsigned)width, (unsigned)height, 1), LGPU_REAL(cuLaunchGridAsync)(f, width, height, stream));
}

// passes_begin does what pass_begin does for one kernel on several devices at once, each with its own gate. The gates are
// entered in the order given; a launch that waits here holds no lock.
static bool passes_begin(struct lgpu_pass *pass, const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
	for (;;) {
		unsigned entered = 0;
		bool refused = false;
		lgpu_touch_await();
		while (entered < count && !refused) {
			const CUDA_LAUNCH_PARAMS *l = &list[entered];
			pass[entered] = lgpu_gate_enter(l->hStream, l->function, blocks(l->gridDimX, l->gridDimY, l->gridDimZ));
			refused = pass[entered].refused;
			entered += !refused;
		}
		if (!refused && lgpu_touch_try())
			return true;
		for (unsigned i = 0; i < entered; i++)
			lgpu_gate_leave(&pass[i], refused ? LGPU_GATE_REFUSAL : CUDA_ERROR_NOT_READY);
		if (refused)
			return false;
	}
}

LGPU_EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	struct lgpu_pass pass[LGPU_MAX_DEVICES];
	for (unsigned i = 0; list != NULL && i < count; i++)
		LOADS(list[i].function, list[i].hStream);
	if (!lgpu_gated || list == NULL || count > LGPU_MAX_DEVICES)
		return LGPU_TOUCHED(LGPU_REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags));
	if (!passes_begin(pass, list, count))
		return LGPU_GATE_REFUSAL;
	CUresult result = LGPU_REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
	lgpu_touch_end();
	for (unsigned i = 0; i < count; i++)
		lgpu_gate_leave(&pass[i], result);
	return result;
}

// After a call that has waited for the device, the gate looks at once; and it
// is then that memory pools shrink.
#define SYNCHRONISE(name, parameters, ...)                                                                         \
	LGPU_EXPORT CUresult name parameters                                                                       \
	{                                                                                                          \
		CUresult result = LGPU_REAL(name)(__VA_ARGS__);                                                    \
		if (lgpu_gated)                                                                                    \
			lgpu_gate_look();                                                                          \
		lgpu_pools_look(false);                                                                            \
		lgpu_arena_leave();                                                                                \
		lgpu_arena_pools_settle();                                                                         \
		return result;                                                                                     \
	}

SYNCHRONISE(cuStreamSynchronize, (CUstream stream), stream)
SYNCHRONISE(cuStreamSynchronize_ptsz, (CUstream stream), stream)
SYNCHRONISE(cuCtxSynchronize, (void))
SYNCHRONISE(cuCtxSynchronize_v2, (CUcontext context), context)
SYNCHRONISE(cuEventSynchronize, (CUevent event), event)
