// SPDX-License-Identifier: Apache-2.0

// Arrays: memory with a layout that only the driver knows.
//
// The driver does not tell how large an array is that has memory. But it tells the
// size of an array of the same description without memory (deferred mapping), so such
// a twin is made and asked. Where the driver does not allow that, the size is computed
// from the description.
#include "hook/hook.h"
#include "residence/residence.h"

#define DEFERRED_MAPPING 0x80
#define SPARSE 0x40
#define UNIT UINT64_C(512)

static uint64_t texel_bytes(CUarray_format format, unsigned int channels)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8: return channels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF: return 2 * (uint64_t)channels;
	default: return 4 * (uint64_t)channels; // block-compressed and video formats take less
	}
}

// computed estimates an array's size: what its texels take, with rows of whole
// units. All levels of a mipmap together take less than a third more.
static uint64_t computed(const CUDA_ARRAY3D_DESCRIPTOR *d, bool mipmapped)
{
	uint64_t bytes = texel_bytes(d->Format, d->NumChannels), third;
	if (__builtin_mul_overflow(bytes, d->Width, &bytes) ||
	    __builtin_mul_overflow(lgpu_round_up(bytes, UNIT), d->Height != 0 ? d->Height : 1, &bytes) ||
	    __builtin_mul_overflow(bytes, d->Depth != 0 ? d->Depth : 1, &bytes))
		return UINT64_MAX;
	third = mipmapped ? bytes / 3 + UNIT : 0;
	return __builtin_add_overflow(bytes, third, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, CUdevice device)
{
	CUDA_ARRAY3D_DESCRIPTOR twin = *d;
	CUDA_ARRAY_MEMORY_REQUIREMENTS need = {.size = 0};
	CUarray array;
	twin.Flags |= DEFERRED_MAPPING;
	if (LGPU_REAL(cuArray3DCreate_v2)(&array, &twin) != CUDA_SUCCESS)
		return lgpu_taken(computed(d, false));
	CUresult r = LGPU_REAL(cuArrayGetMemoryRequirements)(&need, array, device);
	LGPU_REAL(cuArrayDestroy)(array);
	return lgpu_taken(r == CUDA_SUCCESS && need.size != 0 ? need.size : computed(d, false));
}

static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels, CUdevice device)
{
	CUDA_ARRAY3D_DESCRIPTOR twin = *d;
	CUDA_ARRAY_MEMORY_REQUIREMENTS need = {.size = 0};
	CUmipmappedArray array;
	twin.Flags |= DEFERRED_MAPPING;
	if (LGPU_REAL(cuMipmappedArrayCreate)(&array, &twin, levels) != CUDA_SUCCESS)
		return lgpu_taken(computed(d, true));
	CUresult r = LGPU_REAL(cuMipmappedArrayGetMemoryRequirements)(&need, array, device);
	LGPU_REAL(cuMipmappedArrayDestroy)(array);
	return lgpu_taken(r == CUDA_SUCCESS && need.size != 0 ? need.size : computed(d, true));
}

// counted returns the state if an array of this description takes memory of
// its own. One with deferred mapping is given handles of cuMemCreate.
static struct lgpu_state *counted(const void *handle, const void *description, unsigned int flags, int *device, CUdevice *real,
				  CUcontext *context)
{
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || handle == NULL || description == NULL || (flags & (DEFERRED_MAPPING | SPARSE)) != 0)
		return NULL;
	*device = lgpu_current(context);
	return *device >= 0 && LGPU_REAL(cuCtxGetDevice)(real) == CUDA_SUCCESS ? s : NULL;
}

// created ends the making of an array for which bytes are charged: what the
// driver made is noted, or the charge given back.
static CUresult created(struct lgpu_state *s, const CUarray *handle, uint64_t bytes, int device, CUcontext context, CUresult r)
{
	if (r != CUDA_SUCCESS) {
		lgpu_uncharge(s, device, bytes);
	} else if (!lgpu_note(s, LGPU_KIND_ARRAY, (uint64_t)*handle, bytes, device, context)) {
		LGPU_REAL(cuArrayDestroy)(*handle);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	lgpu_reserved(s, device, bytes);
	return r;
}

LGPU_EXPORT CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
	int device;
	CUdevice real;
	CUcontext context;
	struct lgpu_state *s =
		counted(pHandle, pAllocateArray, pAllocateArray != NULL ? pAllocateArray->Flags : 0, &device, &real, &context);
	if (s == NULL)
		return LGPU_TOUCHED(LGPU_REAL(cuArray3DCreate_v2)(pHandle, pAllocateArray));
	uint64_t bytes = array_bytes(pAllocateArray, real);
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(s, pHandle, bytes, device, context, LGPU_TOUCHED(LGPU_REAL(cuArray3DCreate_v2)(pHandle, pAllocateArray)));
}

LGPU_EXPORT CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
	int device;
	CUdevice real;
	CUcontext context;
	struct lgpu_state *s = counted(pHandle, pAllocateArray, 0, &device, &real, &context);
	if (s == NULL)
		return LGPU_TOUCHED(LGPU_REAL(cuArrayCreate_v2)(pHandle, pAllocateArray));
	CUDA_ARRAY3D_DESCRIPTOR d = {.Width = pAllocateArray->Width, .Height = pAllocateArray->Height,
				     .Format = pAllocateArray->Format, .NumChannels = pAllocateArray->NumChannels};
	uint64_t bytes = array_bytes(&d, real);
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return created(s, pHandle, bytes, device, context, LGPU_TOUCHED(LGPU_REAL(cuArrayCreate_v2)(pHandle, pAllocateArray)));
}

LGPU_EXPORT CUresult cuArrayDestroy(CUarray hArray)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_ARRAY, (uint64_t)hArray);
	return lgpu_free_end(&f, LGPU_TOUCHED(LGPU_REAL(cuArrayDestroy)(hArray)));
}

LGPU_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
					    unsigned int numMipmapLevels)
{
	int device;
	CUdevice real;
	CUcontext context;
	struct lgpu_state *s = counted(pHandle, pMipmappedArrayDesc, pMipmappedArrayDesc != NULL ? pMipmappedArrayDesc->Flags : 0,
				       &device, &real, &context);
	if (s == NULL)
		return LGPU_TOUCHED(LGPU_REAL(cuMipmappedArrayCreate)(pHandle, pMipmappedArrayDesc, numMipmapLevels));
	uint64_t bytes = mipmap_bytes(pMipmappedArrayDesc, numMipmapLevels, real);
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuMipmappedArrayCreate)(pHandle, pMipmappedArrayDesc, numMipmapLevels));
	if (r != CUDA_SUCCESS) {
		lgpu_uncharge(s, device, bytes);
	} else if (!lgpu_note(s, LGPU_KIND_MIPMAP, (uint64_t)*pHandle, bytes, device, context)) {
		LGPU_TOUCHED(LGPU_REAL(cuMipmappedArrayDestroy)(*pHandle));
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	lgpu_reserved(s, device, bytes);
	return r;
}

LGPU_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MIPMAP, (uint64_t)hMipmappedArray);
	return lgpu_free_end(&f, LGPU_TOUCHED(LGPU_REAL(cuMipmappedArrayDestroy)(hMipmappedArray)));
}
