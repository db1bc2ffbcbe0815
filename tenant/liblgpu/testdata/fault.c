// SPDX-License-Identifier: Apache-2.0

// Fault points of test builds: LGPU_FAULT=name[:n] ends the process, as kill
// -9 would, the n-th time that it comes to the point.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

void lgpu_fault(const char *point)
{
	static int seen;
	const char *named = getenv("LGPU_FAULT");
	size_t n = strlen(point);
	if (named == NULL || strncmp(named, point, n) != 0 || (named[n] != 0 && named[n] != ':'))
		return;
	int wanted = named[n] == ':' ? atoi(named + n + 1) : 1;
	if (__atomic_add_fetch(&seen, 1, __ATOMIC_RELAXED) == wanted)
		kill(getpid(), SIGKILL);
}
