// gate CONTROL.PTX: every way to launch work. Prints the name of each step when its work is done, and waits for a line of
// input, so that the lgpu's accounts can be read.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "try.h"

static void report(const char *step)
{
	char line[8];
	TRY(cuCtxSynchronize());
	puts(step);
	if (fgets(line, sizeof line, stdin) == NULL)
		exit(1);
}

// A kernel that writes 1 to *flag at once: it waits for a word to be what it is.
static CUfunction wait_flag;
static CUdeviceptr words; // always 0, flag, flag, done

static void wait_for(CUstream stream, CUdeviceptr flag, unsigned value, CUdeviceptr done)
{
	void *params[] = {&flag, &value, &done};
	TRY(cuLaunchKernel(wait_flag, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

// Kernels in flight that wait for kernels not yet launched: the gate must not hold those back for ever.
static void mutual(void)
{
	CUstream a, b, c;
	TRY(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	TRY(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING));
	TRY(cuMemAlloc(&words, 16));
	TRY(cuMemsetD8(words, 0, 16));
	TRY(cuCtxSynchronize());
	wait_for(a, words + 4, 1, words + 12);
	wait_for(b, words + 8, 1, words + 12);
	wait_for(c, words, 0, words + 4);
	wait_for(c, words, 0, words + 8);
	report("mutual");
}

// An end of a capture that fails is no end of it: the next capture is recognised all the same.
static void failed_capture(CUstream stream, CUfunction spin, void **params)
{
	CUstream joined;
	CUevent event;
	CUgraph graph;
	TRY(cuStreamCreate(&joined, CU_STREAM_NON_BLOCKING));
	TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	TRY(cuEventRecord(event, stream));
	TRY(cuStreamWaitEvent(joined, event, 0));
	if (cuStreamEndCapture(joined, &graph) == CUDA_SUCCESS)
		printf("a capture was ended on a stream that it did not begin on\n");
	cuStreamEndCapture(stream, &graph); // broken by then, or not
	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int k = 0; k < 3; k++)
		TRY(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	TRY(cuStreamEndCapture(stream, &graph));
	report("failed-capture");
}

int main(int argc, char **argv)
{
	CUdevice device;
	CUcontext context, other;
	CUmodule module;
	CUfunction spin;
	CUstream stream;
	CUgraph graph;
	CUgraphExec exec;
	static char ptx[1 << 20];
	unsigned long long ns = 20000000; // long, beside what a busy host delays
	void *params[] = {&ns};
	FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
	if (f == NULL || fread(ptx, 1, sizeof ptx - 1, f) == 0)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	// Calls before a successful cuInit fail and must not be held against the process later.
	if (cuInit(1) == CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS)
		printf("the driver works before cuInit\n");
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	TRY(cuDevicePrimaryCtxRetain(&context, device));
	TRY(cuCtxSetCurrent(context));
	TRY(cuModuleLoadData(&module, ptx));
	TRY(cuModuleGetFunction(&spin, module, "spin"));
	TRY(cuModuleGetFunction(&wait_flag, module, "wait_flag"));
	TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	report("nothing");

	for (int i = 0; i < 3; i++)
		TRY(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	report("kernel");
	TRY(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	report("default-stream");
	CUresult (*per_thread)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
	TRY(cuGetProcAddress("cuLaunchKernel", (void **)&per_thread, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
	TRY(per_thread(spin, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	report("per-thread-stream");
	CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .hStream = stream};
	TRY(cuLaunchKernelEx(&config, spin, params, NULL));
	report("ex");
	TRY(cuLaunchCooperativeKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params));
	report("cooperative");

	TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 5; i++)
		TRY(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	TRY(cuStreamEndCapture(stream, &graph));
	report("capture");
	failed_capture(stream, spin, params);
	TRY(cuGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 2; i++)
		TRY(cuGraphLaunch(exec, stream));
	report("graph");

	if (cuLaunchKernel(spin, 0, 1, 1, 32, 1, 1, 0, stream, params, NULL) != CUDA_ERROR_INVALID_VALUE)
		printf("a grid of no blocks was accepted\n");
	report("refused");
	mutual();

	TRY(cuCtxCreate(&other, NULL, 0, device));
	TRY(cuModuleLoadData(&module, ptx));
	TRY(cuModuleGetFunction(&spin, module, "spin"));
	ns = 50000000;
	TRY(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	TRY(cuCtxDestroy(other)); // with work in flight, which it waits for
	TRY(cuCtxSetCurrent(context));
	report("destroyed-context");
	wait_for(stream, words, 0, words + 4);
	report("after");
	return 0;
}
