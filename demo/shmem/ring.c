// A PE of a ring: see ring.cu. With nvcc, the kernel and this would be one file, and the launch ring<<<1, 128>>>(state, ...).
//
//	lgpu run --sim=2x16GiB,sms=4 --pes 2 -- build/demo/ring demo/shmem/ring.ptx
#include <stdio.h>
#include <stdlib.h>

#include "lgpu_cuda.h"
#include "lshmem.h"

static void lshmem(int status, const char *what) {
	if (status == LSHMEM_OK)
		return;
	fprintf(stderr, "%s: %s: %s\n", what, lshmem_strerror(status), lshmem_last_error());
	exit(1);
}

static void cuda(CUresult r, const char *what) {
	const char *name = "?";
	if (r == CUDA_SUCCESS)
		return;
	cuGetErrorName(r, &name);
	fprintf(stderr, "%s: %s\n", what, name);
	exit(1);
}

enum { N = 1000, THREADS = 128 };

int main(int argc, char **argv) {
	if (argc != 2) {
		fprintf(stderr, "usage: lgpu run --pes N -- %s ring.ptx\n", argv[0]);
		return 2;
	}
	lshmem_pe_t pe;
	int rank, size, ordinal;
	lshmem(lshmem_init_env(&pe), "init");
	lshmem(lshmem_my_pe(pe, &rank), "my_pe");
	lshmem(lshmem_n_pes(pe, &size), "n_pes");
	lshmem(lshmem_device(pe, &ordinal), "device");

	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction kernel;
	CUstream stream;
	cuda(cuDeviceGet(&device, ordinal), "find the device");
	cuda(cuDevicePrimaryCtxRetain(&context, device), "open it");
	cuda(cuCtxSetCurrent(context), "use it");
	cuda(cuModuleLoad(&module, argv[1]), "load the kernel");
	cuda(cuModuleGetFunction(&kernel, module, "ring"), "find the kernel");
	cuda(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "make a stream");

	// Everybody allocates the same, and so has it at the same offset.
	void *inbox, *arrived, *mine, *sum, *right;
	lshmem(lshmem_malloc(pe, N * 4, &inbox), "malloc");
	lshmem(lshmem_calloc(pe, 1, 8, &arrived), "calloc");
	lshmem(lshmem_malloc(pe, N * 4, &mine), "malloc");
	lshmem(lshmem_malloc(pe, N * 4, &sum), "malloc");
	lshmem(lshmem_malloc(pe, 8, &right), "malloc");

	uint32_t numbers[N];
	for (uint32_t i = 0; i < N; i++)
		numbers[i] = i + 10000 * (uint32_t)rank;
	cuda(cuMemcpyHtoD((CUdeviceptr)mine, numbers, sizeof numbers), "copy");

	lshmem_t state;
	uint32_t n = N;
	lshmem(lshmem_get_state(pe, &state), "get_state");
	void *args[] = {&state, &inbox, &arrived, &mine, &sum, &n};
	cuda(cuLaunchKernel(kernel, 1, 1, 1, THREADS, 1, 1, 0, stream, args, NULL), "launch");
	cuda(cuStreamSynchronize(stream), "run");
	lshmem(lshmem_status(pe), "the kernel");

	uint32_t previous = (uint32_t)((rank + size - 1) % size);
	uint64_t good = 0, all = 0;
	cuda(cuMemcpyDtoH(numbers, (CUdeviceptr)sum, sizeof numbers), "copy");
	for (uint32_t i = 0; i < N; i++)
		good += numbers[i] == 2 * i + 10000 * ((uint32_t)rank + previous);
	// How many are right altogether: a collective operation on the stream.
	cuda(cuMemcpyHtoD((CUdeviceptr)right, &good, 8), "copy");
	lshmem(lshmem_reduce_on_stream(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT64, LSHMEM_SUM, right, right, 1, stream), "reduce");
	cuda(cuStreamSynchronize(stream), "run");
	cuda(cuMemcpyDtoH(&all, (CUdeviceptr)right, 8), "copy");
	printf("PE %d of %d on device %d: %llu of %d sums with PE %u are right, %llu altogether\n", rank, size, ordinal,
		(unsigned long long)good, N, previous, (unsigned long long)all);

	lshmem(lshmem_finalize(pe), "finalize");
	return good == N && all == (uint64_t)N * (uint64_t)size ? 0 : 1;
}
