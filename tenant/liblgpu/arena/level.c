// SPDX-License-Identifier: Apache-2.0

// Levels: how much of this process's memory of a device may be resident, as the daemon said last.
#include "arena/parts.h"

#include "base/futex.h"
#include "daemon/daemon.h"
#include "residence/residence.h"

// Levels are asked for in steps, so that small allocations do not ask each time.
#define STEP (UINT64_C(32) << 20)
#define ALONE (60 * LGPU_NANOS) // without a daemon, after which an allocation fails
#define ANSWER LGPU_NANOS       // that is waited for where the daemon answers at once
#define LESS LGPU_PAGE          // that the daemon is told of unasked
#define STRIDE (UINT64_C(64) << 20) // of a move, after which the daemon is told

struct lgpu_level lgpu_levels[LGPU_MAX_DEVICES];
static uint32_t news;       // event count: anything of levels, or of the connection, has changed
static uint32_t connection; // how many connections there have been
static int64_t lost_at;     // 0: there is a daemon

static void tell(void)
{
	__atomic_fetch_add(&news, 1, __ATOMIC_RELEASE);
	lgpu_futex_wake(&news, INT32_MAX);
}

static uint64_t load(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void store(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t held_of(const struct lgpu_state *s, int device)
{
	int64_t held = __atomic_load_n(&s->device[device].held, __ATOMIC_ACQUIRE);
	return held > 0 ? (uint64_t)held : 0;
}

uint64_t lgpu_level_total(const struct lgpu_state *s, int device)
{
	uint64_t waiting = load(&lgpu_levels[device].waiting); // before held, to which it is added later
	return minus(held_of(s, device), waiting);
}

uint64_t lgpu_level_resident(const struct lgpu_state *s, int device)
{
	return minus(lgpu_level_total(s, device), lgpu_arena_bytes(device) - lgpu_arena_resident(device));
}

uint64_t lgpu_level_excess(const struct lgpu_state *s, int device)
{
	return minus(lgpu_level_resident(s, device), load(&lgpu_levels[device].value));
}

void lgpu_level_set(int device, uint64_t value)
{
	store(&lgpu_levels[device].asked, 0); // what everything takes is to be asked for anew
	store(&lgpu_levels[device].value, value);
	__atomic_fetch_add(&lgpu_levels[device].number, 1, __ATOMIC_RELEASE);
	tell();
}

void lgpu_level_refuse(int device, uint64_t value)
{
	struct lgpu_level *l = &lgpu_levels[device];
	store(&l->refused, value);
	__atomic_fetch_add(&l->refusals, 1, __ATOMIC_RELEASE);
	tell();
}

// Between two connections nothing is said: the new daemon must first hear what is resident, and get the files. It has asked
// for nothing yet, and asks for all that it wants then.
static bool connected(void) { return __atomic_load_n(&lost_at, __ATOMIC_ACQUIRE) == 0; }

// need asks for a level, of which so much is needed now.
static bool need(int device, uint64_t value, uint64_t least)
{
	lgpu_daemon_listen();
	return connected() && lgpu_daemon_send(&(struct lgpu_message){.kind = (uint16_t)LGPU_LINK_NEED, .device = (uint32_t)device,
						       .flags = (uint32_t)LGPU_LINK_FLAG_RESIDENT, .value = value, .extra = least});
}

void lgpu_level_need(const struct lgpu_state *s, int device)
{
	struct lgpu_level *l = &lgpu_levels[device];
	uint64_t total = lgpu_level_total(s, device);
	if (total > load(&l->value) && total != load(&l->asked) && need(device, total, total))
		store(&l->asked, total);
}

// claimed is what is resident and what waits for its level, which may have it already and be resident in a moment.
static uint64_t claimed(const struct lgpu_state *s, int device)
{
	return lgpu_level_resident(s, device) + load(&lgpu_levels[device].waiting);
}

void lgpu_level_kept(const struct lgpu_state *s, int device, uint64_t serial, uint64_t why)
{
	struct lgpu_message m = {
		.kind = (uint16_t)LGPU_LINK_KEPT,
		.device = (uint32_t)device,
		.flags = why != 0 ? (uint32_t)LGPU_LINK_FLAG_REFUSED : 0,
		.serial = serial,
		.value = lgpu_level_resident(s, device),
		.extra = why != 0 ? why : lgpu_level_total(s, device),
	};
	store(&lgpu_levels[device].said, claimed(s, device)); // what waits may be freed again before lgpu_arena_look sees it
	if (connected())
		lgpu_daemon_send(&m);
}

// freed says unasked that no more is claimed than that. answered is the last Keep that was answered before that was looked at:
// by now the mover may have begun with another one, or be done with it.
static void freed(const struct lgpu_state *s, int device, uint64_t now, uint64_t answered)
{
	store(&lgpu_levels[device].said, now);
	lgpu_daemon_send(&(struct lgpu_message){.kind = (uint16_t)LGPU_LINK_KEPT, .device = (uint32_t)device,
						.flags = (uint32_t)LGPU_LINK_FLAG_AS_OF, .id = answered, .value = now,
						.extra = lgpu_level_total(s, device)});
}

bool lgpu_level_moving(const struct lgpu_state *s, int device, uint64_t keep)
{
	uint64_t resident = lgpu_level_resident(s, device), said = load(&lgpu_levels[device].said);
	if (!connected() || (resident > said ? resident - said : said - resident) < STRIDE)
		return false;
	store(&lgpu_levels[device].said, resident);
	lgpu_daemon_send(&(struct lgpu_message){.kind = (uint16_t)LGPU_LINK_KEPT, .device = (uint32_t)device,
						.flags = (uint32_t)LGPU_LINK_FLAG_MOVING, .id = keep, .value = resident,
						.extra = lgpu_level_total(s, device)});
	return true;
}

// ---- waiting for a level

// An allocation that waits.
struct wait {
	struct lgpu_state *state;
	struct lgpu_level *level;
	int device;
	uint64_t bytes;      // that it waits for
	uint64_t want;       // the level at which it may go on
	uint64_t asked;      // the level that it has asked for; 0: none
	uint32_t number;     // of the level when it asked: one that was given may be gone before it is seen here
	uint32_t refusals;   // when it asked
	uint32_t connection; // in which it asked
};

// granted reports whether the level has room for what is allocated and for these bytes.
static bool granted(const struct wait *w)
{
	uint64_t level = load(&w->level->value);
	return level >= w->want || level >= lgpu_level_total(w->state, w->device) + w->bytes;
}

static void ask(struct wait *w, uint64_t level)
{
	w->number = __atomic_load_n(&w->level->number, __ATOMIC_ACQUIRE);
	w->refusals = __atomic_load_n(&w->level->refusals, __ATOMIC_ACQUIRE);
	w->connection = __atomic_load_n(&connection, __ATOMIC_ACQUIRE);
	w->asked = need(w->device, level, w->want) ? level : 0;
}

// refused reports whether the daemon has refused what was asked for.
static bool refused(const struct wait *w)
{
	return w->asked != 0 && __atomic_load_n(&w->level->refusals, __ATOMIC_ACQUIRE) != w->refusals &&
	       load(&w->level->refused) <= w->asked;
}

static bool wait_for(struct wait *w)
{
	for (;;) {
		uint32_t seen = __atomic_load_n(&news, __ATOMIC_ACQUIRE);
		if (granted(w))
			return true;
		int64_t lost = __atomic_load_n(&lost_at, __ATOMIC_ACQUIRE);
		if (lost != 0 && lgpu_now() - lost > ALONE) {
			lgpu_log(LGPU_LOG_WARN, "no lgpu daemon for %d s to ask for room on the device; out of memory", (int)(ALONE / LGPU_NANOS));
			return false;
		}
		if (refused(w)) {
			if (w->asked == w->want)
				return false;
			ask(w, w->want); // without what was to spare
		} else if (w->asked == 0 || w->connection != __atomic_load_n(&connection, __ATOMIC_ACQUIRE)) {
			ask(w, lgpu_round_up(w->want, STEP));
		} else if (w->number != __atomic_load_n(&w->level->number, __ATOMIC_ACQUIRE)) {
			ask(w, w->asked);
		}
		lgpu_futex_wait(&news, seen, LGPU_NANOS);
	}
}

bool lgpu_level_wait(struct lgpu_state *s, int device, uint64_t bytes)
{
	struct lgpu_level *l = &lgpu_levels[device];
	uint64_t held = held_of(s, device);
	if (held > load(&l->said))
		store(&l->said, held); // it may be freed before lgpu_arena_look sees it
	if (held <= load(&l->value))
		return true;
	__atomic_fetch_add(&l->waiting, bytes, __ATOMIC_SEQ_CST);
	struct wait w = {.state = s, .level = l, .device = device, .bytes = bytes, .want = held_of(s, device)};
	bool room = wait_for(&w);
	__atomic_fetch_sub(&l->waiting, bytes, __ATOMIC_SEQ_CST);
	return room;
}

// ---- what cannot leave

static uint32_t asking;   // lock of who asks whether what cannot leave may stay
static uint64_t question; // number of the last such question; changed with asking locked
static uint64_t answer;   // twice the number of the last question that was answered, and 1 more if with no

void lgpu_level_fixed_answer(uint64_t id, bool refused)
{
	store(&answer, 2 * id + refused);
	tell();
}

// say_fixed says what cannot leave a device. With an id of 0 there is no answer.
static bool say_fixed(int device, uint64_t id)
{
	return lgpu_daemon_send(&(struct lgpu_message){.kind = (uint16_t)LGPU_LINK_NEED, .device = (uint32_t)device,
						       .flags = (uint32_t)(LGPU_LINK_FLAG_RESIDENT | LGPU_LINK_FLAG_FIXED),
						       .id = id, .value = lgpu_overhead(device)});
}

void lgpu_level_fixed_again(int device)
{
	if (lgpu_overhead(device) != 0)
		say_fixed(device, 0);
}

bool lgpu_level_fixed(int device)
{
	bool may = true;
	lgpu_lock(&asking);
	uint64_t id = ++question;
	lgpu_daemon_listen();
	bool waits = say_fixed(device, id);
	for (int64_t now = lgpu_now(), end = now + ANSWER; waits && now < end; now = lgpu_now()) {
		uint32_t seen = __atomic_load_n(&news, __ATOMIC_ACQUIRE);
		uint64_t heard = load(&answer);
		if (heard / 2 == id) {
			may = heard % 2 == 0;
			break;
		}
		lgpu_futex_wait(&news, seen, end - now);
	}
	lgpu_unlock(&asking);
	if (!may)
		lgpu_log(LGPU_LOG_WARN, "a context on device %d would leave others too little of memory.budget, or have none itself; "
			 "out of memory; lgpu events says more", device);
	return may;
}

// ---- the connection

void lgpu_levels_lost(void)
{
	__atomic_store_n(&lost_at, lgpu_now(), __ATOMIC_RELEASE);
	tell();
}

void lgpu_levels_found(void)
{
	__atomic_store_n(&lost_at, 0, __ATOMIC_RELEASE);
	__atomic_fetch_add(&connection, 1, __ATOMIC_RELEASE);
	tell();
}

// Frees are not said one by one. And what no call of ours allocates may have grown beyond the level.
void lgpu_arena_look(void)
{
	struct lgpu_state *s = lgpu_attached();
	if (!lgpu_managed || s == NULL || lgpu_residence_is_shut())
		return;
	for (int i = 0; i < (int)s->limits->devices && i < (int)LGPU_MAX_DEVICES; i++) {
		if (!lgpu_arena_wants(s, i))
			continue;
		uint64_t answered = load(&lgpu_levels[i].answered), now = claimed(s, i), said = load(&lgpu_levels[i].said);
		if (now + LESS <= said)
			freed(s, i, now, answered);
		else if (now > said)
			store(&lgpu_levels[i].said, now);
		lgpu_level_need(s, i);
	}
}

void lgpu_levels_reset(void)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++)
		lgpu_levels[i] = (struct lgpu_level){.value = 0};
	news = connection = asking = 0;
	lost_at = 0;
}
