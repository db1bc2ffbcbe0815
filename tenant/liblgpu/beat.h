// beat.h: how a process that waits knows that the daemon hangs. No clock, no
// shared state.
//
// While a launch waits for the daemon's leave, the daemon changes the beat of
// the device's limits. Who waits looks at it now and then, and takes the daemon
// for hung when the beat has stayed the same for long enough: in the time
// between looks of its own, of which none counts for more than the time to the
// next is meant to be. So a process, or a machine, that was stopped itself does
// not blame the daemon.
#ifndef LGPU_BEAT_H
#define LGPU_BEAT_H

#include <stdbool.h>
#include <stdint.h>

#include "link_gen.h"

// The time between two looks, in ns.
#define LGPU_BEAT_LOOK ((int64_t)LGPU_LINK_BEAT / 2)

// What is known of a beat; zero when somebody begins to wait.
struct lgpu_beat {
	uint64_t seen;
	int64_t looked; // when, in ns; 0: not yet
	int64_t silence; // ns
};

// lgpu_beat_silent notes what the beat is at now, and reports whether the daemon
// is to be taken for hung. A beat of 0 is that of nobody, who cannot hang.
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
