// SPDX-License-Identifier: Apache-2.0

// The store: files of the daemon's for what has left a device. The first is memory. All of what it may ever be is mapped
// at once, so that its address never changes; what lies beyond its end is not touched. It is registered with the driver
// piece by piece, ahead of need; a copy that comes before that registers what it needs itself, since a copy of other
// memory takes ten times as long. A copy never crosses the border of two pieces, as the driver takes each for memory of
// its own. The second file lies on a disk, and has what the first has no room for.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

#define PIECE (UINT64_C(32) << 20) // registered at once: the program's calls may wait that long for the driver
#define PIECES 8192
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define HOST_PAGE UINT64_C(4096)

static struct store {
	uint32_t lock; // of what the daemon says: the files, pinned, bytes and more
	int fd;        // of the memory file, + 1; 0: none
	bool pinned;   // it can be
	uint64_t bytes; // of the memory file
	uint64_t more;  // of the one on the disk
	struct lgpu_disk disk;
	char *map;
	uint64_t room; // mapped
	uint64_t used;   // has been given to blocks
	uint64_t memory; // of what may be given so much is in memory; fixed while any is given
	CUcontext context; // in which it is registered
	uint64_t pieces[PIECES]; // where each registered piece ends
	uint32_t count;
} stores[LGPU_MAX_DEVICES];
static uint32_t pinning; // lock of what is registered, which takes long

static uint64_t bytes_of(int device)
{
	struct store *t = &stores[device];
	uint64_t bytes = __atomic_load_n(&t->bytes, __ATOMIC_ACQUIRE);
	return bytes < t->room ? bytes : t->room;
}

// take notes a file of the daemon's, and returns whether it was a new one. The caller has the lock.
static bool take(struct store *t, bool memory, int fd)
{
	if (memory && t->fd == 0)
		__atomic_store_n(&t->fd, lgpu_raise(fd) + 1, __ATOMIC_RELEASE);
	else if (!memory && t->disk.fd == 0)
		lgpu_disk_open(&t->disk, lgpu_raise(fd));
	else
		return false;
	return true;
}

void lgpu_arena_store(const struct lgpu_message *m, int fd)
{
	bool wanted = m->device < LGPU_MAX_DEVICES && lgpu_managed, memory = (m->flags & LGPU_LINK_FLAG_PINNED) != 0;
	struct store *t = &stores[wanted ? m->device : 0];
	if (wanted) {
		lgpu_lock(&t->lock);
		if (fd >= 0 && take(t, memory, fd))
			fd = -1;
		uint64_t *bytes = memory ? &t->bytes : &t->more;
		if ((memory ? t->fd : t->disk.fd) != 0 && m->value > *bytes)
			__atomic_store_n(bytes, m->value / HOST_PAGE * HOST_PAGE, __ATOMIC_RELEASE);
		if (memory)
			t->pinned = true;
		lgpu_unlock(&t->lock);
		lgpu_mover_wake();
	}
	if (fd >= 0)
		close(fd);
}

int lgpu_store_fd(int device, bool memory)
{
	struct store *t = &stores[device];
	return (memory ? __atomic_load_n(&t->fd, __ATOMIC_ACQUIRE) : __atomic_load_n(&t->disk.fd, __ATOMIC_ACQUIRE)) - 1;
}

void lgpu_store_map(const struct lgpu_state *s, int device)
{
	struct store *t = &stores[device];
	int fd = lgpu_store_fd(device, true);
	if (t->map != NULL || fd < 0)
		return;
	uint64_t room = lgpu_round_up(s->limits->device[device].physical, PIECE);
	void *map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (map == MAP_FAILED) {
		lgpu_log(LGPU_LOG_WARN, "%llu bytes for memory that leaves the device cannot be mapped; it stays there",
			 (unsigned long long)room);
		return;
	}
	madvise(map, room, MADV_DONTFORK);
	t->map = map;
	t->room = room;
}

uint64_t lgpu_store_room(int device)
{
	struct store *t = &stores[device];
	if (t->used == 0)
		t->memory = bytes_of(device);
	uint64_t bytes = t->memory + __atomic_load_n(&t->more, __ATOMIC_ACQUIRE);
	return bytes > t->used ? bytes - t->used : 0;
}

bool lgpu_store_place(int device, struct lgpu_block *b)
{
	if (b->offset == LGPU_NOWHERE) {
		if (lgpu_store_room(device) < b->bytes)
			return false;
		b->offset = stores[device].used;
		stores[device].used += b->bytes;
	}
	return true;
}

void lgpu_store_clear(int device)
{
	stores[device].used = 0;
	lgpu_disk_rest(&stores[device].disk);
}

