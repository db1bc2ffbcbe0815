// hold [ORDINAL BYTES [BYTES...]]: allocates each amount, says how it went and what cuMemGetInfo shows, and stays until its
// input ends. Without arguments it only begins the driver, and returns 40 more than there are devices. A program that ends
// itself badly returns 1.
#include <stdio.h>
#include <stdlib.h>

#include "try.h"

int main(int argc, char **argv)
{
	CUdevice device;
	CUcontext context;
	CUdeviceptr p;
	size_t available, total;
	int count, units;

	TRY(cuInit(0));
	TRY(cuDeviceGetCount(&count));
	if (argc < 2) {
		printf("ready\n");
		fflush(stdout);
		while (getchar() != EOF)
			;
		TRY(cuDeviceGetCount(&count));
		return 40 + count;
	}
	TRY(cuDeviceGet(&device, atoi(argv[1])));
	TRY(cuDeviceGetAttribute(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
	TRY(cuDevicePrimaryCtxRetain(&context, device));
	TRY(cuCtxSetCurrent(context));
	for (int i = 2; i < argc; i++)
		printf("allocate %s %s\n", argv[i], name(cuMemAlloc(&p, strtoull(argv[i], NULL, 10))));
	TRY(cuMemGetInfo(&available, &total));
	printf("devices %d units %d total %zu available %s\n", count, units, total, available <= total ? "sane" : "insane");
	printf("ready\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	CUresult r = cuCtxSynchronize();
	if (r != CUDA_SUCCESS) {
		printf("at the end %s\n", name(r));
		return 1;
	}
	return 0;
}
