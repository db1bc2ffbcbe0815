// SPDX-License-Identifier: Apache-2.0

// What cuPointerGetAttribute says of memory of ours: what the driver says of cuMemAlloc's and of pools', but that it cannot
// be read by other devices on the bus, as its bytes move.
#include "arena/arena.h"

#include <string.h>

static CUresult word(void *data, uint32_t v)
{
	memcpy(data, &v, sizeof v);
	return CUDA_SUCCESS;
}

static CUresult wide(void *data, uint64_t v)
{
	memcpy(data, &v, sizeof v);
	return CUDA_SUCCESS;
}

CUresult lgpu_arena_attribute(const struct lgpu_arena_place *p, CUdeviceptr at, CUpointer_attribute attribute, void *data)
{
	if (attribute == CU_POINTER_ATTRIBUTE_MAPPED)
		return word(data, p->live);
	if (!p->live)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT: return wide(data, (uint64_t)(uintptr_t)p->context);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return word(data, CU_MEMORYTYPE_DEVICE);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return wide(data, at);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return word(data, p->sync);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID: return wide(data, p->id);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return word(data, (uint32_t)p->ordinal);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return wide(data, p->base);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return wide(data, p->bytes);
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return word(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return wide(data, p->mapped);
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return wide(data, p->mapping);
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return wide(data, p->block);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return wide(data, 0);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return wide(data, (uint64_t)(uintptr_t)p->pool);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return word(data, p->shareable);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return word(data, 0);
	default: return CUDA_ERROR_INVALID_VALUE; // there is no host pointer, and there are no tokens
	}
}
