// SPDX-License-Identifier: Apache-2.0

// Address ranges. They are reserved from the driver in large regions, each cut into ranges of one size, a power of two
// of pages, and never given back: addresses are plenty, and reserving them takes time. A free range waits behind all
// others of its size, so that a stale pointer faults for as long as possible.
#include "arena/parts.h"

#include "base/futex.h"

#define REGION (UINT64_C(8) << 30)
#define REGIONS 4096
#define ORDERS 40

static struct region {
	uint64_t base, end;
	uint32_t order;
	struct lgpu_block *blocks;
} regions[REGIONS]; // by address
static uint32_t region_count;
static struct {
	struct lgpu_block *first, *last;
} free_ranges[ORDERS];

void lgpu_ranges_reset(void)
{
	region_count = 0;
	for (int i = 0; i < ORDERS; i++)
		free_ranges[i].first = free_ranges[i].last = NULL;
}

static uint32_t order_of(uint64_t bytes)
{
	uint32_t order = 0;
	while (order < ORDERS && LGPU_PAGE << order < bytes)
		order++;
	return order;
}

void lgpu_range_give(struct lgpu_block *b)
{
	b->state = LGPU_BLOCK_FREE;
	b->owner = NULL;
	b->next = b->prev = NULL;
	if (free_ranges[b->order].last != NULL)
		free_ranges[b->order].last->next = b;
	else
		free_ranges[b->order].first = b;
	free_ranges[b->order].last = b;
}

struct lgpu_block *lgpu_range_take(uint64_t bytes)
{
	uint32_t order = order_of(bytes);
	struct lgpu_block *b = order < ORDERS ? free_ranges[order].first : NULL;
	if (b == NULL)
		return NULL;
	free_ranges[order].first = b->next;
	if (b->next == NULL)
		free_ranges[order].last = NULL;
	b->next = NULL;
	return b;
}

// insert notes a region. False: there are too many.
static bool insert(uint64_t base, uint64_t bytes, uint32_t order, struct lgpu_block *blocks)
{
	lgpu_lock(&lgpu_arena_lock);
	bool room = region_count < REGIONS;
	uint32_t i = region_count;
	for (; room && i > 0 && regions[i - 1].base > base; i--)
		regions[i] = regions[i - 1];
	if (room) {
		regions[i] = (struct region){base, base + bytes, order, blocks};
		region_count++;
		for (uint64_t at = base; at < base + bytes; at += LGPU_PAGE << order, blocks++) {
			*blocks = (struct lgpu_block){.base = at, .order = (uint8_t)order};
			lgpu_range_give(blocks);
		}
	}
	lgpu_unlock(&lgpu_arena_lock);
	return room;
}

CUresult lgpu_range_more(uint64_t bytes)
{
	uint32_t order = order_of(bytes);
	if (order >= ORDERS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t one = LGPU_PAGE << order, all = one < REGION ? REGION : one;
	CUdeviceptr base = 0;
	CUresult r = LGPU_REAL(cuMemAddressReserve)(&base, all, LGPU_PAGE, 0, 0);
	if (r != CUDA_SUCCESS && all != one)
		r = LGPU_REAL(cuMemAddressReserve)(&base, all = one, LGPU_PAGE, 0, 0);
	if (r != CUDA_SUCCESS)
		return r;
	struct lgpu_block *blocks = lgpu_pages(all / one * sizeof *blocks);
	if (blocks != NULL && insert(base, all, order, blocks))
		return CUDA_SUCCESS;
	LGPU_REAL(cuMemAddressFree)(base, all);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

struct lgpu_block *lgpu_range_find(uint64_t address)
{
	uint32_t low = 0, high = region_count;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (regions[middle].end > address)
			high = middle;
		else
			low = middle + 1;
	}
	if (low == region_count || address < regions[low].base)
		return NULL;
	return &regions[low].blocks[(address - regions[low].base) / (LGPU_PAGE << regions[low].order)];
}
