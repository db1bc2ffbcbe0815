// SPDX-License-Identifier: Apache-2.0

// The store: files of the daemon's for what has left a device. The first is memory. All of what it may ever be is mapped
// at once, so that its address never changes; what lies beyond its end is not touched. It is registered with the driver
// piece by piece, ahead of need; a copy that comes before that registers what it needs itself, since a copy of other
// memory takes ten times as long. A copy never crosses the border of two pieces, as the driver takes each for memory of
// its own. The second file lies on a disk, and has what the first has no room for.
//
// A page of a block has a place in a file from when it leaves first, until its block ends or others need the place more. So
// what has come back, and is not changed, need not be copied when it leaves again. Places are pages, too: however they have
// been taken and given back, all can be used.
#include <errno.h>
#include <stdlib.h>
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
#define PLACES (PIECES * (uint32_t)(PIECE / LGPU_PAGE)) // of a file
#define ON_DISK (UINT32_C(1) << 31)                     // in lgpu_copy.place

// The places of a file.
struct places {
	uint32_t next; // where to look first
	uint64_t taken[PLACES / 64];
};

static struct store {
	uint32_t lock; // of what the daemon says: the files, pinned, bytes and more
	int fd;        // of the memory file, + 1; 0: none
	bool pinned;   // it can be
	uint64_t bytes; // of the memory file
	uint64_t more;  // of the one on the disk
	struct lgpu_disk disk;
	char *map;
	uint64_t room; // mapped
	struct places memory, disks;
	CUcontext context; // in which it is registered
	uint64_t pieces[PIECES]; // where each registered piece ends
	uint32_t count;
} stores[LGPU_MAX_DEVICES];
static uint32_t pinning; // lock of what is registered, which takes long, and of resting
static bool resting;     // nothing is registered: the process leaves its devices
static uint32_t placing; // lock of all places

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

// ---- places

// rooms is how many places a file has.
static uint32_t rooms(uint64_t bytes) { return bytes / LGPU_PAGE < PLACES ? (uint32_t)(bytes / LGPU_PAGE) : PLACES; }

static uint64_t more_of(int device) { return __atomic_load_n(&stores[device].more, __ATOMIC_ACQUIRE); }

uint64_t lgpu_store_room(int device)
{
	uint64_t all = ((uint64_t)rooms(bytes_of(device)) + rooms(more_of(device))) * LGPU_PAGE;
	uint64_t away = lgpu_arena_bytes(device) - lgpu_arena_resident(device);
	return all > away ? all - away : 0;
}

// free_from returns the first free place of those from one up to another, or the other.
static uint32_t free_from(const struct places *p, uint32_t from, uint32_t to)
{
	while (from < to) {
		uint64_t free = ~p->taken[from / 64] >> from % 64;
		if (free != 0)
			break;
		from = (from / 64 + 1) * 64;
	}
	if (from >= to)
		return to;
	from += (uint32_t)__builtin_ctzll(~p->taken[from / 64] >> from % 64);
	return from < to ? from : to;
}

// seat takes a place of a file that has so many, if it can the one behind the last. False: there is none.
static bool seat(struct places *p, uint32_t count, uint32_t *place)
{
	uint32_t at = free_from(p, p->next, count);
	if (at == count && (at = free_from(p, 0, p->next < count ? p->next : count)) == (p->next < count ? p->next : count))
		return false;
	p->taken[at / 64] |= UINT64_C(1) << at % 64;
	p->next = at + 1;
	*place = at;
	return true;
}

// leave_place takes a page's place back. The caller has the lock of places.
static void leave_place(struct store *t, struct lgpu_copy *c)
{
	struct places *p = (c->place & ON_DISK) != 0 ? &t->disks : &t->memory;
	uint32_t at = (c->place & ~ON_DISK) - 1;
	if (c->place != 0)
		p->taken[at / 64] &= ~(UINT64_C(1) << at % 64);
	*c = (struct lgpu_copy){.place = 0};
}

// first is the index of a piece's first page in its block, past that of the page behind its last.
static uint32_t first(const struct lgpu_block *b, uint32_t i) { return (uint32_t)(i * b->piece / LGPU_PAGE); }
static uint32_t past(const struct lgpu_block *b, uint32_t i)
{
	return first(b, i) + (uint32_t)(lgpu_piece_bytes(b, i) / LGPU_PAGE);
}

