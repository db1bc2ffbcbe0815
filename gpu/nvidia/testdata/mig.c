/* SPDX-License-Identifier: Apache-2.0 */
/* A management library with two GPUs: number 0 in MIG mode with instances 0 and 2, number 1 whole, with processes. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LGPU_NVML_PLAIN
#include "lgpu_nvml.h"

struct nvmlDevice_st {
	const char *uuid, *name;
	unsigned long long total, used;
};

static struct nvmlDevice_st gpus[2] = {
	{"GPU-00000000-0000-0000-0000-00000000000a", "NVIDIA Fake", 96ull << 30, 3ull << 30},
	{"GPU-00000000-0000-0000-0000-00000000000b", "NVIDIA Fake", 96ull << 30, 7ull << 30},
};
static struct nvmlDevice_st migs[3] = {
	{"MIG-00000000-0000-0000-0000-0000000000a0", "NVIDIA Fake MIG 1g.12gb", 12ull << 30, 1ull << 30},
	{NULL, NULL, 0, 0},
	{"MIG-00000000-0000-0000-0000-0000000000a2", "NVIDIA Fake MIG 3g.48gb", 48ull << 30, 2ull << 30},
};

nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t r) { return r == NVML_ERROR_GPU_IS_LOST ? "GPU is lost" : "Error"; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n) { return *n = 2, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *d) { return *d = &gpus[i], NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *s, unsigned int n) { return snprintf(s, n, "%s", d->uuid), NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *s, unsigned int n) { return snprintf(s, n, "%s", d->name), NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned int *n) { return *n = (unsigned)(d - gpus) + 40, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t d, unsigned int *n) { return (void)d, *n = 132 * 128, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *n) { return (void)d, *n = 7, NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
	(void)d;
	*major = 9;
	*minor = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
	memset(pci, 0, sizeof *pci);
	snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", (unsigned)(d - gpus) + 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
	m->total = d->total;
	m->used = d->used;
	m->free = d->total - d->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *current, unsigned int *pending)
{
	if (d == &gpus[1])
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = 1;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int i, nvmlDevice_t *mig)
{
	if (d != &gpus[0] || i > 2 || !migs[i].uuid)
		return NVML_ERROR_NOT_FOUND;
	*mig = &migs[i];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, nvmlDeviceAttributes_t *a)
{
	memset(a, 0, sizeof *a);
	a->multiprocessorCount = d == &migs[0] ? 16 : 60;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned int *n) { return *n = d == &migs[0] ? 7 : 2, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned int *n) { return *n = d == &migs[0] ? 0 : 1, NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u)
{
	if (d != &gpus[1])
		return NVML_ERROR_NOT_SUPPORTED;
	u->gpu = 80;
	u->memory = 20;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *mw)
{
	if (d != &gpus[1])
		return NVML_ERROR_NOT_SUPPORTED;
	*mw = 312500;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *mj)
{
	if (d != &gpus[1]) /* drivers give an instance the one or the other */
		return d == &migs[0] ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
	*mj = 1ull << 40;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
	if (d != &gpus[1] || sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_NOT_SUPPORTED;
	*celsius = 41;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *infos)
{
	unsigned i, have = d == &gpus[1] ? 100 : d == &migs[0] ? 1 : 0;

	if (*n < have)
		return *n = have, NVML_ERROR_INSUFFICIENT_SIZE;
	for (i = 0; i < have; i++)
		infos[i] = (nvmlProcessInfo_t){.pid = 1000 + i, .usedGpuMemory = (1ull + i) << 20};
	if (have > 1)
		infos[1].usedGpuMemory = (unsigned long long)NVML_VALUE_NOT_AVAILABLE;
	return *n = have, NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *infos)
{
	if (d != &gpus[1])
		return NVML_ERROR_NOT_SUPPORTED;
	infos[0] = (nvmlProcessInfo_t){.pid = 1000, .usedGpuMemory = 1 << 20}; /* on both lists */
	infos[1] = (nvmlProcessInfo_t){.pid = 7, .usedGpuMemory = 5 << 20};
	return *n = 2, NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t d, nvmlProcessUtilizationSample_t *s, unsigned int *n,
		unsigned long long since)
{
	if (d != &gpus[1])
		return NVML_ERROR_NOT_SUPPORTED;
	s[0] = (nvmlProcessUtilizationSample_t){.pid = 1000, .timeStamp = since + 2, .smUtil = 33};
	s[1] = (nvmlProcessUtilizationSample_t){.pid = 1000, .timeStamp = since + 1, .smUtil = 44};
	s[2] = (nvmlProcessUtilizationSample_t){.pid = 1001, .timeStamp = since - 1, .smUtil = 55};
	return *n = 3, NVML_SUCCESS;
}

