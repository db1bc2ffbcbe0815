// SPDX-License-Identifier: Apache-2.0

// Handles of the program's own (cuMemCreate). The program has a handle of ours; behind it is one of the driver's, which is
// released when the memory leaves and made anew when it comes back. Then it is mapped again wherever the program has
// mapped it, with the access that the program has set. Once others know the memory (it was exported, or is part of a
// multicast object or of a sparse array), it stays on the device.
//
// Inside a touch all memory is on the devices: there the driver's handle is what the program means by ours.
#include <stdlib.h>
#include <string.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

// No pointer of a process, and so no handle of a driver that are pointers, has this bit.
#define OURS (UINT64_C(1) << 63)

// All mappings, by address. The lock is lgpu_arena_lock.
static struct lgpu_mapping **mappings;
static size_t mapping_count, mapping_room;
static struct lgpu_owner *owners[LGPU_MAX_DEVICES];

void lgpu_handles_forget(void)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++)
		owners[i] = NULL;
	mapping_count = 0;
}

// ---- where handles are mapped

// index_at is the index of the first mapping that ends behind an address. The caller has the lock.
static size_t index_at(uint64_t address)
{
	size_t low = 0, high = mapping_count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (mappings[middle]->base + mappings[middle]->bytes > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

// at returns the mapping that has an address, or NULL. The caller has the lock.
static struct lgpu_mapping *at(uint64_t address)
{
	size_t i = index_at(address);
	return i < mapping_count && mappings[i]->base <= address ? mappings[i] : NULL;
}

// note adds a mapping. False: there is no memory. The caller has the lock.
static bool note(struct lgpu_mapping *m)
{
	if (mapping_count == mapping_room) {
		size_t room = mapping_room == 0 ? 64 : 2 * mapping_room;
		struct lgpu_mapping **larger = realloc(mappings, room * sizeof *larger);
		if (larger == NULL)
			return false;
		mappings = larger;
		mapping_room = room;
	}
	size_t i = index_at(m->base);
	memmove(&mappings[i + 1], &mappings[i], (mapping_count++ - i) * sizeof *mappings);
	mappings[i] = m;
	m->next = m->block->program->mappings;
	m->block->program->mappings = m;
	return true;
}

bool lgpu_arena_mapping(CUdeviceptr address, struct lgpu_arena_mapping *place)
{
	if (__atomic_load_n(&mapping_count, __ATOMIC_RELAXED) == 0)
		return false;
	lgpu_lock(&lgpu_arena_lock);
	const struct lgpu_mapping *m = at(address);
	if (m != NULL)
		*place = (struct lgpu_arena_mapping){m->base, m->bytes, m->id, m->block->id | OURS};
	lgpu_unlock(&lgpu_arena_lock);
	return m != NULL;
}

// ---- the driver's side

static CUresult create(struct lgpu_block *b, unsigned long long flags)
{
	CUmemAllocationProp prop = b->program->prop;
	prop.allocFlags.gpuDirectRDMACapable = 0; // what another device knows of could not move
	return LGPU_REAL(cuMemCreate)(&b->one.handle, b->bytes, &prop, flags);
}

static CUresult allow(const struct lgpu_mapping *m)
{
	CUmemAccessDesc access[LGPU_ORDINALS];
	size_t count = 0;
	for (int i = 0; i < LGPU_ORDINALS; i++)
		if (m->access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE)
			access[count++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, i}, (CUmemAccess_flags)m->access[i]};
	CUresult r = count != 0 ? LGPU_REAL(cuMemSetAccess)(m->base, m->bytes, access, count) : CUDA_SUCCESS;
	if (r == CUDA_SUCCESS && m->sync) {
		unsigned int on = 1;
		LGPU_REAL(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, m->base);
	}
	return r;
}

CUresult lgpu_handle_map(struct lgpu_block *b)
{
	struct lgpu_mapping *m;
	CUresult r = create(b, 0);
	if (r != CUDA_SUCCESS)
		return r;
	for (m = b->program->mappings; m != NULL; m = m->next) {
		r = LGPU_REAL(cuMemMap)(m->base, m->bytes, m->offset, b->one.handle, 0);
		if (r != CUDA_SUCCESS)
			break;
		r = allow(m);
		if (r != CUDA_SUCCESS) {
			LGPU_REAL(cuMemUnmap)(m->base, m->bytes);
			break;
		}
	}
	if (r == CUDA_SUCCESS)
		return r;
	for (const struct lgpu_mapping *made = b->program->mappings; made != m; made = made->next)
		LGPU_REAL(cuMemUnmap)(made->base, made->bytes);
	LGPU_REAL(cuMemRelease)(b->one.handle);
	return r;
}

CUresult lgpu_handle_unmap(struct lgpu_block *b)
{
	CUresult r = CUDA_SUCCESS;
	for (const struct lgpu_mapping *m = b->program->mappings; m != NULL && r == CUDA_SUCCESS; m = m->next)
		r = LGPU_REAL(cuMemUnmap)(m->base, m->bytes);
	if (r == CUDA_SUCCESS && b->windowed)
		r = LGPU_REAL(cuMemUnmap)(b->base, b->bytes);
	b->windowed = false;
	return r == CUDA_SUCCESS ? LGPU_REAL(cuMemRelease)(b->one.handle) : r;
}

// A mapping of the program's serves if it has all of the memory, and the device itself may write there.
CUresult lgpu_handle_view(struct lgpu_block *b)
{
	CUdevice own = b->owner->ordinal;
	for (const struct lgpu_mapping *m = b->program->mappings; m != NULL; m = m->next)
		if (m->bytes == b->bytes && own < LGPU_ORDINALS && m->access[own] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
			b->view = m->base;
			return CUDA_SUCCESS;
		}
	b->view = b->base;
	if (b->windowed)
		return CUDA_SUCCESS;
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, own}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult r = LGPU_REAL(cuMemMap)(b->base, b->bytes, 0, b->one.handle, 0);
	if (r != CUDA_SUCCESS)
		return r;
	r = LGPU_REAL(cuMemSetAccess)(b->base, b->bytes, &access, 1);
	b->windowed = r == CUDA_SUCCESS;
	if (!b->windowed)
		LGPU_REAL(cuMemUnmap)(b->base, b->bytes);
	return r;
}

