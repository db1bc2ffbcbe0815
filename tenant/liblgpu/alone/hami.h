// SPDX-License-Identifier: Apache-2.0

// hami.h: the environment and the region of HAMi v2.10, so that lgpu can stand
// in for HAMi's library and its monitor can read what this library does.
#ifndef LGPU_HAMI_H
#define LGPU_HAMI_H

#include "process/process.h"

// lgpu_hami_map makes or joins the region of HAMi's environment and completes
// the state of p. False: it cannot be used, and why has been said.
bool lgpu_hami_map(struct lgpu_process *p);

// What HAMi's monitor shall see, written on each change:
// lgpu_hami_claim and lgpu_hami_free: a client begins and ends.
void lgpu_hami_claim(struct lgpu_state *state, uint32_t pid, uint64_t namespace);
void lgpu_hami_free(struct lgpu_state *state, uint32_t client);
// lgpu_hami_memory: this process holds held bytes of a device; overhead of them are
// no allocation's.
void lgpu_hami_memory(struct lgpu_state *state, int index, int64_t held, uint64_t overhead);
// lgpu_hami_launched: work is being launched; called where lgpu_hami_watched.
void lgpu_hami_launched(void);
extern bool lgpu_hami_watched;

#endif
