// SPDX-License-Identifier: Apache-2.0

// The stamp: what the launcher of a contained program has written into its copy of this library. Such a program finds
// its lgpu whatever its environment says. The launcher finds the place by the name of the section (internal/contain);
// the library is read-only from then on, so nothing in it is somebody else's.
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

#define STAMP_BYTES 8192

// NAME=VALUE, each ended by a zero byte; an empty one is the end.
static const char stamp[STAMP_BYTES] __attribute__((section(".lgpu_stamp"), used, aligned(16))) = "";

// next returns the assignment at *p, and advances *p to the one after it; NULL at the end.
static const char *next(const char **p)
{
	const char *at = *p, *end = memchr(at, 0, (size_t)(stamp + STAMP_BYTES - at));
	if (end == NULL || end == at)
		return NULL;
	*p = end + 1;
	return at;
}

// written returns the stamp. The compiler must not take it for the empty text that it was compiled with.
static const char *written(void)
{
	const char *p = stamp;
	__asm__("" : "+r"(p));
	return p;
}

const char *lgpu_stamped(const char *name)
{
	size_t length = strlen(name);
	const char *p = written();
	for (const char *a; (a = next(&p)) != NULL;)
		if (strncmp(a, name, length) == 0 && a[length] == '=')
			return a + length + 1;
	return NULL;
}

const char *lgpu_setting(const char *name)
{
	const char *value = lgpu_stamped(name);
	return value != NULL ? value : getenv(name);
}

void lgpu_stamp_export(void)
{
	const char *p = written();
	for (const char *a; (a = next(&p)) != NULL;) {
		char name[64];
		const char *value = strchr(a, '=');
		if (value == NULL || value == a || (size_t)(value - a) >= sizeof name)
			continue;
		memcpy(name, a, (size_t)(value - a));
		name[value - a] = 0;
		value++;
		const char *now = getenv(name);
		if (now == NULL || strcmp(now, value) != 0)
			setenv(name, value, 1);
	}
}
