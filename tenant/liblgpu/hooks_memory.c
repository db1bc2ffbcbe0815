// Device memory that is allocated and freed by address, page-locked host
// memory, and what a program is told about memory.
//
// Every allocation: reserve in the lgpu's counter, call the driver, note the
// charge under the address, or give all back. Every free: take the note, call
// the driver, give back, or restore the note. A free of what is not noted
// (another library's, or from before) is the driver's business alone.
#include "core.h"
#include "accounts.h"
#include "exports.h"
#include "memory.h"

// Read off driver 580: an allocation of more than 1 MiB takes whole pages of 2
// MiB; smaller ones share such pages, in units of 512 bytes.
#define UNIT UINT64_C(512)
#define PAGE (UINT64_C(2) << 20)
#define SHARED (UINT64_C(1) << 20)
// With less than this left, a small allocation is looked at again once made:
// it may have taken a page of its own.
#define NARROW (UINT64_C(4) << 20)

uint64_t lgpu_round_up(uint64_t bytes, uint64_t unit)
{
	uint64_t sum;
	return __builtin_add_overflow(bytes, unit - 1, &sum) ? UINT64_MAX : sum / unit * unit;
}

uint64_t lgpu_taken(uint64_t bytes) { return lgpu_round_up(bytes, bytes > SHARED ? PAGE : UNIT); }

// make_room gives back what is charged and not needed any more: overhead that is
// gone, and memory that pools keep unused, as the driver does it when a device is
// full. True: something came back.
static bool make_room(struct lgpu_state *s, int device)
{
	uint64_t before = lgpu_used(s, device);
	lgpu_overhead_now(s, device);
	lgpu_pools_trim(s, device);
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
	bool full = bytes > lgpu_left(s, device);
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

// allocated ends an allocation for which bytes are charged: what the driver made
// is noted, or the charge given back.
static CUresult allocated(struct lgpu_state *s, const CUdeviceptr *dptr, uint64_t bytes, int device, CUcontext context, CUresult r)
{
	if (r != CUDA_SUCCESS) {
		lgpu_uncharge(s, device, bytes);
	} else if (!lgpu_note(s, LGPU_KIND_MEMORY, *dptr, bytes, device, context)) {
		LGPU_REAL(cuMemFree_v2)(*dptr);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	lgpu_reserved(s, device, bytes);
	return r;
}

LGPU_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL ? lgpu_current(&context) : -1;
	if (device < 0 || dptr == NULL || bytesize == 0)
		return LGPU_REAL(cuMemAlloc_v2)(dptr, bytesize);
	uint64_t bytes = lgpu_taken(bytesize);
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = allocated(s, dptr, bytes, device, context, LGPU_REAL(cuMemAlloc_v2)(dptr, bytesize));
	if (r == CUDA_SUCCESS && bytes <= SHARED && lgpu_left(s, device) < NARROW && !lgpu_overhead_now(s, device)) {
		cuMemFree_v2(*dptr);
		lgpu_overhead_now(s, device);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return r;
}

LGPU_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL ? lgpu_current(&context) : -1;
	if (device < 0 || dptr == NULL || bytesize == 0)
		return LGPU_REAL(cuMemAllocManaged)(dptr, bytesize, flags);
	uint64_t bytes = lgpu_taken(bytesize);
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return allocated(s, dptr, bytes, device, context, LGPU_REAL(cuMemAllocManaged)(dptr, bytesize, flags));
}

LGPU_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
					unsigned int ElementSizeBytes)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL ? lgpu_current(&context) : -1;
	if (device < 0 || dptr == NULL || pPitch == NULL || WidthInBytes == 0 || Height == 0)
		return LGPU_REAL(cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	// The pitch is the driver's choice and known only afterwards; 512 is the most it aligns to.
	uint64_t bytes;
	if (__builtin_mul_overflow(lgpu_round_up(WidthInBytes, UNIT), Height, &bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	bytes = lgpu_taken(bytes);
	if (!lgpu_reserve(s, device, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = LGPU_REAL(cuMemAllocPitch_v2)(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
	uint64_t taken = r == CUDA_SUCCESS ? lgpu_taken(*pPitch * Height) : bytes;
	if (taken > bytes && !lgpu_charge(s, device, taken - bytes)) {
		LGPU_REAL(cuMemFree_v2)(*dptr);
		taken = bytes;
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (taken < bytes)
		lgpu_uncharge(s, device, bytes - taken);
	lgpu_pending(s, device, taken - bytes);
	return allocated(s, dptr, taken, device, context, r);
}

LGPU_EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MEMORY, dptr);
	CUresult r = lgpu_free_end(&f, LGPU_REAL(cuMemFree_v2)(dptr));
	if (f.state == NULL)
		lgpu_pools_look(true); // it may have been a pool's
	return r;
}

// ---- page-locked host memory

static CUresult host_note(struct lgpu_state *s, void *p, uint64_t bytes, CUresult r)
{
	if (r != CUDA_SUCCESS) {
		lgpu_uncharge(s, LGPU_HOST, bytes);
		return r;
	}
	CUcontext context = NULL;
	LGPU_REAL(cuCtxGetCurrent)(&context);
	return lgpu_note(s, LGPU_KIND_HOST, (uint64_t)p, bytes, LGPU_HOST, context) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult host_alloc(void **pp, size_t bytes, unsigned int flags)
{
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || pp == NULL || bytes == 0)
		return LGPU_REAL(cuMemHostAlloc)(pp, bytes, flags);
	if (!lgpu_charge(s, LGPU_HOST, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = LGPU_REAL(cuMemHostAlloc)(pp, bytes, flags);
	CUresult noted = host_note(s, r == CUDA_SUCCESS ? *pp : NULL, bytes, r);
	if (r == CUDA_SUCCESS && noted != CUDA_SUCCESS)
		LGPU_REAL(cuMemFreeHost)(*pp);
	return noted;
}

LGPU_EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
	return host_alloc(pp, bytesize, Flags);
}

// The older forms differ from cuMemHostAlloc without flags in nothing.
LGPU_EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
	return lgpu_attached() == NULL ? LGPU_REAL(cuMemAllocHost_v2)(pp, bytesize) : host_alloc(pp, bytesize, 0);
}

LGPU_EXPORT CUresult cuMemAllocHost(void **pp, unsigned int bytesize)
{
	return lgpu_attached() == NULL ? LGPU_REAL(cuMemAllocHost)(pp, bytesize) : host_alloc(pp, bytesize, 0);
}

LGPU_EXPORT CUresult cuMemFreeHost(void *p)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_HOST, (uint64_t)p);
	return lgpu_free_end(&f, LGPU_REAL(cuMemFreeHost)(p));
}

LGPU_EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || p == NULL || bytesize == 0)
		return LGPU_REAL(cuMemHostRegister_v2)(p, bytesize, Flags);
	if (!lgpu_charge(s, LGPU_HOST, bytesize))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = LGPU_REAL(cuMemHostRegister_v2)(p, bytesize, Flags);
	CUresult noted = host_note(s, p, bytesize, r);
	if (r == CUDA_SUCCESS && noted != CUDA_SUCCESS)
		LGPU_REAL(cuMemHostUnregister)(p);
	return noted;
}

