/* SPDX-License-Identifier: Apache-2.0 */
/* Modules that are not one plain text: fat binaries, linked ones; and what a source asks of the compiler. */
#define _GNU_SOURCE
#include "suite.h"

#include <stdarg.h>
#include <unistd.h>

#define PTX(text) ".version 7.0\n.target sm_70\n.address_size 64\n" text

static unsigned word_at(CUdeviceptr p)
{
	unsigned v;

	OK(cuMemcpyDtoH(&v, p, sizeof v));
	return v;
}

/* A kernel "k" that stores one word. */
static const char stores[] = PTX(".visible .entry k(.param .u64 out) {\n"
				 ".reg .b64 o; .reg .b32 v;\n"
				 "ld.param.u64 o, [out];\n"
				 "mov.u32 v, WARP_SZ;\n"
				 "add.u32 v, v, 10;\n"
				 "st.global.u32 [o], v;\n"
				 "ret; }\n");

static void check_stores(CUmodule m, unsigned want)
{
	CUdeviceptr out;
	CUfunction f;

	OK(cuModuleGetFunction(&f, m, "k"));
	OK(cuMemAlloc(&out, 4));
	OK(cuMemsetD32(out, 0, 1));
	LAUNCH(f, 1, 1, NULL, &out);
	OK(cuCtxSynchronize());
	EQUAL(word_at(out), want);
	OK(cuMemFree(out));
}

CASE(module_warp_size)
{
	CUmodule m;

	suite_context();
	OK(cuModuleLoadData(&m, stores));
	check_stores(m, 42);
}

/* A fat binary of one plain entry, as sim/fatbin describes it, and the wrapper that nvcc's code has. */
struct fat {
	uint32_t magic;
	uint16_t version, size;
	uint64_t bytes;
	struct {
		uint16_t kind, version;
		uint32_t size;
		uint64_t bytes;
		uint32_t compressed, unknown;
		uint16_t minor, major;
		uint32_t arch, name, name_length;
		uint64_t flags, zero, decompressed;
	} entry;
	char data[1024];
};

struct wrapper {
	uint32_t magic, version;
	const void *data, *more;
};

static void make_fat(struct fat *fat, int kind, unsigned arch, const char *data, size_t n)
{
	size_t padded = (n + 8) & ~(size_t)7;

	memset(fat, 0, sizeof *fat);
	CHECK(padded <= sizeof fat->data);
	fat->magic = 0xba55ed50;
	fat->version = 1;
	fat->size = 16;
	fat->bytes = sizeof fat->entry + padded;
	fat->entry.kind = (uint16_t)kind;
	fat->entry.version = 0x101;
	fat->entry.size = sizeof fat->entry;
	fat->entry.bytes = padded;
	fat->entry.minor = 0;
	fat->entry.major = 7;
	fat->entry.arch = arch;
	fat->entry.flags = 0x11;
	memcpy(fat->data, data, n);
}

CASE(module_fat_binary)
{
	struct wrapper wrapper = {0x466243b1, 1, NULL, NULL};
	char path[] = "/tmp/lgpu-suite-XXXXXX";
	CUlibrary library;
	CUkernel kernel;
	struct fat fat;
	CUmodule m;
	int fd;

	suite_context();
	make_fat(&fat, 1, 70, stores, strlen(stores));
	wrapper.data = &fat;
	OK(cuModuleLoadFatBinary(&m, &wrapper));
	check_stores(m, 42);
	OK(cuModuleUnload(m));
	OK(cuModuleLoadData(&m, &fat));
	check_stores(m, 42);
	OK(cuModuleLoadDataEx(&m, &wrapper, 0, NULL, NULL));
	check_stores(m, 42);
	OK(cuLibraryLoadData(&library, &wrapper, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, "k"));
	OK(cuLibraryUnload(library));
	CHECK((fd = mkstemp(path)) >= 0);
	CHECK(write(fd, &fat, sizeof fat) == sizeof fat);
	close(fd);
	OK(cuModuleLoad(&m, path));
	unlink(path);
	check_stores(m, 42);
	make_fat(&fat, 2, 20, "\177ELF", 4);
	RETURNS(cuModuleLoadFatBinary(&m, &wrapper), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

/* Calls a function of another unit with 5 and adds a variable of a third. */
static const char calls[] = PTX(".extern .func (.param .b32 r) f (.param .b32 x);\n"
				".extern .global .align 4 .u32 v;\n"
				".visible .entry k(.param .u64 out) {\n"
				".reg .b32 a<4>; .reg .b64 o;\n"
				".param .b32 x0; .param .b32 r0;\n"
				"ld.param.u64 o, [out];\n"
				"mov.u32 a3, 5;\n"
				"st.param.b32 [x0], a3;\n"
				"call.uni (r0), f, (x0);\n"
				"ld.param.b32 a1, [r0];\n"
				"ld.global.u32 a2, [v];\n"
				"add.u32 a1, a1, a2;\n"
				"st.global.u32 [o], a1;\n"
				"ret; }\n");
static const char called[] = PTX(".visible .func (.param .b32 r) f (.param .b32 x) {\n"
				 ".reg .b32 a<4>;\n"
				 "ld.param.b32 a1, [x];\n"
				 "mul.lo.u32 a1, a1, 7;\n"
				 "st.param.b32 [r], a1;\n"
				 "ret; }\n");
static const char weakly[] = PTX(".weak .func (.param .b32 r) f (.param .b32 x) {\n"
				 ".reg .b32 a<4>;\n"
				 "mov.u32 a1, 1;\n"
				 "st.param.b32 [r], a1;\n"
				 "ret; }\n");
static const char variable[] = PTX(".visible .global .align 4 .u32 v = 100;\n");

/* Links texts, up to a NULL; the image is the linker's, and the log has what it said. */
static CUresult link_all(CUlinkState *state, void **image, size_t *size, char *log, unsigned room, ...)
{
	CUjit_option keys[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)(uintptr_t)room};
	const char *text;
	CUresult r = CUDA_SUCCESS;
	va_list ap;
	char name[] = "unit-a";

	OK(cuLinkCreate(2, keys, values, state));
	va_start(ap, room);
	while (r == CUDA_SUCCESS && (text = va_arg(ap, const char *)) != NULL) {
		r = cuLinkAddData(*state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)text, strlen(text) + 1, name, 0, NULL, NULL);
		name[5]++;
	}
	va_end(ap);
	return r != CUDA_SUCCESS ? r : cuLinkComplete(*state, image, size);
}

