// hooks LIBLGPU: what the interposer adds to a call, in one process.
//
// The same call is made through the driver's own function and through the
// interposer's, in short rounds that alternate, on one context; so that clocks,
// caches and the driver's moods are the same for both. Prints
// "name native-ns hooked-ns difference-ns" with medians over the rounds.
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 101

#define CHECK(call)                                                              \
	do {                                                                     \
		CUresult r_ = (call);                                            \
		if (r_ != CUDA_SUCCESS) {                                        \
			fprintf(stderr, "hooks: %s: %d\n", #call, (int)r_);      \
			exit(1);                                                 \
		}                                                                \
	} while (0)

struct calls {
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
	CUresult (*synchronize)(CUstream);
	CUresult (*graph)(CUgraphExec, CUstream);
	CUresult (*allocate)(CUdeviceptr *, size_t);
	CUresult (*free)(CUdeviceptr);
	CUresult (*allocate_async)(CUdeviceptr *, size_t, CUstream);
	CUresult (*free_async)(CUdeviceptr, CUstream);
	CUresult (*info)(size_t *, size_t *);
};

static CUfunction nothing;
static CUstream stream;
static CUgraphExec exec;
static size_t size;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void *find(void *library, const char *name)
{
	void *f = dlsym(library, name);
	if (f == NULL) {
		fprintf(stderr, "hooks: no %s\n", name);
		exit(1);
	}
	return f;
}

static struct calls calls_of(void *library)
{
	struct calls c;
	c.launch = find(library, "cuLaunchKernel");
	c.synchronize = find(library, "cuStreamSynchronize");
	c.graph = find(library, "cuGraphLaunch");
	c.allocate = find(library, "cuMemAlloc_v2");
	c.free = find(library, "cuMemFree_v2");
	c.allocate_async = find(library, "cuMemAllocAsync");
	c.free_async = find(library, "cuMemFreeAsync");
	c.info = find(library, "cuMemGetInfo_v2");
	return c;
}

static void do_launch(const struct calls *c) { CHECK(c->launch(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)); }
static void do_launch_sync(const struct calls *c)
{
	do_launch(c);
	CHECK(c->synchronize(stream));
}
static void do_graph(const struct calls *c) { CHECK(c->graph(exec, stream)); }
static void do_allocate(const struct calls *c)
{
	CUdeviceptr p;
	CHECK(c->allocate(&p, size));
	CHECK(c->free(p));
}
static void do_allocate_async(const struct calls *c)
{
	CUdeviceptr p;
	CHECK(c->allocate_async(&p, size, stream));
	CHECK(c->free_async(p, stream));
}
static void do_info(const struct calls *c)
{
	size_t available, total;
	CHECK(c->info(&available, &total));
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void compare(const char *name, int n, void (*call)(const struct calls *), const struct calls *both)
{
	static double took[3][ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		for (int k = 0; k < 2; k++) {
			int which = (round + k) % 2;
			CHECK(both[0].synchronize(stream));
			double t = now();
			for (int i = 0; i < n; i++)
				call(&both[which]);
			took[which][round] = (now() - t) / n;
		}
		took[2][round] = took[1][round] - took[0][round];
	}
	for (int k = 0; k < 3; k++)
		qsort(took[k], ROUNDS, sizeof(double), ascending);
	printf("%s %.0f %.0f %+.0f\n", name, took[0][ROUNDS / 2], took[1][ROUNDS / 2], took[2][ROUNDS / 2]);
}

int main(int argc, char **argv)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";
	if (argc != 2) {
		fprintf(stderr, "usage: hooks LIBLGPU\n");
		return 2;
	}
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *ours = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (driver == NULL || ours == NULL) {
		fprintf(stderr, "hooks: %s\n", dlerror());
		return 1;
	}
	struct calls both[2] = {calls_of(driver), calls_of(ours)};
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUgraph graph;
	// Through the interposer, so that it knows of the context.
	CHECK(((CUresult(*)(unsigned))find(ours, "cuInit"))(0));
	CHECK(((CUresult(*)(CUdevice *, int))find(ours, "cuDeviceGet"))(&device, 0));
	CHECK(((CUresult(*)(CUcontext *, CUdevice))find(ours, "cuDevicePrimaryCtxRetain"))(&context, device));
	CHECK(((CUresult(*)(CUcontext))find(ours, "cuCtxSetCurrent"))(context));
	CHECK(((CUresult(*)(CUmodule *, const void *))find(ours, "cuModuleLoadData"))(&module, ptx));
	CHECK(((CUresult(*)(CUfunction *, CUmodule, const char *))find(ours, "cuModuleGetFunction"))(&nothing, module, "nothing"));
	CHECK(((CUresult(*)(CUstream *, unsigned))find(ours, "cuStreamCreate"))(&stream, 1));
	CHECK(((CUresult(*)(CUstream, int))find(ours, "cuStreamBeginCapture_v2"))(stream, 1));
	do_launch(&both[1]);
	CHECK(((CUresult(*)(CUstream, CUgraph *))find(ours, "cuStreamEndCapture"))(stream, &graph));
	CHECK(((CUresult(*)(CUgraphExec *, CUgraph, unsigned long long))find(ours, "cuGraphInstantiateWithFlags"))(&exec, graph, 0));
	compare("launch", 1000, do_launch, both);
	compare("launch+sync", 300, do_launch_sync, both);
	compare("graph-launch", 1000, do_graph, both);
	size = 1 << 10;
	compare("alloc+free-1KiB", 50, do_allocate, both);
	size = 2 << 20;
	compare("alloc+free-2MiB", 30, do_allocate, both);
	size = 256 << 20;
	compare("alloc+free-256MiB", 10, do_allocate, both);
	size = 1 << 20;
	compare("alloc-async+free", 300, do_allocate_async, both);
	compare("mem-get-info", 100, do_info, both);
	return 0;
}
