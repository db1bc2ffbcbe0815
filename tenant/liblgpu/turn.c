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
		s->served = 0;
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
	if (since > now)
		since = 0; // of another time namespace, or no time at all
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

static uint32_t seats_of(const struct lgpu_turn *page)
{
	uint32_t seats = __atomic_load_n(&page->seats, __ATOMIC_SEQ_CST);
	return seats < LGPU_MAX_SEATS ? seats : LGPU_MAX_SEATS;
}

static bool waiting(const struct lgpu_seat *s)
{
	return __atomic_load_n(&s->state, __ATOMIC_SEQ_CST) == LGPU_SEAT_WAITING;
}

static uint64_t served(const struct lgpu_turn *page, uint32_t index)
{
	return __atomic_load_n(&page->seat[index].served, __ATOMIC_RELAXED);
}

// lgpu_served is when any seat of an lgpu last had the turn.
static uint64_t lgpu_served(const struct lgpu_turn *page, uint32_t seats, uint64_t lgpu)
{
	uint64_t last = 0;
	for (uint32_t i = 0; i < seats; i++)
		if (page->seat[i].lgpu == lgpu && served(page, i) > last)
			last = served(page, i);
	return last;
}

// next_waiting is the seat whose turn it is after ours, or -1. A dead one is
// passed over: its process cannot take the turn, and the next one to sit there
// resets the state.
static int next_waiting(const struct lgpu_turn_seat *seat)
{
	const struct lgpu_turn *page = seat->page;
	uint32_t seats = seats_of(page);
	int best = -1;
	uint64_t best_lgpu = 0, best_seat = 0;
	for (uint32_t i = 0; i < seats; i++) {
		if (i == seat->index || !waiting(&page->seat[i]))
			continue;
		uint64_t of_lgpu = lgpu_served(page, seats, page->seat[i].lgpu), of_seat = served(page, i);
		if (best >= 0 && (of_lgpu > best_lgpu || (of_lgpu == best_lgpu && of_seat >= best_seat)))
			continue;
		if (lgpu_lease_dead(seat->fd, i))
			continue;
		best = (int)i;
		best_lgpu = of_lgpu;
		best_seat = of_seat;
	}
	return best;
}

enum lgpu_turn_wanted lgpu_turn_wanted(const struct lgpu_turn_seat *seat)
{
	enum lgpu_turn_wanted wanted = LGPU_TURN_UNWANTED;
	if (seat->page == NULL)
		return wanted;
	const struct lgpu_turn *page = seat->page;
	uint32_t seats = seats_of(page);
	for (uint32_t i = 0; i < seats && wanted != LGPU_TURN_WANTED_BY_OTHERS; i++)
		if (i != seat->index && waiting(&page->seat[i]) && !lgpu_lease_dead(seat->fd, i))
			wanted = page->seat[i].lgpu == page->seat[seat->index].lgpu ? LGPU_TURN_WANTED_BY_OWN
										    : LGPU_TURN_WANTED_BY_OTHERS;
	return wanted;
}

bool lgpu_turn_shared(const struct lgpu_turn_seat *seat)
{
	if (seat->page == NULL)
		return false;
	const struct lgpu_turn *page = seat->page;
	uint32_t seats = seats_of(page);
	for (uint32_t i = 0; i < seats; i++)
		if (i != seat->index && page->seat[i].lgpu == page->seat[seat->index].lgpu && !lgpu_lease_dead(seat->fd, i))
			return true;
	return false;
}

void lgpu_turn_leave(struct lgpu_turn_seat *seat, int64_t now)
{
	struct lgpu_turn *page = seat->page;
	uint64_t owner = seat->grant;
	seat->grant = 0;
	if (page == NULL || owner == 0)
		return;
	__atomic_store_n(&page->seat[seat->index].served, (uint64_t)now, __ATOMIC_RELAXED);
	for (;;) {
		int next = next_waiting(seat);
		uint64_t then = next < 0 ? owner_none(owner) : owner_next(owner, (uint32_t)next);
		if (!__atomic_compare_exchange_n(&page->owner, &owner, then, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			return; // taken from us
		if (next >= 0) {
			uint32_t *state = &page->seat[next].state;
			__atomic_store_n(&page->since, (uint64_t)now, __ATOMIC_RELAXED);
			__atomic_store_n(state, (uint32_t)LGPU_SEAT_GRANTED, __ATOMIC_SEQ_CST);
			lgpu_futex_wake(state, 1);
			return;
		}
		// Whoever queued after we looked may have missed that the turn is
		// free now; hand it over for them.
		if (next_waiting(seat) < 0)
			return;
		owner = then;
	}
}
