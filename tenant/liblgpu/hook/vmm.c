// SPDX-License-Identifier: Apache-2.0

// Memory made as handles and mapped at addresses that the program reserves.
//
// A handle is charged to the device that its properties name, and given back
// when the last handle and the last mapping are gone, as the driver does it.
// Imported handles are the exporter's.
//
// What is the program's to map is only what it has reserved: of addresses that the
// arena has reserved, or has opened another process's memory at, the driver
// would let it have some. They are refused as addresses of cuMemAlloc's memory are.
#include <stdlib.h>

#include "arena/arena.h"
#include "base/futex.h"
#include "hook/hook.h"
#include "memory/exports.h"
#include "residence/residence.h"

struct lgpu_object {
	uint64_t bytes;
	int32_t device;
	uint32_t uses;            // handles, mappings, and calls that use it
	bool exported;            // under a descriptor, which may outlive handles and mappings
	struct lgpu_block *block; // what can leave the device; NULL: the handle is the driver's own
};

static void use(struct lgpu_object *o) { __atomic_fetch_add(&o->uses, 1, __ATOMIC_RELAXED); }

static void drop(struct lgpu_state *s, struct lgpu_object *o)
{
	if (__atomic_sub_fetch(&o->uses, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	if (o->block != NULL)
		lgpu_arena_destroy(o->block);
	if (o->exported)
		lgpu_exports_release(s, o->device, o->bytes); // a descriptor may keep it
	else
		lgpu_uncharge(s, o->device, o->bytes);
	free(o);
}

static int index_of(const CUmemAllocationProp *prop)
{
	switch (prop->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE: return lgpu_limits_index(prop->location.id);
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return LGPU_HOST;
	default: return -1;
	}
}

// The driver may give out one handle several times; the entry's bytes count
// how often. The amount is the object's.
static uint32_t handles_lock;

void lgpu_handles_reset(void) { handles_lock = 0; }

static bool handle_add(CUmemGenericAllocationHandle handle, struct lgpu_object *o)
{
	struct lgpu_entry e;
	lgpu_lock(&handles_lock);
	if (lgpu_accounts_take(LGPU_KIND_HANDLE, handle, &e))
		e.bytes++;
	else
		e = (struct lgpu_entry){.key = handle, .bytes = 1, .object = o, .device = o->device, .kind = LGPU_KIND_HANDLE};
	bool noted = lgpu_accounts_put(&e, NULL);
	lgpu_unlock(&handles_lock);
	return noted;
}

// handle_remove returns the object, or NULL for a handle that is not noted.
static struct lgpu_object *handle_remove(CUmemGenericAllocationHandle handle)
{
	struct lgpu_entry e = {.object = NULL};
	lgpu_lock(&handles_lock);
	if (lgpu_accounts_take(LGPU_KIND_HANDLE, handle, &e) && --e.bytes != 0)
		lgpu_accounts_restore(&e);
	lgpu_unlock(&handles_lock);
	return e.object;
}

// handle_use returns the object of a handle, which the caller drops; NULL: it is not noted.
static struct lgpu_object *handle_use(CUmemGenericAllocationHandle handle)
{
	struct lgpu_entry e = {.object = NULL};
	lgpu_lock(&handles_lock);
	if (lgpu_accounts_get(LGPU_KIND_HANDLE, handle, &e))
		use(e.object);
	lgpu_unlock(&handles_lock);
	return e.object;
}

// real is the driver's handle of an object that the program knows by a handle. Inside a touch.
static CUmemGenericAllocationHandle real(const struct lgpu_object *o, CUmemGenericAllocationHandle handle)
{
	return o != NULL && o->block != NULL ? lgpu_arena_real(o->block) : handle;
}

static CUresult create(struct lgpu_state *s, CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		       unsigned long long flags, struct lgpu_object *o)
{
	if (o->device < 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !lgpu_arena_wants(s, o->device))
		return LGPU_TOUCHED(LGPU_REAL(cuMemCreate)(handle, size, prop, flags));
	CUresult r = lgpu_arena_create(s, o->device, size, prop, flags, &o->block);
	if (r == CUDA_SUCCESS)
		*handle = lgpu_arena_handle(o->block);
	return r;
}

static void release(const struct lgpu_object *o, CUmemGenericAllocationHandle handle)
{
	if (o->block != NULL)
		lgpu_arena_destroy(o->block);
	else
		LGPU_TOUCHED(LGPU_REAL(cuMemRelease)(handle));
}

LGPU_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
				 unsigned long long flags)
{
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL && prop != NULL ? index_of(prop) : -1;
	if (device == -1 || handle == NULL || size == 0)
		return LGPU_TOUCHED(LGPU_REAL(cuMemCreate)(handle, size, prop, flags));
	if (!lgpu_reserve(s, device, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	struct lgpu_object *o = malloc(sizeof *o);
	if (o != NULL) {
		*o = (struct lgpu_object){.bytes = size, .device = device, .uses = 1};
		r = create(s, handle, size, prop, flags, o);
	}
	if (r == CUDA_SUCCESS && !handle_add(*handle, o)) {
		release(o, *handle);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r != CUDA_SUCCESS) {
		lgpu_uncharge(s, device, size);
		free(o);
	}
	lgpu_reserved(s, device, size);
	return r;
}

LGPU_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct lgpu_state *s = lgpu_attached();
	struct lgpu_object *o = s != NULL ? handle_remove(handle) : NULL;
	if (o == NULL && lgpu_arena_is_handle(handle))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = o != NULL && o->block != NULL ? CUDA_SUCCESS : LGPU_TOUCHED(LGPU_REAL(cuMemRelease)(handle));
	if (o != NULL && r == CUDA_SUCCESS)
		drop(s, o);
	else if (o != NULL)
		handle_add(handle, o);
	return r;
}

// taken reports whether a range has addresses that are not the program's to map, to give back or to give access to.
static bool taken(CUdeviceptr at, size_t bytes) { return lgpu_attached() != NULL && lgpu_arena_meets(at, bytes); }

LGPU_EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	return taken(ptr, size) ? CUDA_ERROR_INVALID_VALUE : LGPU_TOUCHED(LGPU_REAL(cuMemAddressFree)(ptr, size));
}

LGPU_EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
			      unsigned long long flags)
{
	if (taken(ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	struct lgpu_state *s = lgpu_attached();
	struct lgpu_object *o = s != NULL ? handle_use(handle) : NULL;
	if (o == NULL && lgpu_arena_is_handle(handle))
		return CUDA_ERROR_INVALID_VALUE;
	if (o == NULL)
		return LGPU_TOUCHED(LGPU_REAL(cuMemMap)(ptr, size, offset, handle, flags));
	struct lgpu_entry mapping = {.key = ptr, .bytes = size, .object = o, .device = o->device, .kind = LGPU_KIND_MAPPING};
	lgpu_touch_begin();
	CUresult r = o->block != NULL ? lgpu_arena_map(o->block, ptr, size, offset, flags) :
					LGPU_REAL(cuMemMap)(ptr, size, offset, handle, flags);
	if (r == CUDA_SUCCESS && !lgpu_accounts_put(&mapping, NULL)) {
		LGPU_REAL(cuMemUnmap)(ptr, size);
		lgpu_arena_unmapped(ptr);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r != CUDA_SUCCESS)
		drop(s, o);
	lgpu_touch_end();
	return r;
}

// One call may unmap several mappings that lie side by side. The addresses are
// the program's own choice, so nobody maps there before the call returns.
LGPU_EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	struct lgpu_state *s = lgpu_attached();
	if (taken(ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	lgpu_touch_begin();
	CUresult r = LGPU_REAL(cuMemUnmap)(ptr, size);
	struct lgpu_entry e;
	for (uint64_t at = ptr, end = ptr + size; s != NULL && r == CUDA_SUCCESS && at < end;) {
		if (lgpu_accounts_take(LGPU_KIND_MAPPING, at, &e)) {
			if (e.object->block != NULL)
				lgpu_arena_unmapped(at);
			at += e.bytes;
			drop(s, e.object);
		} else if (!lgpu_accounts_after(at, end, &at)) {
			break; // the rest are imported ones
		}
	}
	lgpu_touch_end();
	return r;
}

LGPU_EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	if (taken(ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	lgpu_touch_begin();
	CUresult r = LGPU_REAL(cuMemSetAccess)(ptr, size, desc, count);
	if (r == CUDA_SUCCESS && lgpu_touch_counts())
		lgpu_arena_allowed(ptr, size, desc, count);
	lgpu_touch_end();
	return r;
}

LGPU_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	return taken(ptr, 1) ? CUDA_ERROR_INVALID_VALUE : LGPU_TOUCHED(LGPU_REAL(cuMemGetAccess)(flags, location, ptr));
}

LGPU_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	struct lgpu_arena_mapping mapping;
	struct lgpu_entry e;
	if (taken((CUdeviceptr)(uintptr_t)addr, 1))
		return CUDA_ERROR_INVALID_VALUE; // as for all memory that no cuMemMap of the program has made
	bool movable = lgpu_attached() != NULL && handle != NULL && lgpu_arena_mapping((CUdeviceptr)(uintptr_t)addr, &mapping);
	CUresult r = movable ? CUDA_SUCCESS : LGPU_TOUCHED(LGPU_REAL(cuMemRetainAllocationHandle)(handle, addr));
	if (movable)
		*handle = mapping.handle;
	if (lgpu_attached() == NULL || r != CUDA_SUCCESS || !lgpu_accounts_around((uint64_t)addr, &e))
		return r;
	use(e.object);
	if (!handle_add(*handle, e.object))
		lgpu_log(LGPU_LOG_WARN, "no memory to note a handle; its memory stays charged");
	return r;
}

LGPU_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct lgpu_state *s = lgpu_attached();
	struct lgpu_object *o = s != NULL && prop != NULL ? handle_use(handle) : NULL;
	CUresult r = CUDA_SUCCESS;
	if (o != NULL && o->block != NULL)
		lgpu_arena_properties(o->block, prop);
	else if (o == NULL && lgpu_arena_is_handle(handle))
		r = CUDA_ERROR_INVALID_VALUE;
	else
		r = LGPU_REAL(cuMemGetAllocationPropertiesFromHandle)(prop, handle);
	if (o != NULL)
		drop(s, o);
	return r;
}

// FIXED makes a call that lets others know the memory behind a handle, which stays on the device then.
#define FIXED(handle, call)                                                                                        \
	({                                                                                                         \
		struct lgpu_state *s_ = lgpu_attached();                                                           \
		struct lgpu_object *o_ = s_ != NULL ? handle_use(handle) : NULL;                                   \
		lgpu_touch_begin();                                                                                \
		handle = real(o_, handle);                                                                         \
		CUresult fixed_ = o_ == NULL && lgpu_arena_is_handle(handle) ? CUDA_ERROR_INVALID_VALUE : (call);  \
		if (fixed_ == CUDA_SUCCESS && o_ != NULL && o_->block != NULL)                                     \
			lgpu_arena_fix(o_->block);                                                                 \
		if (o_ != NULL)                                                                                    \
			drop(s_, o_);                                                                              \
		lgpu_touch_end();                                                                                  \
		fixed_;                                                                                            \
	})

LGPU_EXPORT CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
						  CUmemAllocationHandleType handleType, unsigned long long flags)
{
	struct lgpu_entry e;
	struct lgpu_state *s = lgpu_attached();
	if (s != NULL) {
		// Before the call: as soon as there is a descriptor, it may be given away.
		// If there comes none, the memory is only looked for when it is released.
		lgpu_lock(&handles_lock);
		if (lgpu_accounts_get(LGPU_KIND_HANDLE, handle, &e) && e.device >= 0 && !e.object->exported) {
			e.object->exported = true;
			lgpu_exports_add(s, e.device, e.object->bytes);
		}
		lgpu_unlock(&handles_lock);
	}
	return FIXED(handle, LGPU_REAL(cuMemExportToShareableHandle)(shareableHandle, handle, handleType, flags));
}

