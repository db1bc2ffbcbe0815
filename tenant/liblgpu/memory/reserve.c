// SPDX-License-Identifier: Apache-2.0

// Charging an allocation before it is made, and noting it once it is.
#include "memory/accounts.h"
#include "memory/memory.h"
#include "memory/pools.h"

uint64_t lgpu_round_up(uint64_t bytes, uint64_t unit)
{
	uint64_t sum;
	return __builtin_add_overflow(bytes, unit - 1, &sum) ? UINT64_MAX : sum / unit * unit;
}

uint64_t lgpu_taken(uint64_t bytes) { return lgpu_round_up(bytes, bytes > LGPU_SHARED_PAGE ? LGPU_PAGE : LGPU_UNIT); }

// make_room gives back what is charged and not needed any more: overhead that is
// gone, and memory that pools keep unused, as the driver does it when a device is
// full. True: something came back.
static bool make_room(struct lgpu_state *s, int device)
{
	uint64_t before = lgpu_used(s, device);
	lgpu_overhead_now(s, device);
	lgpu_pools_trim(s, device);
	lgpu_memory_handlers.trim(s, device);
	return lgpu_used(s, device) < before;
}

void lgpu_pending(struct lgpu_state *s, int device, uint64_t bytes)
{
	if (device >= 0)
		__atomic_fetch_add(&s->device[device].pending, bytes, __ATOMIC_SEQ_CST);
}

void lgpu_reserved(struct lgpu_state *s, int device, uint64_t bytes)
{
	if (device >= 0)
		__atomic_fetch_sub(&s->device[device].pending, bytes, __ATOMIC_SEQ_CST);
}

bool lgpu_reserve(struct lgpu_state *s, int device, uint64_t bytes)
{
	if (device < 0)
		return lgpu_charge(s, device, bytes);
	lgpu_overhead_measure(s, device);
	// What is over the lgpu's own limit need not be asked for first.
	bool full = bytes > lgpu_remaining(s, device);
	if (full)
		make_room(s, device);
	lgpu_pending(s, device, bytes);
	if (lgpu_charge(s, device, bytes) || (!full && make_room(s, device) && lgpu_charge(s, device, bytes)))
		return true;
	lgpu_reserved(s, device, bytes);
	return false;
}

// A note that is there already is of memory that is gone: the driver has given
// out its address anew.
bool lgpu_note(struct lgpu_state *s, enum lgpu_kind kind, uint64_t key, uint64_t bytes, int device, void *context)
{
	struct lgpu_entry e = {.key = key, .bytes = bytes, .context = context, .device = device, .kind = kind}, stale;
	bool noted = lgpu_accounts_put(&e, &stale);
	if (!noted)
		lgpu_uncharge(s, device, bytes);
	else if (stale.kind != 0)
		lgpu_uncharge(s, stale.device, stale.bytes);
	return noted;
}

// A free of something noted, in two steps around the driver's call. The note
// goes first: as soon as the driver has freed an address, another thread may
// be given it.
struct lgpu_freeing lgpu_free_begin(enum lgpu_kind kind, uint64_t key)
{
	struct lgpu_freeing f = {lgpu_attached(), {0}};
	if (f.state != NULL && !lgpu_accounts_take(kind, key, &f.entry))
		f.state = NULL;
	return f;
}

// freed_by_other reports whether the driver refused a free because there is
// nothing any more: another thread freed the same, while the note was ours.
static bool freed_by_other(const struct lgpu_entry *e, CUresult result)
{
	CUdeviceptr base = 0;
	size_t size;
	unsigned flags;
	if (result != CUDA_ERROR_INVALID_VALUE)
		return false;
	switch (e->kind) {
	case LGPU_KIND_MEMORY:
		switch (LGPU_REAL(cuMemGetAddressRange_v2)(&base, &size, e->key)) {
		case CUDA_SUCCESS: return base != e->key;
		case CUDA_ERROR_NOT_FOUND:
		case CUDA_ERROR_INVALID_VALUE: return true;
		default: return false;
		}
	case LGPU_KIND_HOST: return LGPU_REAL(cuMemHostGetFlags)(&flags, (void *)e->key) == CUDA_ERROR_INVALID_VALUE;
	default: return false;
	}
}

CUresult lgpu_free_end(const struct lgpu_freeing *f, CUresult result)
{
	if (f->state == NULL)
		return result;
	if (result == CUDA_SUCCESS || freed_by_other(&f->entry, result) || !lgpu_accounts_restore(&f->entry))
		lgpu_uncharge(f->state, f->entry.device, f->entry.bytes);
	return result;
}
