// Says how many devices there are, and of the first its name, UUID, memory and units; and takes memory of it until it has all.
#include <stdio.h>

#include "lgpu_cuda.h"

int main(void)
{
	CUdevice device;
	CUcontext context;
	CUdeviceptr p;
	CUuuid uuid;
	char name[96];
	size_t memory, taken = 0;
	int count, units;
	CUresult r = cuInit(0);

	if (r == CUDA_ERROR_NO_DEVICE) {
		printf("no device\n");
		return 0;
	}
	if (r != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
	    cuDeviceGetName(name, sizeof name, device) != CUDA_SUCCESS || cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS ||
	    cuDeviceTotalMem(&memory, device) != CUDA_SUCCESS ||
	    cuDeviceGetAttribute(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS)
		return 1;
	printf("%d %s ", count, name);
	for (int i = 0; i < 16; i++)
		printf("%02x", (unsigned char)uuid.bytes[i]);
	printf(" %zu %d\n", memory, units);
	if (cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
		return 1;
	while (cuMemAlloc(&p, 16 << 20) == CUDA_SUCCESS)
		taken += 16 << 20;
	return taken + (32 << 20) < memory || taken >= memory;
}
