/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels print: vprintf, a function that the device provides. */
#define _GNU_SOURCE
#include "suite.h"

#include <unistd.h>

/* "line" prints "n=%d x=%.2f s=%s c=%c u=%llx|\n" and stores what vprintf returns; "many" prints "%d\n" for 0 to n - 1. */
static const char prints[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);\n"
	".global .align 1 .b8 format[31] = {110, 61, 37, 100, 32, 120, 61, 37, 46, 50, 102, 32, 115, 61, 37, 115, 32, 99, 61, 37, 99,"
	" 32, 117, 61, 37, 108, 108, 120, 124, 10, 0};\n"
	".global .align 1 .b8 word[5] = {119, 111, 114, 100, 0};\n"
	".global .align 1 .b8 number[4] = {37, 100, 10, 0};\n"
	".visible .entry line(.param .u64 out) {\n"
	".local .align 8 .b8 args[40];\n"
	".reg .b64 a, l, o, s; .reg .b32 v; .reg .f64 x;\n"
	"mov.u64 l, args;\n"
	"cvta.local.u64 a, l;\n"
	"ld.param.u64 o, [out];\n"
	"mov.u32 v, -5;\n"
	"st.local.u32 [l], v;\n"
	"mov.f64 x, 0d4004000000000000;\n" /* 2.5 */
	"st.local.f64 [l+8], x;\n"
	"mov.u64 s, word;\n"
	"cvta.global.u64 s, s;\n"
	"st.local.u64 [l+16], s;\n"
	"mov.u32 v, 90;\n"
	"st.local.u32 [l+24], v;\n"
	"mov.u64 s, 0x123456789abc;\n"
	"st.local.u64 [l+32], s;\n"
	"mov.u64 s, format;\n"
	"cvta.global.u64 s, s;\n"
	"{ .param .b64 p0; .param .b64 p1; .param .b32 r0;\n"
	"st.param.b64 [p0], s;\n"
	"st.param.b64 [p1], a;\n"
	"call.uni (r0), vprintf, (p0, p1);\n"
	"ld.param.b32 v, [r0]; }\n"
	"st.global.u32 [o], v;\n"
	"ret; }\n"
	".visible .entry many(.param .u32 count) {\n"
	".local .align 8 .b8 args[8];\n"
	".reg .b64 a, l, s; .reg .b32 i, n, v; .reg .pred p;\n"
	"mov.u64 l, args;\n"
	"cvta.local.u64 a, l;\n"
	"ld.param.u32 n, [count];\n"
	"mov.u64 s, number;\n"
	"cvta.global.u64 s, s;\n"
	"mov.u32 i, 0;\n"
	"again:\n"
	"st.local.u32 [l], i;\n"
	"{ .param .b64 p0; .param .b64 p1; .param .b32 r0;\n"
	"st.param.b64 [p0], s;\n"
	"st.param.b64 [p1], a;\n"
	"call.uni (r0), vprintf, (p0, p1);\n"
	"ld.param.b32 v, [r0]; }\n"
	"add.u32 i, i, 1;\n"
	"setp.lt.u32 p, i, n;\n"
	"@p bra again;\n"
	"ret; }\n";

/* Standard output goes to a file from here on, until it is read. */
static int saved;
static FILE *into;

static void divert(void)
{
	fflush(stdout);
	CHECK((saved = dup(1)) >= 0 && (into = tmpfile()) != NULL && dup2(fileno(into), 1) == 1);
}

/* What has come there, malloc'ed. */
static char *diverted(void)
{
	char *text;
	off_t size;

	fflush(stdout);
	dup2(saved, 1);
	size = lseek(fileno(into), 0, SEEK_END);
	CHECK(size >= 0 && (text = calloc(1, (size_t)size + 1)) != NULL);
	CHECK(pread(fileno(into), text, (size_t)size, 0) == size);
	return text;
}

static CUfunction printing(const char *name)
{
	CUfunction f;
	CUmodule m;

	OK(cuModuleLoadData(&m, prints));
	OK(cuModuleGetFunction(&f, m, name));
	return f;
}

#define LINE "n=-5 x=2.50 s=word c=Z u=123456789abc|\n"

CASE(print)
{
	CUdeviceptr out;
	CUfunction f;
	char *text;
	int count;

	suite_context();
	f = printing("line");
	OK(cuMemAlloc(&out, 4));
	divert();
	printf("before\n");
	LAUNCH(f, 1, 1, NULL, &out);
	OK(cuCtxSynchronize());
	printf("after\n");
	LAUNCH(f, 1, 2, NULL, &out);
	OK(cuMemcpyDtoH(&count, out, sizeof count));
	printf("end\n");
	text = diverted();
	if (strcmp(text, "before\n" LINE "after\n" LINE LINE "end\n") != 0)
		suite_fail(__FILE__, __LINE__, "printed: %s", text);
	EQUAL(count, 5);
}

/* A buffer that overflows loses the oldest lines. */
CASE(print_overflow)
{
	enum { LINES = 4096, ROOM = 64 << 10 };
	unsigned n = LINES, last = 0, first = 0, lines = 0;
	CUfunction f;
	size_t room;
	char *text, *at;

	suite_context();
	OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, ROOM));
	OK(cuCtxGetLimit(&room, CU_LIMIT_PRINTF_FIFO_SIZE));
	CHECK(room >= ROOM);
	f = printing("many");
	divert();
	LAUNCH(f, 1, 1, NULL, &n);
	OK(cuCtxSynchronize());
	text = diverted();
	for (at = text; *at; lines++) {
		unsigned v = (unsigned)strtoul(at, &at, 10);

		CHECK(*at == '\n' && (!lines || v == last + 1));
		first = lines ? first : v;
		last = v;
		at++;
	}
	CHECK(lines > 0);
	EQUAL(last, LINES - 1);
	EQUAL(first, LINES - lines);
	/* The limit cannot change any more. */
	RETURNS(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 * ROOM), CUDA_ERROR_INVALID_VALUE);
}
