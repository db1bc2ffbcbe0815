// SPDX-License-Identifier: Apache-2.0

// NVML of the software GPU: the library itself, finding devices, and what they are.
#define _GNU_SOURCE
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER "580.159.04"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users, device_count, gpu_count; // guarded by lock
static struct nvmlDevice_st handles[SIMC_MAX_DEVICES], *gpus[SIMC_MAX_DEVICES];

nvmlReturn_t simc_nvml_result(CUresult r)
{
	switch (r) {
	case CUDA_SUCCESS:
		return NVML_SUCCESS;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_DEVICE:
		return NVML_ERROR_INVALID_ARGUMENT;
	case CUDA_ERROR_NOT_FOUND:
		return NVML_ERROR_NOT_FOUND;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return NVML_ERROR_MEMORY;
	case CUDA_ERROR_DEVICE_UNAVAILABLE:
		return NVML_ERROR_GPU_IS_LOST;
	case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	default:
		return NVML_ERROR_UNKNOWN;
	}
}

void lgpusimMoveManagement(const char *path)
{
	simc_move_management(path);
}

nvmlReturn_t simc_nvml_ready(void)
{
	unsigned n;

	pthread_mutex_lock(&lock);
	n = users;
	pthread_mutex_unlock(&lock);
	return n ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

int simc_nvml_unsupported(const char *name)
{
	(void)name;
	return simc_nvml_ready() == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t simc_nvml_index(nvmlDevice_t device, unsigned *index)
{
	nvmlReturn_t r = simc_nvml_ready();

	if (r != NVML_SUCCESS)
		return r;
	if ((uintptr_t)device < (uintptr_t)handles || (uintptr_t)device >= (uintptr_t)(handles + device_count) ||
	    ((uintptr_t)device - (uintptr_t)handles) % sizeof handles[0])
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = device->index;
	return NVML_SUCCESS;
}

nvmlReturn_t simc_nvml_device(nvmlDevice_t device, lgpusim_device *d)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	return r == NVML_SUCCESS ? simc_nvml_result(simc_rpc_DeviceInfo(index, d)) : r;
}

nvmlReturn_t simc_nvml_gpu(nvmlDevice_t device, lgpusim_device *d)
{
	nvmlReturn_t r = simc_nvml_device(device, d);

	return r == NVML_SUCCESS && d->parent ? NVML_ERROR_NOT_SUPPORTED : r;
}

nvmlDevice_t simc_nvml_handle(unsigned index)
{
	return index < device_count ? &handles[index] : NULL;
}

// ---- the library

// Finds the devices. Called with lock held.
static CUresult look(void)
{
	unsigned i, count = 0, found = 0;
	CUresult r = simc_rpc_DeviceCount(&count);

	if (count > SIMC_MAX_DEVICES)
		count = SIMC_MAX_DEVICES;
	for (i = 0; r == CUDA_SUCCESS && i < count; i++) {
		lgpusim_device d;

		if ((r = simc_rpc_DeviceInfo(i, &d)) != CUDA_SUCCESS)
			break;
		handles[i].index = i;
		handles[i].number = d.parent ? d.number : found;
		if (!d.parent)
			gpus[found++] = &handles[i];
	}
	if (r == CUDA_SUCCESS) {
		device_count = count;
		gpu_count = found;
	}
	return r;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	CUresult r = CUDA_SUCCESS;

	if (flags & ~3u)
		return NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_lock(&lock);
	if (!users)
		r = look();
	if (r == CUDA_SUCCESS)
		users++;
	pthread_mutex_unlock(&lock);
	if (r == CUDA_ERROR_DEVICE_UNAVAILABLE || r == CUDA_ERROR_NO_DEVICE)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	return simc_nvml_result(r);
}

nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t r = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&lock);
	if (users) {
		users--;
		r = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	static const struct {
		nvmlReturn_t r;
		const char *text;
	} texts[] = {
		{NVML_SUCCESS, "Success"},
		{NVML_ERROR_UNINITIALIZED, "Uninitialized"},
		{NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
		{NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
		{NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
		{NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
		{NVML_ERROR_NOT_FOUND, "Not Found"},
		{NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
		{NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
		{NVML_ERROR_TIMEOUT, "Timeout"},
		{NVML_ERROR_LIBRARY_NOT_FOUND, "Library Not Found"},
		{NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
		{NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
		{NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
		{NVML_ERROR_MEMORY, "Insufficient Memory"},
		{NVML_ERROR_NO_DATA, "No data"},
		{NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
	};
	unsigned i;

	for (i = 0; i < sizeof texts / sizeof texts[0]; i++)
		if (texts[i].r == result)
			return texts[i].text;
	return "Unknown Error";
}

// Copies a text with its zero, as NVML does it: all or nothing.
static nvmlReturn_t give_text(char *out, unsigned length, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (length <= strlen(text))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	nvmlReturn_t r = simc_nvml_ready();

	return r == NVML_SUCCESS ? give_text(version, length, DRIVER) : r;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	nvmlReturn_t r = simc_nvml_ready();

	return r == NVML_SUCCESS ? give_text(version, length, "13." DRIVER) : r;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
	if (!cudaDriverVersion)
		return NVML_ERROR_INVALID_ARGUMENT;
	*cudaDriverVersion = 13000;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
	return nvmlSystemGetCudaDriverVersion_v2(cudaDriverVersion);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *branchInfo, unsigned int length)
{
	nvmlReturn_t r = simc_nvml_ready();

	if (r != NVML_SUCCESS)
		return r;
	if (!branchInfo)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (branchInfo->version != LGPU_NVML_STRUCT_VERSION(nvmlSystemDriverBranchInfo_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return give_text(branchInfo->branch, length < sizeof branchInfo->branch ? length : sizeof branchInfo->branch, "r580");
}

nvmlReturn_t nvmlInternalGetExportTable(const void **ppExportTable, const void *pExportTableId);
nvmlReturn_t nvmlInternalGetExportTable(const void **ppExportTable, const void *pExportTableId)
{
	(void)pExportTableId;
	if (ppExportTable)
		*ppExportTable = NULL;
	return NVML_ERROR_NOT_FOUND;
}

// ---- finding devices

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	nvmlReturn_t r = simc_nvml_ready();

	if (r != NVML_SUCCESS)
		return r;
	if (!deviceCount)
		return NVML_ERROR_INVALID_ARGUMENT;
	*deviceCount = gpu_count;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
	return nvmlDeviceGetCount_v2(deviceCount);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	nvmlReturn_t r = simc_nvml_ready();

	if (r != NVML_SUCCESS)
		return r;
	if (!device || index >= gpu_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = gpus[index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

// GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or MIG-…
static void uuid_text(const lgpusim_device *d, char *out)
{
	const unsigned char *b = (const unsigned char *)d->uuid.bytes;
	int i;

	out += sprintf(out, d->parent ? "MIG-" : "GPU-");
	for (i = 0; i < 16; i++)
		out += sprintf(out, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
}

// Finds the device for which match says yes.
static nvmlReturn_t find(int (*match)(const lgpusim_device *, const void *), const void *what, nvmlDevice_t *device)
{
	nvmlReturn_t r = simc_nvml_ready();
	unsigned i;

	if (r != NVML_SUCCESS)
		return r;
	if (!what || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (i = 0; i < device_count; i++) {
		lgpusim_device d;

		if ((r = simc_nvml_device(&handles[i], &d)) != NVML_SUCCESS)
			return r;
		if (match(&d, what)) {
			*device = &handles[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

static int has_uuid(const lgpusim_device *d, const void *uuid)
{
	char text[64];

	uuid_text(d, text);
	return strcmp(text, uuid) == 0;
}

static int has_uuid_bytes(const lgpusim_device *d, const void *uuid)
{
	return memcmp(d->uuid.bytes, uuid, sizeof d->uuid.bytes) == 0;
}

// [domain:]bus:device[.function], hexadecimal
static int has_bus_id(const lgpusim_device *d, const void *text)
{
	unsigned domain = 0, bus = 0, dev = 0, fn = 0;
	int n = sscanf(text, "%x:%x:%x.%x", &domain, &bus, &dev, &fn);

	if (n < 3) {
		domain = fn = 0;
		if (sscanf(text, "%x:%x.%x", &bus, &dev, &fn) < 2)
			return 0;
	}
	return !d->parent && domain == d->pciDomain && bus == d->pciBus && dev == d->pciDevice && !fn;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	return find(has_uuid, uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	if (!uuid)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (uuid->version != LGPU_NVML_STRUCT_VERSION(nvmlUUID_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (uuid->type == NVML_UUID_TYPE_ASCII)
		return find(has_uuid, uuid->value.str, device);
	return uuid->type == NVML_UUID_TYPE_BINARY ? find(has_uuid_bytes, uuid->value.bytes, device) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
	return find(has_bus_id, pciBusId, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}

// A serial number is the end of the UUID, in decimal.
static void serial_text(const CUuuid *u, char *out)
{
	const unsigned char *b = (const unsigned char *)u->bytes + 10;
	unsigned long long n = 0;
	int i;

	for (i = 0; i < 6; i++)
		n = n << 8 | b[i];
	sprintf(out, "%015llu", n);
}

static int has_serial(const lgpusim_device *d, const void *serial)
{
	char text[32];

	serial_text(&d->uuid, text);
	return !d->parent && strcmp(text, serial) == 0;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	return find(has_serial, serial, device);
}

// ---- what a device is

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	d.name[r == NVML_SUCCESS ? sizeof d.name - 1 : 0] = 0;
	return r == NVML_SUCCESS ? give_text(name, length, d.name) : r;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[64];
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	uuid_text(&d, text);
	return give_text(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	char text[32];
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	serial_text(&d.uuid, text);
	return give_text(serial, length, text);
}

nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *partNumber, unsigned int length)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	return r == NVML_SUCCESS ? give_text(partNumber, length, "lgpu-sim") : r;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	return r == NVML_SUCCESS ? give_text(version, length, "00.00.00.00.01") : r;
}

// Answers with a number that is the same for every device, or follows from its number.
#define SAME(function, type, value)                                      \
	nvmlReturn_t function(nvmlDevice_t device, type *out)            \
	{                                                                \
		unsigned index;                                          \
		nvmlReturn_t r = simc_nvml_index(device, &index);        \
		if (r == NVML_SUCCESS && !out)                           \
			r = NVML_ERROR_INVALID_ARGUMENT;                 \
		if (r == NVML_SUCCESS)                                   \
			*out = (value);                                  \
		return r;                                                \
	}

SAME(nvmlDeviceGetIndex, unsigned int, device->number)
SAME(nvmlDeviceGetMinorNumber, unsigned int, device->number)
SAME(nvmlDeviceGetModuleId, unsigned int, device->number)
SAME(nvmlDeviceGetBoardId, unsigned int, device->number + 1)
SAME(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
SAME(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA)
SAME(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, 9)
SAME(nvmlDeviceGetBusType, nvmlBusType_t, 2)
SAME(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
SAME(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
SAME(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
SAME(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 5)
SAME(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 5)
SAME(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, 5)
SAME(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
SAME(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)
SAME(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
SAME(nvmlDeviceGetMemoryBusWidth, unsigned int, 6144)
SAME(nvmlDeviceGetNumFans, unsigned int, 0)
SAME(nvmlDeviceGetPerformanceState, nvmlPstates_t, NVML_PSTATE_0)
SAME(nvmlDeviceGetPowerState, nvmlPstates_t, NVML_PSTATE_0)
SAME(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
SAME(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
SAME(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 0)
SAME(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0)
SAME(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0)
SAME(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0)
SAME(nvmlDeviceGetSupportedEventTypes, unsigned long long, 8)
SAME(nvmlDeviceGetAccountingMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)

// Answers with a member of the device's description; GPU_MEMBER of a GPU's, which MIG instances do not have.
#define MEMBER(function, type, value) MEMBER_OF(simc_nvml_device, function, type, value)
#define GPU_MEMBER(function, type, value) MEMBER_OF(simc_nvml_gpu, function, type, value)
#define MEMBER_OF(find, function, type, value)                           \
	nvmlReturn_t function(nvmlDevice_t device, type *out)            \
	{                                                                \
		lgpusim_device d;                                        \
		nvmlReturn_t r = find(device, &d);                       \
		if (r == NVML_SUCCESS && !out)                           \
			r = NVML_ERROR_INVALID_ARGUMENT;                 \
		if (r == NVML_SUCCESS)                                   \
			*out = (value);                                  \
		return r;                                                \
	}

MEMBER(nvmlDeviceGetNumGpuCores, unsigned int, d.computeUnits * d.coresPerUnit)
MEMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, (nvmlComputeMode_t)d.computeMode)
GPU_MEMBER(nvmlDeviceGetPowerUsage, unsigned int, d.powerMilliwatts)
GPU_MEMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, d.energyMillijoules)
GPU_MEMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, d.powerLimitMilliwatts)
GPU_MEMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, d.powerLimitMilliwatts)
GPU_MEMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, d.powerLimitMilliwatts)

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit,
		unsigned int *maxLimit)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!minLimit || !maxLimit)
		return NVML_ERROR_INVALID_ARGUMENT;
	*minLimit = *maxLimit = d.powerLimitMilliwatts;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!major || !minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*major = (int)d.ccMajor;
	*minor = (int)d.ccMinor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(pci, 0, sizeof *pci);
	pci->domain = d.pciDomain;
	pci->bus = d.pciBus;
	pci->device = d.pciDevice;
	pci->pciDeviceId = pci->pciSubSystemId = d.pciDeviceId;
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", d.pciDomain & 0xffff, d.pciBus & 0xff,
		 d.pciDevice & 0xff);
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", d.pciDomain, d.pciBus & 0xff, d.pciDevice & 0xff);
	return NVML_SUCCESS;
}

// The older structures are the beginning of the newest, which has all of their members.
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t full;
	nvmlReturn_t r;

	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((r = nvmlDeviceGetPciInfo_v3(device, &full)) == NVML_SUCCESS)
		memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
	return r;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t full;
	nvmlReturn_t r;

	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((r = nvmlDeviceGetPciInfo_v3(device, &full)) == NVML_SUCCESS)
		memcpy(pci, &full, offsetof(nvmlPciInfo_t, pciSubSystemId));
	return r;
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
	nvmlPciInfo_t full;
	nvmlReturn_t r;

	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (pci->version != LGPU_NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if ((r = nvmlDeviceGetPciInfo_v3(device, &full)) != NVML_SUCCESS)
		return r;
	pci->domain = full.domain;
	pci->bus = full.bus;
	pci->device = full.device;
	pci->pciDeviceId = pci->pciSubSystemId = full.pciDeviceId;
	pci->baseClass = 3;
	pci->subClass = 2;
	memcpy(pci->busId, full.busId, sizeof pci->busId);
	return NVML_SUCCESS;
}
