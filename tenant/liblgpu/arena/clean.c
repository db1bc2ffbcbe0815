// SPDX-License-Identifier: Apache-2.0

// What has not changed since it left the device last, and so need not be copied again.
//
// Nothing tells an interposer what a kernel has written. So each page of 2 MiB that is to leave is hashed on the device
// (hash.cu), and has its hash kept with the copy that is made of it. If it has the same hash when it leaves again, the copy
// is taken for right. Reading memory costs the device about a hundredth of what the link takes to copy it.
//
// A hash is 256 bits, with random keys that the program does not know. Two pages that differ have one hash with a
// probability of at most 2^-122, whatever is in them. Say the words m and n of one thread differ in some place, and fix all
// keys but k, that place's. Of the halves of k*m and k*n, the lower ones must differ by a certain amount modulo 2^64, and so
// must the higher ones. Either leaves two values for the difference as a number, so k*(m-n) is one of four numbers, and k one
// of four keys of 2^64. So a thread's sum is the same with a probability of at most 2^-62; if it is not, the same holds for
// the sum of the threads. Together that is 2^-61, and squared with the second sum's keys 2^-122.
//
// The hash of a page of zeros is zero, so a page that has that hash is taken for one, with the same probability of an error.
// It is not copied at all: it is made of zeros again where it comes back. Programs reserve more than they ever write to.
//
// Where the kernel cannot be loaded (there is no room on the device, or no compiler for PTX) everything is copied, and the
// next move tries again. It is also copied where hashing takes more than half of the time that copying would: beside another
// program that keeps the device busy, or on the software GPU. A few pages are tried first, and then more: however few there
// are, a launch may have to wait until others' kernels give way. What that takes may be an eighth of the move. Where it did not
// pay twice and more, one after the other, more and more moves go by without. With LGPU_STRICT nothing is hashed.
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

#define THREADS 256
#define BATCH 1024 // pages hashed by one launch
#define PROBE 16   // by the first one of a move
#define GROWTH 4   // by how much more than the one before it each one hashes
#define PART 8     // of a move, that may be spent on finding out whether hashing pays
#define PAUSE 15   // moves at most that go by without, after it did not pay
#define UNKNOWN 1e9 // bytes a second, for a link that nothing has been copied over yet
#ifdef LGPU_FAULT_POINTS
#define MARGIN 0.0 // tests do not ask how fast the machine is that they run on
#else
#define MARGIN 2.0
#endif
#define SOME (UINT64_C(16) << 20) // bytes, from which on the time of a copy tells how fast the link is

extern const char lgpu_hash_ptx[];

// The kernel's variables. The keys are the same in all contexts of the process.
static struct {
	uint64_t words[1024][2], threads[2][2][THREADS];
} keys;
static uint32_t drawing; // lock of keys
static bool drawn;
static bool strict;

void lgpu_clean_configure(void) { strict = lgpu_true(lgpu_setting("LGPU_STRICT")); }

// draw draws the keys. False: there are no random numbers.
static bool draw(void)
{
	lgpu_lock(&drawing);
	for (size_t done = 0; !drawn && done < sizeof keys;) {
		long n = syscall(SYS_getrandom, (char *)&keys + done, sizeof keys - done, 0);
		if (n <= 0)
			break;
		done += (size_t)n;
		drawn = done == sizeof keys;
	}
	lgpu_unlock(&drawing);
	return drawn;
}

// Whether hashing pays, by device. It is the thread's that moves the device.
static struct pace {
	double rate;          // of copies, bytes a second; 0: unknown
	uint64_t leaving;     // bytes, in this move
	int64_t spent;        // in this move
	uint32_t batch;       // pages of the next launch
	uint32_t skip, pause; // moves that are to go by without, and how many are to when it does not pay the next time
	bool off;             // in this move
	bool banned;          // for good: the kernel's own memory had no room
} paces[LGPU_MAX_DEVICES];

void lgpu_clean_begins(int device, uint64_t leaving)
{
	struct pace *p = &paces[device];
	p->leaving = leaving;
	p->spent = 0;
	p->batch = PROBE;
	p->off = strict || p->banned || p->skip != 0;
	p->skip -= p->skip != 0;
}

