// SPDX-License-Identifier: Apache-2.0

// counter.h: how much memory the processes of an lgpu hold together, in words that a
// crash at any instruction leaves decidable. Layout: tenant/region/layout.go.
//
// A process first records in its ledger what it is about to do. Then it changes the
// counter and the identity of the last operation, by one 16-byte compare-and-swap.
// Before a process replaces such an identity, it notes in the ledger of the client
// named there that its operation took effect. So it can always be decided whether
// an operation happened, and what a dead process held can be given back exactly. No
// step waits for another process.
#ifndef LGPU_COUNTER_H
#define LGPU_COUNTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "process/region_gen.h"

// One counter of a region, and where its ledgers are.
struct lgpu_counter_at {
	struct lgpu_counter *counter;
	uint64_t *peak; // the most that it ever said; NULL: not kept
	struct lgpu_client *clients;
	size_t ledger; // offset in struct lgpu_client
};

// lgpu_counter_device and lgpu_counter_host name the counters of a region.
struct lgpu_counter_at lgpu_counter_device(struct lgpu_usage *usage, uint32_t device);
struct lgpu_counter_at lgpu_counter_host(struct lgpu_usage *usage);

// lgpu_counter_add adds delta for a client that holds held, and returns
// whether it did: not if the sum would exceed limit. A negative delta is never
// refused; its amount is not more than held. One thread at a time for each
// client and counter.
bool lgpu_counter_add(const struct lgpu_counter_at *at, uint32_t client, int64_t held, int64_t delta, uint64_t limit);

// lgpu_counter_peak raises the peak to what the counter says now.
void lgpu_counter_peak(const struct lgpu_counter_at *at);

// lgpu_counter_held is what a client holds. Exact for the client itself and
// for a dead one; a snapshot for others.
int64_t lgpu_counter_held(const struct lgpu_counter_at *at, uint32_t client);

// lgpu_counter_settle gives back all that a dead client holds. The caller has
// its record lock. Interrupted, it is done again by the next.
void lgpu_counter_settle(const struct lgpu_counter_at *at, uint32_t client);

#endif