LGPU_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUmemGenericAllocationHandle memHandle,
					size_t memOffset, size_t size, unsigned long long flags)
{
	return FIXED(memHandle, LGPU_REAL(cuMulticastBindMem)(mcHandle, mcOffset, memHandle, memOffset, size, flags));
}

CUresult lgpu_fix_range(CUdeviceptr at, size_t bytes, CUresult r)
{
	struct lgpu_arena_mapping mapping;
	if (r == CUDA_SUCCESS && taken(at, bytes))
		lgpu_arena_fix_range(at, bytes);
	for (CUdeviceptr end = at + bytes; r == CUDA_SUCCESS && at < end && lgpu_arena_mapping(at, &mapping); at = mapping.base + mapping.bytes)
		r = FIXED(mapping.handle, CUDA_SUCCESS);
	return r;
}

// Of memory that no cuMemMap of the program has made, the driver binds pools'.
LGPU_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
					 unsigned long long flags)
{
	struct lgpu_arena_place place;
	if (taken(memptr, size) && !(lgpu_arena_find(memptr, &place) && place.ordered))
		return CUDA_ERROR_INVALID_VALUE;
	return LGPU_TOUCHED(lgpu_fix_range(memptr, size, LGPU_REAL(cuMulticastBindAddr)(mcHandle, mcOffset, memptr, size, flags)));
}

