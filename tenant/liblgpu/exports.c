// Memory that was given away under descriptors lives as long as any copy of one is
// open, in whatever process or message on its way to one. While its maker has a
// handle or a mapping, NVML counts it as the maker's; after that, as an importer's,
// or as nobody's. Memory that is nobody's shows only as the difference between what
// a device has in use and what its processes have. What this process has left stays
// charged until the daemon says that it is gone, which sees all who left some; where
// there is no daemon, while that difference is larger than before.
#include "exports.h"

#include "futex.h"
#include "memory.h"

static struct left {
	uint32_t lock;
	uint64_t bytes;    // charged for what was left
	uint64_t smallest; // of its pieces
	uint64_t before;   // what was nobody's when nothing was left
} lefts[LGPU_MAX_DEVICES];

// What the daemon knows of it: the amount may outlive this process.
static uint64_t *exported(struct lgpu_state *s, int device) { return &s->usage->client[s->client].exported[device]; }

static void left_changed(struct lgpu_state *s, int device)
{
	__atomic_store_n(&s->usage->client[s->client].left[device], lefts[device].bytes, __ATOMIC_SEQ_CST);
}

void lgpu_exports_add(struct lgpu_state *s, int device, uint64_t bytes)
{
	struct left *l = &lefts[device];
	uint64_t nobodys, others = __atomic_fetch_add(exported(s, device), bytes, __ATOMIC_SEQ_CST);
	if (s->linked || others != 0 || !lgpu_overhead_nobodys(s, device, &nobodys))
		return;
	lgpu_lock(&l->lock);
	l->before = nobodys;
	lgpu_unlock(&l->lock);
}

void lgpu_exports_leave(struct lgpu_state *s, int device, uint64_t bytes)
{
	struct left *l = &lefts[device];
	lgpu_lock(&l->lock);
	l->smallest = l->bytes == 0 || bytes < l->smallest ? bytes : l->smallest;
	__atomic_fetch_add(&l->bytes, bytes, __ATOMIC_SEQ_CST);
	left_changed(s, device);
	lgpu_unlock(&l->lock);
	lgpu_exports_look(s, device);
}

uint64_t lgpu_exports_left(int device) { return __atomic_load_n(&lefts[device].bytes, __ATOMIC_SEQ_CST); }

// gone gives back what of it is gone. The caller has the lock.
static void gone(struct lgpu_state *s, int device, uint64_t bytes)
{
	struct left *l = &lefts[device];
	bytes = bytes < l->bytes ? bytes : l->bytes;
	__atomic_fetch_sub(&l->bytes, bytes, __ATOMIC_SEQ_CST);
	left_changed(s, device);
	__atomic_fetch_sub(exported(s, device), bytes, __ATOMIC_SEQ_CST);
	lgpu_uncharge(s, device, bytes);
}

void lgpu_exports_gone(struct lgpu_state *s, int device, uint64_t bytes)
{
	lgpu_lock(&lefts[device].lock);
	gone(s, device, bytes);
	lgpu_unlock(&lefts[device].lock);
}

void lgpu_exports_look(struct lgpu_state *s, int device)
{
	struct left *l = &lefts[device];
	uint64_t nobodys;
	if (s->linked || lgpu_exports_left(device) == 0 || !lgpu_try_lock(&l->lock))
		return;
	if (l->bytes != 0 && lgpu_overhead_nobodys(s, device, &nobodys)) {
		uint64_t alive = nobodys > l->before ? nobodys - l->before : 0;
		// Less than the smallest piece is something else's.
		alive = alive < l->smallest ? 0 : alive;
		if (alive < l->bytes)
			gone(s, device, l->bytes - alive);
	}
	lgpu_unlock(&l->lock);
}

void lgpu_exports_reset(void)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++)
		lefts[i] = (struct left){.lock = 0};
}
