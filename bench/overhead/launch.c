// launch [N]: how long a program waits in each way to launch, call by call.
//
// Prints "name p50 p99" in ns for N calls each of launch, Ex and graph, less
// what reading the clock takes. The queue is emptied every 128 calls, outside
// what is timed, so that no call waits for room.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PROGRAM "launch"
#include "../check.h"

static CUfunction nothing;
static CUstream stream;
static CUgraphExec exec;
static CUlaunchConfig config;

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void call_clock(void) {}
static void call_launch(void) { CHECK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)); }
static void call_ex(void) { CHECK(cuLaunchKernelEx(&config, nothing, NULL, NULL)); }
static void call_graph(void) { CHECK(cuGraphLaunch(exec, stream)); }

static int ascending(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;
	return (x > y) - (x < y);
}

// Fills took with sorted durations.
static void measure(void (*call)(void), long long *took, int n)
{
	for (int i = 0; i < 200; i++)
		call();
	for (int i = 0; i < n; i++) {
		if (i % 128 == 0)
			CHECK(cuStreamSynchronize(stream));
		long long t = now();
		call();
		took[i] = now() - t;
	}
	CHECK(cuStreamSynchronize(stream));
	qsort(took, n, sizeof *took, ascending);
}

int main(int argc, char **argv)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";
	int n = argc > 1 ? atoi(argv[1]) : 20000;
	long long *took = n > 0 ? malloc(n * sizeof *took) : NULL;
	CUdevice device;
	CUgraph graph;
	if (took == NULL) {
		fprintf(stderr, "usage: launch [N]\n");
		return 2;
	}
	nothing = begin(ptx, "nothing", &device);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
	config.hStream = stream;
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	call_launch();
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiate(&exec, graph, 0));
	measure(call_clock, took, n);
	long long empty = took[n / 2];
	static const struct { const char *name; void (*call)(void); } calls[] = {
		{"launch", call_launch}, {"Ex", call_ex}, {"graph", call_graph},
	};
	for (int i = 0; i < 3; i++) {
		measure(calls[i].call, took, n);
		printf("%s %lld %lld\n", calls[i].name, took[n / 2] - empty, took[n / 100 * 99] - empty);
	}
	return 0;
}
