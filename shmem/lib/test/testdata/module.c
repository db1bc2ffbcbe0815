// Runs the kernels of compat.cu: a program of NVSHMEM's names whose module gets its state by cuModuleGetGlobal, as
// nvshmemx_cumodule_init does it.
#include <stdio.h>
#include <stdlib.h>

#include "lgpu_cuda.h"
#include "lshmem.h"

#define CU(call)                                                                                                             \
	if ((call) != CUDA_SUCCESS)                                                                                          \
	exit((fprintf(stderr, "line %d: %s\n", __LINE__, #call), 1))
#define LS(call)                                                                                                             \
	if ((call) != LSHMEM_OK)                                                                                             \
	exit((fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, lshmem_last_error()), 1))

int main(int argc, char **argv) {
	lshmem_pe_t pe;
	struct lshmem_state state;
	CUcontext context;
	CUmodule module;
	CUfunction one, block;
	CUdeviceptr at;
	size_t bytes;
	int device, me, n;
	if (argc != 2)
		return 2;
	LS(lshmem_init_env(&pe));
	LS(lshmem_device(pe, &device));
	LS(lshmem_my_pe(pe, &me));
	LS(lshmem_n_pes(pe, &n));
	CU(cuDevicePrimaryCtxRetain(&context, device));
	CU(cuCtxSetCurrent(context));
	CU(cuModuleLoad(&module, argv[1]));
	LS(lshmem_get_state(pe, &state));
	CU(cuModuleGetGlobal(&at, &bytes, module, "lshmem_compat_state"));
	if (bytes != sizeof state)
		return 1;
	CU(cuMemcpyHtoD(at, &state, sizeof state));
	CU(cuModuleGetFunction(&one, module, "one"));
	CU(cuModuleGetFunction(&block, module, "block"));

	uint64_t *w, words[16], previous = (uint64_t)((me + n - 1) % n);
	int *line, failed = -1;
	LS(lshmem_calloc(pe, 512, 8, (void **)&w));
	LS(lshmem_malloc(pe, 4, (void **)&line));
	for (uint64_t i = 0; i < 16; i++)
		words[i] = 1000 * (uint64_t)me + i;
	CU(cuMemcpyHtoD((CUdeviceptr)(w + 200), words, sizeof words));
	LS(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	CU(cuLaunchKernel(one, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&w, &line}, NULL));
	CU(cuCtxSynchronize());
	CU(cuMemcpyDtoH(&failed, (CUdeviceptr)line, 4));
	if (failed) {
		fprintf(stderr, "PE %d: line %d of compat.h\n", me, failed);
		return 1;
	}
	CU(cuLaunchKernel(block, 1, 1, 1, 32, 1, 1, 0, NULL, (void *[]){&w}, NULL));
	CU(cuCtxSynchronize());
	for (int place = 300; place <= 360; place += 20) {
		CU(cuMemcpyDtoH(words, (CUdeviceptr)(w + place), sizeof words));
		for (uint64_t i = 0; i < 16; i++)
			if (words[i] != 1000 * previous + i)
				return fprintf(stderr, "PE %d: block forms at %d\n", me, place), 1;
	}
	LS(lshmem_status(pe));
	LS(lshmem_finalize(pe));
	return 0;
}
