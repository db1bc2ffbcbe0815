// The CUDA runtime's allocators against a memory limit. The runtime finds the
// driver by dlopen and cuGetProcAddress.
//
//	nvcc -o memory_runtime bench/memory_runtime.cu
#include <cstdio>
#include <vector>

#include <cuda_runtime.h>

static const size_t chunk = 64 << 20;
static std::vector<void *> held;

template <typename T, typename G> static void fill(const char *name, T take, G give)
{
	size_t free_bytes, total;
	void *p;
	cudaError_t e = cudaSuccess;
	while (held.size() < 4096 && (e = take(&p)) == cudaSuccess)
		held.push_back(p);
	cudaError_t again = cudaGetLastError();
	cudaMemGetInfo(&free_bytes, &total);
	printf("%-16s %4zu x 64 MiB, then %s (%s); shown %zu of %zu MiB used", name, held.size(), cudaGetErrorName(e), cudaGetErrorName(again),
	       (total - free_bytes) >> 20, total >> 20);
	for (void *q : held)
		give(q);
	held.clear();
	cudaDeviceSynchronize();
	cudaMemGetInfo(&free_bytes, &total);
	printf(", then %zu\n", (total - free_bytes) >> 20);
}

int main()
{
	auto give = [](void *p) { cudaFree(p); };
	cudaFree(0);
	fill("cudaMalloc", [](void **p) { return cudaMalloc(p, chunk); }, give);
	fill("cudaMallocPitch", [](void **p) { size_t pitch; return cudaMallocPitch(p, &pitch, 4096, chunk / 4096); }, give);
	fill("cudaMalloc3D", [](void **p) {
		cudaPitchedPtr q;
		cudaError_t e = cudaMalloc3D(&q, make_cudaExtent(4096, 128, chunk / 4096 / 128));
		*p = q.ptr;
		return e;
	}, give);
	fill("cudaMallocArray", [](void **p) {
		cudaChannelFormatDesc d = cudaCreateChannelDesc<float4>();
		return cudaMallocArray((cudaArray_t *)p, &d, 1024, chunk / 16384);
	}, [](void *p) { cudaFreeArray((cudaArray_t)p); });
	fill("cudaMallocAsync", [](void **p) { return cudaMallocAsync(p, chunk, 0); }, [](void *p) { cudaFreeAsync(p, 0); });
	return 0;
}
