// SPDX-License-Identifier: Apache-2.0

// The shared counter alone: many processes, an observer that looks all the
// time, and processes killed at every step.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/counter.h"

#define LIMIT (UINT64_C(1) << 30)

static struct lgpu_usage *usage;
static volatile int *stop;

static uint64_t rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static struct lgpu_counter_at at_device(void) { return lgpu_counter_device(usage, 3); }

// work takes and gives back random amounts; with drain, everything in the end.
static void work(uint32_t client, long operations, int drain)
{
	struct lgpu_counter_at at = at_device();
	int64_t held = lgpu_counter_held(&at, client);
	uint64_t seed = (client + 1) * UINT64_C(0x9e3779b97f4a7c15);
	while (operations-- > 0) {
		int64_t delta;
		if (held > 0 && (rnd(&seed) & 1) != 0)
			delta = -(int64_t)(rnd(&seed) % (uint64_t)held) - 1;
		else
			delta = (int64_t)(rnd(&seed) % (LIMIT / 16)) + 1;
		if (lgpu_counter_add(&at, client, held, delta, LIMIT))
			held += delta;
		if (lgpu_counter_held(&at, client) != held)
			abort();
	}
	if (drain && held > 0 && !lgpu_counter_add(&at, client, held, -held, LIMIT))
		abort();
}

static pid_t spawn(uint32_t client, long operations, int drain, const char *fault)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	if (fault != NULL)
		setenv("LGPU_FAULT", fault, 1);
	work(client, operations, drain);
	_exit(0);
}

static pid_t observe(void)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid != 0)
		return pid;
	struct lgpu_counter_at at = at_device();
	unsigned long looks = 0;
	while (!*stop) {
		looks++;
		if (__atomic_load_n(&at.counter->bytes, __ATOMIC_RELAXED) > LIMIT)
			_exit(1);
	}
	_exit(looks == 0);
}

static int finish(pid_t pid)
{
	int status;
	waitpid(pid, &status, 0);
	return status;
}

static int fail(const char *what, const char *detail, long a, long b)
{
	printf("%s %s: %ld, want %ld\n", what, detail, a, b);
	return 1;
}

static int stress(int processes, long operations)
{
	struct lgpu_counter_at at = at_device();
	pid_t pids[256], observer = observe();
	for (int i = 0; i < processes; i++)
		pids[i] = spawn((uint32_t)i, operations / processes, 1, NULL);
	int bad = 0;
	for (int i = 0; i < processes; i++)
		bad |= finish(pids[i]);
	*stop = 1;
	if (finish(observer) != 0)
		return fail("stress", "the counter was over the limit", (long)at.counter->bytes, (long)LIMIT);
	if (bad != 0)
		return fail("stress", "a process failed", bad, 0);
	if (at.counter->bytes != 0)
		return fail("stress", "left over", (long)at.counter->bytes, 0);
	if (usage->device[3].peak == 0 || usage->device[3].peak > LIMIT)
		return fail("stress", "peak", (long)usage->device[3].peak, (long)LIMIT);
	return 0;
}

// crash kills a process at the n-th time it comes to a point, while others
// work, and settles its account, by a process that is killed too.
static int crash(const char *point, int n)
{
	struct lgpu_counter_at at = at_device();
	char fault[64];
	memset(usage, 0, sizeof *usage);
	snprintf(fault, sizeof fault, "%s:%d", point, n);
	pid_t busy[2] = {spawn(1, 3000, 0, NULL), spawn(2, 3000, 0, NULL)};
	int status = finish(spawn(0, 400, 0, fault));
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		return fail("crash", fault, status, SIGKILL);
	static const char *const points[] = {"settle", "recorded", "begun", "noted", "swapped", "settled"};
	for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			setenv("LGPU_FAULT", points[i], 1);
			lgpu_counter_settle(&at, 0);
			_exit(0);
		}
		finish(pid);
	}
	lgpu_counter_settle(&at, 0);
	int bad = finish(busy[0]) | finish(busy[1]);
	if (bad != 0)
		return fail("crash", fault, bad, 0);
	if (lgpu_counter_held(&at, 0) != 0)
		return fail("settled", fault, (long)lgpu_counter_held(&at, 0), 0);
	int64_t others = lgpu_counter_held(&at, 1) + lgpu_counter_held(&at, 2);
	if ((int64_t)at.counter->bytes != others)
		return fail("left", fault, (long)at.counter->bytes, others);
	// The index's next client starts from nothing and its numbers are right.
	work(0, 100, 1);
	if ((int64_t)at.counter->bytes != others)
		return fail("reused", fault, (long)at.counter->bytes, others);
	return 0;
}

int main(int argc, char **argv)
{
	void *shared = mmap(NULL, sizeof *usage + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (argc < 2 || shared == MAP_FAILED)
		return 2;
	stop = shared;
	usage = (struct lgpu_usage *)((char *)shared + 4096);
	if (strcmp(argv[1], "stress") == 0 && argc == 4)
		return stress(atoi(argv[2]), atol(argv[3]));
	static const char *const points[] = {"begin", "half-recorded", "recorded", "begun", "noted", "swapped"};
	int bad = 0;
	for (size_t i = 0; i < sizeof points / sizeof *points; i++)
		for (int n = 1; n <= 12; n++)
			bad |= crash(points[i], n);
	return bad;
}
