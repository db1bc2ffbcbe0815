// SPDX-License-Identifier: Apache-2.0

// Charging all that a process holds in another region than before.
#include "base/futex.h"
#include "memory/memory.h"
#include "process/counter.h"

static struct lgpu_account *account_of(struct lgpu_state *s, uint32_t k) { return k == LGPU_MAX_DEVICES ? &s->host : &s->device[k]; }

static struct lgpu_counter_at counter_of(struct lgpu_usage *usage, uint32_t k)
{
	return k == LGPU_MAX_DEVICES ? lgpu_counter_host(usage) : lgpu_counter_device(usage, k);
}

// add is charge.c's, for one that has nothing in the region yet.
static bool add(const struct lgpu_limits *limits, struct lgpu_usage *usage, uint32_t client, uint32_t k, int64_t held)
{
	const uint64_t *limit = k == LGPU_MAX_DEVICES ? &limits->host_memory : &limits->device[k].granted;
	struct lgpu_counter_at at = counter_of(usage, k);
	if (!lgpu_counter_add(&at, client, 0, held, __atomic_load_n(limit, __ATOMIC_SEQ_CST)))
		return false;
	if (__atomic_load_n(&at.counter->bytes, __ATOMIC_SEQ_CST) <= __atomic_load_n(limit, __ATOMIC_SEQ_CST))
		return true;
	lgpu_counter_add(&at, client, held, -held, UINT64_MAX);
	return false;
}

// charge is called with all accounts locked.
static bool charge(struct lgpu_state *s, const struct lgpu_limits *limits, struct lgpu_usage *usage, uint32_t client, uint32_t *lacks)
{
	for (uint32_t k = 0; k <= LGPU_MAX_DEVICES; k++) {
		int64_t held = account_of(s, k)->held;
		if (held <= 0 || add(limits, usage, client, k, held))
			continue;
		*lacks = k;
		while (k-- > 0) {
			struct lgpu_counter_at at = counter_of(usage, k);
			held = account_of(s, k)->held;
			if (held > 0)
				lgpu_counter_add(&at, client, held, -held, UINT64_MAX);
		}
		return false;
	}
	return true;
}

bool lgpu_charge_anew(struct lgpu_state *s, struct lgpu_limits *limits, struct lgpu_usage *usage, uint32_t client, int *index, uint64_t *bytes)
{
	uint32_t lacks = 0;
	for (uint32_t k = 0; k <= LGPU_MAX_DEVICES; k++)
		lgpu_lock(&account_of(s, k)->lock);
	bool done = charge(s, limits, usage, client, &lacks);
	if (done) {
		s->client = client;
		lgpu_region_replace(s, limits, usage);
	} else {
		*index = lacks == LGPU_MAX_DEVICES ? LGPU_HOST : (int)lacks;
		*bytes = (uint64_t)account_of(s, lacks)->held;
	}
	for (uint32_t k = 0; k <= LGPU_MAX_DEVICES; k++)
		lgpu_unlock(&account_of(s, k)->lock);
	return done;
}