CASE(module_link)
{
	char log[4096] = "";
	CUlinkState state;
	struct fat fat;
	CUmodule m;
	void *image;
	size_t size;

	suite_context();
	OK(link_all(&state, &image, &size, log, sizeof log, calls, called, variable, NULL));
	OK(cuModuleLoadData(&m, image));
	OK(cuLinkDestroy(state));
	check_stores(m, 135);
	OK(link_all(&state, &image, &size, log, sizeof log, weakly, calls, called, variable, NULL));
	OK(cuModuleLoadData(&m, image));
	OK(cuLinkDestroy(state));
	check_stores(m, 135);

	/* An input may be a fat binary. */
	make_fat(&fat, 1, 70, called, strlen(called));
	OK(cuLinkCreate(0, NULL, NULL, &state));
	OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)calls, sizeof calls, "calls", 0, NULL, NULL));
	OK(cuLinkAddData(state, CU_JIT_INPUT_FATBINARY, &fat, sizeof fat, "called", 0, NULL, NULL));
	OK(cuLinkAddData(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)variable, sizeof variable, "variable", 0, NULL, NULL));
	OK(cuLinkComplete(state, &image, &size));
	OK(cuModuleLoadData(&m, image));
	OK(cuLinkDestroy(state));
	check_stores(m, 135);
}

CASE(module_link_errors)
{
	char log[4096] = "";
	CUlinkState state;
	void *image;
	size_t size;

	suite_context();
	CHECK(link_all(&state, &image, &size, log, sizeof log, calls, variable, NULL) != CUDA_SUCCESS);
	CHECK(strstr(log, "'f'"));
	OK(cuLinkDestroy(state));
	memset(log, 0, sizeof log);
	CHECK(link_all(&state, &image, &size, log, sizeof log, calls, called, variable, called, NULL) != CUDA_SUCCESS);
	CHECK(strstr(log, "'f'"));
	OK(cuLinkDestroy(state));
	memset(log, 0, sizeof log);
	CHECK(link_all(&state, &image, &size, log, sizeof log, PTX(".visible .entry k() { nonsense; }\n"), NULL) ==
	      CUDA_ERROR_INVALID_PTX);
	CHECK(*log);
	OK(cuLinkDestroy(state));
}

/* A kernel that keeps many values at a time: it loads them all before it stores any. */
static char *greedy(const char *directive)
{
	enum { VALUES = 150, ROOM = 1 << 16 };
	char *text = malloc(ROOM);
	int n, i;

	CHECK(text);
	n = snprintf(text, ROOM, PTX(".visible .entry k(.param .u64 p) %s {\n.reg .b64 o; .reg .b32 q<%d>;\nld.param.u64 o, [p];\n"),
		     directive, VALUES);
	for (i = 0; i < VALUES; i++)
		n += snprintf(text + n, (size_t)(ROOM - n), "ld.volatile.global.u32 q%d, [o+%d];\n", i, 4 * i);
	for (i = 0; i < VALUES; i++)
		n += snprintf(text + n, (size_t)(ROOM - n), "st.volatile.global.u32 [o+%d], q%d;\n", 4 * i, VALUES - 1 - i);
	snprintf(text + n, (size_t)(ROOM - n), "ret; }\n");
	return text;
}

