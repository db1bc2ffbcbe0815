// hold ORDINAL BYTES [BYTES...]: allocates each amount, says how it went and what cuMemGetInfo shows, and stays until its
// input ends. A program that ends itself badly returns 1.
#include <stdio.h>
#include <stdlib.h>

#include "lgpu_cuda.h"

static const char *name(CUresult r)
{
	const char *s = "?";
	cuGetErrorName(r, &s);
	return s;
}

#define TRY(call) \
	do { \
		CUresult r_ = (call); \
		if (r_ != CUDA_SUCCESS) { \
			printf("%s %s\n", #call, name(r_)); \
			return 1; \
		} \
	} while (0)

int main(int argc, char **argv)
{
	CUdevice device;
	CUcontext context;
	CUdeviceptr p;
	size_t available, total;
	int count, units;

	if (argc < 2)
		return 2;
	TRY(cuInit(0));
	TRY(cuDeviceGetCount(&count));
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