bool lgpu_store_place(struct lgpu_block *b, uint32_t i)
{
	int device = b->owner->device;
	struct store *t = &stores[device];
	bool placed = true;
	if (b->copy == NULL)
		b->copy = calloc(b->bytes / LGPU_PAGE, sizeof *b->copy);
	if (b->copy == NULL)
		return false;
	uint32_t memory = rooms(bytes_of(device)), disk = rooms(more_of(device));
	lgpu_lock(&placing);
	for (uint32_t j = first(b, i); j < past(b, i) && placed; j++) {
		uint32_t at = 0;
		if (b->copy[j].place != 0)
			continue;
		bool here = seat(&t->memory, memory, &at);
		placed = here || seat(&t->disks, disk, &at);
		if (placed)
			b->copy[j].place = (at + 1) | (here ? 0 : ON_DISK);
	}
	lgpu_unlock(&placing);
	return placed;
}

void lgpu_store_unplace(struct lgpu_block *b, uint32_t i)
{
	if (b->copy == NULL)
		return;
	lgpu_lock(&placing);
	for (uint32_t j = first(b, i); j < past(b, i); j++)
		leave_place(&stores[b->owner->device], &b->copy[j]);
	lgpu_unlock(&placing);
	lgpu_piece(b, i)->fresh = 0;
}

void lgpu_store_forget(struct lgpu_block *b)
{
	for (uint32_t i = 0; i < b->pieces; i++)
		lgpu_store_unplace(b, i);
	free(b->copy);
	b->copy = NULL;
}

void lgpu_store_rest(int device) { lgpu_disk_rest(&stores[device].disk); }

// ---- registering

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
	if (!resting && t->pinned && t->map != NULL && n != 0 && t->count < PIECES)
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

// ---- copying

// A run of pages of a block that follow each other in a file, too; or of zeros, which are in none.
struct run {
	uint64_t page, offset, bytes;
	bool disk, zero;
};

// stays says whether a page need not be copied out.
static bool stays(const struct lgpu_copy *c) { return c->clean || c->zero; }

// run_of finds the next run of those from *at up to a page, without those that need not be copied, unless all are wanted.
static bool run_of(const struct lgpu_block *b, uint32_t *at, uint32_t to, bool all, struct run *r)
{
	const struct lgpu_copy *c = b->copy;
	while (*at < to && !all && stays(&c[*at]))
		++*at;
	if (*at == to)
		return false;
	uint32_t begin = *at, place = c[begin].place;
	while (++*at < to && c[*at].place == place + (*at - begin) && (all ? c[*at].zero == c[begin].zero : !stays(&c[*at])))
		;
	*r = (struct run){.page = begin, .offset = ((place & ~ON_DISK) - 1) * LGPU_PAGE, .bytes = (*at - begin) * LGPU_PAGE,
			  .disk = (place & ON_DISK) != 0, .zero = c[begin].zero};
	return true;
}

// transfer copies between a device and a memory file.
static CUresult transfer(int device, struct lgpu_owner *o, uint64_t offset, CUdeviceptr at, uint64_t bytes, bool back)
{
	const struct store *t = &stores[device];
	CUresult r = CUDA_SUCCESS;
	for (uint64_t done = 0, n; done < bytes && r == CUDA_SUCCESS; done += n) {
		char *host = t->map + offset + done;
		while (registered(t) <= offset + done && lgpu_store_pin(device))
			;
		uint64_t most = border(t, offset + done) - offset - done;
		n = bytes - done < most ? bytes - done : most;
		CUstream stream = o->stream[back ? 0 : o->turn++ % LGPU_LANES];
		r = back ? LGPU_REAL(cuMemcpyHtoDAsync_v2)(at + done, host, n, stream) :
			   LGPU_REAL(cuMemcpyDtoHAsync_v2)(host, at + done, n, stream);
	}
	return r;
}

