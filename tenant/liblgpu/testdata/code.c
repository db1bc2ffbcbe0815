// SPDX-License-Identifier: Apache-2.0

// code IMAGE STEP...: loads the image in IMAGE in one way after another. But for "stacks" it has a kernel "nop" without
// parameters and a variable "big". Each step prints what it was, the driver's answer, and what the lgpu shows as used
// after it, in MiB.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"

static CUdevice device;
static const char *path;
static char *image;
static CUlibrary library;

// read_image puts a zero behind what is in the file.
static void read_image(void)
{
	FILE *f = fopen(path, "r");
	long size = f != NULL && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
	image = size >= 0 ? calloc(1, (size_t)size + 1) : NULL;
	if (image == NULL || fseek(f, 0, SEEK_SET) != 0 || fread(image, 1, (size_t)size, f) != (size_t)size)
		exit(2);
	fclose(f);
}

static CUresult load(void) { return cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0); }

static CUkernel kernel(void)
{
	CUkernel k;
	MUST(cuLibraryGetKernel(&k, library, "nop"));
	return k;
}

// ---- first uses of a library

static CUresult use_module(void)
{
	CUmodule m;
	return cuLibraryGetModule(&m, library);
}

static CUresult use_global(void)
{
	CUdeviceptr p;
	size_t bytes;
	return cuLibraryGetGlobal(&p, &bytes, library, "big");
}

static CUresult use_function(void)
{
	CUfunction f;
	return cuKernelGetFunction(&f, kernel());
}

static CUresult use_enumerated(void)
{
	CUfunction f;
	CUkernel k;
	MUST(cuLibraryEnumerateKernels(&k, 1, library));
	return cuKernelGetFunction(&f, k);
}

static CUresult use_launch(void) { return cuLaunchKernel((CUfunction)kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }

static CUresult use_launch_ptsz(void) { return cuLaunchKernel_ptsz((CUfunction)kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); }

static CUresult use_cooperative(void)
{
	return cuLaunchCooperativeKernel((CUfunction)kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, NULL);
}

static CUresult use_cooperative_ptsz(void)
{
	return cuLaunchCooperativeKernel_ptsz((CUfunction)kernel(), 1, 1, 1, 1, 1, 1, 0, NULL, NULL);
}

static CUlaunchConfig one(void)
{
	CUlaunchConfig c;
	memset(&c, 0, sizeof c);
	c.gridDimX = c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1;
	return c;
}

static CUresult use_configured(void)
{
	CUlaunchConfig c = one();
	return cuLaunchKernelEx(&c, (CUfunction)kernel(), NULL, NULL);
}

static CUresult use_configured_ptsz(void)
{
	CUlaunchConfig c = one();
	return cuLaunchKernelEx_ptsz(&c, (CUfunction)kernel(), NULL, NULL);
}

static const struct {
	const char *name;
	CUresult (*use)(void);
} uses[] = {
	{"cuLibraryGetModule", use_module}, {"cuLibraryGetGlobal", use_global}, {"cuKernelGetFunction", use_function},
	{"cuLibraryEnumerateKernels", use_enumerated}, {"cuLaunchKernel", use_launch}, {"cuLaunchKernel_ptsz", use_launch_ptsz},
	{"cuLaunchCooperativeKernel", use_cooperative}, {"cuLaunchCooperativeKernel_ptsz", use_cooperative_ptsz},
	{"cuLaunchKernelEx", use_configured}, {"cuLaunchKernelEx_ptsz", use_configured_ptsz},
};
#define USES (sizeof uses / sizeof uses[0])

// Every first use of a library of its own.
static void each_use(void)
{
	for (size_t i = 0; i < USES; i++) {
		say("load", load());
		say(uses[i].name, uses[i].use());
		MUST(cuCtxSynchronize());
		say("unload", cuLibraryUnload(library));
	}
}

// All uses of one library, in two contexts.
static void all_uses(void)
{
	CUcontext second, popped;
	long after;
	say("load", load());
	say(uses[0].name, uses[0].use());
	after = used();
	for (size_t i = 0; i < USES; i++) {
		MUST(uses[i].use());
		if (used() != after)
			say(uses[i].name, CUDA_SUCCESS);
	}
	MUST(cuCtxSynchronize());
	say("second context", cuCtxCreate_v2(&second, 0, device));
	say("use", use_function());
	say("use", use_global());
	MUST(cuCtxPopCurrent_v2(&popped));
	say("end", cuCtxDestroy_v2(second));
	say("second context", cuCtxCreate_v2(&second, 0, device));
	say("use", use_launch());
	MUST(cuCtxSynchronize());
	say("unload", cuLibraryUnload(library));
	MUST(cuCtxPopCurrent_v2(&popped));
	say("end", cuCtxDestroy_v2(second));
}

static void modules(void)
{
	CUmodule m;
	say("cuModuleLoad", cuModuleLoad(&m, path));
	say("cuModuleLoadData", cuModuleLoadData(&m, image));
	say("cuModuleLoadDataEx", cuModuleLoadDataEx(&m, image, 0, NULL, NULL));
	say("cuModuleLoadFatBinary", cuModuleLoadFatBinary(&m, image));
}

static void module(void)
{
	CUmodule m;
	say("load", cuModuleLoadData(&m, image));
	say("unload", cuModuleUnload(m));
}

// A first use of what cannot be read off the image fails; nothing else is granted until it is gone.
static void late(void)
{
	CUdeviceptr p;
	say("load", load());
	say("use", use_global());
	say("allocate", cuMemAlloc_v2(&p, 4 * MIB));
	say("unload", cuLibraryUnload(library));
	say("allocate", cuMemAlloc_v2(&p, 4 * MIB));
}

// Stacks of "small" and "large", two kernels of the image.
static CUresult launch(CUfunction f)
{
	CUresult r = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	return r == CUDA_SUCCESS ? cuCtxSynchronize() : r;
}

static CUfunction function(CUmodule m, const char *name)
{
	CUfunction f;
	MUST(cuModuleGetFunction(&f, m, name));
	return f;
}

static CUfunction library_kernel(const char *name)
{
	CUkernel k;
	MUST(cuLibraryGetKernel(&k, library, name));
	return (CUfunction)k;
}

static void stacks(void)
{
	CUmodule m;
	say("load", cuModuleLoadData(&m, image));
	say("limit of 16 KiB", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16 << 10));
	say("limit of 64 KiB", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 64 << 10));
	say("limit of 1 KiB", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1 << 10));
	say("large", launch(function(m, "large")));
	say("small", launch(function(m, "small")));
	say("limit of 1 KiB", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1 << 10));
	say("library", load());
	say("use", use_module());
	say("large", launch(library_kernel("large")));
	say("small", launch(library_kernel("small")));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} steps[] = {
		{"each", each_use}, {"all", all_uses}, {"modules", modules}, {"module", module}, {"late", late},
		{"stacks", stacks},
	};
	CUcontext context;
	if (argc < 2)
		return 2;
	path = argv[1];
	read_image();
	MUST(cuInit(0));
	MUST(cuDeviceGet(&device, 0));
	MUST(cuDevicePrimaryCtxRetain(&context, device));
	MUST(cuCtxSetCurrent(context));
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 2; i < argc; i++) {
		if (strcmp(argv[i], "load") == 0)
			say("load", load());
		for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++)
			if (strcmp(argv[i], steps[k].name) == 0)
				steps[k].run();
	}
	return 0;
}
