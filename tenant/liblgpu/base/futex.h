// SPDX-License-Identifier: Apache-2.0

// futex.h: a mutex and an event count on one 32-bit word each.
//
// Zero is the initial state of both, so they may live in memory that the
// kernel wipes at fork, and in pages shared between processes.
#ifndef LGPU_FUTEX_H
#define LGPU_FUTEX_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LGPU_NANOS INT64_C(1000000000)

// lgpu_now is CLOCK_MONOTONIC in ns: the clock of every time in a region.
static inline int64_t lgpu_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * LGPU_NANOS + t.tv_nsec;
}

// lgpu_futex_wait sleeps while *word == value, for at most nanos (< 0: for
// ever). It may return early; the caller looks again.
static inline void lgpu_futex_wait(uint32_t *word, uint32_t value, int64_t nanos)
{
	struct timespec t = {nanos / LGPU_NANOS, nanos % LGPU_NANOS};
	syscall(SYS_futex, word, FUTEX_WAIT, value, nanos < 0 ? NULL : &t, NULL, 0);
}

static inline void lgpu_futex_wake(uint32_t *word, int count)
{
	syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

// A mutex: 0 free, 1 held, 2 held and somebody may be asleep.
static inline void lgpu_lock(uint32_t *m)
{
	uint32_t c = 0;
	if (__atomic_compare_exchange_n(m, &c, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	do {
		if (c == 2 || __atomic_compare_exchange_n(m, &c, 2, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) || c == 2)
			lgpu_futex_wait(m, 2, -1);
		c = __atomic_exchange_n(m, 2, __ATOMIC_ACQUIRE);
	} while (c != 0);
}

// lgpu_try_lock takes it only if nobody has it.
static inline bool lgpu_try_lock(uint32_t *m)
{
	uint32_t c = 0;
	return __atomic_compare_exchange_n(m, &c, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void lgpu_unlock(uint32_t *m)
{
	if (__atomic_exchange_n(m, 0, __ATOMIC_RELEASE) == 2)
		lgpu_futex_wake(m, 1);
}

#endif
