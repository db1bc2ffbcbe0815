// SPDX-License-Identifier: Apache-2.0

// Charging memory to the lgpu.
#include "alone/alone.h"
#include "alone/hami.h"
#include "base/futex.h"
#include "daemon/daemon.h"
#include "memory/memory.h"
#include "process/counter.h"

static struct lgpu_counter_at counter_of(const struct lgpu_state *state, int index)
{
	return index == LGPU_HOST ? lgpu_counter_host(state->usage) : lgpu_counter_device(state->usage, (uint32_t)index);
}

// shown_of is the limit that the program sees.
static uint64_t shown_of(const struct lgpu_state *state, int index)
{
	return __atomic_load_n(index == LGPU_HOST ? &state->limits->host_memory : &state->limits->device[index].memory,
			       __ATOMIC_RELAXED);
}

// limit_of is what may be held now.
static uint64_t limit_of(const struct lgpu_state *state, int index)
{
	if (!state->linked || index == LGPU_HOST)
		return shown_of(state, index);
	return __atomic_load_n(&state->limits->device[index].granted, __ATOMIC_SEQ_CST);
}

// add changes the process's share. Threads take turns: the ledger has room for
// one operation in doubt. ahead: the peak does not follow.
static bool add(struct lgpu_state *state, int index, int64_t delta, uint64_t limit, bool ahead)
{
	struct lgpu_account *account = index == LGPU_HOST ? &state->host : &state->device[index];
	struct lgpu_counter_at at = counter_of(state, index);
	if (ahead)
		at.peak = NULL;
	lgpu_lock(&account->lock);
	bool done = lgpu_counter_add(&at, state->client, account->held, delta, limit);
	// The daemon may have taken back a grant meanwhile. It lowers the grant,
	// then reads the counter; this reads them the other way round, so that one
	// of the two sees the other.
	if (done && delta > 0 && state->linked && lgpu_used(state, index) > limit_of(state, index)) {
		lgpu_counter_add(&at, state->client, account->held + delta, -delta, limit);
		done = false;
	}
	if (done) {
		account->held += delta;
		if (state->hami != NULL && index != LGPU_HOST)
			lgpu_hami_memory(state, index, account->held, lgpu_overhead(index));
	}
	lgpu_unlock(&account->lock);
	return done;
}

static bool charge(struct lgpu_state *state, int index, uint64_t bytes, bool ahead)
{
	if (bytes == 0)
		return true;
	if (bytes > INT64_MAX)
		return false;
	if (state->linked)
		lgpu_daemon_listen(); // from now on there is something to be told about
	if (add(state, index, (int64_t)bytes, limit_of(state, index), ahead))
		return true;
	// The dead do not count; and the daemon may have more to give, which
	// another process of the lgpu may be quicker to take.
	if (!state->linked) {
		lgpu_reclaim(state);
		return add(state, index, (int64_t)bytes, limit_of(state, index), ahead);
	}
	for (int i = 0; i < 16 && lgpu_daemon_need(index, bytes); i++) {
		uint64_t limit = limit_of(state, index);
		if (add(state, index, (int64_t)bytes, limit, ahead))
			return true;
		if (limit < bytes || lgpu_used(state, index) > limit - bytes)
			break;
	}
	return false;
}

bool lgpu_charge(struct lgpu_state *state, int index, uint64_t bytes) { return charge(state, index, bytes, false); }

bool lgpu_charge_ahead(struct lgpu_state *state, int index, uint64_t bytes) { return charge(state, index, bytes, true); }

void lgpu_charge_seen(struct lgpu_state *state, int index)
{
	struct lgpu_counter_at at = counter_of(state, index);
	lgpu_counter_peak(&at);
}

void lgpu_uncharge(struct lgpu_state *state, int index, uint64_t bytes)
{
	if (bytes != 0)
		add(state, index, -(int64_t)bytes, UINT64_MAX, false);
}

uint64_t lgpu_charge_most(struct lgpu_state *state, int index, uint64_t bytes)
{
	for (;;) {
		if (bytes == 0 || lgpu_charge(state, index, bytes))
			return bytes;
		uint64_t limit = limit_of(state, index), used = lgpu_used(state, index);
		uint64_t left = used < limit ? limit - used : 0;
		bytes = left < bytes ? left : bytes - 1;
	}
}

uint64_t lgpu_charge_granted(struct lgpu_state *state, int index, uint64_t bytes)
{
	uint64_t limit = limit_of(state, index), used = lgpu_used(state, index);
	uint64_t left = used < limit ? limit - used : 0;
	if (bytes > left)
		bytes = left;
	return bytes != 0 && add(state, index, (int64_t)bytes, limit, false) ? bytes : 0;
}

uint64_t lgpu_used(const struct lgpu_state *state, int index)
{
	return __atomic_load_n(&counter_of(state, index).counter->bytes, __ATOMIC_RELAXED);
}

uint64_t lgpu_remaining(const struct lgpu_state *state, int index)
{
	uint64_t limit = shown_of(state, index), used = lgpu_used(state, index);
	return used < limit ? limit - used : 0;
}

uint64_t lgpu_held(const struct lgpu_state *state, uint32_t client, int index)
{
	struct lgpu_counter_at at = counter_of(state, index);
	int64_t held = lgpu_counter_held(&at, client);
	return held > 0 ? (uint64_t)held : 0;
}
