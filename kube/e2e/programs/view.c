// view prints what NVML says of each device, as nvidia-smi does: its number, and its memory in bytes.
#include <stdio.h>

#include "lgpu_nvml.h"

int main(void)
{
	unsigned int count;
	if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS) {
		puts("no devices");
		return 1;
	}
	for (unsigned int i = 0; i < count; i++) {
		nvmlDevice_t device;
		nvmlMemory_t memory;
		if (nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_SUCCESS || nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) {
			printf("device %u cannot be read\n", i);
			return 1;
		}
		printf("device %u memory %llu\n", i, memory.total);
	}
	return 0;
}
