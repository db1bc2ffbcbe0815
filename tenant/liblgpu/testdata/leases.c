// SPDX-License-Identifier: Apache-2.0

// What turn.c needs of the rest of the library, without the rest.
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include "process/process.h"

int lgpu_open_high(const char *path, int flags) { return open(path, O_RDWR | O_CLOEXEC | flags, 0666); }

void lgpu_log(int level, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "%d: ", level);
	vfprintf(stderr, format, args);
	va_end(args);
}

static int record_lock(int fd, int command, uint32_t index, struct flock *l)
{
	*l = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(LGPU_CLIENT_LOCK_OFFSET + index), .l_len = 1};
	return fcntl(fd, command, l);
}

bool lgpu_lease(int fd, uint32_t index)
{
	struct flock l;
	return record_lock(fd, F_SETLK, index, &l) == 0;
}

bool lgpu_lease_dead(int fd, uint32_t index)
{
	struct flock l;
	return record_lock(fd, F_GETLK, index, &l) == 0 && l.l_type == F_UNLCK;
}
