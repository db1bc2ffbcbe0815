// SPDX-License-Identifier: Apache-2.0

// The fault point of test builds named by LGPU_PAUSE pauses, the first time that a thread comes to it. It says so by
// making the file LGPU_PAUSED, and goes on as soon as that is removed, or another thread of the library waits for
// something.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

static bool paused, waited;

static int pause_for(const struct timespec *time) { return (int)syscall(SYS_nanosleep, time, NULL); }

// The library's own, in the place of libc's.
__attribute__((visibility("hidden"))) int nanosleep(const struct timespec *time, struct timespec *rest)
{
	(void)rest;
	__atomic_store_n(&waited, true, __ATOMIC_SEQ_CST);
	return pause_for(time);
}

void lgpu_fault(const char *point)
{
	const char *named = getenv("LGPU_PAUSE"), *file = getenv("LGPU_PAUSED");
	if (named == NULL || file == NULL || strcmp(named, point) != 0 || __atomic_exchange_n(&paused, true, __ATOMIC_SEQ_CST))
		return;
	__atomic_store_n(&waited, false, __ATOMIC_SEQ_CST);
	close(open(file, O_CREAT | O_CLOEXEC, 0600));
	while (!__atomic_load_n(&waited, __ATOMIC_SEQ_CST) && access(file, F_OK) == 0)
		pause_for(&(struct timespec){0, 100000});
}
