// SPDX-License-Identifier: Apache-2.0

// Steps on a device that has memory of its own, for what bench/memory.c does
// not do. Each prints what the lgpu shows as used, in MiB, after it.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lgpu_cuda.h"
#include "lgpu_nvml.h"

#define MIB (1u << 20)

static CUdevice device;

static long used(void)
{
	size_t f, t;
	CUresult r = cuMemGetInfo_v2(&f, &t);
	return r == CUDA_SUCCESS ? (long)((t - f) / MIB) : -(long)r;
}

static void say(const char *what, CUresult r) { printf("%s %d used %ld\n", what, r, used()); }

static CUmemAllocationProp properties(void)
{
	CUmemAllocationProp p;
	memset(&p, 0, sizeof p);
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = device;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return p;
}

static void vmm(void)
{
	CUmemAllocationProp p = properties();
	CUmemGenericAllocationHandle h[2], again, imported;
	CUdeviceptr at;
	int fd = -1;
	say("create", cuMemCreate(&h[0], 8 * MIB, &p, 0));
	say("create", cuMemCreate(&h[1], 8 * MIB, &p, 0));
	say("reserve", cuMemAddressReserve(&at, 16 * MIB, 0, 0, 0));
	say("map", cuMemMap(at, 8 * MIB, 0, h[0], 0));
	say("map", cuMemMap(at + 8 * MIB, 8 * MIB, 0, h[1], 0));
	say("retain", cuMemRetainAllocationHandle(&again, (void *)(at + 4 * MIB)));
	say("export", cuMemExportToShareableHandle(&fd, h[1], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	CUresult r = cuMemImportFromShareableHandle(&imported, (void *)(long)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	say("import", r);
	if (r == CUDA_SUCCESS)
		say("release import", cuMemRelease(imported));
	close(fd);
	say("release", cuMemRelease(h[0]));
	say("release", cuMemRelease(h[1]));
	say("unmap both", cuMemUnmap(at, 16 * MIB)); // the first still has a handle
	say("release", cuMemRelease(again));
	say("bad release", cuMemRelease(again));
	say("free", cuMemAddressFree(at, 16 * MIB));
}

// What fails takes nothing.
static void failures(void)
{
	CUdeviceptr p;
	CUmemAllocationProp wrong = properties();
	CUmemGenericAllocationHandle h;
	CUarray a;
	CUDA_ARRAY_DESCRIPTOR d = {0, 0, CU_AD_FORMAT_FLOAT, 4};
	wrong.location.id = 99;
	say("nothing", cuMemAlloc_v2(&p, 0));
	say("huge", cuMemAlloc_v2(&p, (size_t)-1));
	say("huge pitch", cuMemAllocPitch_v2(&p, &(size_t){0}, (size_t)-1, (size_t)-1, 4));
	say("no such device", cuMemCreate(&h, 2 * MIB, &wrong, 0));
	wrong = properties();
	say("no granularity", cuMemCreate(&h, 12345, &wrong, 0));
	say("empty array", cuArrayCreate_v2(&a, &d));
	say("free of nothing known", cuMemFree_v2(0x123456789000));
	say("free of zero", cuMemFree_v2(0));
}

static void contexts(void)
{
	CUcontext primary, second, popped;
	CUdeviceptr p;
	cuCtxGetCurrent(&primary);
	say("second context", cuCtxCreate_v2(&second, 0, device));
	say("its memory", cuMemAlloc_v2(&p, 16 * MIB));
	cuCtxPopCurrent_v2(&popped);
	say("memory of the first", cuMemAlloc_v2(&p, 4 * MIB));
	say("destroy", cuCtxDestroy_v2(second));
	say("free", cuMemFree_v2(p));
	say("third", cuCtxCreate_v2(&second, 0, device));
	say("destroy", cuCtxDestroy_v2(second));
	cuCtxSetCurrent(primary);
	say("memory", cuMemAlloc_v2(&p, 16 * MIB));
	say("from the pool", cuMemAllocAsync(&p, 16 * MIB, NULL));
	say("reset", cuDevicePrimaryCtxReset_v2(device));
	say("retain", cuDevicePrimaryCtxRetain(&primary, device));
	cuCtxSetCurrent(primary);
	say("whole again", cuMemAlloc_v2(&p, 128 * MIB));
	say("free", cuMemFree_v2(p));
}

static void host(void)
{
	void *p, *q;
	say("host", cuMemAllocHost_v2(&p, 24 * MIB));
	say("host", cuMemHostAlloc(&q, 24 * MIB, 0));
	say("host", cuMemHostAlloc(&q, 8 * MIB, CU_MEMHOSTALLOC_PORTABLE));
	say("free", cuMemFreeHost(p));
	say("host", cuMemHostAlloc(&p, 24 * MIB, 0));
	say("free", cuMemFreeHost(p));
	say("free", cuMemFreeHost(q));
	static char page[4096 * 4] __attribute__((aligned(4096)));
	say("register", cuMemHostRegister_v2(page, sizeof page, 0));
	say("unregister", cuMemHostUnregister(page));
}

int main(int argc, char **argv)
{
	CUcontext context;
	CUresult r = cuInit(0);
	if (r == CUDA_SUCCESS)
		r = cuDeviceGet(&device, 0);
	if (r == CUDA_SUCCESS)
		r = cuDevicePrimaryCtxRetain(&context, device);
	if (r == CUDA_SUCCESS)
		r = cuCtxSetCurrent(context);
	say("begin", r);
	for (int i = 1; i < argc && r == CUDA_SUCCESS; i++) {
		if (strcmp(argv[i], "vmm") == 0)
			vmm();
		else if (strcmp(argv[i], "failures") == 0)
			failures();
		else if (strcmp(argv[i], "contexts") == 0)
			contexts();
		else if (strcmp(argv[i], "host") == 0)
			host();
	}
	return 0;
}
