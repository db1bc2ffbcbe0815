// calls: what common CUDA calls cost the host. Prints "name ns" lines.
#include <cstdio>
#include <cstdlib>
#include <ctime>

#define CHECK(call)                                                                            \
	do {                                                                                   \
		cudaError_t e_ = (call);                                                       \
		if (e_ != cudaSuccess) {                                                       \
			fprintf(stderr, "calls: %s: %s\n", #call, cudaGetErrorString(e_));     \
			exit(1);                                                               \
		}                                                                              \
	} while (0)

__global__ void nothing() {}

static double now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

template <class F> static void time_of(const char *name, int n, F f)
{
	double best = 1e30;
	for (int round = 0; round < 5; round++) {
		double t = now();
		for (int i = 0; i < n; i++)
			f();
		CHECK(cudaDeviceSynchronize());
		t = (now() - t) / n;
		if (t < best)
			best = t;
	}
	printf("%s %.1f\n", name, best);
}

int main()
{
	cudaStream_t stream;
	void *p;
	CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	nothing<<<1, 1, 0, stream>>>();
	CHECK(cudaDeviceSynchronize());
	time_of("launch", 100000, [&] { nothing<<<1, 1, 0, stream>>>(); });
	time_of("launch+sync", 20000, [&] {
		nothing<<<1, 1, 0, stream>>>();
		CHECK(cudaStreamSynchronize(stream));
	});
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	nothing<<<1, 1, 0, stream>>>();
	CHECK(cudaStreamEndCapture(stream, &graph));
	CHECK(cudaGraphInstantiate(&exec, graph, 0));
	time_of("graph-launch", 50000, [&] { CHECK(cudaGraphLaunch(exec, stream)); });
	for (size_t size : {size_t(1) << 10, size_t(2) << 20, size_t(256) << 20}) {
		char name[64];
		snprintf(name, sizeof name, "malloc+free-%zuKiB", size >> 10);
		time_of(name, 300, [&] {
			CHECK(cudaMalloc(&p, size));
			CHECK(cudaFree(p));
		});
	}
	time_of("malloc-async+free", 20000, [&] {
		CHECK(cudaMallocAsync(&p, 1 << 20, stream));
		CHECK(cudaFreeAsync(p, stream));
	});
	size_t free_bytes, total_bytes;
	time_of("mem-get-info", 2000, [&] { CHECK(cudaMemGetInfo(&free_bytes, &total_bytes)); });
	return 0;
}
