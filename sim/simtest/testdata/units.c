// units BLOCKS: which compute units the blocks of a launch see themselves on.
//
// Prints "init CODE" where cuInit fails, else "count N" (the device's units as the program sees them), then "launch CODE"
// where the launch fails, else "nsmid N" and "unit K" for each unit that ran a block.
#include <stdio.h>
#include <stdlib.h>

#include "lgpu_cuda.h"

enum { BLOCKS = 256 };

static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry units(.param .u64 out) {\n"
	"	.reg .u64 %at, %out;\n	.reg .u32 %block, %unit, %n, %i;\n	.reg .pred %more;\n"
	"	ld.param.u64 %out, [out];\n	mov.u32 %block, %ctaid.x;\n	mov.u32 %unit, %smid;\n	mov.u32 %n, %nsmid;\n"
	"	mul.wide.u32 %at, %block, 8;\n	add.u64 %at, %at, %out;\n	st.global.u32 [%at], %unit;\n	st.global.u32 [%at+4], %n;\n"
	"	mov.u32 %i, 50;\n"
	"LOOP:\n	sub.u32 %i, %i, 1;\n	setp.ne.u32 %more, %i, 0;\n	@%more bra LOOP;\n	ret;\n}\n";

static void check(CUresult r, const char *what)
{
	if (r == CUDA_SUCCESS)
		return;
	printf("%s %d\n", what, (int)r);
	exit(0);
}

int main(void)
{
	unsigned out[BLOCKS][2] = {{0}};
	unsigned char seen[4096] = {0};
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction units;
	CUdeviceptr to;
	void *params[] = {&to};
	int count;

	check(cuInit(0), "init");
	check(cuDeviceGet(&device, 0), "device");
	check(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), "attribute");
	printf("count %d\n", count);
	check(cuDevicePrimaryCtxRetain(&context, device), "context");
	check(cuCtxSetCurrent(context), "current");
	check(cuModuleLoadData(&module, ptx), "module");
	check(cuModuleGetFunction(&units, module, "units"), "function");
	check(cuMemAlloc(&to, sizeof out), "memory");
	check(cuLaunchKernel(units, BLOCKS, 1, 1, 1024, 1, 1, 0, NULL, params, NULL), "launch");
	check(cuMemcpyDtoH(out, to, sizeof out), "copy");
	printf("nsmid %u\n", out[0][1]);
	for (int i = 0; i < BLOCKS; i++)
		if (out[i][0] < sizeof seen)
			seen[out[i][0]] = 1;
	for (unsigned i = 0; i < sizeof seen; i++)
		if (seen[i])
			printf("unit %u\n", i);
	return 0;
}
