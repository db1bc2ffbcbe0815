// SPDX-License-Identifier: Apache-2.0

// Device memory that is allocated and freed by address, and page-locked host memory.
//
// Every allocation is charged first. Then the driver is called, and the charge is
// noted under the address, or given back if the call has failed. Every free takes the
// note away, calls the driver, and gives the charge back, or puts the note back if the
// call has failed. A free of an address without a note (from another library, or from
// before) is passed on.
#include "hook/hook.h"

#include "arena/arena.h"
#include "memory/pools.h"
#include "residence/residence.h"

// With less than this left, a small allocation is looked at again once made:
// it may have taken a page of its own.
#define NARROW (UINT64_C(4) << 20)

// allocated ends an allocation for which bytes are charged: what the driver made
// is noted, or the charge given back.
static CUresult allocated(struct lgpu_state *s, const CUdeviceptr *dptr, uint64_t bytes, int device, CUcontext context, CUresult r)
{
	bool movable;
	if (r != CUDA_SUCCESS) {
		lgpu_uncharge(s, device, bytes);
	} else if (!lgpu_note(s, LGPU_KIND_MEMORY, *dptr, bytes, device, context)) {
		if (lgpu_arena_free(*dptr, &movable), !movable)
			LGPU_TOUCHED(LGPU_REAL(cuMemFree_v2)(*dptr));
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	lgpu_reserved(s, device, bytes);
	return r;
}

LGPU_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL ? lgpu_current(&context) : -1;
	if (device < 0 || dptr == NULL || bytesize == 0)
		return LGPU_TOUCHED(LGPU_REAL(cuMemAlloc_v2)(dptr, bytesize));
	uint64_t bytes = lgpu_taken(bytesize);
	lgpu_arena_leave();
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = lgpu_arena_wants(s, device) ? lgpu_arena_alloc(s, device, context, dptr, bytesize) :
						   LGPU_TOUCHED(LGPU_REAL(cuMemAlloc_v2)(dptr, bytesize));
	r = allocated(s, dptr, bytes, device, context, r);
	if (r == CUDA_SUCCESS && bytes <= LGPU_SHARED_PAGE && lgpu_remaining(s, device) < NARROW && !lgpu_overhead_now(s, device)) {
		cuMemFree_v2(*dptr);
		lgpu_overhead_now(s, device);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return r;
}

LGPU_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL ? lgpu_current(&context) : -1;
	if (device < 0 || dptr == NULL || bytesize == 0)
		return LGPU_TOUCHED(LGPU_REAL(cuMemAllocManaged)(dptr, bytesize, flags));
	uint64_t bytes = lgpu_taken(bytesize);
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return allocated(s, dptr, bytes, device, context, LGPU_TOUCHED(LGPU_REAL(cuMemAllocManaged)(dptr, bytesize, flags)));
}

