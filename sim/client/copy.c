// SPDX-License-Identifier: Apache-2.0

// Copies and fills: the many forms of the API become the few messages.
#define LGPU_CUDA_PLAIN
#include <string.h>

#include "simc.h"
#include "hand_gen.h"

enum { BY_ADDRESS, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE };

static CUdeviceptr address(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

// The stream of a call that has none: it waits for the calling form's default stream.
static CUstream default_stream(void)
{
	return simc_stream(NULL);
}

static CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t n, unsigned kind, CUstream stream, unsigned async)
{
	if (!n)
		return CUDA_SUCCESS;
	return simc_rpc_Memcpy(dst, src, n, kind, stream, async);
}

CUresult simc_cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
	return copy(dst, src, ByteCount, BY_ADDRESS, default_stream(), 0);
}

CUresult simc_cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
{
	return copy(dst, src, ByteCount, BY_ADDRESS, hStream, 1);
}

CUresult simc_cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount)
{
	return copy(dstDevice, address(srcHost), ByteCount, HOST_TO_DEVICE, default_stream(), 0);
}

CUresult simc_cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream)
{
	return copy(dstDevice, address(srcHost), ByteCount, HOST_TO_DEVICE, hStream, 1);
}

CUresult simc_cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy(address(dstHost), srcDevice, ByteCount, DEVICE_TO_HOST, default_stream(), 0);
}

CUresult simc_cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
	return copy(address(dstHost), srcDevice, ByteCount, DEVICE_TO_HOST, hStream, 1);
}

CUresult simc_cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount)
{
	return copy(dstDevice, srcDevice, ByteCount, DEVICE_TO_DEVICE, default_stream(), 0);
}

CUresult simc_cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream)
{
	return copy(dstDevice, srcDevice, ByteCount, DEVICE_TO_DEVICE, hStream, 1);
}

CUresult simc_cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
		size_t ByteCount)
{
	return simc_rpc_MemcpyPeer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, default_stream(), 0);
}

CUresult simc_cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
		size_t ByteCount, CUstream hStream)
{
	return simc_rpc_MemcpyPeer(dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream, 1);
}

CUresult simc_cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy)
{
	return pCopy ? simc_rpc_Memcpy2D(pCopy, default_stream(), 0) : CUDA_ERROR_INVALID_VALUE;
}

CUresult simc_cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy)
{
	return pCopy ? simc_rpc_Memcpy2D(pCopy, default_stream(), 0) : CUDA_ERROR_INVALID_VALUE;
}

CUresult simc_cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy)
{
	return pCopy ? simc_rpc_Memcpy3D(pCopy, default_stream(), 0) : CUDA_ERROR_INVALID_VALUE;
}

CUresult simc_cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *pCopy)
{
	return pCopy ? simc_rpc_Memcpy3DPeer(pCopy, default_stream(), 0) : CUDA_ERROR_INVALID_VALUE;
}

CUresult simc_cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream)
{
	return pCopy ? simc_rpc_Memcpy2D(pCopy, hStream, 1) : CUDA_ERROR_INVALID_VALUE;
}

CUresult simc_cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream)
{
	return pCopy ? simc_rpc_Memcpy3D(pCopy, hStream, 1) : CUDA_ERROR_INVALID_VALUE;
}

CUresult simc_cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream)
{
	return pCopy ? simc_rpc_Memcpy3DPeer(pCopy, hStream, 1) : CUDA_ERROR_INVALID_VALUE;
}

// A copy of one row between an array and something else.
static CUDA_MEMCPY2D row(size_t n)
{
	CUDA_MEMCPY2D c;

	memset(&c, 0, sizeof c);
	c.WidthInBytes = n;
	c.Height = 1;
	return c;
}

static void from_array(CUDA_MEMCPY2D *c, CUarray a, size_t offset)
{
	c->srcMemoryType = CU_MEMORYTYPE_ARRAY;
	c->srcArray = a;
	c->srcXInBytes = offset;
}

static void to_array(CUDA_MEMCPY2D *c, CUarray a, size_t offset)
{
	c->dstMemoryType = CU_MEMORYTYPE_ARRAY;
	c->dstArray = a;
	c->dstXInBytes = offset;
}

CUresult simc_cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount)
{
	CUDA_MEMCPY2D c = row(ByteCount);

	to_array(&c, dstArray, dstOffset);
	c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = srcDevice;
	return simc_rpc_Memcpy2D(&c, default_stream(), 0);
}

CUresult simc_cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
	CUDA_MEMCPY2D c = row(ByteCount);

	from_array(&c, srcArray, srcOffset);
	c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.dstDevice = dstDevice;
	return simc_rpc_Memcpy2D(&c, default_stream(), 0);
}

CUresult simc_cuMemcpyAtoA_v2(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
	CUDA_MEMCPY2D c = row(ByteCount);

	from_array(&c, srcArray, srcOffset);
	to_array(&c, dstArray, dstOffset);
	return simc_rpc_Memcpy2D(&c, default_stream(), 0);
}