static CUresult map_arrays(CUarrayMapInfo *list, unsigned int count, CUstream stream,
			   CUresult (*driver)(CUarrayMapInfo *, unsigned int, CUstream))
{
	struct lgpu_state *s = lgpu_attached();
	CUarrayMapInfo *copy = s != NULL && lgpu_touch_counts() && list != NULL && count != 0 ? calloc(count, sizeof *copy) : NULL;
	CUresult r = CUDA_SUCCESS;
	for (unsigned int i = 0; copy != NULL && i < count && r == CUDA_SUCCESS; i++) {
		copy[i] = list[i];
		if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP && list[i].memHandleType == CU_MEM_HANDLE_TYPE_GENERIC)
			r = FIXED(copy[i].memHandle.memHandle, CUDA_SUCCESS);
	}
	r = r == CUDA_SUCCESS ? driver(copy != NULL ? copy : list, count, stream) : r;
	free(copy);
	return r;
}

LGPU_EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
	return LGPU_TOUCHED(map_arrays(mapInfoList, count, hStream, LGPU_REAL(cuMemMapArrayAsync)));
}

LGPU_EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream)
{
	return LGPU_TOUCHED(map_arrays(mapInfoList, count, hStream, LGPU_REAL(cuMemMapArrayAsync_ptsz)));
}

// imported counts memory that this process made, gave away under a descriptor
// and has taken back, as NVML shows it to be ours.
static CUresult imported(struct lgpu_state *s, CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop;
	if (LGPU_REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, handle) != CUDA_SUCCESS)
		return CUDA_SUCCESS;
	int device = index_of(&prop);
	if (device < 0 || lgpu_overhead_now(s, device))
		return CUDA_SUCCESS;
	LGPU_TOUCHED(LGPU_REAL(cuMemRelease)(handle));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

// What is imported is the exporter's; but it may be our own, under a handle
// that we know.
LGPU_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
						    CUmemAllocationHandleType shHandleType)
{
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuMemImportFromShareableHandle)(handle, osHandle, shHandleType));
	struct lgpu_entry e;
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || r != CUDA_SUCCESS || handle == NULL)
		return r;
	if (!lgpu_accounts_get(LGPU_KIND_HANDLE, *handle, &e))
		return imported(s, *handle);
	use(e.object);
	if (!handle_add(*handle, e.object))
		lgpu_log(LGPU_LOG_WARN, "no memory to note a handle; its memory stays charged");
	return r;
}
