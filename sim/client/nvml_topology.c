// SPDX-License-Identifier: Apache-2.0

// NVML of the software GPU: neighbours. Devices are alike, each behind its own root port of one host.
#define _GNU_SOURCE
#include "nvml.h"

#include <string.h>
#include <sys/sysinfo.h>

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
		nvmlGpuTopologyLevel_t *pathInfo)
{
	unsigned a, b;
	nvmlReturn_t r;

	if ((r = simc_nvml_index(device1, &a)) != NVML_SUCCESS || (r = simc_nvml_index(device2, &b)) != NVML_SUCCESS)
		return r;
	if (!pathInfo)
		return NVML_ERROR_INVALID_ARGUMENT;
	*pathInfo = a == b ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int *count,
		nvmlDevice_t *deviceArray)
{
	unsigned index, i, n = 0, room, devices;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	if (r != NVML_SUCCESS)
		return r;
	if (!count || (*count && !deviceArray) || level > NVML_TOPOLOGY_SYSTEM || level % 10)
		return NVML_ERROR_INVALID_ARGUMENT;
	room = *count;
	if ((r = nvmlDeviceGetCount_v2(&devices)) != NVML_SUCCESS)
		return r;
	for (i = 0; i < devices && level == NVML_TOPOLOGY_NODE; i++) {
		nvmlDevice_t other;

		if ((r = nvmlDeviceGetHandleByIndex_v2(i, &other)) != NVML_SUCCESS)
			return r;
		if (other == device)
			continue;
		if (n < room)
			deviceArray[n] = other;
		n++;
	}
	*count = room && n > room ? room : n;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2, nvmlGpuP2PCapsIndex_t p2pIndex,
		nvmlGpuP2PStatus_t *p2pStatus)
{
	unsigned a, b;
	nvmlReturn_t r;

	if ((r = simc_nvml_index(device1, &a)) != NVML_SUCCESS || (r = simc_nvml_index(device2, &b)) != NVML_SUCCESS)
		return r;
	if (!p2pStatus || a == b)
		return NVML_ERROR_INVALID_ARGUMENT;
	*p2pStatus = p2pIndex == NVML_P2P_CAPS_INDEX_READ || p2pIndex == NVML_P2P_CAPS_INDEX_WRITE
			     ? NVML_P2P_STATUS_OK
			     : NVML_P2P_STATUS_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *onSameBoard)
{
	unsigned a, b;
	nvmlReturn_t r;

	if ((r = simc_nvml_index(device1, &a)) != NVML_SUCCESS || (r = simc_nvml_index(device2, &b)) != NVML_SUCCESS)
		return r;
	if (!onSameBoard)
		return NVML_ERROR_INVALID_ARGUMENT;
	*onSameBoard = a == b;
	return NVML_SUCCESS;
}

// Every CPU is as near as any other.
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int cpuSetSize, unsigned long *cpuSet)
{
	unsigned index, i, cpus = (unsigned)get_nprocs_conf(), bits = 8 * sizeof *cpuSet;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	if (r != NVML_SUCCESS)
		return r;
	if (!cpuSet || !cpuSetSize)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(cpuSet, 0, cpuSetSize * sizeof *cpuSet);
	for (i = 0; i < cpus && i / bits < cpuSetSize; i++)
		cpuSet[i / bits] |= 1ul << i % bits;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int cpuSetSize, unsigned long *cpuSet,
		nvmlAffinityScope_t scope)
{
	return scope <= 1 ? nvmlDeviceGetCpuAffinity(device, cpuSetSize, cpuSet) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int nodeSetSize, unsigned long *nodeSet,
		nvmlAffinityScope_t scope)
{
	unsigned index;
	nvmlReturn_t r = simc_nvml_index(device, &index);

	if (r != NVML_SUCCESS)
		return r;
	if (!nodeSet || !nodeSetSize || scope > 1)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(nodeSet, 0, nodeSetSize * sizeof *nodeSet);
	nodeSet[0] = 1;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpuNumber, unsigned int *count, nvmlDevice_t *deviceArray)
{
	unsigned devices, room, i;
	nvmlReturn_t r = nvmlDeviceGetCount_v2(&devices);

	if (r != NVML_SUCCESS)
		return r;
	if (!count || (*count && !deviceArray) || cpuNumber >= (unsigned)get_nprocs_conf())
		return NVML_ERROR_INVALID_ARGUMENT;
	room = *count && *count < devices ? *count : devices;
	for (i = 0; i < room && *count; i++)
		if ((r = nvmlDeviceGetHandleByIndex_v2(i, &deviceArray[i])) != NVML_SUCCESS)
			return r;
	*count = room;
	return NVML_SUCCESS;
}

// ---- units (racks of S-class systems), and the cards that join these to a host: there are none

nvmlReturn_t nvmlUnitGetCount(unsigned int *unitCount)
{
	nvmlReturn_t r = simc_nvml_ready();

	if (r != NVML_SUCCESS)
		return r;
	if (!unitCount)
		return NVML_ERROR_INVALID_ARGUMENT;
	*unitCount = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetHandleByIndex(unsigned int index, nvmlUnit_t *unit)
{
	nvmlReturn_t r = simc_nvml_ready();

	(void)index;
	(void)unit;
	return r == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : r;
}

nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned int *deviceCount, nvmlDevice_t *devices)
{
	(void)deviceCount;
	(void)devices;
	return nvmlUnitGetHandleByIndex(0, &unit);
}

nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *hwbcCount, nvmlHwbcEntry_t *hwbcEntries)
{
	(void)hwbcEntries;
	return nvmlUnitGetCount(hwbcCount);
}
