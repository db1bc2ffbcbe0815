// SPDX-License-Identifier: Apache-2.0

// parts.h: the residence lock, for the files of this module.
#ifndef LGPU_RESIDENCE_PARTS_H
#define LGPU_RESIDENCE_PARTS_H

#include "base/base.h"
#include "base/futex.h"
#include "residence/residence.h"

// A thread's place. Only its thread changes depth and sure; others read depth.
struct lgpu_place {
	uint64_t owner; // the thread's number in the low half, 0: nobody; above it how often the place was taken
	uint32_t depth; // of the thread's touches; not 0: it is inside, or looks whether it may be
	bool sure;      // it is inside
} __attribute__((aligned(64)));

#define LGPU_PLACES 63
struct lgpu_places {
	struct lgpu_places *next;
	struct lgpu_place place[LGPU_PLACES];
};

// What waits for the contexts (drain.c). A synchronise of the driver cannot be given up,
// so a thread does it.
struct lgpu_drain {
	uint32_t lock; // guards contexts, room, wanted, current and runs
	uint32_t kick; // event count: the thread sleeps here
	uint32_t step; // event count: a synchronise has ended
	uint32_t wanted; // the number of the shutting that waits; 0: none
	uint32_t done;   // of the last one whose contexts were idle
	bool runs;       // the thread does
	CUcontext current; // that it synchronises
	int64_t began;     // since when; 0: it does not
	CUcontext *contexts;
	size_t count, room;
};

// The kernel wipes it in a forked child: there the lock is open, and nobody is inside.
struct lgpu_residence {
	uint32_t shut;   // 0: open, else the number of the shutting; touches sleep here
	uint32_t number; // of the last shutting
	uint32_t asked;  // the last shutting for which wanted was called
	uint32_t left;   // event count: a thread has left while the lock is shut
	uint32_t ended;  // event count: a capture has ended
	bool light;      // touches have no barriers, since who shuts the lock has all threads pass one
	struct lgpu_drain drain;
	struct lgpu_places places;
};
extern struct lgpu_residence *lgpu_residence;

// lgpu_drain waits until all contexts are idle, for shutting number, until deadline.
// False: they were not.
bool lgpu_drain(struct lgpu_residence *r, uint32_t number, int64_t deadline);

#endif