void lgpu_clean_ended(int device, uint64_t copied, int64_t nanos)
{
	struct pace *p = &paces[device];
	if (copied >= SOME && nanos > p->spent)
		p->rate = (double)copied * LGPU_NANOS / (double)(nanos - p->spent);
	if (!p->off)
		p->pause = 0;
}

// paid notes how long it took to hash pages.
static void paid(struct pace *p, uint32_t pages, int64_t nanos)
{
	double rate = p->rate != 0 ? p->rate : UNKNOWN;
	bool dear = MARGIN * (double)nanos * rate > (double)pages * LGPU_PAGE * LGPU_NANOS;
	p->spent += nanos;
	p->batch = p->batch < BATCH / GROWTH ? GROWTH * p->batch : BATCH;
	p->off = dear && PART * (double)p->spent * rate > (double)p->leaving * LGPU_NANOS;
	if (!p->off)
		return;
	p->skip = p->pause;
	p->pause = p->pause < PAUSE ? 2 * p->pause + 1 : PAUSE;
}

// What the host and the kernel share.
struct exchange {
	uint64_t page[BATCH];
	uint64_t hash[BATCH][LGPU_HASH_WORDS];
};

static CUresult variable(CUmodule module, const char *name, const void *value, size_t bytes)
{
	CUdeviceptr at;
	size_t have;
	CUresult r = LGPU_REAL(cuModuleGetGlobal_v2)(&at, &have, module, name);
	if (r == CUDA_SUCCESS && have != bytes)
		r = CUDA_ERROR_INVALID_IMAGE;
	return r == CUDA_SUCCESS ? LGPU_REAL(cuMemcpyHtoD_v2)(at, value, bytes) : r;
}

void lgpu_clean_end(struct lgpu_hasher *h)
{
	if (h->stream != NULL)
		LGPU_REAL(cuStreamDestroy_v2)(h->stream);
	if (h->exchange != NULL)
		LGPU_REAL(cuMemFreeHost)(h->exchange);
	if (h->module != NULL)
		LGPU_REAL(cuModuleUnload)(h->module);
	*h = (struct lgpu_hasher){.tried = h->tried};
}

// load loads the kernel in the current context.
static CUresult load(struct lgpu_hasher *h)
{
	void *exchange;
	CUresult r = LGPU_REAL(cuModuleLoadData)(&h->module, lgpu_hash_ptx);
	if (r != CUDA_SUCCESS)
		h->module = NULL;
	r = r == CUDA_SUCCESS ? variable(h->module, "lgpu_hash_words", keys.words, sizeof keys.words) : r;
	r = r == CUDA_SUCCESS ? variable(h->module, "lgpu_hash_threads", keys.threads, sizeof keys.threads) : r;
	r = r == CUDA_SUCCESS ? LGPU_REAL(cuModuleGetFunction)(&h->function, h->module, "lgpu_hash") : r;
	r = r == CUDA_SUCCESS ? LGPU_REAL(cuMemHostAlloc)(&exchange, sizeof(struct exchange), CU_MEMHOSTALLOC_DEVICEMAP) : r;
	if (r != CUDA_SUCCESS)
		return r;
	h->exchange = exchange;
	r = LGPU_REAL(cuMemHostGetDevicePointer_v2)(&h->at, exchange, 0);
	return r == CUDA_SUCCESS ? LGPU_REAL(cuStreamCreate)(&h->stream, CU_STREAM_NON_BLOCKING) : r;
}

void lgpu_clean_ban(int device)
{
	struct lgpu_state *s = lgpu_attached();
	bool any = false;
	CUcontext popped;
	for (struct lgpu_owner *o = lgpu_owners; o != NULL; o = o->next) {
		if (o->device != device || o->hasher.module == NULL || LGPU_REAL(cuCtxPushCurrent_v2)(o->context) != CUDA_SUCCESS)
			continue;
		lgpu_clean_end(&o->hasher);
		LGPU_REAL(cuCtxPopCurrent_v2)(&popped);
		any = true;
	}
	if (!any)
		return;
	paces[device].banned = true;
	lgpu_overhead_now(s, device);
}