/* Loads a greedy kernel and returns its registers; the most threads of a block must go with them. */
static int load_greedy(CUfunction *f, const char *directive, int bound)
{
	CUjit_option key = CU_JIT_MAX_REGISTERS;
	void *value = (void *)(uintptr_t)bound;
	char *text = greedy(directive);
	int regs, threads;
	CUmodule m;

	OK(cuModuleLoadDataEx(&m, text, bound ? 1 : 0, &key, &value));
	free(text);
	OK(cuModuleGetFunction(f, m, "k"));
	OK(cuFuncGetAttribute(&regs, CU_FUNC_ATTRIBUTE_NUM_REGS, *f));
	OK(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, *f));
	CHECK(threads * regs <= suite_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK));
	return regs;
}

CASE(module_registers)
{
	CUdeviceptr p;
	CUfunction f;
	void *params[] = {&p};
	int threads, blocks;

	suite_context();
	OK(cuMemAlloc(&p, 4096));
	CHECK(load_greedy(&f, ".maxnreg 32", 0) <= 32);
	OK(cuLaunchKernel(f, 1, 1, 1, 1024, 1, 1, 0, NULL, params, NULL));
	CHECK(load_greedy(&f, "", 64) <= 64);
	OK(cuLaunchKernel(f, 1, 1, 1, 1024, 1, 1, 0, NULL, params, NULL));
	CHECK(load_greedy(&f, ".maxnreg 255", 0) >= 150);
	OK(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
	CHECK(threads < 1024);
	OK(cuLaunchKernel(f, 1, 1, 1, (unsigned)threads, 1, 1, 0, NULL, params, NULL));
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, threads, 0));
	CHECK(blocks >= 1);
	RETURNS(cuLaunchKernel(f, 1, 1, 1, 1024, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
	OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 1024, 0));
	EQUAL(blocks, 0);
	OK(cuCtxSynchronize());
}

/* "set" stores v at p[i] for every thread's i below n, which is at (y * gridDim.x + x) * blockDim.x + threadIdx.x. */
static const char sets[] = PTX(".visible .entry set(.param .u64 to, .param .u64 count, .param .u32 word) {\n"
			       ".reg .b64 o, n, i; .reg .b32 a, b, v; .reg .pred q;\n"
			       "ld.param.u64 o, [to];\n"
			       "ld.param.u64 n, [count];\n"
			       "ld.param.u32 v, [word];\n"
			       "mov.u32 a, %ctaid.y;\n"
			       "mov.u32 b, %nctaid.x;\n"
			       "mul.lo.u32 a, a, b;\n"
			       "mov.u32 b, %ctaid.x;\n"
			       "add.u32 a, a, b;\n"
			       "mov.u32 b, %ntid.x;\n"
			       "mul.lo.u32 a, a, b;\n"
			       "mov.u32 b, %tid.x;\n"
			       "add.u32 a, a, b;\n"
			       "cvt.u64.u32 i, a;\n"
			       "setp.ge.u64 q, i, n;\n"
			       "@q ret;\n"
			       "mad.lo.u64 o, i, 4, o;\n"
			       "st.global.u32 [o], v;\n"
			       "ret; }\n");

/* The launch of a function whose shape and parameters have been set before, as programs did until CUDA 4.0. */
CASE(launch_prepared)
{
	CUmodule m;
	CUfunction f;
	CUdeviceptr p;
	CUstream s;
	unsigned got[600], i;
	uint64_t n = 600;
	CUresult r;

	suite_context();
	OK(cuModuleLoadData(&m, sets));
	OK(cuModuleGetFunction(&f, m, "set"));
	OK(cuMemAlloc(&p, sizeof got));
	OK(cuMemsetD32(p, 0, 600));
	r = cuFuncSetBlockShape(f, 32, 2, 1);
	if (r == CUDA_ERROR_NOT_SUPPORTED)
		suite_skip("the driver has dropped these");
	OK(r);
	RETURNS(cuFuncSetBlockShape(f, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuFuncSetBlockShape(f, 64, 1, 1));
	OK(cuFuncSetSharedSize(f, 0));
	OK(cuParamSetv(f, 0, &p, sizeof p));
	OK(cuParamSetv(f, 8, &n, sizeof n));
	OK(cuParamSeti(f, 16, 77));
	OK(cuParamSetSize(f, 20));
	OK(cuLaunchGrid(f, 5, 2));
	OK(cuCtxSynchronize());
	OK(cuMemcpyDtoH(got, p, sizeof got));
	for (i = 0; i < 600; i++)
		EQUAL(got[i], 77);
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuParamSeti(f, 16, 78));
	OK(cuLaunchGridAsync(f, 10, 1, s));
	OK(cuStreamSynchronize(s));
	EQUAL(word_at(p + 599 * 4), 78);
	OK(cuParamSeti(f, 16, 79));
	OK(cuLaunch(f));
	OK(cuCtxSynchronize());
	EQUAL(word_at(p), 79);
}
