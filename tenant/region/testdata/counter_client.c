// SPDX-License-Identifier: Apache-2.0

// A client of a region's counters, for the tests of package region: takes and
// gives back random amounts of device 3's and of host memory until it is told
// to stop (SIGTERM), gives back all, and ends. Descriptor 3 is the Usage.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "process/counter.h"

#define LIMIT (UINT64_C(1) << 30)

static volatile sig_atomic_t stop;

static void on_term(int sig)
{
	(void)sig;
	stop = 1;
}

static uint64_t rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

int main(int argc, char **argv)
{
	struct lgpu_usage *usage = mmap(NULL, sizeof *usage, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
	if (argc != 3 || usage == MAP_FAILED)
		return 1;
	uint32_t client = (uint32_t)atoi(argv[1]);
	uint64_t seed = (uint64_t)atoll(argv[2]) * UINT64_C(0x9e3779b97f4a7c15) + 1;
	struct lgpu_counter_at at[2] = {lgpu_counter_device(usage, 3), lgpu_counter_host(usage)};
	int64_t held[2];
	for (int k = 0; k < 2; k++)
		if ((held[k] = lgpu_counter_held(&at[k], client)) != 0)
			return 2; // the one before was not settled
	signal(SIGTERM, on_term);
	if (write(1, "r", 1) != 1)
		return 3;
	while (!stop) {
		int k = (int)(rnd(&seed) & 1);
		int64_t delta = (int64_t)(rnd(&seed) % (LIMIT / 8)) + 1;
		if (held[k] > 0 && (rnd(&seed) & 1) != 0)
			delta = -(int64_t)(rnd(&seed) % (uint64_t)held[k]) - 1;
		if (lgpu_counter_add(&at[k], client, held[k], delta, LIMIT))
			held[k] += delta;
	}
	for (int k = 0; k < 2; k++)
		if (held[k] > 0)
			lgpu_counter_add(&at[k], client, held[k], -held[k], LIMIT);
	return 0;
}