// ---- what the program does

static struct lgpu_owner *owner(int device, CUdevice ordinal)
{
	CUcontext context = __atomic_load_n(&owners[device], __ATOMIC_RELAXED) == NULL ? lgpu_residence_context_of(ordinal) : NULL;
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_owner *o = owners[device];
	if (o == NULL && (o = lgpu_pages(sizeof *o)) != NULL) {
		o->lasting = true;
		o->context = context;
		o->ordinal = ordinal;
		o->device = device;
		o->next = lgpu_owners;
		owners[device] = lgpu_owners = o;
	}
	lgpu_unlock(&lgpu_arena_lock);
	return o;
}

// make makes what is behind a handle, which nobody has yet.
static CUresult make(struct lgpu_block *b, const CUmemAllocationProp *prop, unsigned long long flags)
{
	b->program = calloc(1, sizeof *b->program);
	if (b->program == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	b->program->prop = *prop;
	return create(b, flags);
}

CUresult lgpu_arena_create(struct lgpu_state *s, int device, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags,
			   struct lgpu_block **made)
{
	if (!lgpu_level_wait(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	lgpu_touch_begin();
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	struct lgpu_owner *o = owner(device, prop->location.id);
	struct lgpu_block *b = o != NULL ? lgpu_block_new(o, bytes, LGPU_USE_HANDLE, &r) : NULL;
	if (b != NULL)
		r = make(b, prop, flags);
	if (r == CUDA_SUCCESS) {
		lgpu_arena_has(device, (int64_t)bytes);
		lgpu_lock(&lgpu_arena_lock);
		b->state = LGPU_BLOCK_LIVE;
		lgpu_block_link(b);
		lgpu_unlock(&lgpu_arena_lock);
		*made = b;
	} else if (b != NULL) {
		free(b->program);
		lgpu_block_drop(b);
	}
	lgpu_touch_end();
	return r;
}

void lgpu_arena_destroy(struct lgpu_block *b)
{
	lgpu_touch_begin();
	lgpu_lock(&lgpu_arena_lock);
	b->state = LGPU_BLOCK_ENDING;
	lgpu_block_unlink(b);
	lgpu_unlock(&lgpu_arena_lock);
	lgpu_handle_unmap(b);
	if (!b->fixed)
		lgpu_arena_has(b->owner->device, -(int64_t)b->bytes);
	free(b->program);
	lgpu_block_drop(b);
	lgpu_touch_end();
}

CUmemGenericAllocationHandle lgpu_arena_handle(const struct lgpu_block *b) { return b->id | OURS; }
bool lgpu_arena_is_handle(CUmemGenericAllocationHandle handle) { return lgpu_managed && (handle & OURS) != 0; }
CUmemGenericAllocationHandle lgpu_arena_real(const struct lgpu_block *b) { return b->one.handle; }
void lgpu_arena_properties(const struct lgpu_block *b, CUmemAllocationProp *prop) { *prop = b->program->prop; }

void lgpu_arena_fix(struct lgpu_block *b)
{
	lgpu_lock(&lgpu_arena_lock);
	lgpu_block_fix(b);
	lgpu_unlock(&lgpu_arena_lock);
}

CUresult lgpu_arena_map(struct lgpu_block *b, CUdeviceptr address, size_t bytes, size_t offset, unsigned long long flags)
{
	struct lgpu_mapping *m = calloc(1, sizeof *m);
	CUresult r = m != NULL ? LGPU_REAL(cuMemMap)(address, bytes, offset, b->one.handle, flags) : CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS) {
		*m = (struct lgpu_mapping){.block = b, .base = address, .bytes = bytes, .offset = offset, .id = lgpu_arena_id()};
		lgpu_lock(&lgpu_arena_lock);
		bool noted = note(m);
		lgpu_unlock(&lgpu_arena_lock);
		if (noted)
			return r;
		LGPU_REAL(cuMemUnmap)(address, bytes);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	free(m);
	return r;
}

void lgpu_arena_unmapped(CUdeviceptr address)
{
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_mapping *m = at(address);
	if (m != NULL) {
		struct lgpu_mapping **link = &m->block->program->mappings;
		while (*link != m)
			link = &(*link)->next;
		*link = m->next;
		size_t i = index_at(address);
		memmove(&mappings[i], &mappings[i + 1], (--mapping_count - i) * sizeof *mappings);
	}
	lgpu_unlock(&lgpu_arena_lock);
	free(m);
}

// An access that cannot be set again as it was keeps the memory on the device.
void lgpu_arena_allowed(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
	lgpu_lock(&lgpu_arena_lock);
	for (size_t i = index_at(address); i < mapping_count && mappings[i]->base < address + bytes; i++) {
		struct lgpu_mapping *m = mappings[i];
		bool whole = m->base >= address && m->base + m->bytes <= address + bytes;
		for (size_t j = 0; j < count && whole; j++) {
			whole = access[j].location.type == CU_MEM_LOCATION_TYPE_DEVICE && access[j].location.id >= 0 &&
				access[j].location.id < LGPU_ORDINALS;
			if (whole)
				m->access[access[j].location.id] = (uint8_t)access[j].flags;
		}
		if (!whole)
			lgpu_block_fix(m->block);
	}
	lgpu_unlock(&lgpu_arena_lock);
}

void lgpu_arena_mapping_sync(CUdeviceptr address, bool on)
{
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_mapping *m = at(address);
	if (m != NULL)
		m->sync = on;
	lgpu_unlock(&lgpu_arena_lock);
}
