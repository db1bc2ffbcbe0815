// SPDX-License-Identifier: Apache-2.0

// Memory that no call shows: contexts, loaded code, heaps, and what the driver keeps for
// itself.
//
// NVML knows how much memory of a device this process has. The part of it that was not
// charged call by call is overhead, and is charged too. It is measured when something
// is made that takes such memory, once a second, and whenever much has been allocated
// since the last time: the less of the limit remains, the sooner.
// The first context of an lgpu shows how much memory a context takes, so that later ones
// can be refused before they are made.
#include <stdlib.h>
#include <unistd.h>

#include "base/futex.h"
#include "memory/exports.h"
#include "memory/memory.h"

// How often overhead is measured when nothing asks for it.
#define PERIOD INT64_C(1000000000)
// The most and the least that is allocated between measurements.
#define COARSE (UINT64_C(32) << 20)
#define FINE (UINT64_C(2) << 20)
// Room for a device's processes at first; where there are more it is made.
#define PROCESSES 256

static struct overhead {
	uint32_t lock;
	int32_t contexts;
	uint64_t charged;
	uint64_t floor; // what the contexts are known to take
	int64_t next;   // when to measure again
	uint64_t seen;  // what the process held when it was measured
	bool visible;   // NVML has shown this process
	int64_t away;   // charged, and not on the device
	uint32_t moves; // odd: memory leaves the device or comes back
} overheads[LGPU_MAX_DEVICES];

static nvmlDevice_t nvml_devices[LGPU_MAX_DEVICES];
static int nvml_ready; // 0 not tried, 1 usable, -1 not

void lgpu_overhead_reset(void)
{
	for (int i = 0; i < (int)LGPU_MAX_DEVICES; i++) {
		overheads[i] = (struct overhead){.lock = 0};
		nvml_devices[i] = NULL;
	}
	nvml_ready = 0;
}

static nvmlDevice_t nvml_device(const struct lgpu_state *s, int device)
{
	if (__atomic_load_n(&nvml_ready, __ATOMIC_ACQUIRE) == 0)
		__atomic_store_n(&nvml_ready, LGPU_REAL(nvmlInit_v2)() == NVML_SUCCESS ? 1 : -1, __ATOMIC_RELEASE);
	if (nvml_ready < 0)
		return NULL;
	nvmlDevice_t d = __atomic_load_n(&nvml_devices[device], __ATOMIC_ACQUIRE);
	if (d == NULL) {
		char text[48];
		lgpu_uuid_text(&s->limits->device[device], text);
		if (LGPU_REAL(nvmlDeviceGetHandleByUUID)(text, &d) != NVML_SUCCESS)
			return NULL;
		__atomic_store_n(&nvml_devices[device], d, __ATOMIC_RELEASE);
	}
	return d;
}

// A look at NVML's list of the processes on a device. Its count is what there
// were; more may have come since.
struct list {
	nvmlProcessInfo_t few[PROCESSES], *infos;
	unsigned int count;
};

// list_read reads it; list_free follows. False: NVML cannot tell.
static bool list_read(struct list *l, nvmlDevice_t d)
{
	l->infos = l->few;
	l->count = PROCESSES;
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetComputeRunningProcesses_v3)(d, &l->count, l->infos);
	for (unsigned int tries = 0; r == NVML_ERROR_INSUFFICIENT_SIZE && tries < 4; tries++) {
		if (l->infos != l->few)
			free(l->infos);
		l->count += PROCESSES;
		l->infos = calloc(l->count, sizeof *l->infos);
		if (l->infos == NULL)
			return false;
		r = LGPU_REAL(nvmlDeviceGetComputeRunningProcesses_v3)(d, &l->count, l->infos);
	}
	return r == NVML_SUCCESS;
}

static void list_free(struct list *l)
{
	if (l->infos != l->few)
		free(l->infos);
}

// own_bytes reads what this process has on the device. False: NVML cannot
// tell, as in a PID namespace that it does not know.
static bool own_bytes(const struct lgpu_state *s, int device, uint64_t *bytes)
{
	struct list l;
	nvmlDevice_t d = nvml_device(s, device);
	if (d == NULL)
		return false;
	bool known = false;
	if (list_read(&l, d)) {
		unsigned int pid = (unsigned int)getpid();
		for (unsigned int i = 0; i < l.count && !known; i++) {
			*bytes = l.infos[i].usedGpuMemory;
			known = l.infos[i].pid == pid && *bytes != ~0ull; // all ones: the driver does not say
		}
	}
	list_free(&l);
	if (known)
		__atomic_store_n(&overheads[device].visible, true, __ATOMIC_RELAXED);
	return known;
}

