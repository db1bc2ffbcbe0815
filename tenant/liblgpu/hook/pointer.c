// SPDX-License-Identifier: Apache-2.0

// Calls that say what is at an address, or give memory away by its address. Memory that can leave the device (arena.h)
// shows itself to the driver as the program's own mapping; the program is told what it asked for.
#include <string.h>

#include "arena/arena.h"
#include "hook/hook.h"
#include "residence/residence.h"

// ours reports whether an address is of movable memory, or of another process's, and stores what is there.
static bool ours(CUdeviceptr at, struct lgpu_arena_place *place)
{
	return lgpu_arena_opened(at, place) ||
	       (__atomic_load_n(&lgpu_managed, __ATOMIC_RELAXED) && lgpu_attached() != NULL && lgpu_arena_find(at, place));
}

static bool current(void)
{
	CUcontext context = NULL;
	return LGPU_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS && context != NULL;
}

LGPU_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
	struct lgpu_arena_place place;
	if (!ours(dptr, &place) || !current())
		return LGPU_TOUCHED(LGPU_REAL(cuMemGetAddressRange_v2)(pbase, psize, dptr));
	if (!place.live)
		return CUDA_ERROR_NOT_FOUND;
	if (pbase != NULL)
		*pbase = place.base;
	if (psize != NULL)
		*psize = place.bytes;
	return CUDA_SUCCESS;
}

LGPU_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct lgpu_arena_place place;
	struct lgpu_arena_mapping mapping;
	if (data == NULL || !ours(ptr, &place)) {
		CUresult r = LGPU_TOUCHED(LGPU_REAL(cuPointerGetAttribute)(data, attribute, ptr));
		if (r == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID && lgpu_arena_mapping(ptr, &mapping))
			memcpy(data, &mapping.id, sizeof mapping.id); // the driver's is another one when the memory has come back
		return r;
	}
	return lgpu_arena_attribute(&place, ptr, attribute, data);
}

// Of what this form cannot find it stores what the driver stores, which for an address that is nobody's the driver is
// best asked.
LGPU_EXPORT CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
	struct lgpu_arena_place place;
	struct lgpu_arena_mapping mapping;
	if (numAttributes == 0 || attributes == NULL || data == NULL || !ours(ptr, &place)) {
		CUresult r = LGPU_TOUCHED(LGPU_REAL(cuPointerGetAttributes)(numAttributes, attributes, data, ptr));
		for (unsigned int i = 0; r == CUDA_SUCCESS && i < numAttributes && lgpu_arena_mapping(ptr, &mapping); i++)
			if (attributes[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID)
				memcpy(data[i], &mapping.id, sizeof mapping.id);
		return r;
	}
	for (unsigned int i = 0; i < numAttributes; i++) {
		if (data[i] != NULL && lgpu_arena_attribute(&place, ptr, attributes[i], data[i]) == CUDA_SUCCESS)
			continue;
		// NULL is an address that has no attributes either.
		CUresult r = LGPU_REAL(cuPointerGetAttributes)(1, &attributes[i], &data[i], 0);
		if (r != CUDA_SUCCESS)
			return r;
	}
	return CUDA_SUCCESS;
}

LGPU_EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct lgpu_arena_place place;
	if (value == NULL || !ours(ptr, &place)) {
		lgpu_touch_begin();
		CUresult r = LGPU_REAL(cuPointerSetAttribute)(value, attribute, ptr);
		if (r == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && lgpu_touch_counts())
			lgpu_arena_mapping_sync(ptr, *(const unsigned char *)value != 0);
		lgpu_touch_end();
		return r;
	}
	if (!place.live || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	return lgpu_arena_set_sync(ptr, *(const unsigned char *)value != 0);
}

// refuse answers a call that would have others use memory that moves.
static CUresult refuse(const char *call, bool *said)
{
	if (!__atomic_exchange_n(said, true, __ATOMIC_RELAXED))
		lgpu_log(LGPU_LOG_WARN, "%s: memory of an lgpu made with --overcommit can leave the device and cannot be shared this way; "
					"make the lgpu without --overcommit", call);
	return CUDA_ERROR_NOT_SUPPORTED;
}

LGPU_EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType,
						   unsigned long long flags)
{
	static bool said;
	struct lgpu_arena_place place;
	if (!ours(dptr, &place))
		return LGPU_TOUCHED(lgpu_fix_range(dptr, size, LGPU_REAL(cuMemGetHandleForAddressRange)(handle, dptr, size, handleType, flags)));
	return refuse("cuMemGetHandleForAddressRange", &said);
}

// ---- legacy IPC

LGPU_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
	struct lgpu_arena_place place;
	if (pHandle == NULL || !ours(dptr, &place) || !place.live)
		return LGPU_TOUCHED(LGPU_REAL(cuIpcGetMemHandle)(pHandle, dptr));
	return place.shareable ? lgpu_arena_share(&place, pHandle) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult open_handle(CUdeviceptr *at, const CUipcMemHandle *handle, unsigned int flags)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	CUresult r = at != NULL ? lgpu_arena_open(handle, flags, at) : CUDA_ERROR_INVALID_VALUE;
	int device = s != NULL && r == CUDA_SUCCESS ? lgpu_current(&context) : -1;
	bool closed;
	// NVML may show it to be ours, where its maker has freed it.
	if (device >= 0 && !lgpu_overhead_now(s, device)) {
		lgpu_arena_close(*at, &closed);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	return r;
}

LGPU_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	return lgpu_arena_is_share(&handle) ? open_handle(pdptr, &handle, Flags) : LGPU_TOUCHED(LGPU_REAL(cuIpcOpenMemHandle)(pdptr, handle, Flags));
}

LGPU_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
	return lgpu_arena_is_share(&handle) ? open_handle(pdptr, &handle, Flags) :
					      LGPU_TOUCHED(LGPU_REAL(cuIpcOpenMemHandle_v2)(pdptr, handle, Flags));
}

LGPU_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
	bool movable;
	CUresult r = lgpu_arena_close(dptr, &movable);
	return movable ? r : LGPU_TOUCHED(LGPU_REAL(cuIpcCloseMemHandle)(dptr));
}

// ---- access from other devices

static CUresult peer(CUcontext other, bool access, CUresult r)
{
	if (r == CUDA_SUCCESS && lgpu_attached() != NULL && __atomic_load_n(&lgpu_managed, __ATOMIC_RELAXED))
		r = lgpu_arena_peer(other, access);
	return r;
}

LGPU_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
	lgpu_touch_begin();
	CUresult r = peer(peerContext, true, LGPU_REAL(cuCtxEnablePeerAccess)(peerContext, Flags));
	lgpu_touch_end();
	return r;
}

LGPU_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
	lgpu_touch_begin();
	CUresult r = peer(peerContext, false, LGPU_REAL(cuCtxDisablePeerAccess)(peerContext));
	lgpu_touch_end();
	return r;
}
