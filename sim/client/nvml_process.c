// SPDX-License-Identifier: Apache-2.0

// NVML of the software GPU: the present state of devices, who uses them, and events.
#define _GNU_SOURCE
#include "nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PROCESSES = 1024, NO_INSTANCE = -1 };

// ---- memory

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	memory->total = d.memoryTotal;
	memory->used = d.memoryUsed + d.memoryReserved; // the first form counts what nobody can have as used
	memory->free = d.memoryTotal - memory->used;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	lgpusim_device d;
	nvmlReturn_t r;

	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != LGPU_NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if ((r = simc_nvml_device(device, &d)) != NVML_SUCCESS)
		return r;
	memory->total = d.memoryTotal;
	memory->reserved = d.memoryReserved;
	memory->used = d.memoryUsed;
	memory->free = d.memoryTotal - d.memoryUsed - d.memoryReserved;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1Memory)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!bar1Memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	bar1Memory->bar1Total = bar1Memory->bar1Free = d.memoryTotal;
	bar1Memory->bar1Used = 0;
	return NVML_SUCCESS;
}

// ---- load, clocks, health

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_gpu(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (d.instances)
		return NVML_ERROR_NOT_SUPPORTED; // as with the real driver: neither the GPU in MIG mode has any, nor its instances
	if (!utilization)
		return NVML_ERROR_INVALID_ARGUMENT;
	utilization->gpu = d.utilizationGpu;
	utilization->memory = d.utilizationMemory;
	return NVML_SUCCESS;
}

