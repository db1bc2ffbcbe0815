// SPDX-License-Identifier: Apache-2.0

// A hash table in shards, each with its own lock and pages. When an entry is removed,
// later entries move into the gap. So no marks of removed entries fill up the table,
// and a free needs no memory.
#include "memory/accounts.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/futex.h"

#define SHARDS 64
#define FIRST_ROOM 256

static struct shard {
	uint32_t lock;
	uint32_t room; // entries, a power of two
	uint32_t used;
	uint32_t pad;
	struct lgpu_entry *entries;
} __attribute__((aligned(64))) shards[SHARDS];

static uint64_t hash(uint32_t kind, uint64_t key)
{
	uint64_t h = (key ^ (uint64_t)kind << 56) * UINT64_C(0x9e3779b97f4a7c15);
	return h ^ h >> 29;
}

static struct shard *shard_of(uint64_t h) { return &shards[h >> 32 & (SHARDS - 1)]; }

// index_of returns where an entry is, or the free index where it would be.
static uint32_t index_of(const struct shard *s, uint32_t kind, uint64_t key, uint64_t h)
{
	uint32_t i = (uint32_t)h & (s->room - 1);
	while (s->entries[i].kind != 0 && (s->entries[i].kind != kind || s->entries[i].key != key))
		i = (i + 1) & (s->room - 1);
	return i;
}

static bool grow(struct shard *s)
{
	struct shard bigger = {.room = s->room != 0 ? 2 * s->room : FIRST_ROOM};
	void *pages = mmap(NULL, bigger.room * sizeof *s->entries, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return false;
	bigger.entries = pages;
	for (uint32_t i = 0; i < s->room; i++) {
		const struct lgpu_entry *e = &s->entries[i];
		if (e->kind != 0)
			bigger.entries[index_of(&bigger, e->kind, e->key, hash(e->kind, e->key))] = *e;
	}
	if (s->entries != NULL)
		munmap(s->entries, s->room * sizeof *s->entries);
	s->entries = bigger.entries;
	s->room = bigger.room;
	return true;
}

static void drop(struct shard *s, uint32_t hole)
{
	uint32_t mask = s->room - 1;
	for (uint32_t i = (hole + 1) & mask; s->entries[i].kind != 0; i = (i + 1) & mask) {
		uint32_t home = (uint32_t)hash(s->entries[i].kind, s->entries[i].key) & mask;
		// It may move to the hole unless that lies before its home.
		if (((i - home) & mask) >= ((i - hole) & mask)) {
			s->entries[hole] = s->entries[i];
			hole = i;
		}
	}
	s->entries[hole].kind = 0;
	s->used--;
}

// put notes entry, in the place of an older one if replace says so, and stores
// that. False: no memory, or there is an older one.
static bool put(const struct lgpu_entry *entry, bool replace, struct lgpu_entry *old)
{
	uint64_t h = hash(entry->kind, entry->key);
	struct shard *s = shard_of(h);
	old->kind = 0;
	lgpu_lock(&s->lock);
	bool done = s->room != 0 && (s->used + 1) * 4 <= s->room * 3;
	if (!done)
		done = grow(s) || s->used + 1 < s->room;
	if (done) {
		uint32_t i = index_of(s, entry->kind, entry->key, h);
		*old = s->entries[i];
		s->used += old->kind == 0;
		done = replace || old->kind == 0;
		if (done)
			s->entries[i] = *entry;
	}
	lgpu_unlock(&s->lock);
	return done;
}

bool lgpu_accounts_put(const struct lgpu_entry *entry, struct lgpu_entry *replaced)
{
	struct lgpu_entry old;
	return put(entry, true, replaced != NULL ? replaced : &old);
}

// The room that the entry left may have been taken meanwhile; then the table
// grows, and if there is no memory even for that, it is fuller than it likes.
bool lgpu_accounts_restore(const struct lgpu_entry *entry)
{
	struct lgpu_entry old;
	return put(entry, false, &old);
}

static bool look(enum lgpu_kind kind, uint64_t key, struct lgpu_entry *entry, bool take)
{
	uint64_t h = hash(kind, key);
	struct shard *s = shard_of(h);
	if (__atomic_load_n(&s->used, __ATOMIC_RELAXED) == 0)
		return false;
	bool found = false;
	lgpu_lock(&s->lock);
	if (s->room != 0) {
		uint32_t i = index_of(s, kind, key, h);
		found = s->entries[i].kind != 0;
		if (found) {
			*entry = s->entries[i];
			if (take)
				drop(s, i);
		}
	}
	lgpu_unlock(&s->lock);
	return found;
}

bool lgpu_accounts_take(enum lgpu_kind kind, uint64_t key, struct lgpu_entry *entry) { return look(kind, key, entry, true); }

bool lgpu_accounts_get(enum lgpu_kind kind, uint64_t key, struct lgpu_entry *entry) { return look(kind, key, entry, false); }

void lgpu_accounts_sweep(void *context, void (*fn)(const struct lgpu_entry *, void *), void *arg)
{
	for (int k = 0; k < SHARDS; k++) {
		struct shard *s = &shards[k];
		lgpu_lock(&s->lock);
		// drop moves another entry to the index, which is looked at again.
		for (uint32_t i = 0; i < s->room;) {
			struct lgpu_entry e = s->entries[i];
			if (e.kind == 0 || e.context != context) {
				i++;
				continue;
			}
			drop(s, i);
			fn(&e, arg);
		}
		lgpu_unlock(&s->lock);
	}
}

bool lgpu_accounts_around(uint64_t address, struct lgpu_entry *entry)
{
	bool found = false;
	for (int k = 0; k < SHARDS && !found; k++) {
		struct shard *s = &shards[k];
		lgpu_lock(&s->lock);
		for (uint32_t i = 0; i < s->room && !found; i++) {
			const struct lgpu_entry *e = &s->entries[i];
			found = e->kind == LGPU_KIND_MAPPING && address - e->key < e->bytes;
			if (found)
				*entry = *e;
		}
		lgpu_unlock(&s->lock);
	}
	return found;
}

bool lgpu_accounts_after(uint64_t address, uint64_t end, uint64_t *next)
{
	bool found = false;
	for (int k = 0; k < SHARDS; k++) {
		struct shard *s = &shards[k];
		lgpu_lock(&s->lock);
		for (uint32_t i = 0; i < s->room; i++) {
			const struct lgpu_entry *e = &s->entries[i];
			if (e->kind == LGPU_KIND_MAPPING && e->key > address && e->key < end) {
				end = e->key;
				found = true;
			}
		}
		lgpu_unlock(&s->lock);
	}
	if (found)
		*next = end;
	return found;
}

void lgpu_accounts_reset(void)
{
	for (int k = 0; k < SHARDS; k++) {
		struct shard *s = &shards[k];
		s->lock = 0; // a thread that did not come along through fork may have had it
		s->used = 0;
		if (s->entries != NULL)
			memset(s->entries, 0, s->room * sizeof *s->entries);
	}
}
