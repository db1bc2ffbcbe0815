// SPDX-License-Identifier: Apache-2.0

// touches [NAME...]: makes each call of touches_gen.inc, or those with these names, while the residence lock is shut, and
// prints "NAME waits" or "NAME does not wait".
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lgpu_cuda.h"

static char buffer[65536];
static CUcontext context;
static int done;

static void *find(const char *name)
{
	void *p = dlsym(RTLD_DEFAULT, name);
	if (p == NULL) {
		printf("no %s\n", name);
		exit(1);
	}
	return p;
}

#define FIND(name) ((__typeof__(&name))find(#name))
int cuTestShut(void);
int cuTestOpen(void);
int cuTestWaited(void);

#define CALL(name, ...) \
	static void call_##name(void) { FIND(name)(__VA_ARGS__); }
#include "touches_gen.inc"
#undef CALL

static const struct {
	const char *name;
	void (*call)(void);
} calls[] = {
#define CALL(name, ...) {#name, call_##name},
#include "touches_gen.inc"
};

static void *run(void *call)
{
	FIND(cuCtxSetCurrent)(context);
	(*(void (*const *)(void))call)();
	__atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static int chosen(int argc, char **argv, const char *name)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return 1;
	return argc == 1;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (FIND(cuInit)(0) != CUDA_SUCCESS || FIND(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS)
		return 1;
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		pthread_t thread;
		if (!chosen(argc, argv, calls[i].name))
			continue;
		memset(buffer, 0, sizeof buffer);
		done = 0;
		if (FIND(cuTestShut)() != 0 || pthread_create(&thread, NULL, run, (void *)&calls[i].call) != 0)
			return 1;
		while (!FIND(cuTestWaited)() && !__atomic_load_n(&done, __ATOMIC_SEQ_CST))
			sched_yield();
		int waited = FIND(cuTestWaited)() && !__atomic_load_n(&done, __ATOMIC_SEQ_CST);
		FIND(cuTestOpen)();
		pthread_join(thread, NULL);
		printf("%s %s\n", calls[i].name, waited ? "waits" : "does not wait");
	}
	return 0;
}
