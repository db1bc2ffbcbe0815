// launch [N]: how long a program waits in each way to launch, call by call.
// launch loop SECONDS: how many empty kernels a second a program can launch.
//
// Prints "name p50 p99" in ns for N calls each of launch, Ex and graph, less
// what reading the clock takes. The queue is emptied every 128 calls, outside
// what is timed, so that no call waits for room. "paced" is launch with 10 us
// between two, so that the device is never the bottleneck. Loop prints
// "loop launches-per-second", by the time at which the last has ended.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

// Fills took with sorted durations of calls of which each begins so long after the last, at least.
static void measure(void (*call)(void), long long *took, int n, long long every)
{
	long long last = 0;
	for (int i = 0; i < 200; i++)
		call();
	for (int i = 0; i < n; i++) {
		if (i % 128 == 0)
			CHECK(cuStreamSynchronize(stream));
		long long t = now();
		while (t - last < every)
			t = now();
		last = t;
		call();
		took[i] = now() - t;
	}
	CHECK(cuStreamSynchronize(stream));
	qsort(took, n, sizeof *took, ascending);
}

static double loop(double seconds)
{
	long long start, n = 0;
	for (int i = 0; i < 20000; i++)
		call_launch();
	CHECK(cuStreamSynchronize(stream));
	start = now();
	while (now() - start < seconds * 1e9)
		for (int i = 0; i < 100; i++, n++)
			call_launch();
	CHECK(cuStreamSynchronize(stream));
	return n / ((now() - start) * 1e-9);
}

int main(int argc, char **argv)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";
	int loops = argc > 2 && strcmp(argv[1], "loop") == 0, n = argc > 1 && !loops ? atoi(argv[1]) : 20000;
	long long *took = n > 0 ? malloc(n * sizeof *took) : NULL;
	CUdevice device;
	CUgraph graph;
	if (took == NULL) {
		fprintf(stderr, "usage: launch [N] | launch loop SECONDS\n");
		return 2;
	}
	nothing = begin(ptx, "nothing", &device);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (loops) {
		printf("loop %.0f\n", loop(atof(argv[2])));
		return 0;
	}
	config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
	config.hStream = stream;
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	call_launch();
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiate(&exec, graph, 0));
	measure(call_clock, took, n, 0);
	long long empty = took[n / 2];
	static const struct { const char *name; void (*call)(void); long long every; } calls[] = {
		{"launch", call_launch, 0}, {"paced", call_launch, 10000}, {"Ex", call_ex, 0}, {"graph", call_graph, 0},
	};
	for (int i = 0; i < 4; i++) {
		measure(calls[i].call, took, n, calls[i].every);
		printf("%s %lld %lld\n", calls[i].name, took[n / 2] - empty, took[n / 100 * 99] - empty);
	}
	return 0;
}