// all_bytes adds up what the processes have on a device.
static bool all_bytes(nvmlDevice_t d, uint64_t *bytes)
{
	struct list l;
	*bytes = 0;
	bool known = list_read(&l, d);
	for (unsigned int i = 0; known && i < l.count; i++)
		*bytes += l.infos[i].usedGpuMemory != ~0ull ? l.infos[i].usedGpuMemory : 0;
	list_free(&l);
	return known;
}

bool lgpu_overhead_nobodys(const struct lgpu_state *s, int device, uint64_t *bytes)
{
	nvmlDevice_t d = nvml_device(s, device);
	nvmlMemory_t m;
	uint64_t before, after;
	// All readings must be of one moment.
	for (int tries = 0; d != NULL && tries < 4; tries++) {
		if (!all_bytes(d, &before) || LGPU_REAL(nvmlDeviceGetMemoryInfo)(d, &m) != NVML_SUCCESS || !all_bytes(d, &after))
			return false;
		if (before != after)
			continue;
		*bytes = m.used > after ? m.used - after : 0;
		return true;
	}
	return false;
}

// set changes what is charged to bytes. The caller has the lock.
static bool set(struct lgpu_state *s, int device, struct overhead *o, uint64_t bytes)
{
	if (bytes < o->charged) {
		lgpu_uncharge(s, device, o->charged - bytes);
	} else if (!lgpu_charge(s, device, bytes - o->charged)) {
		o->charged += lgpu_charge_most(s, device, bytes - o->charged);
		return false;
	}
	o->charged = bytes;
	return true;
}

// What NVML shows beyond the accounts, and what that may be besides: memory for
// which calls are under way is in the accounts, but not surely on the device.
struct excess {
	uint64_t least, most;
};

// excess_of reads it. Both readings must be of one moment: what another thread
// charges between them is no overhead. Without such a moment, or where NVML
// cannot tell, it is what it was.
static struct excess excess_of(struct lgpu_state *s, int device, const struct overhead *o)
{
	const uint64_t *begun = &s->usage->client[s->client].device[device].begun;
	struct lgpu_account *account = &s->device[device];
	for (int tries = 0; tries < 4; tries++) {
		uint32_t moves = __atomic_load_n(&o->moves, __ATOMIC_SEQ_CST);
		if (moves % 2 != 0)
			break;
		lgpu_lock(&account->lock);
		uint64_t own, before = *begun, away = (uint64_t)__atomic_load_n(&o->away, __ATOMIC_SEQ_CST);
		uint64_t accounted = (uint64_t)account->held - o->charged - lgpu_exports_released(device);
		uint64_t pending = __atomic_load_n(&account->pending, __ATOMIC_SEQ_CST);
		lgpu_unlock(&account->lock);
		if (!own_bytes(s, device, &own))
			return (struct excess){0, 0};
		if (__atomic_load_n(begun, __ATOMIC_ACQUIRE) != before || __atomic_load_n(&o->moves, __ATOMIC_SEQ_CST) != moves)
			continue;
		own += away; // it is no less this process's
		uint64_t sure = pending < accounted ? accounted - pending : 0;
		return (struct excess){own > accounted ? own - accounted : 0, own > sure ? own - sure : 0};
	}
	return (struct excess){o->charged, o->charged};
}

// due is what of a device is to be charged as overhead, at least the contexts.
// What is held without being on the device (managed memory that lies in host
// memory) hides as much overhead; the contexts are counted all the same. The
// caller has the lock.
static uint64_t due(struct lgpu_state *s, int device, const struct overhead *o)
{
	struct excess e = excess_of(s, device, o);
	uint64_t bytes = o->charged < e.least ? e.least : o->charged > e.most ? e.most : o->charged;
	return bytes > o->floor ? bytes : o->floor;
}

static bool measure(struct lgpu_state *s, int device, struct overhead *o)
{
	lgpu_exports_look(s, device);
	bool fits = set(s, device, o, due(s, device, o));
	__atomic_store_n(&o->next, lgpu_now() + PERIOD, __ATOMIC_RELAXED);
	__atomic_store_n(&o->seen, (uint64_t)s->device[device].held, __ATOMIC_RELAXED);
	return fits;
}

void lgpu_overhead_away(int device, int64_t bytes) { __atomic_fetch_add(&overheads[device].away, bytes, __ATOMIC_SEQ_CST); }

void lgpu_overhead_moving(int device)
{
	__atomic_fetch_add(&overheads[device].moves, 1, __ATOMIC_SEQ_CST);
}

