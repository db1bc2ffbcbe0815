// counter.h: an amount of memory shared by the processes of an lgpu, in words
// that a crash at any instruction leaves decidable. Layout: tenant/region/layout.go.
//
// A process records what it is about to do in its ledger, then changes the
// counter and the identity of the last operation by one 16-byte
// compare-and-swap. Whoever replaces that identity first notes in its owner's
// ledger that the operation took effect. So for every operation ever begun it
// can be told whether it happened, and a dead process's share be given back
// exactly. No step waits for another process.
#ifndef LGPU_COUNTER_H
#define LGPU_COUNTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "region.h"

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

#ifdef LGPU_FAULT_POINTS
// lgpu_fault kills the process when it is the point named by LGPU_FAULT.
void lgpu_fault(const char *point);
#define LGPU_FAULT_POINT(name) lgpu_fault(name)
#else
#define LGPU_FAULT_POINT(name) ((void)0)
#endif

#endif
