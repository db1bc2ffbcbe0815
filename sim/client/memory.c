// SPDX-License-Identifier: Apache-2.0

// Calls about memory whose arguments need a hand: attributes of several sizes, descriptors, older forms.
#define LGPU_CUDA_PLAIN
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "simc.h"
#include "hand_gen.h"

static CUmemLocation location_of(CUdevice device)
{
	CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, device};

	if (device == CU_DEVICE_CPU)
		l = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
	return l;
}

CUresult simc_cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
	return simc_rpc_MemAdvise(devPtr, count, advice, location_of(device));
}

CUresult simc_cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
	return simc_rpc_MemPrefetchAsync(devPtr, count, location_of(dstDevice), 0, hStream);
}

CUresult simc_cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr,
		size_t count)
{
	if (!data || !dataSize)
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_MemRangeGetAttribute(data, dataSize, attribute, devPtr, count);
}

CUresult simc_cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
		size_t numAttributes, CUdeviceptr devPtr, size_t count)
{
	size_t i;

	if (!data || !dataSizes || !attributes || !numAttributes)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < numAttributes; i++) {
		CUresult r = simc_cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);

		if (r != CUDA_SUCCESS)
			return r;
	}
	return CUDA_SUCCESS;
}

// The bytes that an attribute has in the program: truth values are ints.
static size_t attribute_size(CUpointer_attribute a)
{
	switch (a) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		return 4;
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
		return 16;
	default:
		return 8;
	}
}

// Asks for an attribute, of which the hardware may know fewer bytes than the program has.
static CUresult attribute_of(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	unsigned char value[16] = {0};
	CUresult r = simc_rpc_PointerGetAttribute(value, attribute_size(attribute), attribute, ptr);

	if (r == CUDA_SUCCESS)
		memcpy(data, value, attribute_size(attribute));
	return r;
}

CUresult simc_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	return attribute_of(data, attribute, ptr);
}

// What the plural form gives of an address that the driver does not know: the address as the host's, no device, and zeros.
static void unknown(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	int none = CU_DEVICE_INVALID;

	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		memcpy(data, &ptr, sizeof ptr);
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		memcpy(data, &none, sizeof none);
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		break; // left as they are
	default:
		memset(data, 0, attribute_size(attribute));
	}
}

CUresult simc_cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
		CUdeviceptr ptr)
{
	unsigned i;

	if (!numAttributes || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < numAttributes; i++) {
		CUresult r;

		if (!data[i])
			return CUDA_ERROR_INVALID_VALUE;
		r = attribute_of(data[i], attributes[i], ptr);
		if (r == CUDA_ERROR_INVALID_VALUE && attributes[i] <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE)
			unknown(data[i], attributes[i], ptr);
		else if (r != CUDA_SUCCESS)
			return r;
	}
	return CUDA_SUCCESS;
}

CUresult simc_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_PointerSetAttribute(*(const unsigned char *)value != 0, attribute, ptr);
}

// The attributes about reuse are ints, the others are 64 bits.
static int pool_value_is_int(CUmemPool_attribute attr)
{
	return attr == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES || attr == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC ||
	       attr == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUresult simc_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	unsigned long long v;
	CUresult r;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = simc_rpc_MemPoolGetAttribute(pool, attr, &v)) != CUDA_SUCCESS)
		return r;
	if (pool_value_is_int(attr))
		*(int *)value = (int)v;
	else
		memcpy(value, &v, sizeof v);
	return CUDA_SUCCESS;
}

CUresult simc_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	unsigned long long v;

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (pool_value_is_int(attr))
		v = (unsigned long long)*(int *)value;
	else
		memcpy(&v, value, sizeof v);
	return simc_rpc_MemPoolSetAttribute(pool, attr, v);
}

// Takes the descriptor that came with a successful reply.
static CUresult handed_out(CUresult r, void *handle)
{
	int fd = simc_take_fd();

	if (r == CUDA_SUCCESS && fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (r == CUDA_SUCCESS)
		memcpy(handle, &fd, sizeof fd);
	else if (fd >= 0)
		close(fd);
	return r;
}

CUresult simc_cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
		CUmemAllocationHandleType handleType, unsigned long long flags)
{
	if (!handle_out)
		return CUDA_ERROR_INVALID_VALUE;
	return handed_out(simc_rpc_MemPoolExportToShareableHandle(pool, handleType, flags), handle_out);
}

CUresult simc_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
		CUmemAllocationHandleType handleType, unsigned long long flags)
{
	if (!shareableHandle)
		return CUDA_ERROR_INVALID_VALUE;
	return handed_out(simc_rpc_MemExportToShareableHandle(handle, handleType, flags), shareableHandle);
}

// A POSIX descriptor is given by its value.
static CUresult hand_in(void *handle, CUmemAllocationHandleType type)
{
	int fd = (int)(intptr_t)handle;

	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (fcntl(fd, F_GETFD) < 0)
		return CUDA_ERROR_INVALID_VALUE;
	simc_send_fd(fd);
	return CUDA_SUCCESS;
}

CUresult simc_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
		CUmemAllocationHandleType handleType, unsigned long long flags)
{
	CUresult r;

	if (!pool_out)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = hand_in(handle, handleType)) != CUDA_SUCCESS)
		return r;
	return simc_rpc_MemPoolImportFromShareableHandle(pool_out, handleType, flags);
}

CUresult simc_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
		CUmemAllocationHandleType shHandleType)
{
	CUresult r;

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = hand_in(osHandle, shHandleType)) != CUDA_SUCCESS)
		return r;
	return simc_rpc_MemImportFromShareableHandle(handle, shHandleType);
}
