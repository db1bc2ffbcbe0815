// SPDX-License-Identifier: Apache-2.0

// A library that has an ioctl of its own, as some do for sound and video, and passes
// on what it sees.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>

static int calls;

int chain_calls(void) { return calls; }

int ioctl(int fd, unsigned long request, ...)
{
	static _Thread_local int depth;
	int (*next)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *);
	va_end(args);
	__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
	if (++depth > 2)
		abort(); // it goes in a circle
	int result = next(fd, request, arg);
	depth--;
	return result;
}
