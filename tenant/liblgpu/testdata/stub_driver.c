// SPDX-License-Identifier: Apache-2.0

// A driver without a device, for tests of how calls reach it. Everything that
// is not here is generated: a function that finds fault with NULL pointers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "lgpu_cuda.h"
#include "lgpu_nvml.h"

#define DEVICES 4
#define TOTAL (UINT64_C(16) << 30)

struct stub_row {
	const char *base;
	int since;
	unsigned flags; // bit by flag
	void *function;
};
extern const struct stub_row stub_rows[];

// Devices of this process, by number of the machine.
static int visible[DEVICES], visible_count, initialised;
static _Thread_local CUcontext current;
static uint64_t allocated;

static void uuid_of(int device, unsigned char *uuid)
{
	for (int i = 0; i < 16; i++)
		uuid[i] = (unsigned char)(0x10 * (device + 1) + i);
}

static void uuid_text(int device, char *text)
{
	unsigned char u[16];
	uuid_of(device, u);
	text += sprintf(text, "GPU-");
	for (int i = 0; i < 16; i++)
		text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", u[i]);
}

CUresult cuInit(unsigned int flags)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	(void)flags;
	visible_count = 0;
	for (int d = 0; list == NULL && d < DEVICES; d++)
		visible[visible_count++] = d;
	while (list != NULL && *list != 0) {
		char text[48];
		size_t n = strcspn(list, ",");
		for (int d = 0; d < DEVICES; d++) {
			uuid_text(d, text);
			if (n == strlen(text) && strncasecmp(text, list, n) == 0)
				visible[visible_count++] = d;
		}
		list += n + (list[n] == ',');
	}
	if (getenv("STUB_SAY_VISIBLE") != NULL)
		printf("visible %s\n", getenv("CUDA_VISIBLE_DEVICES") != NULL ? getenv("CUDA_VISIBLE_DEVICES") : "-");
	initialised = 1;
	return visible_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

// The driver may be newer than the list of symbols: its newest form of the call that STUB_NEWEST names is on no list.
static CUresult newest(void) { return CUDA_SUCCESS; }

static CUresult find(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	int known = 0;
	const struct stub_row *best = NULL;
	if (symbol == NULL || pfn == NULL || version > 13000)
		return CUDA_ERROR_INVALID_VALUE;
	if (getenv("STUB_NEWEST") != NULL && strcmp(getenv("STUB_NEWEST"), symbol) == 0) {
		*pfn = (void *)newest;
		return CUDA_SUCCESS;
	}
	for (const struct stub_row *r = stub_rows; r->base != NULL; r++) {
		if (strcmp(r->base, symbol) != 0 || (r->flags >> flags & 1) == 0)
			continue;
		known = 1;
		if (r->since <= version && (best == NULL || r->since > best->since))
			best = r;
	}
	*pfn = best != NULL ? best->function : NULL;
	if (status != NULL)
		*status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS :
			  known        ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return best != NULL || known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	return find(symbol, pfn, version, flags, NULL);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	return find(symbol, pfn, version, flags, status);
}

