// collective ORDER SECONDS [CYCLES]: kernels on two devices that wait for each other, over and over.
//
//	ORDER    01 or 10: on which device each round is launched first
//	CYCLES   how long each half works before it meets the other; default 20000
//
// A round is one kernel on each device. Each says that it has come and spins until the other has, as the kernels of a
// collective do. Whoever gives such a program one device at a time, and another tenant the other device, stops both for
// ever. Prints "rounds N seconds S longest MS" at the end, longest being the longest time from the launch of a round
// until both halves were over.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROGRAM "collective"
#include "../check.h"

// meet(mine, other, round, cycles): works for so many cycles, writes round to mine, waits until other holds it.
static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry meet(.param .u64 mine, .param .u64 other, .param .u32 round, .param .u64 cycles) {\n"
	"	.reg .u64 %mine, %other, %cycles, %start, %now;\n	.reg .u32 %round, %seen;\n	.reg .pred %more;\n"
	"	ld.param.u64 %mine, [mine];\n	ld.param.u64 %other, [other];\n"
	"	ld.param.u32 %round, [round];\n	ld.param.u64 %cycles, [cycles];\n"
	"	mov.u64 %start, %clock64;\n"
	"WORK:\n	mov.u64 %now, %clock64;\n	sub.u64 %now, %now, %start;\n	setp.lt.u64 %more, %now, %cycles;\n	@%more bra WORK;\n"
	"	membar.sys;\n	st.volatile.global.u32 [%mine], %round;\n	membar.sys;\n"
	"WAIT:\n	ld.volatile.global.u32 %seen, [%other];\n	setp.lt.u32 %more, %seen, %round;\n	@%more bra WAIT;\n	ret;\n}\n";

struct half {
	CUcontext context;
	CUstream stream;
	CUfunction meet;
	CUdeviceptr mine, other;
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	struct half halves[2];
	unsigned *flags;
	int devices;

	if (argc < 3 || (strcmp(argv[1], "01") != 0 && strcmp(argv[1], "10") != 0)) {
		fprintf(stderr, "usage: collective 01|10 SECONDS [CYCLES]\n");
		return 2;
	}
	int first = argv[1][0] - '0';
	double seconds = atof(argv[2]);
	unsigned long long cycles = argc > 3 ? strtoull(argv[3], NULL, 10) : 20000;
	CHECK(cuInit(0));
	CHECK(cuDeviceGetCount(&devices));
	if (devices < 2) {
		fprintf(stderr, "collective: this needs two devices, and sees %d\n", devices);
		return 2;
	}
	for (int i = 0; i < 2; i++) {
		struct half *h = &halves[i];
		CUdevice device;
		CUmodule module;
		CHECK(cuDeviceGet(&device, i));
		CHECK(cuDevicePrimaryCtxRetain(&h->context, device));
		CHECK(cuCtxSetCurrent(h->context));
		CHECK(cuStreamCreate(&h->stream, CU_STREAM_NON_BLOCKING));
		CHECK(cuModuleLoadData(&module, ptx));
		CHECK(cuModuleGetFunction(&h->meet, module, "meet"));
	}
	CHECK(cuMemHostAlloc((void **)&flags, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	memset(flags, 0, 4096);
	for (int i = 0; i < 2; i++) {
		CHECK(cuCtxSetCurrent(halves[i].context));
		CHECK(cuMemHostGetDevicePointer(&halves[i].mine, &flags[64 * i], 0));
		CHECK(cuMemHostGetDevicePointer(&halves[i].other, &flags[64 * (1 - i)], 0));
	}
	double start = now(), longest = 0;
	unsigned round = 0;
	while (now() - start < seconds) {
		double began = now();
		round++;
		for (int k = 0; k < 2; k++) {
			struct half *h = &halves[k ^ first];
			void *params[] = {&h->mine, &h->other, &round, &cycles};
			CHECK(cuCtxSetCurrent(h->context));
			CHECK(cuLaunchKernel(h->meet, 1, 1, 1, 1, 1, 1, 0, h->stream, params, NULL));
		}
		for (int k = 0; k < 2; k++) {
			CHECK(cuCtxSetCurrent(halves[k].context));
			CHECK(cuStreamSynchronize(halves[k].stream));
		}
		if (now() - began > longest)
			longest = now() - began;
	}
	printf("rounds %u seconds %.3f longest %.3f\n", round, now() - start, 1e3 * longest);
	return 0;
}