static nvmlReturn_t clock_of(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!clock || type >= NVML_CLOCK_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	*clock = type == NVML_CLOCK_MEM ? d.memClockMHz : d.clockMHz;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
	return clock_of(device, type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
	return clock_of(device, type, clock);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t clockType, unsigned int *clockMHz)
{
	return clock_of(device, clockType, clockMHz);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t clockType,
		unsigned int *clockMHz)
{
	return clock_of(device, clockType, clockMHz);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t clockType, nvmlClockId_t clockId,
		unsigned int *clockMHz)
{
	return clockId < NVML_CLOCK_ID_COUNT ? clock_of(device, clockType, clockMHz) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType, unsigned int *temp)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_gpu(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!temp || sensorType != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	*temp = d.temperatureC;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
	unsigned degrees;
	nvmlReturn_t r;

	if (!temperature)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (temperature->version != LGPU_NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if ((r = nvmlDeviceGetTemperature(device, temperature->sensorType, &degrees)) == NVML_SUCCESS)
		temperature->temperature = (int)degrees;
	return r;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t thresholdType,
		unsigned int *temp)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	if (r != NVML_SUCCESS)
		return r;
	if (!temp || thresholdType >= NVML_TEMPERATURE_THRESHOLD_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	*temp = thresholdType == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? 95 : 90;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	if (r != NVML_SUCCESS)
		return r;
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
		nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	if (r != NVML_SUCCESS)
		return r;
	if (!eccCounts || errorType >= NVML_MEMORY_ERROR_TYPE_COUNT || counterType >= NVML_ECC_COUNTER_TYPE_COUNT)
		return NVML_ERROR_INVALID_ARGUMENT;
	*eccCounts = 0;
	return NVML_SUCCESS;
}

// Fields are asked for in bulk and answered one by one: none is kept here.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);
	int i;

	if (r != NVML_SUCCESS)
		return r;
	if (valuesCount <= 0 || !values)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (i = 0; i < valuesCount; i++)
		values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

// ---- processes

// Asks for the processes on a device; the list is malloc'ed.
static nvmlReturn_t processes_of(nvmlDevice_t device, lgpusim_process **list, unsigned *n)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	*list = NULL;
	*n = 0;
	if (r != NVML_SUCCESS)
		return r;
	if (!(*list = calloc(MAX_PROCESSES, sizeof **list)))
		return NVML_ERROR_MEMORY;
	r = simc_nvml_result(simc_rpc_DeviceProcesses(index, *list, MAX_PROCESSES, n));
	if (*n > MAX_PROCESSES)
		*n = MAX_PROCESSES;
	if (r != NVML_SUCCESS) {
		free(*list);
		*list = NULL;
	}
	return r;
}

// The running processes in a structure of the given size, which begins with pid and memory as all versions do.
static nvmlReturn_t running(nvmlDevice_t device, unsigned *infoCount, void *infos, size_t size)
{
	lgpusim_process *list;
	lgpusim_device d;
	unsigned n, i, room;
	nvmlReturn_t r;

	if (!infoCount || (*infoCount && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((r = simc_nvml_device(device, &d)) != NVML_SUCCESS || (r = processes_of(device, &list, &n)) != NVML_SUCCESS)
		return r;
	room = *infoCount;
	*infoCount = n;
	if (n > room)
		r = NVML_ERROR_INSUFFICIENT_SIZE;
	for (i = 0; r == NVML_SUCCESS && i < n; i++) {
		nvmlProcessInfo_t p = {.pid = list[i].pid, .usedGpuMemory = list[i].memoryUsed,
				       .gpuInstanceId = d.parent ? d.gpuInstance : (unsigned)NO_INSTANCE,
				       .computeInstanceId = d.parent ? 0 : (unsigned)NO_INSTANCE};

		memcpy((char *)infos + i * size, &p, size);
	}
	free(list);
	return r;
}

// No process draws, and none runs beneath a server of several.
static nvmlReturn_t nobody(nvmlDevice_t device, unsigned *infoCount)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	if (r != NVML_SUCCESS)
		return r;
	if (!infoCount)
		return NVML_ERROR_INVALID_ARGUMENT;
	*infoCount = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
		nvmlProcessInfo_v1_t *infos)
{
	return running(device, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
		nvmlProcessInfo_v2_t *infos)
{
	return running(device, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
		nvmlProcessInfo_t *infos)
{
	return running(device, infoCount, infos, sizeof *infos);
}

#define NOBODY(function, type)                                                                   \
	nvmlReturn_t function(nvmlDevice_t device, unsigned int *infoCount, type *infos)         \
	{                                                                                        \
		(void)infos;                                                                     \
		return nobody(device, infoCount);                                                \
	}

NOBODY(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

// Keeps the samples that are newer than since.
static unsigned newer(lgpusim_process *list, unsigned n, unsigned long long since)
{
	unsigned i, kept = 0;

	for (i = 0; i < n; i++)
		if (list[i].sampleTime > since)
			list[kept++] = list[i];
	return kept;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
		unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
	lgpusim_process *list;
	unsigned n, i, room;
	nvmlReturn_t r;

	if (!processSamplesCount)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((r = processes_of(device, &list, &n)) != NVML_SUCCESS)
		return r;
	room = utilization ? *processSamplesCount : 0;
	n = newer(list, n, lastSeenTimeStamp);
	*processSamplesCount = n;
	if (!n)
		r = NVML_ERROR_NOT_FOUND;
	else if (n > room)
		r = NVML_ERROR_INSUFFICIENT_SIZE;
	for (i = 0; r == NVML_SUCCESS && i < n; i++)
		utilization[i] = (nvmlProcessUtilizationSample_t){.pid = list[i].pid, .timeStamp = list[i].sampleTime,
								  .smUtil = list[i].utilizationGpu,
								  .memUtil = list[i].utilizationMemory};
	free(list);
	return r;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
	nvmlProcessesUtilizationInfo_t *info = procesesUtilInfo;
	lgpusim_process *list;
	unsigned n, i, room;
	nvmlReturn_t r;

	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != LGPU_NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if ((r = processes_of(device, &list, &n)) != NVML_SUCCESS)
		return r;
	room = info->procUtilArray ? info->processSamplesCount : 0;
	n = newer(list, n, info->lastSeenTimeStamp);
	info->processSamplesCount = n;
	if (!n)
		r = NVML_ERROR_NOT_FOUND;
	else if (n > room)
		r = NVML_ERROR_INSUFFICIENT_SIZE;
	for (i = 0; r == NVML_SUCCESS && i < n; i++)
		info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){.pid = list[i].pid, .timeStamp = list[i].sampleTime,
									   .smUtil = list[i].utilizationGpu,
									   .memUtil = list[i].utilizationMemory};
	free(list);
	return r;
}

// The name of a process that does not use the device: what this program may read of it.
static nvmlReturn_t other_name(unsigned int pid, char *text, size_t room)
{
	static const char *const files[] = {"cmdline", "comm"};
	char path[64];
	unsigned i;

	for (i = 0; i < sizeof files / sizeof files[0]; i++) {
		ssize_t n = -1;
		int fd;

		snprintf(path, sizeof path, "/proc/%u/%s", pid, files[i]);
		if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
			return errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_FOUND;
		n = read(fd, text, room);
		close(fd);
		if (n <= 0)
			continue; // a thread of the kernel has no command line
		text[n] = 0;
		text[strcspn(text, "\n")] = 0;
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char text[1024] = "";
	nvmlReturn_t r = simc_nvml_ready();

	if (r != NVML_SUCCESS)
		return r;
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = simc_nvml_result(simc_rpc_ProcessName(pid, text, sizeof text - 1));
	if (r == NVML_ERROR_NOT_FOUND)
		r = other_name(pid, text, sizeof text - 1);
	if (r != NVML_SUCCESS)
		return r;
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

// ---- events: sets of which none ever happens

struct nvmlEventSet_st {
	unsigned long long types;
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	nvmlReturn_t r = simc_nvml_ready();

	if (r != NVML_SUCCESS)
		return r;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof **set);
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	nvmlReturn_t r = simc_nvml_ready();

	if (r == NVML_SUCCESS)
		free(set);
	return r;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	if (r != NVML_SUCCESS)
		return r;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	set->types |= eventTypes;
	return NVML_SUCCESS;
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, unsigned ms)
{
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
	nvmlReturn_t r = simc_nvml_ready();

	if (r != NVML_SUCCESS)
		return r;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	while (nanosleep(&t, &t) != 0 && errno == EINTR)
		;
	return NVML_ERROR_TIMEOUT;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	return data ? wait_event(set, timeoutms) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	return nvmlEventSetWait_v2(set, data, timeoutms);
}