// The two forms differ in nothing that 64-bit programs see.
LGPU_EXPORT CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags)
{
	return lgpu_attached() == NULL ? LGPU_REAL(cuMemHostRegister)(p, bytesize, Flags) :
					 cuMemHostRegister_v2(p, bytesize, Flags);
}

LGPU_EXPORT CUresult cuMemHostUnregister(void *p)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_HOST, (uint64_t)p);
	return lgpu_free_end(&f, LGPU_REAL(cuMemHostUnregister)(p));
}

// ---- what programs are told

// shown turns the device's truth into the lgpu's: its size is the limit, and
// what is free of it is never more than the device has, nor less than nothing.
static void shown(const struct lgpu_state *s, int device, uint64_t *free, uint64_t *total)
{
	uint64_t limit = __atomic_load_n(&s->limits->device[device].memory, __ATOMIC_RELAXED);
	if (limit == LGPU_NO_LIMIT)
		return;
	uint64_t used = lgpu_used(s, device), left = used < limit ? limit - used : 0;
	*total = limit < *total ? limit : *total;
	*free = left < *free ? left : *free;
	*free = *free < *total ? *free : *total;
}

LGPU_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL ? lgpu_current(&context) : -1;
	if (device < 0 || free == NULL || total == NULL) {
		// Only one of the two is asked for: the driver needs both all the same.
		size_t other;
		if (device < 0 || (free == NULL && total == NULL))
			return LGPU_REAL(cuMemGetInfo_v2)(free, total);
		return cuMemGetInfo_v2(free != NULL ? free : &other, total != NULL ? total : &other);
	}
	lgpu_reclaim_sometimes(s);
	lgpu_overhead_measure(s, device);
	lgpu_exports_look(s, device);
	lgpu_pools_look(true);
	size_t real_free, real_total;
	CUresult r = LGPU_REAL(cuMemGetInfo_v2)(&real_free, &real_total);
	if (r != CUDA_SUCCESS)
		return r;
	uint64_t f = real_free, t = real_total;
	shown(s, device, &f, &t);
	*free = f;
	*total = t;
	return CUDA_SUCCESS;
}

static unsigned int saturate(uint64_t v) { return v < UINT32_MAX ? (unsigned int)v : UINT32_MAX; }

LGPU_EXPORT CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	if (lgpu_attached() == NULL || free == NULL || total == NULL)
		return LGPU_REAL(cuMemGetInfo)(free, total);
	size_t f, t;
	CUresult r = cuMemGetInfo_v2(&f, &t);
	if (r == CUDA_SUCCESS) {
		*free = saturate(f);
		*total = saturate(t);
	}
	return r;
}

LGPU_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	CUresult r = LGPU_REAL(cuDeviceTotalMem_v2)(bytes, dev);
	struct lgpu_state *s = lgpu_attached();
	int device = s != NULL && r == CUDA_SUCCESS && bytes != NULL ? lgpu_limits_index(dev) : -1;
	if (device >= 0) {
		uint64_t limit = __atomic_load_n(&s->limits->device[device].memory, __ATOMIC_RELAXED);
		*bytes = limit < *bytes ? limit : *bytes;
	}
	return r;
}

LGPU_EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	if (lgpu_attached() == NULL || bytes == NULL)
		return LGPU_REAL(cuDeviceTotalMem)(bytes, dev);
	size_t b;
	CUresult r = cuDeviceTotalMem_v2(&b, dev);
	if (r == CUDA_SUCCESS)
		*bytes = saturate(b);
	return r;
}
