// SPDX-License-Identifier: Apache-2.0

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

// The level is read once. LIBCUDA_LOG_LEVEL is HAMi's name for it.
static int log_level(void)
{
	static int cached = -1;
	int level = __atomic_load_n(&cached, __ATOMIC_RELAXED);
	if (level >= 0)
		return level;
	const char *text = getenv("LGPU_LOG");
	if (text == NULL || text[0] == 0)
		text = getenv("LIBCUDA_LOG_LEVEL");
	level = text != NULL && text[0] >= '0' && text[0] <= '4' && text[1] == 0 ? text[0] - '0' : LGPU_LOG_ERROR;
	__atomic_store_n(&cached, level, __ATOMIC_RELAXED);
	return level;
}

void lgpu_log(int level, const char *format, ...)
{
	static const char *const names[] = {"", "error", "warning", "info", "debug"};
	if (level > log_level())
		return;
	// One write a line, so that lines of several processes do not mix; errno
	// belongs to the program.
	int saved = errno;
	char line[1024];
	int n = snprintf(line, sizeof line, "lgpu: %s: ", names[level]);
	va_list args;
	va_start(args, format);
	int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
	va_end(args);
	if (m > 0) {
		size_t length = strlen(line);
		line[length] = '\n';
		ssize_t written = write(STDERR_FILENO, line, length + 1);
		(void)written; // a program without stderr loses the line
	}
	errno = saved;
}

bool lgpu_number(const char *text, uint64_t *value, const char **end)
{
	unsigned base = 10;
	const char *p = text;
	if (p[0] == '0' && (p[1] | 0x20) == 'x') {
		base = 16;
		p += 2;
	} else if (p[0] == '0') {
		base = 8;
	}
	uint64_t v = 0;
	const char *first = p;
	for (;; p++) {
		unsigned digit = *p >= '0' && *p <= '9' ? (unsigned)(*p - '0') :
				 (*p | 0x20) >= 'a' && (*p | 0x20) <= 'f' ? (unsigned)((*p | 0x20) - 'a') + 10 : 16;
		if (digit >= base)
			break;
		if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, digit, &v))
			return false;
	}
	*value = v;
	*end = p;
	return p > first;
}
