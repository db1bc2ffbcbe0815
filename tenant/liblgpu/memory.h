// memory.h: what the memory hooks share.
#ifndef LGPU_MEMORY_H
#define LGPU_MEMORY_H

#include "accounts.h"
#include "core.h"

// lgpu_round_up rounds up to a multiple of unit; UINT64_MAX on overflow, which
// no limit lets pass.
uint64_t lgpu_round_up(uint64_t bytes, uint64_t unit);

// lgpu_taken is what the driver takes from the device for an allocation.
uint64_t lgpu_taken(uint64_t bytes);

// lgpu_reserve charges what an allocation takes, before it is made, and makes room
// for it if need be. False: it does not fit. lgpu_reserved follows a reserve when
// the driver's call has returned, and what it did is noted or given back.
bool lgpu_reserve(struct lgpu_state *s, int device, uint64_t bytes);
void lgpu_reserved(struct lgpu_state *s, int device, uint64_t bytes);
// lgpu_pending adds to what is charged for calls under way; lgpu_reserve does so.
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

// lgpu_pools_look reads off the driver what pools have reserved and charges
// the difference; without force only if something was freed since. Call after
// a synchronise: that is when pools shrink.
void lgpu_pools_look(bool force);
// lgpu_pools_trim gives back to a device what pools have reserved and do not use.
void lgpu_pools_trim(struct lgpu_state *s, int device);
// lgpu_pools_ended is for the end of a device's primary context: pools may have
// gone with it.
void lgpu_pools_ended(struct lgpu_state *s, int device);

// Memory of executable graphs (hooks_graph.c): begin before a launch or an
// upload of one, end after it. Both cost one load while no graph allocates.
extern bool lgpu_graphs_allocate;
struct lgpu_graph_charge {
	uint64_t bytes; // 0: nothing was charged
	int device;
};
CUresult lgpu_graph_memory_begin(CUgraphExec graph, struct lgpu_graph_charge *charge);
void lgpu_graph_memory_end(CUgraphExec graph, CUresult result, const struct lgpu_graph_charge *charge);
void lgpu_graphs_look(struct lgpu_state *s); // charge what they have reserved now
void lgpu_graphs_reset(void);
void lgpu_handles_reset(void);
void lgpu_contexts_reset(void);

// Memory that no call shows: contexts, modules, the driver's own (overhead.c).
// lgpu_overhead_measure reads it off NVML if that was long ago, or much was
// taken or freed since; call it before an allocation.
void lgpu_overhead_measure(struct lgpu_state *s, int device);
// lgpu_overhead_now measures at once: something was made or ended that takes
// memory of its own. False: there is more of it than the limit leaves.
bool lgpu_overhead_now(struct lgpu_state *s, int device);
// lgpu_overhead_idle gives back what overhead is gone of a process that makes no
// calls; the thread that listens to the daemon does so now and then. It asks the
// daemon for nothing, so what has come is left to the next measurement.
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
void lgpu_overhead_reset(void);

#endif