CUresult cuDeviceGetCount(int *count)
{
	if (count == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*count = visible_count;
	return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	if (device == NULL || ordinal < 0 || ordinal >= visible_count)
		return device == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	if (uuid == NULL || dev < 0 || dev >= visible_count)
		return CUDA_ERROR_INVALID_VALUE;
	uuid_of(visible[dev], (unsigned char *)uuid->bytes);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) { return cuDeviceGetUuid(uuid, dev); }

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
	if (pi == NULL || dev < 0 || dev >= visible_count)
		return CUDA_ERROR_INVALID_VALUE;
	*pi = attrib == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 132 : 1;
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	if (bytes == NULL || dev < 0 || dev >= visible_count)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = TOTAL;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	current = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
	if (pctx == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = current;
	return CUDA_SUCCESS;
}

#ifndef STUB_RM // else rm_driver.c has them
CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	if (pctx == NULL || dev < 0 || dev >= visible_count)
		return CUDA_ERROR_INVALID_VALUE;
	*pctx = (CUcontext)(uintptr_t)(0x1000 + dev);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	if (device == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (current == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	*device = (CUdevice)((uintptr_t)current - 0x1000);
	return CUDA_SUCCESS;
}
#endif

// Memory is host memory with its size in front.
CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	if (dptr == NULL || bytesize == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (current == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	size_t *p = malloc(sizeof *p);
	if (p == NULL || __atomic_add_fetch(&allocated, bytesize, __ATOMIC_RELAXED) > TOTAL) {
		__atomic_sub_fetch(&allocated, bytesize, __ATOMIC_RELAXED);
		free(p);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*p = bytesize;
	*dptr = (CUdeviceptr)(uintptr_t)p;
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	size_t *p = (size_t *)(uintptr_t)dptr;
	if (p == NULL)
		return CUDA_SUCCESS;
	__atomic_sub_fetch(&allocated, *p, __ATOMIC_RELAXED);
	free(p);
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_out, size_t *total)
{
	if (free_out == NULL || total == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*free_out = TOTAL - allocated;
	*total = TOTAL;
	return CUDA_SUCCESS;
}

// ---- NVML

// As with the real library, one exported function calls another by its name,
// and reaches whoever stands before it.
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { return flags == 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT; }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (count == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = DEVICES;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	if (device == NULL || index >= DEVICES)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = (nvmlDevice_t)(uintptr_t)(0x2000 + index);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	char text[48];
	if (device == NULL || uuid == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int d = 0; d < DEVICES; d++) {
		uuid_text(d, text);
		if (strcmp(text, uuid) == 0) {
			*device = (nvmlDevice_t)(uintptr_t)(0x2000 + d);
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[48];
	int d = (int)((uintptr_t)device - 0x2000);
	if (uuid == NULL || d < 0 || d >= DEVICES)
		return NVML_ERROR_INVALID_ARGUMENT;
	uuid_text(d, text);
	if (length <= strlen(text))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(uuid, text);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	if (index == NULL || (uintptr_t)device < 0x2000)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = (unsigned int)((uintptr_t)device - 0x2000);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	if (memory == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*memory = (nvmlMemory_t){TOTAL, TOTAL - allocated, allocated};
	return NVML_SUCCESS;
}

// listed gives the handles of all devices from first on, and says how many they are.
static nvmlReturn_t listed(unsigned int first, unsigned int *count, nvmlDevice_t *deviceArray)
{
	if (count == NULL || (*count != 0 && deviceArray == NULL))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < *count && first + i < DEVICES; i++)
		deviceArray[i] = (nvmlDevice_t)(uintptr_t)(0x2000 + first + i); // our own call may be answered by liblgpu
	*count = DEVICES - first;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpuNumber, unsigned int *count, nvmlDevice_t *deviceArray)
{
	(void)cpuNumber;
	return listed(0, count, deviceArray);
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int *count,
					      nvmlDevice_t *deviceArray)
{
	(void)level;
	return device == NULL ? NVML_ERROR_INVALID_ARGUMENT : listed(1, count, deviceArray);
}

nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned int *deviceCount, nvmlDevice_t *devices)
{
	(void)unit;
	unsigned int room = deviceCount != NULL ? *deviceCount : 0;
	nvmlReturn_t r = listed(0, deviceCount, devices);
	return r == NVML_SUCCESS && *deviceCount > room ? NVML_ERROR_INSUFFICIENT_SIZE : r;
}

// The device is its own and only instance.
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
	if (device == NULL || migDevice == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*migDevice = device;
	return index == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

// Somebody else's and this process's.
static unsigned int pid_of(unsigned int i) { return i == 0 ? 1000000 : (unsigned int)getpid(); }

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
	if (stats == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*stats = (nvmlAccountingStats_t){.gpuUtilization = 1};
	return pid != pid_of(0) && pid != pid_of(1) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
	if (device == NULL || plist == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int room = plist->procArray != NULL ? plist->numProcArrayEntries : 0;
	plist->numProcArrayEntries = 2;
	if (room < 2)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < 2; i++)
		plist->procArray[i] = (nvmlProcessDetail_v1_t){.pid = pid_of(i)};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
	if (device == NULL || count == NULL || (*count != 0 && pids == NULL))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < 2 && i < *count; i++)
		pids[i] = pid_of(i);
	*count = 2;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int *sessionCount, nvmlEncoderSessionInfo_t *sessionInfos)
{
	if (device == NULL || sessionCount == NULL || (*sessionCount != 0 && sessionInfos == NULL))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < 2 && i < *sessionCount; i++)
		sessionInfos[i] = (nvmlEncoderSessionInfo_t){.pid = pid_of(i)};
	*sessionCount = 2;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int *sessionCount, nvmlFBCSessionInfo_t *sessionInfo)
{
	if (device == NULL || sessionCount == NULL || (*sessionCount != 0 && sessionInfo == NULL))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < 2 && i < *sessionCount; i++)
		sessionInfo[i] = (nvmlFBCSessionInfo_t){.pid = pid_of(i)};
	*sessionCount = 2;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos)
{
	if (infoCount == NULL || device == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	// Others, as many as the environment says, and then this process, which has so much more than it has allocated.
	const char *text = getenv("STUB_PROCESSES"), *overhead = getenv("STUB_OVERHEAD");
	unsigned int others = text != NULL ? (unsigned int)atoi(text) : 0, all = others + (text != NULL), room = *infoCount;
	*infoCount = all;
	if (room < all)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < all; i++)
		infos[i] = (nvmlProcessInfo_t){.pid = i < others ? 1000000 + i : (unsigned int)getpid(),
					       .usedGpuMemory = i < others ? 1 << 20 : allocated + (overhead != NULL ? strtoull(overhead, NULL, 10) : 0)};
	return NVML_SUCCESS;
}