LGPU_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
					unsigned int ElementSizeBytes)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL ? lgpu_current(&context) : -1;
	if (device < 0 || dptr == NULL || pPitch == NULL || WidthInBytes == 0 || Height == 0)
		return LGPU_TOUCHED(LGPU_REAL(cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
	// The pitch is the driver's choice and known only afterwards; 512 is the most it aligns to.
	uint64_t bytes;
	if (__builtin_mul_overflow(lgpu_round_up(WidthInBytes, LGPU_UNIT), Height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	bytes = lgpu_taken(bytes);
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = lgpu_arena_wants(s, device) ?
			     lgpu_arena_pitch(s, device, context, dptr, pPitch, WidthInBytes, Height, ElementSizeBytes) :
			     LGPU_TOUCHED(LGPU_REAL(cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes));
	uint64_t taken = r == CUDA_SUCCESS ? lgpu_taken(*pPitch * Height) : bytes;
	if (taken > bytes && !lgpu_charge(s, device, taken - bytes)) {
		LGPU_TOUCHED(LGPU_REAL(cuMemFree_v2)(*dptr));
		taken = bytes;
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (taken < bytes)
		lgpu_uncharge(s, device, bytes - taken);
	lgpu_pending(s, device, taken - bytes);
	return allocated(s, dptr, taken, device, context, r);
}

LGPU_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	bool movable;
	CUresult pooled = lgpu_arena_pool_free(lgpu_attached(), dptr, &movable);
	if (movable)
		return pooled;
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MEMORY, dptr);
	// Who has the note frees. Without one the address is nobody's, or the driver's own.
	CUresult r = lgpu_arena_free(f.state != NULL ? dptr : 0, &movable);
	r = lgpu_free_end(&f, movable ? r : LGPU_TOUCHED(LGPU_REAL(cuMemFree_v2)(dptr)));
	if (f.state == NULL)
		lgpu_pools_look(true); // it may have been a pool's
	return r;
}

// ---- page-locked host memory

static CUresult host_note(struct lgpu_state *s, void *p, uint64_t bytes, CUresult r)
{
	if (r != CUDA_SUCCESS) {
		lgpu_uncharge(s, LGPU_HOST, bytes);
		return r;
	}
	CUcontext context = NULL;
	LGPU_REAL(cuCtxGetCurrent)(&context);
	return lgpu_note(s, LGPU_KIND_HOST, (uint64_t)p, bytes, LGPU_HOST, context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult host_alloc(void **pp, size_t bytes, unsigned int flags)
{
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || pp == NULL || bytes == 0)
		return LGPU_REAL(cuMemHostAlloc)(pp, bytes, flags);
	if (!lgpu_charge(s, LGPU_HOST, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = LGPU_REAL(cuMemHostAlloc)(pp, bytes, flags);
	CUresult noted = host_note(s, r == CUDA_SUCCESS ? *pp : NULL, bytes, r);
	if (r == CUDA_SUCCESS && noted != CUDA_SUCCESS)
		LGPU_REAL(cuMemFreeHost)(*pp);
	return noted;
}

LGPU_EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
	return host_alloc(pp, bytesize, Flags);
}

// The older forms differ from cuMemHostAlloc without flags in nothing.
LGPU_EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
	return lgpu_attached() == NULL ? LGPU_REAL(cuMemAllocHost_v2)(pp, bytesize) : host_alloc(pp, bytesize, 0);
}

LGPU_EXPORT CUresult cuMemAllocHost(void **pp, unsigned int bytesize)
{
	return lgpu_attached() == NULL ? LGPU_REAL(cuMemAllocHost)(pp, bytesize) : host_alloc(pp, bytesize, 0);
}

LGPU_EXPORT CUresult cuMemFreeHost(void *p)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_HOST, (uint64_t)p);
	return lgpu_free_end(&f, LGPU_REAL(cuMemFreeHost)(p));
}

LGPU_EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || p == NULL || bytesize == 0)
		return LGPU_REAL(cuMemHostRegister_v2)(p, bytesize, Flags);
	if (!lgpu_charge(s, LGPU_HOST, bytesize))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = LGPU_REAL(cuMemHostRegister_v2)(p, bytesize, Flags);
	CUresult noted = host_note(s, p, bytesize, r);
	if (r == CUDA_SUCCESS && noted != CUDA_SUCCESS)
		LGPU_REAL(cuMemHostUnregister)(p);
	return noted;
}

// The two forms differ in nothing that 64-bit programs see.
LGPU_EXPORT CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
	return lgpu_attached() == NULL ? LGPU_REAL(cuMemHostRegister)(p, bytesize, Flags) :
					 cuMemHostRegister_v2(p, bytesize, Flags);
}

LGPU_EXPORT CUresult cuMemHostUnregister(void *p)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_HOST, (uint64_t)p);
	return lgpu_free_end(&f, LGPU_REAL(cuMemHostUnregister)(p));
}
