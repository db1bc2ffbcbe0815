// turn.h: who has a device now, among the capped processes of a host.
//
// Capped lgpus take a device one process at a time, so that time on the wall
// is time on the device and can be charged exactly; without MPS the driver
// would time-slice their contexts anyway. The turn lives in a page shared by
// all of them (region.Turn). Nobody can hold it for ever: a dead owner's is
// taken at once, a living one's after LGPU_TURN_BOUND.
#ifndef LGPU_TURN_H
#define LGPU_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

// How long an owner may keep others waiting before they go ahead without it:
// far above any slice with its drain, and short enough that kernels of two
// lgpus that wait for each other only stutter.
#define LGPU_TURN_BOUND INT64_C(300000000)

struct lgpu_turn_seat {
	struct lgpu_turn *page; // NULL: no page, every attempt succeeds
	int fd;
	uint32_t index;
	uint64_t grant; // value of page->owner while it is ours, else 0
	int64_t asked;  // since when we have been waiting, else 0
};

// lgpu_turn_open joins the device's page in folder, making it if need be.
// Without one (an unwritable folder, a page of another version, no free seat)
// the process runs on its own credit alone; the reason is logged.
void lgpu_turn_open(struct lgpu_turn_seat *seat, const char *folder, const uint8_t uuid[16], uint64_t lgpu);

// lgpu_turn_try takes the turn if it is free, handed to us, or forfeited by
// its owner. Otherwise it leaves us in the queue.
bool lgpu_turn_try(struct lgpu_turn_seat *seat, int64_t now);

// lgpu_turn_wait sleeps until the turn may be ours, for at most nanos.
void lgpu_turn_wait(struct lgpu_turn_seat *seat, int64_t nanos);

// lgpu_turn_kept says whether the turn taken is still ours.
bool lgpu_turn_kept(const struct lgpu_turn_seat *seat);

// lgpu_turn_wanted says who is waiting.
enum lgpu_turn_wanted { LGPU_TURN_UNWANTED, LGPU_TURN_WANTED_BY_OWN, LGPU_TURN_WANTED_BY_OTHERS };
enum lgpu_turn_wanted lgpu_turn_wanted(const struct lgpu_turn_seat *seat);

// lgpu_turn_shared says whether other processes of our lgpu have seats.
bool lgpu_turn_shared(const struct lgpu_turn_seat *seat);

// lgpu_turn_leave gives up the turn. It goes to the waiting lgpu whose last
// turn is longest ago, and there to the process whose is.
void lgpu_turn_leave(struct lgpu_turn_seat *seat, int64_t now);

#endif
