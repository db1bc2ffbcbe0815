// timeslice state
// timeslice run MICROS TURNS
//
// What a program sees of the time slice of its context. "state" prints what setting and asking for it answers. "run"
// sets it, if MICROS is not -, and launches a kernel that notes, in device time, how long it ran at a stretch and how
// long it stood still then. It prints "set CODE" and the MICROS of each turn and pause but the first turn, which began
// when nobody else was there; TURNS 0 stands for a kernel that never ends, of which "running" is all that is printed.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lgpu_cuda.h"

enum { MAX_TURNS = 1000 };

// The kernel stands still when more than 100 µs pass between two looks at the clock, which are some 10 µs apart.
static const char ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry watch(.param .u64 out, .param .u32 turns) {\n"
	"	.reg .u64 %to, %begin, %last, %now, %d;\n	.reg .u32 %n, %max;\n	.reg .pred %still, %done;\n"
	"	ld.param.u64 %to, [out];\n	ld.param.u32 %max, [turns];\n	mov.u32 %n, 0;\n"
	"	mov.u64 %last, %globaltimer;\n	mov.u64 %begin, %last;\n"
	"LOOK:\n	mov.u64 %now, %globaltimer;\n	sub.u64 %d, %now, %last;\n	setp.gt.u64 %still, %d, 100000;\n"
	"	@%still bra STILL;\n	mov.u64 %last, %now;\n	bra LOOK;\n"
	"STILL:\n	setp.eq.u32 %done, %max, 0;\n	@%done bra NEXT;\n"
	"	st.global.u64 [%to+8], %d;\n	sub.u64 %d, %last, %begin;\n	st.global.u64 [%to], %d;\n	add.u64 %to, %to, 16;\n"
	"	add.u32 %n, %n, 1;\n	setp.eq.u32 %done, %n, %max;\n	@%done bra END;\n"
	"NEXT:\n	mov.u64 %last, %now;\n	mov.u64 %begin, %now;\n	bra LOOK;\n"
	"END:\n	ret;\n}\n";

static CUresult (*set)(CUcontext ctx, uint64_t micros);
static CUresult (*get)(CUcontext ctx, uint64_t *micros);

static void check(CUresult r, const char *what)
{
	if (r == CUDA_SUCCESS)
		return;
	printf("%s %d\n", what, (int)r);
	exit(1);
}

static void *find(const char *name)
{
	void *f = dlsym(RTLD_DEFAULT, name);

	if (!f) {
		printf("%s is not there\n", name);
		exit(1);
	}
	return f;
}

// show prints what asking answers.
static void show(const char *what, CUcontext ctx)
{
	uint64_t micros = 77;
	CUresult r = get(ctx, &micros);

	printf("%s: %d %llu\n", what, (int)r, r == CUDA_SUCCESS ? (unsigned long long)micros : 0);
}

static void answer(const char *what, CUresult r)
{
	printf("%s: %d\n", what, (int)r);
}

static int state(CUdevice device, CUcontext context)
{
	CUcontext more;
	CUdriverProcAddressQueryResult found;
	void *f = NULL;

	show("new", context);
	answer("set 50", set(context, 50));
	show("now", context);
	check(cuCtxCreate(&more, NULL, 0, device), "context");
	show("made later", more);
	answer("set 1000000", set(more, 1000000));
	show("now", more);
	answer("too long", set(more, 1000001));
	answer("of no context", set(NULL, 50));
	show("of no context", NULL);
	answer("to nowhere", get(more, NULL));
	check(cuCtxDestroy(more), "destroy");
	answer("of one that is gone", set(more, 50));
	show("the first", context);
	answer("set 0", set(context, 0));
	show("now", context);
	answer("looked up", cuGetProcAddress("lgpusimSetTimeslice", &f, 13000, 0, &found));
	printf("found: %d\n", f != NULL);
	return 0;
}

static int run(CUcontext context, const char *micros, unsigned turns)
{
	static uint64_t out[MAX_TURNS][2];
	CUmodule module;
	CUfunction watch;
	CUdeviceptr to;
	void *params[] = {&to, &turns};

	if (turns > MAX_TURNS)
		return 2;
	if (strcmp(micros, "-"))
		answer("set", set(context, strtoull(micros, NULL, 10)));
	check(cuModuleLoadData(&module, ptx), "module");
	check(cuModuleGetFunction(&watch, module, "watch"), "function");
	check(cuMemAlloc(&to, sizeof out), "memory");
	check(cuLaunchKernel(watch, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), "launch");
	if (!turns) {
		puts("running");
		fflush(stdout);
		pause();
	}
	check(cuMemcpyDtoH(out, to, sizeof out), "copy");
	for (unsigned i = 1; i < turns; i++)
		printf("%llu %llu\n", (unsigned long long)out[i][0] / 1000, (unsigned long long)out[i][1] / 1000);
	return 0;
}

int main(int argc, char **argv)
{
	CUdevice device;
	CUcontext context;

	*(void **)&set = find("lgpusimSetTimeslice");
	*(void **)&get = find("lgpusimGetTimeslice");
	if (argc == 2)
		answer("before cuInit", set(NULL, 50));
	check(cuInit(0), "init");
	check(cuDeviceGet(&device, 0), "device");
	check(cuDevicePrimaryCtxRetain(&context, device), "context");
	check(cuCtxSetCurrent(context), "current");
	if (argc == 2)
		return state(device, context);
	return argc == 4 ? run(context, argv[2], (unsigned)atoi(argv[3])) : 2;
}
