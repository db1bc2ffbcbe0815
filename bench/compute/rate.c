// rate: keep a GPU busy with units of known work and report when each was done.
//
//	rate MODE ITERATIONS SECONDS [JOURNAL]   MODE: async, sync, graph, pulse or hold
//	rate calibrate MICROSECONDS              print the iterations that take so long
//	rate units                               print the number of compute units
//
// A kernel has as many blocks as there are units, or RATE_BLOCKS. At most 64
// launches wait, or RATE_DEPTH.
//
// pulse launches one kernel every 10 ms and waits for it; hold launches one and
// then does nothing. The others launch as fast as the device works.
//
// Prints one line per 50 ms bin of the device's clock: "bin units seconds". A
// unit counts in the bins that its kernel overlapped, in proportion; seconds
// are what its kernels lasted there. With JOURNAL nothing is printed, and
// JOURNAL.PID becomes a file of 64-bit numbers: what to add to the device's
// clock for ns of the host's (CLOCK_REALTIME), the number of kernels, start
// and end of each by the device's clock, the number of latencies (pulse: from
// before the launch until it was seen to be done), and these, in ns.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CAPACITY (1 << 20)
#define BIN 50000000ull
#define GRAPH_KERNELS 20

#define PROGRAM "rate"
#include "../check.h"

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

static long long host_ns(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// What to add to the device's clock for CLOCK_REALTIME, from the shortest of a few kernels. They leave no journal.
static long long clock_offset(void)
{
	long long offset = 0, best = -1;
	for (int i = 0; i < 8; i++) {
		unsigned long long log[4];
		CHECK(cuMemsetD8(journal, 0, 16));
		CHECK(cuCtxSynchronize());
		long long before = host_ns(CLOCK_REALTIME);
		launch(1);
		CHECK(cuStreamSynchronize(stream));
		long long after = host_ns(CLOCK_REALTIME);
		CHECK(cuMemcpyDtoH(log, journal, sizeof log));
		if (best < 0 || after - before < best) {
			best = after - before;
			offset = before + (after - before) / 2 - (long long)(log[2] + (log[3] - log[2]) / 2);
		}
	}
	CHECK(cuMemsetD8(journal, 0, 16));
	CHECK(cuCtxSynchronize());
	return offset;
}

static void write_journal(const char *prefix, long long offset, const unsigned long long *log, unsigned long long count,
			  const long long *latencies, unsigned long long pulses)
{
	char path[4096];
	snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
	FILE *f = fopen(path, "wb");
	if (f == NULL || fwrite(&offset, 8, 1, f) != 1 || fwrite(&count, 8, 1, f) != 1 || fwrite(log + 2, 16, count, f) != count ||
	    fwrite(&pulses, 8, 1, f) != 1 || fwrite(latencies, 8, pulses, f) != pulses || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

static unsigned long long calibrate(double seconds)
{
	// From below: a device may be a million times slower than another.
	unsigned long long iterations = 1;
	for (int i = 0; i < 16; i++) {
		int n = 1;
		double took = 0;
		for (;;) {
			double t = now();
			for (int k = 0; k < n; k++)
				launch(iterations);
			CHECK(cuStreamSynchronize(stream));
			took = now() - t;
			if (took > 0.02 || n >= 1024)
				break;
			n *= 4;
		}
		double factor = seconds / (took / n);
		if (factor > 0.995 && factor < 1.005)
			break;
		iterations = (unsigned long long)((double)iterations * (factor < 50 ? factor : 50) + 0.5);
		if (iterations == 0)
			iterations = 1;
	}
	return iterations;
}

int main(int argc, char **argv)
{
	CUdevice device;
	setvbuf(stdout, NULL, _IOLBF, 0); // whole lines, whoever else writes to the same pipe
	if (argc < 3 && !(argc == 2 && strcmp(argv[1], "units") == 0)) {
		fprintf(stderr, "usage: rate async|sync|graph|pulse|hold ITERATIONS SECONDS [JOURNAL] | rate calibrate MICROSECONDS\n");
		return 2;
	}
	work = begin(ptx, "work", &device);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuDeviceGetAttribute(&blocks, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
	if (argc == 2) {
		printf("%d\n", blocks);
		return 0;
	}
	if (getenv("RATE_BLOCKS") != NULL)
		blocks = atoi(getenv("RATE_BLOCKS"));
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
	const char *path = argc > 4 ? argv[4] : NULL;
	int pulse = strcmp(argv[1], "pulse") == 0, hold = strcmp(argv[1], "hold") == 0;
	long long offset = path != NULL ? clock_offset() : 0;
	static long long latencies[1 << 16];
	unsigned long long pulses = 0;
	CUgraphExec exec = NULL;
	if (strcmp(argv[1], "graph") == 0) {
		CUgraph graph;
		CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
		for (int i = 0; i < GRAPH_KERNELS; i++)
			launch(iterations);
		CHECK(cuStreamEndCapture(stream, &graph));
		CHECK(cuGraphInstantiate(&exec, graph, 0));
	}
	// What is queued when the time is over runs on: not much may be.
	CUevent events[64];
	unsigned depth = getenv("RATE_DEPTH") != NULL ? atoi(getenv("RATE_DEPTH")) : 64;
	if (depth < 1 || depth > 64)
		depth = 64;
	for (int i = 0; i < 64; i++)
		CHECK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
	double stop = now() + seconds;
	if (hold) {
		launch(iterations);
		CHECK(cuStreamSynchronize(stream));
		usleep((useconds_t)(seconds * 1e6));
	}
	for (long long due = host_ns(CLOCK_MONOTONIC); pulse && now() < stop; due += 10000000) {
		struct timespec t = {due / 1000000000, due % 1000000000};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
		long long before = host_ns(CLOCK_MONOTONIC);
		launch(iterations);
		CHECK(cuStreamSynchronize(stream));
		long long after = host_ns(CLOCK_MONOTONIC);
		if (pulses < sizeof latencies / sizeof *latencies)
			latencies[pulses++] = after - before;
		while (due + 10000000 < after) // what came too late is not made up
			due += 10000000;
	}
	for (unsigned i = 0; !pulse && !hold && now() < stop; i++) {
		if (i >= depth)
			CHECK(cuEventSynchronize(events[(i - depth) % 64]));
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
	unsigned long long count = log[0] < CAPACITY ? log[0] : CAPACITY;
	if (path != NULL) {
		write_journal(path, offset, log, count, latencies, pulses);
		return 0;
	}
	unsigned long long first = ~0ull, last = 0;
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
