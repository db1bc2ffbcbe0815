/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker KERNELS: a program to be checkpointed from outside. It says "ready" when it has something of everything, and
 * then answers each line of its input:
 *   step    adds one to 1000 numbers on the device, by a kernel in a graph, and prints the first and the last of them,
 *           how often its host function has run, and what a copy to pinned memory has brought
 *   uuid    prints the UUID of its device 0
 *   block   puts work on a stream that does not end before "open"
 *   open    lets it end
 *   error   prints the result of a call
 *   nvml    prints the UUID of device 0 as NVML knows it
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dlfcn.h>

#include <lgpu_cuda.h>

enum { COUNT = 1000, LARGE = 24 << 20 };

#define MUST(call)                                                          \
	do {                                                                \
		CUresult r_ = (call);                                       \
		if (r_ != CUDA_SUCCESS) {                                   \
			fprintf(stderr, "%s: %d\n", #call, r_);             \
			exit(1);                                            \
		}                                                           \
	} while (0)

static int ran;
static CUstream stream;
static CUgraphExec graph;
static CUdeviceptr numbers, large;
static float *pinned;
static unsigned *flag;

static void count(void *arg)
{
	(void)arg;
	ran++;
}

static char *read_file(const char *folder, const char *name)
{
	static char text[1 << 20];
	char path[4096];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", folder, name);
	if (!(f = fopen(path, "r")) || fread(text, 1, sizeof text - 1, f) == 0)
		exit(2);
	fclose(f);
	return text;
}

/* A graph of a kernel, a copy and a host function. */
static void make_graph(const char *kernels)
{
	static float ones[COUNT];
	unsigned n = COUNT;
	float a = 1;
	CUdeviceptr x;
	CUmodule m;
	CUfunction f;
	CUgraph g;
	void *args[] = {&n, &a, &x, &numbers};
	int i;

	for (i = 0; i < COUNT; i++)
		ones[i] = 1;
	MUST(cuMemAlloc(&x, sizeof ones));
	MUST(cuMemAlloc(&numbers, sizeof ones));
	MUST(cuMemcpyHtoD(x, ones, sizeof ones));
	MUST(cuMemsetD32(numbers, 0, COUNT));
	MUST(cuMemHostAlloc((void **)&pinned, sizeof ones, 0));
	MUST(cuModuleLoadData(&m, read_file(kernels, "linear.ptx")));
	MUST(cuModuleGetFunction(&f, m, "saxpy"));
	MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	MUST(cuLaunchKernel(f, (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, stream, args, NULL));
	MUST(cuMemcpyDtoHAsync(pinned, numbers, sizeof ones, stream));
	MUST(cuLaunchHostFunc(stream, count, NULL));
	MUST(cuStreamEndCapture(stream, &g));
	MUST(cuGraphInstantiateWithFlags(&graph, g, 0));
	MUST(cuGraphDestroy(g));
}

static void start(const char *kernels)
{
	CUcontext ctx;

	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&ctx, 0));
	MUST(cuCtxSetCurrent(ctx));
	MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	make_graph(kernels);
	MUST(cuMemAlloc(&large, LARGE));
	MUST(cuMemsetD8(large, 0x5a, LARGE));
	MUST(cuMemHostAlloc((void **)&flag, sizeof *flag, CU_MEMHOSTALLOC_DEVICEMAP));
}

static void step(void)
{
	unsigned char end;

	MUST(cuGraphLaunch(graph, stream));
	MUST(cuStreamSynchronize(stream));
	MUST(cuMemcpyDtoH(&end, large + LARGE - 1, 1));
	printf("%g %g %d %x\n", pinned[0], pinned[COUNT - 1], ran, end);
}

static void print_uuid(void)
{
	CUuuid u;
	size_t i;

	MUST(cuDeviceGetUuid(&u, 0));
	for (i = 0; i < sizeof u; i++)
		printf("%02x", (unsigned char)u.bytes[i]);
	printf("\n");
}

/* NVML as programs use it that are not linked with it. */
static void print_nvml(void)
{
	static void *library;
	int (*handle)(unsigned, void **), (*uuid)(void *, char *, unsigned);
	void *device;
	char text[96];

	if (!library && (!(library = dlopen("libnvidia-ml.so.1", RTLD_NOW)) || ((int (*)(void))dlsym(library, "nvmlInit_v2"))() != 0))
		exit(3);
	*(void **)&handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&uuid = dlsym(library, "nvmlDeviceGetUUID");
	if (handle(0, &device) != 0 || uuid(device, text, sizeof text) != 0)
		exit(4);
	printf("%s\n", text);
}

static void block(void)
{
	CUdeviceptr d;

	*flag = 0;
	MUST(cuMemHostGetDevicePointer(&d, flag, 0));
	MUST(cuStreamWaitValue32(stream, d, 1, CU_STREAM_WAIT_VALUE_EQ));
	printf("blocked\n");
}

int main(int argc, char **argv)
{
	char line[64];
	int n;

	alarm(120);
	if (argc < 2)
		return 2;
	start(argv[1]);
	printf("ready\n");
	for (fflush(stdout); fgets(line, sizeof line, stdin); fflush(stdout)) {
		if (!strcmp(line, "step\n"))
			step();
		else if (!strcmp(line, "uuid\n"))
			print_uuid();
		else if (!strcmp(line, "block\n"))
			block();
		else if (!strcmp(line, "open\n"))
			printf("opened %u\n", *flag = 1);
		else if (!strcmp(line, "error\n"))
			printf("%d\n", cuDeviceGetCount(&n));
		else if (!strcmp(line, "nvml\n"))
			print_nvml();
	}
	return 0;
}
