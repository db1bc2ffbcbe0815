// rate: keep a GPU busy with units of known work and report when each was done.
//
//	rate MODE ITERATIONS SECONDS     MODE: async, sync or graph
//	rate calibrate MICROSECONDS      print the iterations that take so long
//
// Prints one line per 50 ms bin of the device's clock: "bin units seconds". A
// unit counts in the bins that its kernel overlapped, in proportion; seconds
// are what its kernels lasted there.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CAPACITY (1 << 20)
#define BIN 50000000ull
#define GRAPH_KERNELS 20

#define CHECK(call)                                                                 \
	do {                                                                        \
		CUresult r_ = (call);                                               \
		if (r_ != CUDA_SUCCESS) {                                           \
			const char *s_ = "?";                                       \
			cuGetErrorString(r_, &s_);                                  \
			fprintf(stderr, "rate: %s: %d %s\n", #call, (int)r_, s_);   \
			exit(1);                                                    \
		}                                                                   \
	} while (0)

static const char ptx[] =
#include "work.ptx.h"
	;

static CUfunction work;
static CUstream stream;
static CUdeviceptr journal;
static int blocks;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void launch(unsigned long long iterations)
{
	unsigned long long capacity = CAPACITY;
	void *params[] = {&iterations, &journal, &capacity};
	CHECK(cuLaunchKernel(work, blocks, 1, 1, 256, 1, 1, 0, stream, params, NULL));
}

static unsigned long long calibrate(double seconds)
{
	unsigned long long iterations = 1000;
	double took = 0;
	for (int i = 0; i < 12; i++) {
		launch(iterations);
		CHECK(cuStreamSynchronize(stream));
		double t = now();
		int n = 1 + (int)(0.05 / seconds);
		for (int k = 0; k < n; k++)
			launch(iterations);
		CHECK(cuStreamSynchronize(stream));
		took = (now() - t) / n;
		iterations = (unsigned long long)(iterations * (seconds / took)) + 1;
	}
	return iterations;
}

int main(int argc, char **argv)
{
	CUdevice device;
	CUcontext context;
	CUmodule module;
	setvbuf(stdout, NULL, _IOLBF, 0); // whole lines, whoever else writes to the same pipe
	if (argc < 3) {
		fprintf(stderr, "usage: rate async|sync|graph ITERATIONS SECONDS | rate calibrate MICROSECONDS\n");
		return 2;
	}
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuDevicePrimaryCtxRetain(&context, device));
	CHECK(cuCtxSetCurrent(context));
	CHECK(cuModuleLoadData(&module, ptx));
	CHECK(cuModuleGetFunction(&work, module, "work"));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuDeviceGetAttribute(&blocks, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
	size_t bytes = 16 + 16ull * CAPACITY;
	CHECK(cuMemAlloc(&journal, bytes));
	CHECK(cuMemsetD8(journal, 0, bytes));
	CHECK(cuCtxSynchronize());
	if (strcmp(argv[1], "calibrate") == 0) {
		printf("%llu\n", calibrate(atof(argv[2]) * 1e-6));
		return 0;
	}
	unsigned long long iterations = strtoull(argv[2], NULL, 10);
	double seconds = argc > 3 ? atof(argv[3]) : 10;
	CUgraphExec exec = NULL;
	if (strcmp(argv[1], "graph") == 0) {
		CUgraph graph;
		CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
		for (int i = 0; i < GRAPH_KERNELS; i++)
			launch(iterations);
		CHECK(cuStreamEndCapture(stream, &graph));
		CHECK(cuGraphInstantiate(&exec, graph, 0));
	}
	// Queue at most a second or so ahead, so that the end is near the limit
	// for an uncapped run too.
	CUevent events[64];
	for (int i = 0; i < 64; i++)
		CHECK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
	double stop = now() + seconds;
	for (unsigned i = 0; now() < stop; i++) {
		if (i >= 64)
			CHECK(cuEventSynchronize(events[i % 64]));
		if (exec != NULL)
			CHECK(cuGraphLaunch(exec, stream));
		else
			launch(iterations);
		if (strcmp(argv[1], "sync") == 0)
			CHECK(cuStreamSynchronize(stream));
		CHECK(cuEventRecord(events[i % 64], stream));
	}
	CHECK(cuStreamSynchronize(stream));
	unsigned long long *log = malloc(bytes);
	CHECK(cuMemcpyDtoH(log, journal, bytes));
	unsigned long long count = log[0] < CAPACITY ? log[0] : CAPACITY, first = ~0ull, last = 0;
	for (unsigned long long i = 0; i < count; i++) {
		if (log[2 + 2 * i] < first)
			first = log[2 + 2 * i];
		if (log[3 + 2 * i] > last)
			last = log[3 + 2 * i];
	}
	if (count == 0)
		return 0;
	unsigned long long from = first / BIN, bins = last / BIN - from + 1;
	double *units = calloc(bins, sizeof *units), *seconds_of = calloc(bins, sizeof *units);
	for (unsigned long long i = 0; i < count; i++) {
		unsigned long long start = log[2 + 2 * i], end = log[3 + 2 * i];
		if (end <= start)
			end = start + 1;
		for (unsigned long long b = start / BIN; b <= (end - 1) / BIN; b++) {
			unsigned long long low = b * BIN > start ? b * BIN : start;
			unsigned long long high = (b + 1) * BIN < end ? (b + 1) * BIN : end;
			units[b - from] += (double)(high - low) / (double)(end - start);
			seconds_of[b - from] += (double)(high - low) * 1e-9;
		}
	}
	for (unsigned long long b = 0; b < bins; b++)
		printf("%llu %.6f %.9f\n", from + b, units[b], seconds_of[b]);
	return 0;
}