// registered returns where the pieces end.
static uint64_t registered(const struct store *t) { return t->count != 0 ? t->pieces[t->count - 1] : 0; }

// border returns where the piece with an offset ends.
static uint64_t border(const struct store *t, uint64_t offset)
{
	uint32_t low = 0, high = t->count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (t->pieces[middle] > offset)
			high = middle;
		else
			low = middle + 1;
	}
	return low < t->count ? t->pieces[low] : UINT64_MAX;
}

// A context is needed to register, which may end at any time while nothing is away; so both take the lock. The pieces
// do not change while anything is away and a copy looks at them: then no context ends, and the mover copies.
static CUcontext enter(const struct store *t, int device)
{
	CUcontext context = t->context; // one for all pieces, so that they end together
	lgpu_lock(&lgpu_arena_lock);
	for (struct lgpu_owner *o = lgpu_owners; o != NULL && context == NULL; o = o->next)
		context = o->device == device ? o->context : NULL;
	lgpu_unlock(&lgpu_arena_lock);
	return context != NULL && LGPU_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS ? context : NULL;
}

bool lgpu_store_pin(int device)
{
	struct store *t = &stores[device];
	bool more = false;
	CUcontext popped, context = NULL;
	lgpu_lock(&pinning);
	uint64_t from = registered(t), bytes = bytes_of(device);
	uint64_t n = bytes > from ? bytes - from : 0;
	n = n < PIECE ? n : PIECE;
	if (t->pinned && t->map != NULL && n != 0 && t->count < PIECES)
		context = enter(t, device);
	if (context != NULL) {
		// Mapped here rather than by the driver, which would have all its callers wait. Where that fails, it does it.
		(void)madvise(t->map + from, n, MADV_POPULATE_WRITE);
		CUresult r = LGPU_REAL(cuMemHostRegister_v2)(t->map + from, n, CU_MEMHOSTREGISTER_PORTABLE);
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
		if (r == CUDA_SUCCESS) {
			t->context = context;
			t->pieces[t->count++] = from + n;
			more = from + n < bytes;
		} else {
			__atomic_store_n(&t->pinned, false, __ATOMIC_RELAXED); // until the daemon says more; copies are slower, not wrong
			lgpu_log(LGPU_LOG_INFO, "a file for memory that leaves the device cannot be registered: error %d; copies are slow", (int)r);
		}
	}
	lgpu_unlock(&pinning);
	return more;
}

CUresult lgpu_store_copy(int device, const struct lgpu_block *b, bool back)
{
	struct lgpu_owner *o = b->owner;
	struct store *t = &stores[device];
	CUresult r = CUDA_SUCCESS;
	for (uint64_t done = 0, n; done < b->bytes && r == CUDA_SUCCESS; done += n) {
		uint64_t offset = b->offset + done;
		if (offset >= t->memory)
			return lgpu_disk_copy(&t->disk, offset - t->memory, b->view + done, b->bytes - done, back, o->stream[0]);
		while (registered(t) <= offset && lgpu_store_pin(device))
			;
		uint64_t end = border(t, offset), most = (end < t->memory ? end : t->memory) - offset;
		n = b->bytes - done < most ? b->bytes - done : most;
		CUstream stream = o->stream[back ? 0 : o->turn++ % LGPU_LANES];
		r = back ? LGPU_REAL(cuMemcpyHtoDAsync_v2)(b->view + done, t->map + offset, n, stream) :
			   LGPU_REAL(cuMemcpyDtoHAsync_v2)(t->map + offset, b->view + done, n, stream);
	}
	return r;
}

void lgpu_store_context_ends(CUcontext context)
{
	lgpu_lock(&pinning);
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		struct store *t = &stores[i];
		CUcontext popped;
		if (t->context == context && LGPU_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
			for (uint32_t j = 0; j < t->count; j++)
				LGPU_REAL(cuMemHostUnregister)(t->map + (j != 0 ? t->pieces[j - 1] : 0));
			LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
			t->count = 0;
			t->context = NULL;
		}
	}
	lgpu_unlock(&pinning);
}

void lgpu_stores_reset(void)
{
	pinning = 0;
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		struct store *t = &stores[i];
		if (t->fd != 0)
			close(t->fd - 1);
		if (t->disk.fd != 0)
			close(t->disk.fd - 1);
		t->fd = 0;
		t->disk = (struct lgpu_disk){.fd = 0}; // the kernel wipes the buffers
		t->lock = t->count = 0;
		t->pinned = false;
		t->bytes = t->more = t->room = t->used = t->memory = 0;
		t->map = NULL; // the kernel did not map it here
		t->context = NULL;
	}
}
