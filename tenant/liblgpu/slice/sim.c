// SPDX-License-Identifier: Apache-2.0

// The slices of contexts of the software GPU. Its libcuda.so.1 has two functions for
// this, which are not CUDA's.
#include "slice/parts.h"

static CUresult (*set_timeslice)(CUcontext context, uint64_t micros);
static CUresult (*get_timeslice)(CUcontext context, uint64_t *micros);

bool lgpu_sim_find(void)
{
	set_timeslice = (CUresult(*)(CUcontext, uint64_t))lgpu_driver_symbol("lgpusimSetTimeslice");
	get_timeslice = (CUresult(*)(CUcontext, uint64_t *))lgpu_driver_symbol("lgpusimGetTimeslice");
	return lgpu_sim_there();
}

bool lgpu_sim_there(void) { return set_timeslice != NULL && get_timeslice != NULL; }

static enum lgpu_slice_answer answer(CUresult r)
{
	switch (r) {
	case CUDA_SUCCESS: return LGPU_SLICE_DONE;
	case CUDA_ERROR_INVALID_CONTEXT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED: return LGPU_SLICE_GONE;
	default: return LGPU_SLICE_REFUSED;
	}
}

static enum lgpu_slice_answer get(const struct lgpu_slice_group *g, uint64_t *micros) { return answer(get_timeslice(g->context, micros)); }
static enum lgpu_slice_answer set(const struct lgpu_slice_group *g, uint64_t micros) { return answer(set_timeslice(g->context, micros)); }

const struct lgpu_slice_driver lgpu_slice_sim = {get, set};