bool lgpu_clean_load(struct lgpu_owner *o)
{
	struct lgpu_hasher *h = &o->hasher;
	if (paces[o->device].off || h->stream != NULL || h->tried == lgpu_mover_shutting() || !draw())
		return false;
	h->tried = lgpu_mover_shutting();
	CUresult r = load(h);
	if (r != CUDA_SUCCESS) {
		lgpu_clean_end(h);
		lgpu_log(LGPU_LOG_INFO, "what has not changed is copied too when memory leaves: the kernel that finds out cannot be loaded: "
			 "error %d", (int)r);
	}
	return r == CUDA_SUCCESS;
}

// hash has the kernel hash so many pages, whose addresses are in the exchange.
static CUresult hash(struct lgpu_hasher *h, uint32_t count)
{
	CUdeviceptr pages = h->at + offsetof(struct exchange, page), hashes = h->at + offsetof(struct exchange, hash);
	void *arguments[] = {&pages, &hashes};
	CUresult r = LGPU_REAL(cuLaunchKernel)(h->function, count, 1, 1, THREADS, 1, 1, 0, h->stream, arguments, NULL);
	return r == CUDA_SUCCESS ? LGPU_REAL(cuStreamSynchronize)(h->stream) : r;
}

// judge compares a page's hash with that of its copy, and keeps it. hash is NULL where there is none.
static void judge(struct lgpu_copy *c, const uint64_t *hash)
{
	static const uint64_t zeros[LGPU_HASH_WORDS];
	c->zero = hash != NULL && memcmp(hash, zeros, sizeof zeros) == 0;
	c->clean = c->whole && c->hashed && hash != NULL && memcmp(c->hash, hash, sizeof c->hash) == 0;
	c->whole = c->clean;
	c->hashed = hash != NULL;
	if (c->hashed)
		memcpy(c->hash, hash, sizeof c->hash);
}

// judge_all does so with pages that the kernel is asked about now.
static void judge_all(struct pace *p, struct lgpu_hasher *h, struct lgpu_copy *const *copy, uint32_t count)
{
	const struct exchange *x = h->exchange;
	if (count == 0)
		return;
	int64_t began = lgpu_now();
	bool hashed = hash(h, count) == CUDA_SUCCESS;
	paid(p, count, lgpu_now() - began);
	for (uint32_t i = 0; i < count; i++)
		judge(copy[i], hashed ? x->hash[i] : NULL);
}

// known judges a page without its hash.
static void known(struct lgpu_copy *c, bool fresh)
{
	c->zero = fresh && c->zero;
	c->clean = fresh && c->whole;
	c->hashed = c->hashed && c->clean;
}

void lgpu_clean_reset(void)
{
	drawing = 0;
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++)
		paces[i] = (struct pace){.off = false};
}

void lgpu_clean_look(struct lgpu_owner *o, const struct lgpu_part *part, size_t count)
{
	struct lgpu_hasher *h = &o->hasher;
	struct pace *pace = &paces[o->device];
	struct lgpu_copy *copy[BATCH];
	uint32_t n = 0;
	bool can = h->stream != NULL;
	struct exchange *x = h->exchange;
	for (size_t i = 0; i < count; i++) {
		struct lgpu_block *b = part[i].block;
		uint64_t page = part[i].piece * b->piece / LGPU_PAGE, past = page + lgpu_piece_bytes(b, part[i].piece) / LGPU_PAGE;
		bool fresh = lgpu_piece(b, part[i].piece)->fresh == lgpu_mover_shutting();
		for (; page < past; page++) {
			if (fresh || !can || pace->off) {
				known(&b->copy[page], fresh);
				continue;
			}
			x->page[n] = b->view + page * LGPU_PAGE;
			copy[n++] = &b->copy[page];
			if (n == pace->batch) {
				judge_all(pace, h, copy, n);
				n = 0;
			}
		}
	}
	judge_all(pace, h, copy, n);
}
