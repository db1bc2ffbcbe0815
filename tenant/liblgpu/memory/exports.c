// SPDX-License-Identifier: Apache-2.0

// Memory that was given away under descriptors lives as long as any copy of one is
// open, in any process, or in a message to one. While its maker has a handle or a
// mapping, NVML counts it as the maker's memory. After that NVML counts it as an
// importer's, or as nobody's. Memory that is nobody's shows only as the difference
// between what a device has in use and what its processes have. What this process has
// released stays charged until the daemon, which knows of all who have released some,
// says that it has left the device. Without a daemon it stays charged while the
// difference is larger than before.
#include "memory/exports.h"

#include "base/futex.h"
#include "memory/memory.h"

static struct released {
	uint32_t lock;
	uint64_t bytes;    // charged for what was released
	uint64_t smallest; // of its pieces
	uint64_t before;   // what was nobody's when nothing was released
} released[LGPU_MAX_DEVICES];

// What the daemon knows of it: the amount may outlive this process.
static uint64_t *exported(struct lgpu_state *s, int device) { return &s->usage->client[s->client].exported[device]; }

static void changed(struct lgpu_state *s, int device)
{
	__atomic_store_n(&s->usage->client[s->client].released[device], released[device].bytes, __ATOMIC_SEQ_CST);
}

void lgpu_exports_add(struct lgpu_state *s, int device, uint64_t bytes)
{
	struct released *r = &released[device];
	uint64_t nobodys, others = __atomic_fetch_add(exported(s, device), bytes, __ATOMIC_SEQ_CST);
	if (s->linked || others != 0 || !lgpu_overhead_nobodys(s, device, &nobodys))
		return;
	lgpu_lock(&r->lock);
	r->before = nobodys;
	lgpu_unlock(&r->lock);
}

void lgpu_exports_release(struct lgpu_state *s, int device, uint64_t bytes)
{
	struct released *r = &released[device];
	lgpu_lock(&r->lock);
	r->smallest = r->bytes == 0 || bytes < r->smallest ? bytes : r->smallest;
	__atomic_fetch_add(&r->bytes, bytes, __ATOMIC_SEQ_CST);
	changed(s, device);
	lgpu_unlock(&r->lock);
	lgpu_exports_look(s, device);
}

uint64_t lgpu_exports_released(int device) { return __atomic_load_n(&released[device].bytes, __ATOMIC_SEQ_CST); }

// gone gives back what of it is gone. The caller has the lock.
static void gone(struct lgpu_state *s, int device, uint64_t bytes)
{
	struct released *r = &released[device];
	bytes = bytes < r->bytes ? bytes : r->bytes;
	__atomic_fetch_sub(&r->bytes, bytes, __ATOMIC_SEQ_CST);
	changed(s, device);
	__atomic_fetch_sub(exported(s, device), bytes, __ATOMIC_SEQ_CST);
	lgpu_uncharge(s, device, bytes);
}

void lgpu_exports_gone(struct lgpu_state *s, int device, uint64_t bytes)
{
	lgpu_lock(&released[device].lock);
	gone(s, device, bytes);
	lgpu_unlock(&released[device].lock);
}

void lgpu_exports_look(struct lgpu_state *s, int device)
{
	struct released *r = &released[device];
	uint64_t nobodys;
	if (s->linked || lgpu_exports_released(device) == 0 || !lgpu_try_lock(&r->lock))
		return;
	if (r->bytes != 0 && lgpu_overhead_nobodys(s, device, &nobodys)) {
		uint64_t alive = nobodys > r->before ? nobodys - r->before : 0;
		// Less than the smallest piece is something else's.
		alive = alive < r->smallest ? 0 : alive;
		if (alive < r->bytes)
			gone(s, device, r->bytes - alive);
	}
	lgpu_unlock(&r->lock);
}

void lgpu_exports_reset(void)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++)
		released[i] = (struct released){.lock = 0};
}
