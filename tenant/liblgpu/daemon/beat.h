// SPDX-License-Identifier: Apache-2.0

// beat.h: how a waiting process finds out that the daemon hangs. No clock, no shared
// state.
//
// While a launch waits for the daemon, the daemon changes a word in the limits of
// the device, the beat. The waiting process looks at it now and then. If the beat
// has been the same for long enough, the daemon is taken for hung. What counts is
// the time between the process's own looks, and no interval counts for more than
// its intended length. So a process, or a machine, that was stopped itself does not
// blame the daemon.
#ifndef LGPU_BEAT_H
#define LGPU_BEAT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/link_gen.h"

// The time between two looks, in ns.
#define LGPU_BEAT_LOOK ((int64_t)LGPU_LINK_BEAT / 2)

// What is known of a beat; zero when somebody begins to wait.
struct lgpu_beat {
	uint64_t seen;
	int64_t looked; // when, in ns; 0: not yet
	int64_t silence; // ns
};

// lgpu_beat_silent notes the beat that was seen at now, and reports whether the
// daemon is to be taken for hung. A beat of 0 means that there is no daemon.
static inline bool lgpu_beat_silent(struct lgpu_beat *b, uint64_t beat, int64_t now)
{
	int64_t step = now - b->looked;
	if (b->looked == 0 || beat != b->seen || beat == 0)
		b->silence = 0;
	else
		b->silence += step < LGPU_BEAT_LOOK ? step : LGPU_BEAT_LOOK;
	b->seen = beat;
	b->looked = now;
	return b->silence >= (int64_t)LGPU_LINK_SILENCE;
}

#endif
