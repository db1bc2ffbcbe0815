// SPDX-License-Identifier: Apache-2.0

#include "alone/turn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/futex.h"
#include "process/process.h"

// owner word: grant number << 16 | index of an entry + 1. The number makes every
// grant distinct, so that a compare-and-swap against an old one fails.
static inline uint64_t owner_next(uint64_t owner, uint32_t index)
{
	return ((owner >> 16) + 1) << 16 | (index + 1);
}
static inline uint64_t owner_none(uint64_t owner)
{
	return ((owner >> 16) + 1) << 16;
}
static inline uint32_t owner_entry(uint64_t owner)
{
	return (uint32_t)(owner & 0xffff); // index + 1; 0: nobody
}

static bool page_map(struct lgpu_queue *queue, const char *path)
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
	queue->page = page;
	queue->fd = fd;
	return true;
fail:
	close(fd);
	return false;
}

static bool entry_claim(struct lgpu_queue *queue, uint64_t lgpu)
{
	for (uint32_t index = 0; index < LGPU_TURN_ENTRIES; index++) {
		if (!lgpu_lease(queue->fd, index))
			continue;
		uint32_t entries = __atomic_load_n(&queue->page->entries, __ATOMIC_SEQ_CST);
		while (entries <= index && !__atomic_compare_exchange_n(&queue->page->entries, &entries, index + 1, 0,
									__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			;
		struct lgpu_turn_entry *s = &queue->page->entry[index];
		s->pid = (uint32_t)getpid();
		s->lgpu = lgpu;
		s->served = 0;
		__atomic_store_n(&s->state, (uint32_t)LGPU_TURN_IDLE, __ATOMIC_SEQ_CST);
		queue->index = index;
		return true;
	}
	errno = ENOSPC;
	return false;
}

void lgpu_turn_open(struct lgpu_queue *queue, const char *folder, const uint8_t uuid[16], uint64_t lgpu)
{
	char path[512];
	int n = snprintf(path, sizeof path, "%s/turn-", folder);
	memset(queue, 0, sizeof *queue);
	if (n < 0 || n + 33 > (int)sizeof path) {
		lgpu_log(LGPU_LOG_ERROR, "turn page: folder name too long: %s", folder);
		return;
	}
	for (int i = 0; i < 16; i++)
		n += snprintf(path + n, sizeof path - n, "%02x", uuid[i]);
	if (!page_map(queue, path) || !entry_claim(queue, lgpu)) {
		lgpu_log(LGPU_LOG_ERROR, "turn page %s: %s; its compute.max holds, but it does not take turns with other lgpus on this device",
			 path, strerror(errno));
		queue->page = NULL;
	}
}

static bool take(struct lgpu_queue *queue, uint64_t owner, int64_t now)
{
	uint64_t mine = owner_next(owner, queue->index);
	if (!__atomic_compare_exchange_n(&queue->page->owner, &owner, mine, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return false;
	__atomic_store_n(&queue->page->since, (uint64_t)now, __ATOMIC_RELAXED);
	__atomic_store_n(&queue->page->entry[queue->index].state, (uint32_t)LGPU_TURN_IDLE, __ATOMIC_SEQ_CST);
	queue->grant = mine;
	queue->asked = 0;
	return true;
}

// forfeited says whether the owner is dead, or has kept us waiting beyond its
// bound.
static bool forfeited(const struct lgpu_queue *queue, uint64_t owner, int64_t now)
{
	uint32_t index = owner_entry(owner) - 1;
	int64_t since = (int64_t)__atomic_load_n(&queue->page->since, __ATOMIC_RELAXED);
	if (since > now)
		since = 0; // of another time namespace, or no time at all
	if (index >= LGPU_TURN_ENTRIES || now - (since > queue->asked ? since : queue->asked) > LGPU_TURN_BOUND)
		return true;
	return index != queue->index && lgpu_lease_dead(queue->fd, index);
}

bool lgpu_turn_try(struct lgpu_queue *queue, int64_t now)
{
	if (queue->page == NULL)
		return true;
	uint32_t *state = &queue->page->entry[queue->index].state;
	uint64_t owner = __atomic_load_n(&queue->page->owner, __ATOMIC_SEQ_CST);
	if (owner_entry(owner) == 0 && take(queue, owner, now))
		return true;
	if (queue->asked == 0)
		queue->asked = now;
	__atomic_store_n(state, (uint32_t)LGPU_TURN_WAITING, __ATOMIC_SEQ_CST);
	// Look again after queueing: an owner that left before it could see us
	// has left the turn free.
	owner = __atomic_load_n(&queue->page->owner, __ATOMIC_SEQ_CST);
	if (owner_entry(owner) == queue->index + 1) { // handed to us
		__atomic_store_n(state, (uint32_t)LGPU_TURN_IDLE, __ATOMIC_SEQ_CST);
		__atomic_store_n(&queue->page->since, (uint64_t)now, __ATOMIC_RELAXED);
		queue->grant = owner;
		queue->asked = 0;
		return true;
	}
	return (owner_entry(owner) == 0 || forfeited(queue, owner, now)) && take(queue, owner, now);
}

void lgpu_turn_wait(struct lgpu_queue *queue, int64_t nanos)
{
	lgpu_futex_wait(&queue->page->entry[queue->index].state, LGPU_TURN_WAITING, nanos);
}

bool lgpu_turn_kept(const struct lgpu_queue *queue)
{
	return queue->page == NULL || __atomic_load_n(&queue->page->owner, __ATOMIC_RELAXED) == queue->grant;
}

static uint32_t entries_of(const struct lgpu_turn *page)
{
	uint32_t entries = __atomic_load_n(&page->entries, __ATOMIC_SEQ_CST);
	return entries < LGPU_TURN_ENTRIES ? entries : LGPU_TURN_ENTRIES;
}

static bool waiting(const struct lgpu_turn_entry *s)
{
	return __atomic_load_n(&s->state, __ATOMIC_SEQ_CST) == LGPU_TURN_WAITING;
}

static uint64_t served(const struct lgpu_turn *page, uint32_t index)
{
	return __atomic_load_n(&page->entry[index].served, __ATOMIC_RELAXED);
}

// lgpu_served is when any process of an lgpu last had the turn.
static uint64_t lgpu_served(const struct lgpu_turn *page, uint32_t entries, uint64_t lgpu)
{
	uint64_t last = 0;
	for (uint32_t i = 0; i < entries; i++)
		if (page->entry[i].lgpu == lgpu && served(page, i) > last)
			last = served(page, i);
	return last;
}

// next_waiting is the entry whose turn it is after ours, or -1. A dead one is
// passed over: its process cannot take the turn, and the next one to have the entry
// resets the state.
static int next_waiting(const struct lgpu_queue *queue)
{
	const struct lgpu_turn *page = queue->page;
	uint32_t entries = entries_of(page);
	int best = -1;
	uint64_t best_lgpu = 0, best_entry = 0;
	for (uint32_t i = 0; i < entries; i++) {
		if (i == queue->index || !waiting(&page->entry[i]))
			continue;
		uint64_t of_lgpu = lgpu_served(page, entries, page->entry[i].lgpu), of_entry = served(page, i);
		if (best >= 0 && (of_lgpu > best_lgpu || (of_lgpu == best_lgpu && of_entry >= best_entry)))
			continue;
		if (lgpu_lease_dead(queue->fd, i))
			continue;
		best = (int)i;
		best_lgpu = of_lgpu;
		best_entry = of_entry;
	}
	return best;
}

enum lgpu_turn_wanted lgpu_turn_wanted(const struct lgpu_queue *queue)
{
	enum lgpu_turn_wanted wanted = LGPU_TURN_UNWANTED;
	if (queue->page == NULL)
		return wanted;
	const struct lgpu_turn *page = queue->page;
	uint32_t entries = entries_of(page);
	for (uint32_t i = 0; i < entries && wanted != LGPU_TURN_WANTED_BY_OTHERS; i++)
		if (i != queue->index && waiting(&page->entry[i]) && !lgpu_lease_dead(queue->fd, i))
			wanted = page->entry[i].lgpu == page->entry[queue->index].lgpu ? LGPU_TURN_WANTED_BY_OWN
										    : LGPU_TURN_WANTED_BY_OTHERS;
	return wanted;
}

bool lgpu_turn_shared(const struct lgpu_queue *queue)
{
	if (queue->page == NULL)
		return false;
	const struct lgpu_turn *page = queue->page;
	uint32_t entries = entries_of(page);
	for (uint32_t i = 0; i < entries; i++)
		if (i != queue->index && page->entry[i].lgpu == page->entry[queue->index].lgpu && !lgpu_lease_dead(queue->fd, i))
			return true;
	return false;
}

void lgpu_turn_leave(struct lgpu_queue *queue, int64_t now)
{
	struct lgpu_turn *page = queue->page;
	uint64_t owner = queue->grant;
	queue->grant = 0;
	if (page == NULL || owner == 0)
		return;
	__atomic_store_n(&page->entry[queue->index].served, (uint64_t)now, __ATOMIC_RELAXED);
	for (;;) {
		int next = next_waiting(queue);
		uint64_t then = next < 0 ? owner_none(owner) : owner_next(owner, (uint32_t)next);
		if (!__atomic_compare_exchange_n(&page->owner, &owner, then, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			return; // taken from us
		if (next >= 0) {
			uint32_t *state = &page->entry[next].state;
			__atomic_store_n(&page->since, (uint64_t)now, __ATOMIC_RELAXED);
			__atomic_store_n(state, (uint32_t)LGPU_TURN_GRANTED, __ATOMIC_SEQ_CST);
			lgpu_futex_wake(state, 1);
			return;
		}
		// A process that queued after we looked may have missed that the turn is
		// free now; hand it over for them.
		if (next_waiting(queue) < 0)
			return;
		owner = then;
	}
}
