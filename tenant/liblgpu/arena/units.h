// SPDX-License-Identifier: Apache-2.0

// units.h: pieces of chunks. A chunk is a block of device memory, in units of one size.
// This knows numbers alone, calls nobody and locks nothing.
//
// Free runs of units are in bins by length, those of about the same length in one bin,
// so that taking and giving take the same time however many chunks there are.
#ifndef LGPU_UNITS_H
#define LGPU_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LGPU_BINS 64

struct lgpu_chunk;

// What begins at a unit. Of units within a run nothing is known.
struct lgpu_unit {
	struct lgpu_unit *next, *prev; // in the bin
	struct lgpu_chunk *chunk;
	uint64_t id;    // the user's
	uint64_t bytes; // the user's
	uint32_t size;  // units
	bool taken;
	bool dead; // the user's: taken, but not to be found any more
};

struct lgpu_chunk {
	uint32_t units;
	uint32_t taken;  // runs
	void *owner;     // the user's
	uint64_t *heads; // where runs begin
	struct lgpu_unit unit[];
};

struct lgpu_bins {
	uint64_t filled; // bit of each bin that has a run
	struct lgpu_unit *first[LGPU_BINS];
};

// lgpu_chunk_bytes is what a chunk of so many units takes. Of zeroed pages most is never touched.
size_t lgpu_chunk_bytes(uint32_t units);
// lgpu_chunk_add puts a chunk into the bins with nothing taken of it, of as many units as it was made for or fewer;
// lgpu_chunk_remove takes it out again, while nothing is.
void lgpu_chunk_add(struct lgpu_bins *bins, struct lgpu_chunk *chunk, uint32_t units);
void lgpu_chunk_remove(struct lgpu_bins *bins, struct lgpu_chunk *chunk);
// lgpu_units_take takes a run of count units; NULL: no run is long enough.
// lgpu_units_give gives it back.
struct lgpu_unit *lgpu_units_take(struct lgpu_bins *bins, uint32_t count);
void lgpu_units_give(struct lgpu_bins *bins, struct lgpu_unit *unit);
// lgpu_units_split makes two runs of one that is taken, the first of count units, and returns the second.
struct lgpu_unit *lgpu_units_split(struct lgpu_unit *unit, uint32_t count);
// lgpu_units_bin is the bin of runs of size units. Runs in higher bins are longer.
uint32_t lgpu_units_bin(uint32_t size);
// lgpu_units_find returns the run that is taken and has the unit of a chunk, or NULL.
struct lgpu_unit *lgpu_units_find(struct lgpu_chunk *chunk, uint32_t index);

static inline uint32_t lgpu_unit_index(const struct lgpu_unit *u) { return (uint32_t)(u - u->chunk->unit); }

#endif
