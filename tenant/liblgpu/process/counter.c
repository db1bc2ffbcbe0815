// SPDX-License-Identifier: Apache-2.0

#include "process/counter.h"

#define SEQUENCE_BITS 48
#define SEQUENCE_MASK ((UINT64_C(1) << SEQUENCE_BITS) - 1)

struct word {
	uint64_t bytes, last;
};

// swap replaces both words of a counter, if they are still those of *old; if
// not, *old is what they are.
static bool swap(struct lgpu_counter *c, struct word *old, struct word new)
{
#if defined(__x86_64__)
	bool done;
	__asm__ volatile("lock cmpxchg16b %1"
			 : "=@ccz"(done), "+m"(*c), "+a"(old->bytes), "+d"(old->last)
			 : "b"(new.bytes), "c"(new.last)
			 : "memory");
	return done;
#elif defined(__aarch64__)
	uint64_t bytes, last;
	uint32_t failed;
	__asm__ volatile("ldaxp %0, %1, %3\n\t"
			 "mov %w2, #2\n\t"
			 "cmp %0, %4\n\t"
			 "ccmp %1, %5, #0, eq\n\t"
			 "b.ne 1f\n\t"
			 "stlxp %w2, %6, %7, %3\n\t"
			 "1:"
			 : "=&r"(bytes), "=&r"(last), "=&r"(failed), "+Q"(*c)
			 : "r"(old->bytes), "r"(old->last), "r"(new.bytes), "r"(new.last)
			 : "cc", "memory");
	*old = (struct word){bytes, last};
	return failed == 0;
#else
#error "a 16-byte compare-and-swap is needed"
#endif
}

static struct lgpu_ledger *ledger_of(const struct lgpu_counter_at *at, uint32_t client)
{
	return (struct lgpu_ledger *)((char *)&at->clients[client] + at->ledger);
}

// note records that operation last took effect, before it is replaced. A
// tenant may have written anything here.
static void note(const struct lgpu_counter_at *at, uint64_t last)
{
	uint64_t sequence = last & SEQUENCE_MASK, client = last >> SEQUENCE_BITS;
	if (sequence == 0 || client >= LGPU_MAX_CLIENTS)
		return;
	uint64_t *applied = &ledger_of(at, (uint32_t)client)->applied;
	uint64_t seen = __atomic_load_n(applied, __ATOMIC_ACQUIRE);
	while (seen < sequence &&
	       !__atomic_compare_exchange_n(applied, &seen, sequence, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
}

static void raise_peak(const struct lgpu_counter_at *at, uint64_t bytes)
{
	if (at->peak == NULL)
		return;
	uint64_t peak = __atomic_load_n(at->peak, __ATOMIC_RELAXED);
	while (peak < bytes && !__atomic_compare_exchange_n(at->peak, &peak, bytes, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

void lgpu_counter_peak(const struct lgpu_counter_at *at) { raise_peak(at, __atomic_load_n(&at->counter->bytes, __ATOMIC_RELAXED)); }

bool lgpu_counter_add(const struct lgpu_counter_at *at, uint32_t client, int64_t held, int64_t delta, uint64_t limit)
{
	struct lgpu_ledger *ledger = ledger_of(at, client);
	uint64_t sequence = ledger->begun + 1;
	struct lgpu_operation *record = &ledger->record[sequence & 1];
	LGPU_FAULT_POINT("begin");
	record->before = held;
	LGPU_FAULT_POINT("half-recorded");
	record->delta = delta;
	LGPU_FAULT_POINT("recorded");
	__atomic_store_n(&ledger->begun, sequence, __ATOMIC_RELEASE);
	LGPU_FAULT_POINT("begun");
	uint64_t identity = (uint64_t)client << SEQUENCE_BITS | (sequence & SEQUENCE_MASK);
	// A pair of loads that mixes two states fails the compare-and-swap; and
	// each of the words was true at one moment, which is enough to refuse by.
	struct word old = {__atomic_load_n(&at->counter->bytes, __ATOMIC_ACQUIRE),
			   __atomic_load_n(&at->counter->last, __ATOMIC_ACQUIRE)};
	for (;;) {
		uint64_t bytes = old.bytes + (uint64_t)delta;
		if (delta > 0 && (bytes < old.bytes || bytes > limit))
			return false;
		if (delta < 0 && old.bytes < (uint64_t)-delta)
			bytes = 0; // somebody has written over the counter
		note(at, old.last);
		LGPU_FAULT_POINT("noted");
		if (swap(at->counter, &old, (struct word){bytes, identity})) {
			LGPU_FAULT_POINT("swapped");
			raise_peak(at, bytes);
			return true;
		}
	}
}

int64_t lgpu_counter_held(const struct lgpu_counter_at *at, uint32_t client)
{
	struct lgpu_ledger *ledger = ledger_of(at, client);
	uint64_t sequence = __atomic_load_n(&ledger->begun, __ATOMIC_ACQUIRE);
	const struct lgpu_operation *record = &ledger->record[sequence & 1];
	uint64_t identity = (uint64_t)client << SEQUENCE_BITS | (sequence & SEQUENCE_MASK);
	// In this order: an operation leaves the counter only after it is noted.
	bool applied = __atomic_load_n(&at->counter->last, __ATOMIC_ACQUIRE) == identity;
	applied = applied || __atomic_load_n(&ledger->applied, __ATOMIC_ACQUIRE) >= sequence;
	return __atomic_load_n(&record->before, __ATOMIC_RELAXED) +
	       (applied ? __atomic_load_n(&record->delta, __ATOMIC_RELAXED) : 0);
}

void lgpu_counter_settle(const struct lgpu_counter_at *at, uint32_t client)
{
	int64_t held = lgpu_counter_held(at, client);
	LGPU_FAULT_POINT("settle");
	if (held > 0)
		lgpu_counter_add(at, client, held, -held, UINT64_MAX);
	LGPU_FAULT_POINT("settled");
}

struct lgpu_counter_at lgpu_counter_device(struct lgpu_usage *usage, uint32_t device)
{
	return (struct lgpu_counter_at){&usage->device[device].memory, &usage->device[device].peak, usage->client,
					offsetof(struct lgpu_client, device) + device * sizeof(struct lgpu_ledger)};
}

struct lgpu_counter_at lgpu_counter_host(struct lgpu_usage *usage)
{
	return (struct lgpu_counter_at){&usage->host, NULL, usage->client, offsetof(struct lgpu_client, host)};
}
