// SPDX-License-Identifier: Apache-2.0

// turn.h: the order in which the capped processes of a machine use a device.
//
// Only one of them uses the device at a time. So its wall-clock time is its device
// time, and can be charged exactly; without MPS the driver would time-slice their
// contexts anyway. The turn is kept in a page that all of them share (region.Turn).
// No process can keep it for ever: a dead owner loses it at once, and a living one
// after LGPU_TURN_BOUND, if others wait.
#ifndef LGPU_TURN_H
#define LGPU_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "process/region_gen.h"

// How long an owner may keep others waiting before they take the turn: far longer
// than a slice with its drain, and short enough that two lgpus with kernels that
// wait for each other go on, if slowly.
#define LGPU_TURN_BOUND INT64_C(300000000)

// This process in the queue for a device.
struct lgpu_queue {
	struct lgpu_turn *page; // NULL: no page, every attempt succeeds
	int fd;
	uint32_t index; // of our entry
	uint64_t grant; // value of page->owner while it is ours, else 0
	int64_t asked;  // since when we have been waiting, else 0
};

// lgpu_turn_open joins the device's page in folder, making it if need be.
// Without one (an unwritable folder, a page of another version, no free entry)
// the process runs on its own credit alone; the reason is logged.
void lgpu_turn_open(struct lgpu_queue *queue, const char *folder, const uint8_t uuid[16], uint64_t lgpu);

// lgpu_turn_try takes the turn if it is free, handed to us, or forfeited by
// its owner. Otherwise it leaves us in the queue.
bool lgpu_turn_try(struct lgpu_queue *queue, int64_t now);

// lgpu_turn_wait sleeps until the turn may be ours, for at most nanos.
void lgpu_turn_wait(struct lgpu_queue *queue, int64_t nanos);

// lgpu_turn_kept says whether the turn taken is still ours.
bool lgpu_turn_kept(const struct lgpu_queue *queue);

// lgpu_turn_wanted says who is waiting.
enum lgpu_turn_wanted { LGPU_TURN_UNWANTED, LGPU_TURN_WANTED_BY_OWN, LGPU_TURN_WANTED_BY_OTHERS };
enum lgpu_turn_wanted lgpu_turn_wanted(const struct lgpu_queue *queue);

// lgpu_turn_shared says whether other processes of our lgpu are there.
bool lgpu_turn_shared(const struct lgpu_queue *queue);

// lgpu_turn_leave gives up the turn. It goes to the waiting lgpu that had its last
// turn the longest ago, and of its processes to the one that did.
void lgpu_turn_leave(struct lgpu_queue *queue, int64_t now);

#endif
