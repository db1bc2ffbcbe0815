#define _GNU_SOURCE
#include "turn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"
#include "futex.h"

// owner word: grant number << 16 | seat index + 1. The number makes every
// grant distinct, so that a compare-and-swap against an old one fails.
static inline uint64_t owner_next(uint64_t owner, uint32_t index)
{
	return ((owner >> 16) + 1) << 16 | (index + 1);
}
static inline uint64_t owner_none(uint64_t owner)
{
	return ((owner >> 16) + 1) << 16;
}
static inline uint32_t owner_seat(uint64_t owner)
{
	return (uint32_t)(owner & 0xffff); // index + 1; 0: nobody
}

static bool page_map(struct lgpu_turn_seat *seat, const char *path)
{
	struct stat st;
	int fd = lgpu_open_high(path, O_CREAT | O_NOFOLLOW);
	if (fd < 0)
		return false;
	// Growing is idempotent and zeros are a valid empty page, so openers need
	// no order among them.
	if (syscall(SYS_fstat, fd, &st) != 0 || // fstat itself is too new a symbol
	    !S_ISREG(st.st_mode) ||
	    (st.st_size < (off_t)sizeof(struct lgpu_turn) && ftruncate(fd, sizeof(struct lgpu_turn)) != 0))
		goto fail;
	struct lgpu_turn *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		goto fail;
	uint64_t none = 0;
	if (__atomic_compare_exchange_n(&page->magic, &none, LGPU_TURN_MAGIC, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		__atomic_store_n(&page->version, (uint32_t)LGPU_VERSION, __ATOMIC_SEQ_CST);
	else if (none != LGPU_TURN_MAGIC || (page->version != 0 && page->version != LGPU_VERSION)) {
		munmap(page, sizeof *page);
		errno = EPROTO;
		goto fail;
	}
	seat->page = page;
	seat->fd = fd;
	return true;
fail:
	close(fd);
	return false;
}

static bool seat_claim(struct lgpu_turn_seat *seat, uint64_t lgpu)
{
	for (uint32_t index = 0; index < LGPU_MAX_SEATS; index++) {
		if (!lgpu_lease(seat->fd, index))
			continue;
		uint32_t seats = __atomic_load_n(&seat->page->seats, __ATOMIC_SEQ_CST);
		while (seats <= index && !__atomic_compare_exchange_n(&seat->page->seats, &seats, index + 1, 0,
								      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			;
		struct lgpu_seat *s = &seat->page->seat[index];
		s->pid = (uint32_t)getpid();
		s->lgpu = lgpu;
		__atomic_store_n(&s->state, (uint32_t)LGPU_SEAT_IDLE, __ATOMIC_SEQ_CST);
		seat->index = index;
		return true;
	}
	errno = ENOSPC;
	return false;
}

void lgpu_turn_open(struct lgpu_turn_seat *seat, const char *folder, const uint8_t uuid[16], uint64_t lgpu)
{
	char path[512];
	int n = snprintf(path, sizeof path, "%s/turn-", folder);
	memset(seat, 0, sizeof *seat);
	if (n < 0 || n + 33 > (int)sizeof path) {
		lgpu_log(LGPU_LOG_ERROR, "turn page: folder name too long: %s", folder);
		return;
	}
	for (int i = 0; i < 16; i++)
		n += snprintf(path + n, sizeof path - n, "%02x", uuid[i]);
	if (!page_map(seat, path) || !seat_claim(seat, lgpu)) {
		lgpu_log(LGPU_LOG_ERROR, "turn page %s: %s; the cap holds, but other lgpus on this device are not waited for",
			 path, strerror(errno));
		seat->page = NULL;
	}
}

static bool take(struct lgpu_turn_seat *seat, uint64_t owner, int64_t now)
{
	uint64_t mine = owner_next(owner, seat->index);
	if (!__atomic_compare_exchange_n(&seat->page->owner, &owner, mine, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return false;
	__atomic_store_n(&seat->page->since, (uint64_t)now, __ATOMIC_RELAXED);
	__atomic_store_n(&seat->page->seat[seat->index].state, (uint32_t)LGPU_SEAT_IDLE, __ATOMIC_SEQ_CST);
	seat->grant = mine;
	seat->asked = 0;
	return true;
}

// forfeited says whether the owner is dead, or has kept us waiting beyond its
// bound.
static bool forfeited(const struct lgpu_turn_seat *seat, uint64_t owner, int64_t now)
{
	uint32_t index = owner_seat(owner) - 1;
	int64_t since = (int64_t)__atomic_load_n(&seat->page->since, __ATOMIC_RELAXED);
	if (index >= LGPU_MAX_SEATS || now - (since > seat->asked ? since : seat->asked) > LGPU_TURN_BOUND)
		return true;
	return index != seat->index && lgpu_lease_dead(seat->fd, index);
}

bool lgpu_turn_try(struct lgpu_turn_seat *seat, int64_t now)
{
	if (seat->page == NULL)
		return true;
	uint32_t *state = &seat->page->seat[seat->index].state;
	uint64_t owner = __atomic_load_n(&seat->page->owner, __ATOMIC_SEQ_CST);
	if (owner_seat(owner) == 0 && take(seat, owner, now))
		return true;
	if (seat->asked == 0)
		seat->asked = now;
	__atomic_store_n(state, (uint32_t)LGPU_SEAT_WAITING, __ATOMIC_SEQ_CST);
	// Look again after queueing: an owner that left before it could see us
	// has left the turn free.
	owner = __atomic_load_n(&seat->page->owner, __ATOMIC_SEQ_CST);
	if (owner_seat(owner) == seat->index + 1) { // handed to us
		__atomic_store_n(state, (uint32_t)LGPU_SEAT_IDLE, __ATOMIC_SEQ_CST);
		__atomic_store_n(&seat->page->since, (uint64_t)now, __ATOMIC_RELAXED);
		seat->grant = owner;
		seat->asked = 0;
		return true;
	}
	return (owner_seat(owner) == 0 || forfeited(seat, owner, now)) && take(seat, owner, now);
}

void lgpu_turn_wait(struct lgpu_turn_seat *seat, int64_t nanos)
{
	lgpu_futex_wait(&seat->page->seat[seat->index].state, LGPU_SEAT_WAITING, nanos);
}

bool lgpu_turn_kept(const struct lgpu_turn_seat *seat)
{
	return seat->page == NULL || __atomic_load_n(&seat->page->owner, __ATOMIC_RELAXED) == seat->grant;
}

// next_waiting is the first waiting seat after ours, or -1. A dead one is
// skipped: its process cannot take the turn, and the next one to sit there
// resets the state.
static int next_waiting(const struct lgpu_turn_seat *seat)
{
	uint32_t seats = __atomic_load_n(&seat->page->seats, __ATOMIC_SEQ_CST);
	if (seats > LGPU_MAX_SEATS)
		seats = LGPU_MAX_SEATS;
	for (uint32_t i = 1; i < seats; i++) {
		uint32_t index = (seat->index + i) % seats;
		if (__atomic_load_n(&seat->page->seat[index].state, __ATOMIC_SEQ_CST) == LGPU_SEAT_WAITING &&
		    !lgpu_lease_dead(seat->fd, index))
			return (int)index;
	}
	return -1;
}

bool lgpu_turn_wanted(const struct lgpu_turn_seat *seat)
{
	return seat->page != NULL && next_waiting(seat) >= 0;
}

void lgpu_turn_leave(struct lgpu_turn_seat *seat, int64_t now)
{
	if (seat->page == NULL)
		return;
	struct lgpu_turn *page = seat->page;
	__atomic_store_n(&page->seat[seat->index].state, (uint32_t)LGPU_SEAT_IDLE, __ATOMIC_SEQ_CST);
	uint64_t owner = seat->grant;
	seat->grant = 0;
	seat->asked = 0;
	if (owner == 0) {
		// Not ours, unless it was handed to us between our last look and now.
		owner = __atomic_load_n(&page->owner, __ATOMIC_SEQ_CST);
		if (owner_seat(owner) != seat->index + 1)
			return;
	}
	for (;;) {
		int next = next_waiting(seat);
		uint64_t then = next < 0 ? owner_none(owner) : owner_next(owner, (uint32_t)next);
		__atomic_store_n(&page->since, (uint64_t)now, __ATOMIC_RELAXED);
		if (!__atomic_compare_exchange_n(&page->owner, &owner, then, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			return; // taken from us
		if (next >= 0) {
			uint32_t *state = &page->seat[next].state;
			__atomic_store_n(state, (uint32_t)LGPU_SEAT_GRANTED, __ATOMIC_SEQ_CST);
			lgpu_futex_wake(state, 1);
			return;
		}
		// Whoever queued after we looked may have missed that the turn is
		// free now; take it back for them.
		if (next_waiting(seat) < 0)
			return;
		owner = then;
	}
}