/* As in NVIDIA's nvml.h. */
typedef struct {
	unsigned int version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
	unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
	unsigned long long memorySizeMB;
	char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
#define nvmlGpuInstanceProfileInfo_v2 (unsigned int)(sizeof(nvmlGpuInstanceProfileInfo_v2_t) | (2u << 24))
typedef struct { unsigned int start, size; } nvmlGpuInstancePlacement_t;
#define nvmlEventTypeDoubleBitEccError 0x2ull
#define nvmlEventTypeXidCriticalError 0x8ull

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t d, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info);
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t d, unsigned int profile, nvmlGpuInstancePlacement_t *at,
							   unsigned int *n);

/* What they are like: GPU 1 is joined to GPU 0 by two NVLinks, and GPU 0 to switches by three. */
nvmlReturn_t nvmlSystemGetDriverVersion(char *s, unsigned int n) { return snprintf(s, n, "580.1"), NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t d, unsigned int *n) { return (void)d, *n = 9, NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level)
{
	*level = a == b ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_SYSTEM;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status)
{
	*status = a != b && index == NVML_P2P_CAPS_INDEX_NVLINK ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned int link, nvmlEnableState_t *up)
{
	if (link > 4)
		return NVML_ERROR_INVALID_ARGUMENT;
	*up = d == &gpus[0] ? link != 1 && link != 3 : link < 2;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, unsigned int link, nvmlIntNvLinkDeviceType_t *kind)
{
	(void)link;
	*kind = d == &gpus[0] ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned int link, nvmlPciInfo_t *pci)
{
	(void)link;
	return nvmlDeviceGetPciInfo_v3(d == &gpus[1] ? &gpus[0] : &gpus[1], pci);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t d, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *info)
{
	if (d != &gpus[0] || profile != 2 || info->version != nvmlGpuInstanceProfileInfo_v2)
		return NVML_ERROR_NOT_SUPPORTED;
	info->id = 9;
	info->instanceCount = 2;
	info->multiprocessorCount = 60;
	info->memorySizeMB = 48 << 10;
	snprintf(info->name, sizeof info->name, "MIG 3g.48gb");
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t d, unsigned int profile, nvmlGpuInstancePlacement_t *at,
							   unsigned int *n)
{
	(void)d;
	if (profile != 9 || *n < 2)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	at[0] = (nvmlGpuInstancePlacement_t){0, 4};
	at[1] = (nvmlGpuInstancePlacement_t){4, 4};
	*n = 2;
	return NVML_SUCCESS;
}

/* Events: what GPU 1's programs did wrong, then what GPU 0 did itself. */
static int events;
struct nvmlEventSet_st { int registered; };
static struct nvmlEventSet_st set;

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *s) { return *s = &set, NVML_SUCCESS; }
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t s) { return (void)s, NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long kinds, nvmlEventSet_t s)
{
	(void)d;
	s->registered++;
	return kinds == (nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t s, nvmlEventData_t *e, unsigned int ms)
{
	if (ms != 0 || s->registered != 2)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(e, 0, sizeof *e);
	e->eventType = nvmlEventTypeXidCriticalError;
	switch (events++) {
	case 0:
		e->device = &gpus[1];
		e->eventData = 31;
		return NVML_SUCCESS;
	case 1:
		e->device = &gpus[0];
		e->eventData = 79;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_TIMEOUT;
}
