// SPDX-License-Identifier: Apache-2.0

// hash: whether the kernel of arena/hash.cu computes what arena/clean.c says of it. Its argument is the PTX.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lgpu_cuda.h"

#define PAGE ((size_t)2 << 20)
#define THREADS 256
#define WORDS 1024
#define PAGES 3

typedef unsigned long long u64;

static u64 words[WORDS][2], threads[2][2][THREADS];
static u64 page[PAGES][PAGE / 8];

#define CHECK(call)                                                        \
	do {                                                               \
		CUresult r_ = (call);                                      \
		if (r_ != CUDA_SUCCESS) {                                  \
			printf("%s: error %d\n", #call, (int)r_);          \
			exit(1);                                           \
		}                                                          \
	} while (0)

static u64 next(void)
{
	static u64 state = 14;
	state += 0x9e3779b97f4a7c15;
	u64 z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static void add(u64 sum[2], u64 key, u64 word)
{
	unsigned __int128 product = (unsigned __int128)key * word;
	sum[0] += (u64)product;
	sum[1] += (u64)(product >> 64);
}

// reference is the hash of a page.
static void reference(const u64 *of, u64 hash[4])
{
	memset(hash, 0, 4 * sizeof *hash);
	for (int s = 0; s < 2; s++)
		for (size_t t = 0; t < THREADS; t++) {
			u64 sum[2] = {0, 0};
			for (size_t i = 0; i < WORDS; i++)
				add(sum, words[i][s], of[(i / 2 * THREADS + t) * 2 + i % 2]);
			add(&hash[2 * s], threads[s][0][t], sum[0]);
			add(&hash[2 * s], threads[s][1][t], sum[1]);
		}
}

static void set(CUmodule module, const char *name, const void *value, size_t bytes)
{
	CUdeviceptr at;
	size_t have;
	CHECK(cuModuleGetGlobal_v2(&at, &have, module, name));
	if (have != bytes)
		exit(printf("%s has %zu bytes, not %zu\n", name, have, bytes));
	CHECK(cuMemcpyHtoD_v2(at, value, bytes));
}

int main(int argc, char **argv)
{
	CUcontext context;
	CUmodule module;
	CUfunction function;
	CUdeviceptr memory, list, result;
	u64 address[PAGES], have[PAGES][4], want[4];
	(void)argc;
	CHECK(cuInit(0));
	CHECK(cuCtxCreate_v2(&context, 0, 0));
	CHECK(cuModuleLoad(&module, argv[1]));
	CHECK(cuModuleGetFunction(&function, module, "lgpu_hash"));
	for (size_t i = 0; i < WORDS; i++)
		words[i][0] = next(), words[i][1] = next();
	for (size_t i = 0; i < 4 * THREADS; i++)
		threads[i / (2 * THREADS)][i / THREADS % 2][i % THREADS] = next();
	set(module, "lgpu_hash_words", words, sizeof words);
	set(module, "lgpu_hash_threads", threads, sizeof threads);
	for (size_t i = 0; i < PAGE / 8; i++)
		page[0][i] = page[1][i] = next();
	page[1][PAGE / 8 - 1] ^= (u64)1 << 63; // the second page differs by one bit; the third is zero
	CHECK(cuMemAlloc_v2(&memory, sizeof page));
	CHECK(cuMemcpyHtoD_v2(memory, page, sizeof page));
	CHECK(cuMemAlloc_v2(&list, sizeof address));
	CHECK(cuMemAlloc_v2(&result, sizeof have));
	for (size_t i = 0; i < PAGES; i++)
		address[i] = memory + i * PAGE;
	CHECK(cuMemcpyHtoD_v2(list, address, sizeof address));
	void *arguments[] = {&list, &result};
	CHECK(cuLaunchKernel(function, PAGES, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL));
	CHECK(cuMemcpyDtoH_v2(have, result, sizeof have));
	for (size_t i = 0; i < PAGES; i++) {
		reference(page[i], want);
		if (memcmp(have[i], want, sizeof want) != 0)
			printf("page %zu: %016llx%016llx%016llx%016llx, not %016llx%016llx%016llx%016llx\n", i, have[i][0], have[i][1],
			       have[i][2], have[i][3], want[0], want[1], want[2], want[3]);
	}
	for (int s = 0; s < 2; s++)
		if (have[0][2 * s] == have[1][2 * s] && have[0][2 * s + 1] == have[1][2 * s + 1])
			printf("sum %d does not see a bit\n", s);
	return 0;
}
