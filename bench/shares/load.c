// load: a program that works on a GPU in the way that it is told, over and over, within one process.
//
// It reads commands, one on each line, and answers each with one line of JSON:
//
//	calibrate MICROSECONDS                        the iterations of a kernel that takes so long
//	run FROM TO flood ITERATIONS DEPTH BATCH      kernels without a pause, DEPTH batches of them queued
//	run FROM TO pulse ITERATIONS PERIOD           a kernel every PERIOD ns, waited for
//	run FROM TO pause ITERATIONS PAUSE            a kernel, waited for, then PAUSE ns without one
//	slice [MICROSECONDS]                          set and read the hardware slice (slices.c, preloaded)
//
// FROM and TO are ns of CLOCK_MONOTONIC, which all processes of a machine share. The program works from now on until TO
// and reports what ended after FROM: pairs of launch and end by the host's clock, in ns from FROM, of each kernel or
// batch. A kernel of 0 iterations is an empty one of a single thread; others fill the device with one wave of blocks.
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "load"
#include "../check.h"

enum { MARKS = 1 << 20, DEPTH = 64, LOG = 1 << 12, SPIN = 60000 };

static const char ptx[] =
#include "work.ptx.h"
	;
static const char empty_ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

typedef long long ns;
typedef unsigned long long count;

static CUfunction work, nothing;
static CUstream stream;
static CUdeviceptr journal; // the kernel's own; nobody reads it here
static CUevent events[DEPTH];
static int blocks;
static struct mark {
	ns begin, end;
} marks[MARKS];
static count marked;

static ns now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// until sleeps, and spins for the last moments: a sleeper wakes up late.
static void until(ns due)
{
	ns early = due - SPIN;
	if (early > now()) {
		struct timespec t = {early / 1000000000, early % 1000000000};
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	}
	while (now() < due)
		;
}

static void launch(count iterations)
{
	count capacity = LOG;
	void *params[] = {&iterations, &journal, &capacity};
	if (iterations == 0)
		CHECK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
	else
		CHECK(cuLaunchKernel(work, blocks, 1, 1, 256, 1, 1, 0, stream, params, NULL));
}

static void mark(ns from, ns begin, ns end)
{
	if (end > from && marked < MARKS)
		marks[marked++] = (struct mark){begin - from, end - from};
}

static void flood(ns from, ns to, count iterations, int depth, int batch)
{
	ns began[DEPTH];
	count first = 0, last = 0; // batches queued: from first up to last
	while (now() < to || first < last) {
		if (last - first == (count)depth || now() >= to) {
			CHECK(cuEventSynchronize(events[first % DEPTH]));
			mark(from, began[first % DEPTH], now());
			first++;
			continue;
		}
		began[last % DEPTH] = now();
		for (int i = 0; i < batch; i++)
			launch(iterations);
		CHECK(cuEventRecord(events[last++ % DEPTH], stream));
	}
}

static void single(ns from, count iterations)
{
	ns begin = now();
	launch(iterations);
	CHECK(cuStreamSynchronize(stream));
	mark(from, begin, now());
}

static void pulse(ns from, ns to, count iterations, ns period)
{
	for (ns due = now(); due < to; due += period) {
		until(due);
		single(from, iterations);
		while (due + period < now()) // what came too late is not made up
			due += period;
	}
}

static void pausing(ns from, ns to, count iterations, ns pause)
{
	while (now() < to) {
		single(from, iterations);
		until(now() + pause);
	}
}

static count calibrate(double seconds)
{
	// From below: a device may be a million times slower than another.
	count iterations = 1;
	for (int i = 0; i < 16; i++) {
		double took = 0;
		int n = 1;
		for (; took <= 0.02 && n <= 1024; n *= 4) {
			ns begin = now();
			for (int k = 0; k < n; k++)
				launch(iterations);
			CHECK(cuStreamSynchronize(stream));
			took = (double)(now() - begin) * 1e-9;
		}
		double factor = seconds / (took / (n / 4));
		if (factor > 0.995 && factor < 1.005)
			break;
		iterations = (count)((double)iterations * (factor < 50 ? factor : 50) + 0.5);
		if (iterations == 0)
			iterations = 1;
	}
	return iterations;
}

static void refuse(const char *line) { printf("{\"error\": \"load: not understood: %.*s\"}\n", (int)strcspn(line, "\"\\\n"), line); }

static void run(const char *line)
{
	ns from, to;
	count iterations, number = 0;
	int batch = 1;
	char how[16];
	if (sscanf(line, "run %lld %lld %15s %llu %llu %d", &from, &to, how, &iterations, &number, &batch) < 5) {
		refuse(line);
		return;
	}
	marked = 0;
	if (strcmp(how, "flood") == 0 && number >= 1 && number <= DEPTH && batch >= 1)
		flood(from, to, iterations, (int)number, batch);
	else if (strcmp(how, "pulse") == 0 && number > 0)
		pulse(from, to, iterations, (ns)number);
	else if (strcmp(how, "pause") == 0)
		pausing(from, to, iterations, (ns)number);
	else {
		refuse(line);
		return;
	}
	printf("{\"marks\": [");
	for (count i = 0; i < marked; i++)
		printf("%s%lld,%lld", i == 0 ? "" : ",", marks[i].begin, marks[i].end);
	printf("]}\n");
}

static void slice(const char *line)
{
	int (*set)(uint64_t, long *) = (int (*)(uint64_t, long *))dlsym(RTLD_DEFAULT, "slices_set");
	uint64_t (*get)(void) = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "slices_get");
	unsigned long long us;
	long status = 0;
	int groups = 0;
	if (set == NULL || get == NULL) {
		printf("{\"error\": \"load: slices.c is not preloaded\"}\n");
		return;
	}
	uint64_t before = get();
	ns begin = now();
	if (sscanf(line, "slice %llu", &us) == 1)
		groups = set(us, &status);
	ns took = now() - begin;
	printf("{\"groups\": %d, \"status\": %ld, \"before\": %llu, \"after\": %llu, \"took_ns\": %lld}\n", groups, status,
	       (unsigned long long)before, (unsigned long long)get(), took);
}

int main(void)
{
	static char line[256];
	CUdevice device;
	CUmodule module;
	double us;

	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	prctl(PR_SET_TIMERSLACK, 1);
	work = begin(ptx, "work", &device);
	CHECK(cuModuleLoadData(&module, empty_ptx));
	CHECK(cuModuleGetFunction(&nothing, module, "nothing"));
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(cuDeviceGetAttribute(&blocks, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
	CHECK(cuMemAlloc(&journal, 16 + 16ull * LOG));
	CHECK(cuMemsetD8(journal, 0, 16 + 16ull * LOG));
	for (int i = 0; i < DEPTH; i++)
		CHECK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
	launch(1); // the first launch is slow
	launch(0);
	CHECK(cuCtxSynchronize());
	printf("{\"ready\": true, \"pid\": %d}\n", (int)getpid());
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) != NULL) {
		if (sscanf(line, "calibrate %lf", &us) == 1)
			printf("{\"iterations\": %llu}\n", calibrate(us * 1e-6));
		else if (strncmp(line, "run ", 4) == 0)
			run(line);
		else if (strncmp(line, "slice", 5) == 0)
			slice(line);
		else
			refuse(line);
		fflush(stdout);
	}
	return 0;
}
