// grab tries to get 2 GiB of device memory, and 256 MiB, in the way that its first argument names. It prints "bounded"
// if it gets only the latter.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "lgpu_cuda.h"

static int judge(void *library)
{
	CUresult (*init)(unsigned) = (CUresult (*)(unsigned))dlsym(library, "cuInit");
	CUresult (*create)(CUcontext *, unsigned, CUdevice) =
		(CUresult (*)(CUcontext *, unsigned, CUdevice))dlsym(library, "cuCtxCreate_v2");
	CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult (*)(CUdeviceptr *, size_t))dlsym(library, "cuMemAlloc_v2");
	CUcontext context;
	CUdeviceptr memory;
	if (init == NULL || create == NULL || alloc == NULL) {
		printf("no driver\n");
		return 3;
	}
	CUresult r = init(0);
	if (r != CUDA_SUCCESS || (r = create(&context, 0, 0)) != CUDA_SUCCESS) {
		printf("no device: %d\n", (int)r);
		return 3;
	}
	CUresult large = alloc(&memory, (size_t)2 << 30), small = alloc(&memory, (size_t)256 << 20);
	printf("%s: 2 GiB %d, 256 MiB %d\n", large == CUDA_ERROR_OUT_OF_MEMORY && small == CUDA_SUCCESS ? "bounded" : "not bounded",
	       (int)large, (int)small);
	return large != CUDA_ERROR_OUT_OF_MEMORY || small != CUDA_SUCCESS;
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "";
	void *library;
	if (strcmp(way, "both") == 0 && dlopen("libnvidia-ml.so.1", RTLD_NOW) == NULL) {
		printf("%s\n", dlerror());
		return 3;
	}
	if (strcmp(way, "plugin") == 0) { // a library linked to libcuda.so.1, with its own symbols first
		library = dlopen(argv[2], RTLD_NOW | RTLD_DEEPBIND);
	} else if (strcmp(way, "deepbind") == 0) {
		library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
	} else if (strcmp(way, "dlmopen") == 0) {
		library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
	} else {
		library = dlopen("libcuda.so.1", RTLD_NOW);
	}
	if (library == NULL) {
		printf("%s\n", dlerror());
		return 3;
	}
	return judge(library);
}