CUresult lgpu_store_copy(struct lgpu_block *b, uint32_t i, bool back)
{
	int device = b->owner->device;
	CUresult r = CUDA_SUCCESS;
	struct run run;
	for (uint32_t at = first(b, i); r == CUDA_SUCCESS && run_of(b, &at, past(b, i), back, &run);) {
		CUdeviceptr here = b->view + run.page * LGPU_PAGE;
		for (uint64_t j = run.page; j < at && !back; j++)
			b->copy[j].whole = false;
		if (run.zero)
			r = LGPU_REAL(cuMemsetD32Async)(here, 0, run.bytes / sizeof(uint32_t), b->owner->stream[0]);
		else if (run.disk)
			r = lgpu_disk_copy(&stores[device].disk, run.offset, here, run.bytes, back, b->owner->stream[0]);
		else
			r = transfer(device, b->owner, run.offset, here, run.bytes, back);
	}
	return r;
}

uint64_t lgpu_store_copied(struct lgpu_block *b, uint32_t i)
{
	uint64_t clean = 0;
	for (uint32_t j = first(b, i); j < past(b, i); j++) {
		clean += stays(&b->copy[j]) ? LGPU_PAGE : 0;
		b->copy[j].whole = !b->copy[j].zero;
	}
	return clean;
}

// unregister takes all of a store from the driver. The caller has the lock.
static void unregister(struct store *t)
{
	CUcontext popped;
	if (t->context == NULL || LGPU_REAL(cuCtxPushCurrent_v2)(t->context) != CUDA_SUCCESS)
		return;
	for (uint32_t j = 0; j < t->count; j++)
		LGPU_REAL(cuMemHostUnregister)(t->map + (j != 0 ? t->pieces[j - 1] : 0));
	LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	t->count = 0;
	t->context = NULL;
}

void lgpu_store_context_ends(CUcontext context)
{
	lgpu_lock(&pinning);
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++)
		if (stores[i].context == context)
			unregister(&stores[i]);
	lgpu_unlock(&pinning);
}

// ---- leaving the devices

// shows reports whether what is mapped is the file: a byte that is changed here changes there. Nobody else writes to it now.
static bool shows(const struct store *t)
{
	volatile char *here = t->map;
	char was = *here, changed = (char)~was, there = was;
	*here = changed;
	bool same = pread(t->fd - 1, &there, 1, 0) == 1 && there == changed;
	*here = was;
	return same;
}

// bring_home takes a file from the driver, which would do that itself, and register all of it again before it lets the program
// go on: this way pieces that come back are registered while others are copied. (While pieces leave it cannot be done, since
// the driver waits for all copies first.) It brings what has left a device into the file, too. A driver that pins pages leaves
// them where they are; the software GPU's puts others in their place.
static bool bring_home(struct store *t)
{
	uint64_t bytes = registered(t);
	bool home = bytes == 0 || shows(t);
	unregister(t);
	if (home)
		return true;
	for (uint64_t done = 0; done < bytes;) {
		ssize_t n = pwrite(t->fd - 1, t->map + done, bytes - done, (off_t)done);
		if (n > 0)
			done += (uint64_t)n;
		else if (n == 0 || errno != EINTR)
			return false;
	}
	void *map = mmap(t->map, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, t->fd - 1, 0);
	return map == t->map && madvise(map, bytes, MADV_DONTFORK) == 0;
}

bool lgpu_stores_rest(bool rest)
{
	bool done = true;
	lgpu_lock(&pinning);
	for (int i = 0; i < (int)LGPU_MAX_DEVICES && rest; i++)
		done = bring_home(&stores[i]) && done;
	resting = rest && done;
	lgpu_unlock(&pinning);
	return done;
}

void lgpu_stores_reset(void)
{
	pinning = placing = 0;
	resting = false;
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		struct store *t = &stores[i];
		if (t->fd != 0 || t->disk.fd != 0)
			t->memory = t->disks = (struct places){.next = 0};
		if (t->fd != 0)
			close(t->fd - 1);
		if (t->disk.fd != 0)
			close(t->disk.fd - 1);
		t->fd = 0;
		t->disk = (struct lgpu_disk){.fd = 0}; // the kernel wipes the buffers
		t->lock = t->count = 0;
		t->pinned = false;
		t->bytes = t->more = t->room = 0;
		t->map = NULL; // the kernel did not map it here
		t->context = NULL;
	}
}
