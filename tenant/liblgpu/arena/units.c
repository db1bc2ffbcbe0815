// SPDX-License-Identifier: Apache-2.0

#include "arena/units.h"

#include <stddef.h>
#include <string.h>

// One bin for each size up to 7, then four for each power of two. The last has all that is longer.
uint32_t lgpu_units_bin(uint32_t size)
{
	if (size < 8)
		return size;
	uint32_t order = 31 - (uint32_t)__builtin_clz(size), bin = 8 + (order - 3) * 4 + (size >> (order - 2) & 3);
	return bin < LGPU_BINS ? bin : LGPU_BINS - 1;
}

static void bin_add(struct lgpu_bins *bins, struct lgpu_unit *u)
{
	uint32_t bin = lgpu_units_bin(u->size);
	u->taken = u->dead = false;
	u->prev = NULL;
	u->next = bins->first[bin];
	if (u->next != NULL)
		u->next->prev = u;
	bins->first[bin] = u;
	bins->filled |= UINT64_C(1) << bin;
}

static void bin_remove(struct lgpu_bins *bins, struct lgpu_unit *u)
{
	uint32_t bin = lgpu_units_bin(u->size);
	if (u->next != NULL)
		u->next->prev = u->prev;
	if (u->prev != NULL)
		u->prev->next = u->next;
	else
		bins->first[bin] = u->next;
	if (bins->first[bin] == NULL)
		bins->filled &= ~(UINT64_C(1) << bin);
}

static void head_set(struct lgpu_chunk *c, uint32_t i) { c->heads[i / 64] |= UINT64_C(1) << i % 64; }
static void head_clear(struct lgpu_chunk *c, uint32_t i) { c->heads[i / 64] &= ~(UINT64_C(1) << i % 64); }

// head_of is the beginning of the run that has unit i.
static struct lgpu_unit *head_of(struct lgpu_chunk *c, uint32_t i)
{
	uint32_t word = i / 64;
	uint64_t bits = c->heads[word] & (~UINT64_C(0) >> (63 - i % 64));
	while (bits == 0)
		bits = c->heads[--word]; // unit 0 begins a run always
	return &c->unit[word * 64 + 63 - (uint32_t)__builtin_clzll(bits)];
}

static size_t words(uint32_t units) { return (units + 63) / 64; }

size_t lgpu_chunk_bytes(uint32_t units)
{
	return sizeof(struct lgpu_chunk) + units * sizeof(struct lgpu_unit) + words(units) * sizeof(uint64_t);
}

void lgpu_chunk_add(struct lgpu_bins *bins, struct lgpu_chunk *chunk, uint32_t units)
{
	chunk->units = units;
	chunk->heads = (uint64_t *)&chunk->unit[units];
	memset(chunk->heads, 0, words(units) * sizeof(uint64_t));
	chunk->taken = 0;
	chunk->unit[0] = (struct lgpu_unit){.chunk = chunk, .size = units};
	head_set(chunk, 0);
	bin_add(bins, &chunk->unit[0]);
}

void lgpu_chunk_remove(struct lgpu_bins *bins, struct lgpu_chunk *chunk) { bin_remove(bins, &chunk->unit[0]); }

// fit returns a run of at least count units. Those in the bin of count itself may be too short; of them only the first
// is looked at.
static struct lgpu_unit *fit(const struct lgpu_bins *bins, uint32_t count)
{
	uint32_t bin = lgpu_units_bin(count);
	struct lgpu_unit *u = bins->first[bin];
	if (u != NULL && u->size >= count)
		return u;
	uint64_t longer = bin + 1 < LGPU_BINS ? bins->filled & ~UINT64_C(0) << (bin + 1) : 0;
	return longer != 0 ? bins->first[__builtin_ctzll(longer)] : NULL;
}

struct lgpu_unit *lgpu_units_take(struct lgpu_bins *bins, uint32_t count)
{
	struct lgpu_unit *u = fit(bins, count);
	if (u == NULL)
		return NULL;
	bin_remove(bins, u);
	if (u->size > count) {
		struct lgpu_unit *rest = u + count;
		*rest = (struct lgpu_unit){.chunk = u->chunk, .size = u->size - count};
		head_set(u->chunk, lgpu_unit_index(rest));
		bin_add(bins, rest);
	}
	u->size = count;
	u->taken = true;
	u->chunk->taken++;
	return u;
}

void lgpu_units_give(struct lgpu_bins *bins, struct lgpu_unit *u)
{
	struct lgpu_chunk *c = u->chunk;
	uint32_t first = lgpu_unit_index(u), after = first + u->size;
	c->taken--;
	if (after < c->units && !c->unit[after].taken) {
		bin_remove(bins, &c->unit[after]);
		u->size += c->unit[after].size;
		head_clear(c, after);
	}
	struct lgpu_unit *before = first > 0 ? head_of(c, first - 1) : NULL;
	if (before != NULL && !before->taken) {
		bin_remove(bins, before);
		before->size += u->size;
		head_clear(c, first);
		u = before;
	}
	bin_add(bins, u);
}

struct lgpu_unit *lgpu_units_split(struct lgpu_unit *u, uint32_t count)
{
	struct lgpu_unit *rest = u + count;
	*rest = (struct lgpu_unit){.chunk = u->chunk, .size = u->size - count, .taken = true};
	head_set(u->chunk, lgpu_unit_index(rest));
	u->size = count;
	u->chunk->taken++;
	return rest;
}

struct lgpu_unit *lgpu_units_find(struct lgpu_chunk *chunk, uint32_t index)
{
	struct lgpu_unit *u = head_of(chunk, index);
	return u->taken && !u->dead ? u : NULL;
}