CUresult simc_cuMemcpyHtoA_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount)
{
	CUDA_MEMCPY2D c = row(ByteCount);

	to_array(&c, dstArray, dstOffset);
	c.srcMemoryType = CU_MEMORYTYPE_HOST;
	c.srcHost = srcHost;
	return simc_rpc_Memcpy2D(&c, default_stream(), 0);
}

CUresult simc_cuMemcpyAtoH_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount)
{
	CUDA_MEMCPY2D c = row(ByteCount);

	from_array(&c, srcArray, srcOffset);
	c.dstMemoryType = CU_MEMORYTYPE_HOST;
	c.dstHost = dstHost;
	return simc_rpc_Memcpy2D(&c, default_stream(), 0);
}

CUresult simc_cuMemcpyHtoAAsync_v2(CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount, CUstream hStream)
{
	CUDA_MEMCPY2D c = row(ByteCount);

	to_array(&c, dstArray, dstOffset);
	c.srcMemoryType = CU_MEMORYTYPE_HOST;
	c.srcHost = srcHost;
	return simc_rpc_Memcpy2D(&c, hStream, 1);
}

CUresult simc_cuMemcpyAtoHAsync_v2(void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream)
{
	CUDA_MEMCPY2D c = row(ByteCount);

	from_array(&c, srcArray, srcOffset);
	c.dstMemoryType = CU_MEMORYTYPE_HOST;
	c.dstHost = dstHost;
	return simc_rpc_Memcpy2D(&c, hStream, 1);
}

// The copies of a batch may run in any order, so that one after another is right.
static CUresult batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
		      size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, CUstream hStream)
{
	size_t i;

	*failIdx = SIZE_MAX;
	if (!dsts || !srcs || !sizes || !count || !attrs || !attrsIdxs || !numAttrs || numAttrs > count || attrsIdxs[0] ||
	    !hStream || hStream == CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < count; i++) {
		CUresult r = copy(dsts[i], srcs[i], sizes[i], BY_ADDRESS, hStream, 1);

		if (r != CUDA_SUCCESS) {
			*failIdx = i;
			return r;
		}
	}
	return CUDA_SUCCESS;
}

CUresult simc_cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
		CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, CUstream hStream)
{
	size_t fail;

	return batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx ? failIdx : &fail, hStream);
}

CUresult simc_cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
		CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream)
{
	size_t fail;

	return batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, &fail, hStream);
}

// The four fills with values of one width.
#define MEMSETS(bits, type)                                                                                            \
	CUresult simc_cuMemsetD##bits##_v2(CUdeviceptr dst, type v, size_t n)                                          \
	{                                                                                                              \
		return n ? simc_rpc_Memset(dst, 0, v, (bits) / 8, n, 1, default_stream(), 0) : CUDA_SUCCESS;           \
	}                                                                                                              \
	CUresult simc_cuMemsetD##bits##Async(CUdeviceptr dst, type v, size_t n, CUstream stream)                       \
	{                                                                                                              \
		return n ? simc_rpc_Memset(dst, 0, v, (bits) / 8, n, 1, stream, 1) : CUDA_SUCCESS;                     \
	}                                                                                                              \
	CUresult simc_cuMemsetD2D##bits##_v2(CUdeviceptr dst, size_t pitch, type v, size_t width, size_t height)       \
	{                                                                                                              \
		return simc_rpc_Memset(dst, pitch, v, (bits) / 8, width, height, default_stream(), 0);                 \
	}                                                                                                              \
	CUresult simc_cuMemsetD2D##bits##Async(CUdeviceptr dst, size_t pitch, type v, size_t width, size_t height,     \
					       CUstream stream)                                                        \
	{                                                                                                              \
		return simc_rpc_Memset(dst, pitch, v, (bits) / 8, width, height, stream, 1);                           \
	}

MEMSETS(8, unsigned char)
MEMSETS(16, unsigned short)
MEMSETS(32, unsigned int)

CUresult simc_cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
	CUDA_ARRAY3D_DESCRIPTOR d;

	if (!pHandle || !pAllocateArray)
		return CUDA_ERROR_INVALID_VALUE;
	memset(&d, 0, sizeof d);
	d.Width = pAllocateArray->Width;
	d.Height = pAllocateArray->Height;
	d.Format = pAllocateArray->Format;
	d.NumChannels = pAllocateArray->NumChannels;
	return simc_rpc_ArrayCreate(pHandle, &d);
}

CUresult simc_cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	CUresult r;

	if (!pArrayDescriptor)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = simc_rpc_ArrayGetDescriptor(&d, hArray)) != CUDA_SUCCESS)
		return r;
	pArrayDescriptor->Width = d.Width;
	pArrayDescriptor->Height = d.Height;
	pArrayDescriptor->Format = d.Format;
	pArrayDescriptor->NumChannels = d.NumChannels;
	return CUDA_SUCCESS;
}

CUresult simc_cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
	if (!pHandle || !pAllocateArray)
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_ArrayCreate(pHandle, pAllocateArray);
}

CUresult simc_cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
	if (!pArrayDescriptor)
		return CUDA_ERROR_INVALID_VALUE;
	return simc_rpc_ArrayGetDescriptor(pArrayDescriptor, hArray);
}
