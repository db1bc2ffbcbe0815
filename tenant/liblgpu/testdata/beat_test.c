// SPDX-License-Identifier: Apache-2.0

// Who waits takes a daemon for hung when it is silent, in time, and only then.
// Prints "ok".
#include <stdio.h>

#include "daemon/beat.h"
#include "check.h"

static const int64_t MS = 1000000;

int main(void)
{
	// A daemon that stops is found out within 200 ms, wherever the looks fall.
	for (int64_t late = 0; late < LGPU_BEAT_LOOK; late += MS) {
		struct lgpu_beat b = {0};
		int64_t now = 1000 * MS, stopped = now + late;
		while (!lgpu_beat_silent(&b, 7, now))
			now += LGPU_BEAT_LOOK + MS / 10;
		CHECK(now - stopped < 200 * MS && now - stopped > 100 * MS);
	}
	// One that beats, or never did, is not.
	struct lgpu_beat b = {0}, none = {0};
	for (int64_t i = 0; i < 10000; i++) {
		CHECK(!lgpu_beat_silent(&b, (uint64_t)(1 + i * LGPU_BEAT_LOOK / (int64_t)LGPU_LINK_BEAT), 1000 * MS + i * LGPU_BEAT_LOOK));
		CHECK(!lgpu_beat_silent(&none, 0, 1000 * MS + i * LGPU_BEAT_LOOK));
	}
	// Who was stopped itself counts the time as one look.
	struct lgpu_beat stopped = {0};
	CHECK(!lgpu_beat_silent(&stopped, 7, 1000 * MS));
	CHECK(!lgpu_beat_silent(&stopped, 7, 1000000 * MS));
	CHECK(!lgpu_beat_silent(&stopped, 8, 1000001 * MS));
	CHECK(stopped.silence == 0);
	// Many threads that look at once are not many looks.
	struct lgpu_beat many = {0};
	for (int i = 0; i < 1000; i++)
		CHECK(!lgpu_beat_silent(&many, 7, 1000 * MS));
	printf("ok\n");
	return 0;
}