uint64_t lgpu_overhead(int index) { return __atomic_load_n(&overheads[index].charged, __ATOMIC_RELAXED); }

bool lgpu_overhead_now(struct lgpu_state *s, int device)
{
	struct overhead *o = &overheads[device];
	lgpu_lock(&o->lock);
	bool fits = measure(s, device, o);
	lgpu_unlock(&o->lock);
	return fits;
}

void lgpu_overhead_grow(struct lgpu_state *s, int device, uint64_t reserved)
{
	struct overhead *o = &overheads[device];
	lgpu_lock(&o->lock);
	o->charged += reserved;
	lgpu_reserved(s, device, reserved);
	measure(s, device, o);
	lgpu_unlock(&o->lock);
}

void lgpu_overhead_idle(struct lgpu_state *s)
{
	for (int i = 0; i < (int)s->limits->devices && i < (int)LGPU_MAX_DEVICES; i++) {
		struct overhead *o = &overheads[i];
		lgpu_exports_look(s, i);
		if (__atomic_load_n(&o->charged, __ATOMIC_RELAXED) == 0 || lgpu_now() < __atomic_load_n(&o->next, __ATOMIC_RELAXED))
			continue;
		if (!lgpu_try_lock(&o->lock))
			continue; // the thread that has it measures, and may wait for what this thread is told
		uint64_t bytes = due(s, i, o);
		if (bytes > o->charged)
			o->charged += lgpu_charge_granted(s, i, bytes - o->charged); // this thread hears the daemon's answers
		else
			set(s, i, o, bytes);
		lgpu_unlock(&o->lock);
	}
}

void lgpu_overhead_measure(struct lgpu_state *s, int device)
{
	struct overhead *o = &overheads[device];
	uint64_t held = (uint64_t)__atomic_load_n(&s->device[device].held, __ATOMIC_RELAXED);
	uint64_t seen = __atomic_load_n(&o->seen, __ATOMIC_RELAXED), step = lgpu_remaining(s, device) / 8;
	step = step < FINE ? FINE : step > COARSE ? COARSE : step;
	if ((held > seen ? held - seen : seen - held) >= step || lgpu_now() >= __atomic_load_n(&o->next, __ATOMIC_RELAXED))
		lgpu_overhead_now(s, device);
}

uint64_t lgpu_overhead_own(struct lgpu_state *s, int device)
{
	uint64_t own;
	if (own_bytes(s, device, &own))
		return own;
	// Once seen and now gone from the list: it has nothing.
	return __atomic_load_n(&overheads[device].visible, __ATOMIC_RELAXED) ? 0 : UINT64_MAX;
}

bool lgpu_overhead_context_reserve(struct lgpu_state *s, int device)
{
	struct overhead *o = &overheads[device];
	uint64_t known = __atomic_load_n(&s->usage->device[device].context, __ATOMIC_RELAXED);
	if (!lgpu_reserve(s, device, known))
		return false;
	lgpu_lock(&o->lock);
	o->charged += known;
	o->floor += known;
	o->contexts++;
	lgpu_reserved(s, device, known);
	lgpu_unlock(&o->lock);
	return true;
}

bool lgpu_overhead_context_made(struct lgpu_state *s, int device, uint64_t seen)
{
	struct overhead *o = &overheads[device];
	uint64_t *known = &s->usage->device[device].context, own;
	bool fits = true;
	lgpu_lock(&o->lock);
	if (__atomic_load_n(known, __ATOMIC_RELAXED) == 0 && o->contexts == 1) {
		uint64_t accounted = (uint64_t)s->device[device].held - o->charged - lgpu_exports_released(device);
		if (own_bytes(s, device, &own))
			seen = own > accounted ? own - accounted : 0;
		__atomic_store_n(known, seen, __ATOMIC_RELAXED);
		o->floor = seen;
		fits = measure(s, device, o);
	}
	lgpu_unlock(&o->lock);
	return fits;
}

void lgpu_overhead_context_gone(struct lgpu_state *s, int device)
{
	struct overhead *o = &overheads[device];
	lgpu_lock(&o->lock);
	if (o->contexts > 0) {
		o->floor -= o->floor / (uint64_t)o->contexts;
		o->contexts--;
		measure(s, device, o);
	}
	lgpu_unlock(&o->lock);
}

bool lgpu_overhead_free_bytes(const struct lgpu_state *s, int device, uint64_t *bytes)
{
	nvmlMemory_t m;
	nvmlDevice_t d = nvml_device(s, device);
	if (d == NULL || LGPU_REAL(nvmlDeviceGetMemoryInfo)(d, &m) != NVML_SUCCESS)
		return false;
	*bytes = m.free;
	return true;
}
