// launch: what launches cost a program, measured over and over within one process.
//
// It reads commands, one on each line, and answers each with one line of JSON:
//
//	loop SECONDS  how many empty kernels a second it can launch, by the time at which the last has ended
//	calls N       p50 and p99 in ns of N calls each of launch, paced, Ex and graph, less what reading the clock takes
//
// The queue is emptied every 128 calls, outside what is timed, so that no call waits for room. paced is launch with 10 us
// between two, so that the device is never the bottleneck.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PROGRAM "launch"
#include "../check.h"

enum { MOST = 1 << 20 };

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
	for (int i = 0; i < 5000; i++)
		call_launch();
	CHECK(cuStreamSynchronize(stream));
	start = now();
	while (now() - start < seconds * 1e9)
		for (int i = 0; i < 100; i++, n++)
			call_launch();
	CHECK(cuStreamSynchronize(stream));
	return n / ((now() - start) * 1e-9);
}

static void calls(long long *took, int n)
{
	static const struct { const char *name; void (*call)(void); long long every; } calls[] = {
		{"launch", call_launch, 0}, {"paced", call_launch, 10000}, {"Ex", call_ex, 0}, {"graph", call_graph, 0},
	};
	measure(call_clock, took, n, 0);
	long long empty = took[n / 2];
	for (int i = 0; i < 4; i++) {
		measure(calls[i].call, took, n, calls[i].every);
		printf("%s\"%s\": [%lld, %lld]", i == 0 ? "{" : ", ", calls[i].name, took[n / 2] - empty, took[(long long)n * 99 / 100] - empty);
	}
	printf("}\n");
}

int main(void)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";
	static long long took[MOST];
	char line[64];
	CUdevice device;
	CUgraph graph;
	nothing = begin(ptx, "nothing", &device);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
	config.hStream = stream;
	CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	call_launch();
	CHECK(cuStreamEndCapture(stream, &graph));
	CHECK(cuGraphInstantiate(&exec, graph, 0));
	loop(0.1); // the first launches are slow
	printf("{\"ready\": true}\n");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) != NULL) {
		double seconds;
		int n;
		if (sscanf(line, "loop %lf", &seconds) == 1)
			printf("{\"loop\": %.0f}\n", loop(seconds));
		else if (sscanf(line, "calls %d", &n) == 1 && n >= 100 && n <= MOST)
			calls(took, n);
		else
			printf("{\"error\": \"launch: not understood\"}\n");
		fflush(stdout);
	}
	return 0;
}
