// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "channel.h"

// The gate: whether it is closed, and how many calls are inside. Who closes it first and then looks for calls inside, and
// who first counts itself inside and then looks whether it is closed, cannot miss each other in one word.
#define CLOSED 0x80000000u

static uint32_t gate;
static uint32_t opened; // how often the gate was opened
static uint32_t left;   // how often the last call inside left while it was closed

uint64_t simc_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void simc_sleep(uint32_t *word, uint32_t value, uint64_t deadline)
{
	struct timespec until = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)};

	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, deadline ? &until : NULL, NULL, FUTEX_BITSET_MATCH_ANY);
}

void simc_wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void leave(void)
{
	if (__atomic_sub_fetch(&gate, 1, __ATOMIC_SEQ_CST) == CLOSED) {
		__atomic_add_fetch(&left, 1, __ATOMIC_SEQ_CST);
		simc_wake(&left);
	}
}

static void enter(void)
{
	uint32_t before;

	while (__atomic_fetch_add(&gate, 1, __ATOMIC_SEQ_CST) & CLOSED) {
		before = __atomic_load_n(&opened, __ATOMIC_SEQ_CST);
		leave();
		while (__atomic_load_n(&gate, __ATOMIC_SEQ_CST) & CLOSED && __atomic_load_n(&opened, __ATOMIC_SEQ_CST) == before)
			simc_sleep(&opened, before, 0);
	}
}

int simc_pass(void)
{
	if (!simc_tls.own && simc_tls.passes++ == 0)
		enter();
	return 0;
}

void simc_leave(int *pass)
{
	(void)pass;
	if (!simc_tls.own && --simc_tls.passes == 0)
		leave();
}

int simc_close_gate(int (*stop)(void))
{
	uint32_t before;

	__atomic_or_fetch(&gate, CLOSED, __ATOMIC_SEQ_CST);
	for (;;) {
		before = __atomic_load_n(&left, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&gate, __ATOMIC_SEQ_CST) == CLOSED)
			return 0;
		if (stop()) {
			simc_open_gate();
			return -1;
		}
		simc_sleep(&left, before, simc_now() + SIMC_LOOK);
	}
}

void simc_open_gate(void)
{
	__atomic_and_fetch(&gate, ~CLOSED, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&opened, 1, __ATOMIC_SEQ_CST);
	simc_wake(&opened);
}

void simc_reset_gate(void)
{
	__atomic_store_n(&gate, simc_tls.passes ? 1 : 0, __ATOMIC_SEQ_CST);
}
