// SPDX-License-Identifier: Apache-2.0

// Pieces of chunks against a model that knows of each unit whose it is. Prints nothing.
#include <stdlib.h>

#include "arena/units.h"
#include "check.h"

#define CHUNKS 6
#define UNITS 4096u
#define RUNS 4000
#define STEPS 400000

static uint64_t state = 88172645463325252u;

static uint32_t next(uint32_t bound)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % bound;
}

static uint32_t whose[CHUNKS][UNITS]; // run + 1; 0: nobody's
static struct lgpu_unit *runs[RUNS];
static struct lgpu_chunk *chunks[CHUNKS];

static int chunk_of(const struct lgpu_unit *u)
{
	for (int i = 0; i < CHUNKS; i++)
		if (u->chunk == chunks[i])
			return i;
	abort();
}

// longest is the longest run of units that nobody has.
static uint32_t longest(void)
{
	uint32_t most = 0;
	for (int c = 0; c < CHUNKS; c++)
		for (uint32_t i = 0, n = 0; i < UNITS; i++) {
			n = whose[c][i] == 0 ? n + 1 : 0;
			most = n > most ? n : most;
		}
	return most;
}

static int take(struct lgpu_bins *bins, uint32_t run)
{
	uint32_t count = next(4) == 0 ? 1 + next(2048) : 1 + next(16);
	struct lgpu_unit *u = lgpu_units_take(bins, count);
	if (u == NULL) {
		// A run is found if there is one that is longer by a quarter.
		CHECK(longest() < count + count / 4 + 1);
		return 0;
	}
	int c = chunk_of(u);
	CHECK(u->size == count);
	for (uint32_t i = lgpu_unit_index(u), end = i + count; i < end; i++) {
		CHECK(i < UNITS && whose[c][i] == 0);
		whose[c][i] = run + 1;
	}
	u->id = run;
	runs[run] = u;
	return 0;
}

static void give(struct lgpu_bins *bins, uint32_t run)
{
	struct lgpu_unit *u = runs[run];
	int c = chunk_of(u);
	for (uint32_t i = lgpu_unit_index(u), end = i + u->size; i < end; i++)
		whose[c][i] = 0;
	lgpu_units_give(bins, u);
	runs[run] = NULL;
}

// split has a free run's number name the second part of one that is taken.
static void split(uint32_t run, uint32_t other)
{
	struct lgpu_unit *u = runs[run];
	if (u == NULL || runs[other] != NULL || u->size < 2)
		return;
	int c = chunk_of(u);
	uint32_t first = lgpu_unit_index(u), size = u->size, count = 1 + next(size - 1);
	runs[other] = lgpu_units_split(u, count);
	for (uint32_t i = first + count; i < first + size; i++)
		whose[c][i] = other + 1;
}

int main(void)
{
	struct lgpu_bins bins = {0};
	for (int i = 0; i < CHUNKS; i++) {
		chunks[i] = calloc(1, lgpu_chunk_bytes(UNITS));
		lgpu_chunk_add(&bins, chunks[i], UNITS);
	}
	for (int step = 0; step < STEPS; step++) {
		uint32_t run = next(RUNS);
		if (runs[run] != NULL)
			give(&bins, run);
		else if (take(&bins, run) != 0)
			return 1;
		split(next(RUNS), next(RUNS));
		int c = (int)next(CHUNKS);
		uint32_t i = next(UNITS);
		struct lgpu_unit *u = lgpu_units_find(chunks[c], i);
		CHECK(whose[c][i] == 0 ? u == NULL : u == runs[whose[c][i] - 1]);
	}
	// What is given back joins, so that the whole of each chunk can be had.
	for (uint32_t run = 0; run < RUNS; run++)
		if (runs[run] != NULL)
			give(&bins, run);
	for (int i = 0; i < CHUNKS; i++)
		CHECK(chunks[i]->taken == 0);
	for (int i = 0; i < CHUNKS; i++) {
		struct lgpu_unit *u = lgpu_units_take(&bins, UNITS);
		CHECK(u != NULL && u->chunk->taken == 1);
		runs[i] = u;
	}
	CHECK(lgpu_units_take(&bins, 1) == NULL);
	for (uint32_t i = 0; i < CHUNKS; i++) {
		struct lgpu_chunk *c = runs[i]->chunk;
		lgpu_units_give(&bins, runs[i]);
		lgpu_chunk_remove(&bins, c);
		free(c);
	}
	CHECK(bins.filled == 0);
	return 0;
}
