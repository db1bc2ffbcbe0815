// SPDX-License-Identifier: Apache-2.0

// NVML of the software GPU: GPUs in MIG mode and their instances. Each GPU instance has one compute instance.
#define _GNU_SOURCE
#include "nvml.h"

#include <string.h>

enum { MAX_INSTANCES = 7 };

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_gpu(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!currentMode || !pendingMode)
		return NVML_ERROR_INVALID_ARGUMENT;
	*currentMode = *pendingMode = d.instances != 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = d.instances ? MAX_INSTANCES : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!isMigDevice)
		return NVML_ERROR_INVALID_ARGUMENT;
	*isMigDevice = d.parent != 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
	lgpusim_device d;
	unsigned self;
	nvmlReturn_t r = simc_nvml_gpu(device, &d);

	if (r != NVML_SUCCESS || (r = simc_nvml_index(device, &self)) != NVML_SUCCESS)
		return r;
	if (!migDevice)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (index >= d.instances)
		return NVML_ERROR_NOT_FOUND;
	*migDevice = simc_nvml_handle(self + 1 + index);
	return NVML_SUCCESS;
}

// The description of an instance; NVML_ERROR_INVALID_ARGUMENT for a GPU.
static nvmlReturn_t instance(nvmlDevice_t device, lgpusim_device *d)
{
	nvmlReturn_t r = simc_nvml_device(device, d);

	return r == NVML_SUCCESS && !d->parent ? NVML_ERROR_INVALID_ARGUMENT : r;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
	lgpusim_device d;
	nvmlReturn_t r = instance(migDevice, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!device)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = simc_nvml_handle(d.parent - 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	lgpusim_device d;
	nvmlReturn_t r = instance(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	*id = d.gpuInstance;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	lgpusim_device d;
	nvmlReturn_t r = instance(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	*id = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	lgpusim_device d;
	nvmlReturn_t r = simc_nvml_device(device, &d);

	if (r != NVML_SUCCESS)
		return r;
	if (!attributes)
		return NVML_ERROR_INVALID_ARGUMENT;
	memset(attributes, 0, sizeof *attributes);
	attributes->multiprocessorCount = d.computeUnits;
	attributes->sharedCopyEngineCount = 3;
	attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = d.slices;
	attributes->memorySizeMB = d.memoryTotal >> 20;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return nvmlDeviceGetAttributes_v2(device, attributes);
}
