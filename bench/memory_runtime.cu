// The CUDA runtime's allocators against a memory limit. The runtime finds the
// driver by dlopen and cuGetProcAddress.
//
//	nvcc -o memory_runtime bench/memory_runtime.cu
#include <cstdio>

#include <cuda_runtime.h>

static const size_t chunk = 64 << 20;

template <typename F> static void fill(const char *name, F take)
{
	size_t free_bytes, total;
	int n = 0;
	cudaError_t e = cudaSuccess;
	while (n < 4096 && (e = take()) == cudaSuccess)
		n++;
	cudaError_t again = cudaGetLastError();
	cudaMemGetInfo(&free_bytes, &total);
	printf("%-18s %5d x 64 MiB, then %s (%s); shown %zu of %zu MiB used\n", name, n, cudaGetErrorName(e), cudaGetErrorName(again),
	       (total - free_bytes) >> 20, total >> 20);
	cudaDeviceReset();
}

int main()
{
	void *p;
	cudaFree(0);
	fill("cudaMalloc", [&] { return cudaMalloc(&p, chunk); });
	fill("cudaMallocAsync", [&] { return cudaMallocAsync(&p, chunk, 0); });
	fill("cudaMallocPitch", [&] { size_t pitch; return cudaMallocPitch(&p, &pitch, 4096, chunk / 4096); });
	fill("cudaMallocArray", [&] {
		cudaArray_t a;
		cudaChannelFormatDesc d = cudaCreateChannelDesc<float4>();
		return cudaMallocArray(&a, &d, 1024, chunk / 16384);
	});
	fill("cudaMalloc3D", [&] { cudaPitchedPtr q; return cudaMalloc3D(&q, make_cudaExtent(4096, 128, chunk / 4096 / 128)); });
	return 0;
}
