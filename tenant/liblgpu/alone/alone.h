// SPDX-License-Identifier: Apache-2.0

// alone.h: the clients of an lgpu without a daemon.
#ifndef LGPU_ALONE_H
#define LGPU_ALONE_H

#include "process/process.h"

// lgpu_alone_claim makes this process a client of its region. False: it cannot be
// one, and why has been said.
bool lgpu_alone_claim(struct lgpu_state *state);

// lgpu_reclaim gives back what dead clients hold and makes room for new ones, where
// no daemon does.
void lgpu_reclaim(struct lgpu_state *state);
// lgpu_reclaim_sometimes does so if it was not done within the last 50 ms.
void lgpu_reclaim_sometimes(struct lgpu_state *state);

#endif
