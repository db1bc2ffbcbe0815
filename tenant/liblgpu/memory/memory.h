// SPDX-License-Identifier: Apache-2.0

// memory.h: charging memory to the lgpu, and the steps of every allocation.
// accounts.h has what this process has allocated, pools.h what pools have reserved,
// exports.h what was given away.
#ifndef LGPU_MEMORY_H
#define LGPU_MEMORY_H

#include "memory/accounts.h"
#include "process/process.h"

// Read off driver 580: an allocation of more than 1 MiB takes whole pages of 2
// MiB; smaller ones share such pages, in units of 512 bytes.
#define LGPU_UNIT UINT64_C(512)
#define LGPU_PAGE (UINT64_C(2) << 20)
#define LGPU_SHARED_PAGE (UINT64_C(1) << 20)

// ---- charging (charge.c)

// lgpu_charge charges bytes of device memory, or of page-locked host memory if
// index is LGPU_HOST. False: that is over the limit, and nothing is charged.
bool lgpu_charge(struct lgpu_state *state, int index, uint64_t bytes);
// lgpu_charge_ahead charges the most that a call may need, before the call. It does
// not raise the peak; lgpu_charge_seen does, once what was not needed has been given
// back.
bool lgpu_charge_ahead(struct lgpu_state *state, int index, uint64_t bytes);
void lgpu_charge_seen(struct lgpu_state *state, int index);
// lgpu_uncharge gives back what was charged.
void lgpu_uncharge(struct lgpu_state *state, int index, uint64_t bytes);
// lgpu_charge_most charges as much of bytes as the limit has room for, and returns
// how much that is. It is for memory that is taken already and cannot be refused.
uint64_t lgpu_charge_most(struct lgpu_state *state, int index, uint64_t bytes);
// lgpu_charge_granted is lgpu_charge_most within what has been granted already: it asks
// the daemon for nothing, and so waits for no answer.
uint64_t lgpu_charge_granted(struct lgpu_state *state, int index, uint64_t bytes);
// lgpu_overhead returns what this process is charged for memory of a device that its
// calls did not ask for: contexts, code, and the driver's own.
uint64_t lgpu_overhead(int index);
// lgpu_used returns what all clients of the lgpu hold.
uint64_t lgpu_used(const struct lgpu_state *state, int index);
// lgpu_remaining returns what of the limit is not used.
uint64_t lgpu_remaining(const struct lgpu_state *state, int index);
// lgpu_held returns what one client holds of a device.
uint64_t lgpu_held(const struct lgpu_state *state, uint32_t client, int index);

// lgpu_charge_anew charges all that this process holds in another region, as its client, and has it take the place of the
// old one, whose mappings are private copies by now. False: that is over a limit, nothing is charged, and index and bytes say
// what has no room.
bool lgpu_charge_anew(struct lgpu_state *s, struct lgpu_limits *limits, struct lgpu_usage *usage, uint32_t client, int *index, uint64_t *bytes);

// ---- allocating and freeing (reserve.c)

// lgpu_round_up rounds up to a multiple of unit; UINT64_MAX on overflow, which
// no limit lets pass.
uint64_t lgpu_round_up(uint64_t bytes, uint64_t unit);

// lgpu_taken is what the driver takes from the device for an allocation.
uint64_t lgpu_taken(uint64_t bytes);

// What gives memory back that is charged and not used. The functions are of a higher module; hook/wiring.c names them.
struct lgpu_memory_handlers {
	void (*trim)(struct lgpu_state *s, int device); // waits for nobody
};
extern const struct lgpu_memory_handlers lgpu_memory_handlers;

// lgpu_reserve charges an allocation before it is made, and makes room for it if
// necessary. False: it does not fit. lgpu_reserved must follow when the driver's
// call has returned and its result has been noted or given back.
bool lgpu_reserve(struct lgpu_state *s, int device, uint64_t bytes);
void lgpu_reserved(struct lgpu_state *s, int device, uint64_t bytes);
// lgpu_pending adds to what is charged for calls in progress, as lgpu_reserve does.
void lgpu_pending(struct lgpu_state *s, int device, uint64_t bytes);

// lgpu_note notes a charge that was made. On failure it is given back; the
// caller frees the memory.
bool lgpu_note(struct lgpu_state *s, enum lgpu_kind kind, uint64_t key, uint64_t bytes, int device, void *context);

// A free of something noted, in two steps around the driver's call.
struct lgpu_freeing {
	struct lgpu_state *state; // NULL: not noted
	struct lgpu_entry entry;
};
struct lgpu_freeing lgpu_free_begin(enum lgpu_kind kind, uint64_t key);
CUresult lgpu_free_end(const struct lgpu_freeing *f, CUresult result);

// ---- overhead (overhead.c)

// Memory that no call shows: contexts, modules, the driver's own (overhead.c).
// lgpu_overhead_measure reads it off NVML if that was long ago, or much was
// taken or freed since; call it before an allocation.
void lgpu_overhead_measure(struct lgpu_state *s, int device);
// lgpu_overhead_now measures at once: something was made or ended that takes
// memory of its own. False: there is more of it than the limit has room for.
bool lgpu_overhead_now(struct lgpu_state *s, int device);
// lgpu_overhead_idle measures the overhead of a process that makes no calls; the thread
// that listens to the daemon does so now and then. It asks the daemon for nothing: what
// has come is charged as far as was granted, and the rest at the next measurement.
void lgpu_overhead_idle(struct lgpu_state *s);
// lgpu_overhead_grow makes overhead of what was reserved for a call that has
// returned, and measures how much of it there is.
void lgpu_overhead_grow(struct lgpu_state *s, int device, uint64_t reserved);
// lgpu_overhead_nobodys reads what of a device is in use and no process's. False:
// NVML cannot tell.
bool lgpu_overhead_nobodys(const struct lgpu_state *s, int device, uint64_t *bytes);
// lgpu_overhead_own is what NVML says that this process has on the device;
// UINT64_MAX where NVML cannot tell.
uint64_t lgpu_overhead_own(struct lgpu_state *s, int device);
// A context in three steps: reserve before it is made (false: it does not fit),
// made once it is (false: it does not fit after all; seen is how much less the
// device had free, used where NVML knows no better), gone when it is not, or
// could not be made.
bool lgpu_overhead_context_reserve(struct lgpu_state *s, int device);
bool lgpu_overhead_context_made(struct lgpu_state *s, int device, uint64_t seen);
void lgpu_overhead_context_gone(struct lgpu_state *s, int device);
// lgpu_overhead_free_bytes reads what the whole device has free.
bool lgpu_overhead_free_bytes(const struct lgpu_state *s, int device, uint64_t *bytes);
// lgpu_overhead_away counts bytes that are charged and have left the device (or, negative, are back). While
// they are on the way, between two calls of lgpu_overhead_moving, nothing is measured.
void lgpu_overhead_away(int device, int64_t bytes);
void lgpu_overhead_moving(int device);
void lgpu_overhead_reset(void);

#endif
