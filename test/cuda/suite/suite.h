/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver API, tested as programs use it. Every case runs in a process of its own, so that what one breaks no other
 * sees. The same program runs on the software GPU and on a real one.
 */
#ifndef LGPU_SUITE_H
#define LGPU_SUITE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lgpu_cuda.h>

struct suite_case {
	const char *name;
	void (*run)(void);
	struct suite_case *next;
};

void suite_add(struct suite_case *c);
void suite_fail(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));
/* Ends the case as one that this device cannot run, with the reason. */
void suite_skip(const char *reason) __attribute__((noreturn));
const char *suite_error(CUresult r);

/* A context of the first device, current. */
CUcontext suite_context(void);
/* A kernel of one of the PTX files: "linear", "compute" or "control". */
CUmodule suite_module(const char *file);
CUfunction suite_kernel(const char *file, const char *name);
/* The text of a PTX file, malloc'ed. */
char *suite_ptx(const char *file);
int suite_attribute(CUdevice_attribute a);
/* Waits for a child process and returns its exit status. */
int suite_wait(int pid);
/* Called after every call that a case checks. With SUITE_CHECKPOINT in the environment the process is checkpointed and
   restored then: nothing that it sees may change by that. */
void suite_after_call(void);

#define CASE(name)                                                            \
	static void run_##name(void);                                         \
	static struct suite_case case_##name = {#name, run_##name, NULL};     \
	__attribute__((constructor)) static void add_##name(void)             \
	{                                                                     \
		suite_add(&case_##name);                                      \
	}                                                                     \
	static void run_##name(void)

#define CHECK(cond)                                                           \
	do {                                                                  \
		if (!(cond))                                                  \
			suite_fail(__FILE__, __LINE__, "%s", #cond);          \
	} while (0)

#define EQUAL(a, b)                                                                                           \
	do {                                                                                                  \
		long long a_ = (long long)(a), b_ = (long long)(b);                                           \
		if (a_ != b_)                                                                                 \
			suite_fail(__FILE__, __LINE__, "%s is %lld, not %s = %lld", #a, a_, #b, b_);          \
	} while (0)

#define RETURNS(call, want)                                                                                   \
	do {                                                                                                  \
		CUresult r_ = (call);                                                                         \
		suite_after_call();                                                                           \
		if (r_ != (want))                                                                             \
			suite_fail(__FILE__, __LINE__, "%s returned %s, not %s", #call, suite_error(r_), #want); \
	} while (0)

#define OK(call) RETURNS(call, CUDA_SUCCESS)

#define LAUNCH(f, grid, block, stream, ...)                                                                   \
	do {                                                                                                  \
		void *p_[] = {__VA_ARGS__};                                                                   \
		OK(cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, stream, p_, NULL));                          \
	} while (0)

#endif
