// namespace loads the driver into a namespace of the loader of its own, where it has a libc of its own, and uses a device. Other
// threads, all of the driver's libraries, must not come to the malloc of this program's libc, which takes no lock: it knows of
// one thread. It prints how often they did.
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "lgpu_cuda.h"

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void __libc_free(void *old);

static int others;

// note counts calls that another thread than the first makes.
static void note(void)
{
	if (gettid() != getpid())
		__atomic_add_fetch(&others, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t size)
{
	note();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	note();
	return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
	note();
	return __libc_realloc(old, size);
}

void free(void *old)
{
	note();
	__libc_free(old);
}

static void nothing(void *unused) { (void)unused; }

int main(void)
{
	void *library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
	if (library == NULL) {
		printf("%s\n", dlerror());
		return 3;
	}
	CUresult (*init)(unsigned) = (CUresult (*)(unsigned))dlsym(library, "cuInit");
	CUresult (*create)(CUcontext *, unsigned, CUdevice) =
		(CUresult (*)(CUcontext *, unsigned, CUdevice))dlsym(library, "cuCtxCreate_v2");
	CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult (*)(CUdeviceptr *, size_t))dlsym(library, "cuMemAlloc_v2");
	CUresult (*launch_host)(CUstream, void (*)(void *), void *) =
		(CUresult (*)(CUstream, void (*)(void *), void *))dlsym(library, "cuLaunchHostFunc");
	CUresult (*synchronize)(void) = (CUresult (*)(void))dlsym(library, "cuCtxSynchronize");
	CUcontext context;
	CUdeviceptr memory;
	if (init(0) != CUDA_SUCCESS || create(&context, 0, 0) != CUDA_SUCCESS || alloc(&memory, (size_t)2 << 30) == CUDA_SUCCESS ||
	    alloc(&memory, (size_t)256 << 20) != CUDA_SUCCESS || launch_host(NULL, nothing, NULL) != CUDA_SUCCESS ||
	    synchronize() != CUDA_SUCCESS) {
		printf("the device cannot be used\n");
		return 3;
	}
	printf("others: %d\n", __atomic_load_n(&others, __ATOMIC_RELAXED));
	return 0;
}
