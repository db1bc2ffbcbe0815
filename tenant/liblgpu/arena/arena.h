// SPDX-License-Identifier: Apache-2.0

// arena.h: device memory at fixed addresses over physical memory that can leave the
// device, for lgpus with memory.overcommit.
//
// What cuMemAlloc and cuMemAllocPitch give is mapped from physical handles of ours. The
// daemon says how much of it may be resident (a level); a thread of ours, the mover,
// copies the rest to a file of the daemon's, the store, and gives the handles back.
// While anything is away the residence lock is shut, so nobody finds it missing.
//
// All functions may be called by any thread.
#ifndef LGPU_ARENA_H
#define LGPU_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/link_gen.h"
#include "process/process.h"

// lgpu_arena_wants reports whether this lgpu's memory of the device is movable.
bool lgpu_arena_wants(const struct lgpu_state *s, int device);

// lgpu_arena_alloc allocates as cuMemAlloc does, lgpu_arena_pitch as cuMemAllocPitch, in the current context. The caller
// has charged the bytes. Both wait for the daemon where they may not be resident yet. CUDA_ERROR_OUT_OF_MEMORY: they
// never will be, or there has been no daemon for a minute.
CUresult lgpu_arena_alloc(struct lgpu_state *s, int device, CUcontext context, CUdeviceptr *at, size_t bytes);
CUresult lgpu_arena_pitch(struct lgpu_state *s, int device, CUcontext context, CUdeviceptr *at, size_t *pitch, size_t width,
			  size_t height, unsigned int element);

// lgpu_arena_free frees what begins at an address, once the work of its context is done. *ours: the address is of this
// module; else nothing is done.
CUresult lgpu_arena_free(CUdeviceptr at, bool *ours);
// lgpu_arena_free_ordered frees it once a stream, which is not captured, has reached the call. f has been begun for it, and
// is ended then.
struct lgpu_freeing;
CUresult lgpu_arena_free_ordered(const struct lgpu_freeing *f, CUdeviceptr at, CUstream stream, bool *ours);
// lgpu_arena_leave ends what streams have reached meanwhile. It costs one load while nothing is awaited.
void lgpu_arena_leave(void);

// lgpu_arena_bytes is how much physical memory of a device there is here, lgpu_arena_resident how much of it is on the
// device.
uint64_t lgpu_arena_bytes(int device);
uint64_t lgpu_arena_resident(int device);

// What is known of an address of ours.
struct lgpu_arena_place {
	bool live;       // an allocation has it; else only known to be ours
	uint64_t base, bytes; // of the allocation, as asked for
	uint64_t id;     // unique among all allocations here
	uint64_t mapping, mapped; // of the mapping: base and bytes
	uint64_t block;  // id of the mapping
	CUcontext context;
	CUmemoryPool pool; // of an ordered one
	CUdevice ordinal;
	bool ordered;   // it was allocated in stream order
	bool shareable; // legacy IPC can give it away
	bool sync; // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
};
// lgpu_arena_find stores what is at an address. False: it is none of ours.
bool lgpu_arena_find(CUdeviceptr at, struct lgpu_arena_place *place);
// lgpu_arena_holds reports whether bytes at an address of ours are all of one allocation, which is where copies and memsets
// have to end; the driver itself would refuse them at the end of a page. True for all other addresses.
bool lgpu_arena_holds(CUdeviceptr at, size_t bytes);
// lgpu_arena_meets reports whether a range has addresses of ours, used or not, of memory that this module has reserved or
// opened. The program may map nothing there and give none of it back; the driver, which knows only that it
// was reserved, would let it.
bool lgpu_arena_meets(CUdeviceptr at, size_t bytes);
// lgpu_arena_fix_range keeps what a range has of pools' and plain memory on its device from now on, since others know of it.
// It is called inside a touch.
void lgpu_arena_fix_range(CUdeviceptr at, size_t bytes);
// lgpu_arena_attribute answers cuPointerGetAttribute for a place.
CUresult lgpu_arena_attribute(const struct lgpu_arena_place *place, CUdeviceptr at, CUpointer_attribute attribute, void *data);
// lgpu_arena_set_sync sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of a live place.
CUresult lgpu_arena_set_sync(CUdeviceptr at, unsigned int on);

// ---- handles of the program's own

// A handle of the program's is a block. lgpu_arena_create makes one as cuMemCreate does; the caller has charged the bytes.
// It waits for the daemon as lgpu_arena_alloc does. lgpu_arena_destroy ends it, once it has neither handles nor mappings.
// All others are called inside a touch.
struct lgpu_block;
CUresult lgpu_arena_create(struct lgpu_state *s, int device, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags,
			   struct lgpu_block **made);
void lgpu_arena_destroy(struct lgpu_block *b);
// lgpu_arena_handle is what the program knows it by, lgpu_arena_real what the driver does now. lgpu_arena_is_handle reports
// whether a value is, or was, such a handle: the driver must not see it, as it takes handles for pointers.
CUmemGenericAllocationHandle lgpu_arena_handle(const struct lgpu_block *b);
bool lgpu_arena_is_handle(CUmemGenericAllocationHandle handle);
CUmemGenericAllocationHandle lgpu_arena_real(const struct lgpu_block *b);
void lgpu_arena_properties(const struct lgpu_block *b, CUmemAllocationProp *prop);
// lgpu_arena_fix keeps the memory on its device from now on, since others know of it.
void lgpu_arena_fix(struct lgpu_block *b);
// lgpu_arena_map maps it as cuMemMap does. lgpu_arena_unmapped is called when the driver has unmapped what begins at an
// address, lgpu_arena_allowed when it has set access.
CUresult lgpu_arena_map(struct lgpu_block *b, CUdeviceptr address, size_t bytes, size_t offset, unsigned long long flags);
void lgpu_arena_unmapped(CUdeviceptr address);
void lgpu_arena_allowed(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count);
// lgpu_arena_mapping stores what is mapped at an address. False: nothing of a handle of ours.
struct lgpu_arena_mapping {
	uint64_t base, bytes;
	uint64_t id; // of the mapping, for CU_POINTER_ATTRIBUTE_BUFFER_ID
	CUmemGenericAllocationHandle handle;
};
bool lgpu_arena_mapping(CUdeviceptr address, struct lgpu_arena_mapping *place);
// lgpu_arena_mapping_sync notes CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of a mapping.
void lgpu_arena_mapping_sync(CUdeviceptr address, bool on);

// ---- stream-ordered pools

// lgpu_arena_pool_find returns the pool behind the driver's handle, or NULL: its memory is not ours. lgpu_arena_pool_add
// makes it ours; NULL: no memory. limit is what the program allows it to reserve, 0: all.
struct lgpu_arena_pool;
struct lgpu_arena_pool *lgpu_arena_pool_find(CUmemoryPool handle);
struct lgpu_arena_pool *lgpu_arena_pool_add(CUmemoryPool handle, int device, CUdevice ordinal, uint64_t limit);
// lgpu_arena_pool_device returns the index in the limits of a pool's device.
int lgpu_arena_pool_device(const struct lgpu_arena_pool *p);
// lgpu_arena_pool_destroy destroys it as cuMemPoolDestroy does, inside a touch: what is allocated stays until it is freed.
CUresult lgpu_arena_pool_destroy(struct lgpu_state *s, struct lgpu_arena_pool *p);
// lgpu_arena_pool_alloc allocates as cuMemAllocFromPoolAsync does, in a stream that is not captured. It charges what the
// pool grows by.
CUresult lgpu_arena_pool_alloc(struct lgpu_state *s, struct lgpu_arena_pool *p, CUdeviceptr *at, size_t bytes, CUstream stream);
// lgpu_arena_pool_free frees as cuMemFree does, lgpu_arena_pool_free_ordered as cuMemFreeAsync does, in a stream that is
// not captured. *ours: the address is of a pool of ours; else nothing is done.
CUresult lgpu_arena_pool_free(struct lgpu_state *s, CUdeviceptr at, bool *ours);
CUresult lgpu_arena_pool_free_ordered(CUdeviceptr at, CUstream stream, bool *ours);
// lgpu_arena_pool_attribute answers attributes that are amounts; false: it is none. lgpu_arena_pool_reset_high lets a
// high-water mark begin anew. lgpu_arena_pool_changed is called when the program has set another attribute,
// lgpu_arena_pool_access when it has set access.
bool lgpu_arena_pool_attribute(struct lgpu_arena_pool *p, CUmemPool_attribute attribute, uint64_t *value);
void lgpu_arena_pool_reset_high(struct lgpu_arena_pool *p, CUmemPool_attribute attribute);
void lgpu_arena_pool_changed(struct lgpu_arena_pool *p);
CUresult lgpu_arena_pool_access(struct lgpu_arena_pool *p, const CUmemAccessDesc *access, size_t count);
// lgpu_arena_pool_trim gives back what a pool does not use, but keep bytes; inside a touch. lgpu_arena_pools_trim does so
// for all of a device, lgpu_arena_pools_settle for what is above the thresholds; both only if they need not wait.
void lgpu_arena_pool_trim(struct lgpu_state *s, struct lgpu_arena_pool *p, uint64_t keep);
void lgpu_arena_pools_trim(struct lgpu_state *s, int device);
void lgpu_arena_pools_settle(void);

// lgpu_arena_event_recorded is called when an event has been recorded on a stream, lgpu_arena_stream_waits when a stream
// waits for one from now on. Both cost a load or two while nothing that streams have freed could be given to others.
void lgpu_arena_event_recorded(CUevent event, CUstream stream);
void lgpu_arena_stream_waits(CUstream stream, CUevent event);
// lgpu_arena_stream_ends is called before a stream is no more.
void lgpu_arena_stream_ends(CUstream stream);

// ---- legacy IPC

// lgpu_arena_share makes the handle of an allocation of cuMemAlloc's, whose memory stays on the device from then on.
CUresult lgpu_arena_share(const struct lgpu_arena_place *place, CUipcMemHandle *handle);
// lgpu_arena_is_share reports whether a handle is one of ours, of whatever process. lgpu_arena_open opens it as
// cuIpcOpenMemHandle does; lgpu_arena_close is cuIpcCloseMemHandle, *ours: the address was opened so. Both work in every
// lgpu. lgpu_arena_opened stores what is at such an address; false: it is none.
bool lgpu_arena_is_share(const CUipcMemHandle *handle);
CUresult lgpu_arena_open(const CUipcMemHandle *handle, unsigned int flags, CUdeviceptr *at);
CUresult lgpu_arena_close(CUdeviceptr at, bool *ours);
bool lgpu_arena_opened(CUdeviceptr at, struct lgpu_arena_place *place);
// lgpu_arena_shares_context_ended closes what was opened in a context.
void lgpu_arena_shares_context_ended(CUcontext context);

// ---- contexts

// lgpu_arena_context_fits is called when a context has been made and charged. False: it would take room from others that
// they cannot do without, and is to be ended again.
bool lgpu_arena_context_fits(const struct lgpu_state *s, int device);
// lgpu_arena_context_ends is called before a context may end; lgpu_arena_context_ended once it has, and frees what was
// allocated in it.
void lgpu_arena_context_ends(CUcontext context);
void lgpu_arena_context_ended(CUcontext context);
// lgpu_arena_peer is called when the current context has got access to another's memory, or has lost it.
CUresult lgpu_arena_peer(CUcontext other, bool access);

// lgpu_arena_attached is called once the process is a client: it starts the mover if any device's memory is movable.
void lgpu_arena_attached(struct lgpu_state *s);

// What the daemon says, and that it is gone and there again. lgpu_arena_store takes the descriptor, which may be -1.
void lgpu_arena_keep(const struct lgpu_message *m);
void lgpu_arena_store(const struct lgpu_message *m, int fd);
void lgpu_arena_lost(void);
void lgpu_arena_found(void);
// lgpu_stores_rest is called when this process leaves its devices, with what can leave them gone: that is in the daemon's files
// then, whatever the driver does, and stays there until it is called again. False: it could not be brought there.
bool lgpu_stores_rest(bool rest);
// lgpu_arena_look tells the daemon what has changed unasked; it is called now and then.
void lgpu_arena_look(void);
// lgpu_arena_wanted is called when something waits for memory that is away.
void lgpu_arena_wanted(void);
// A forked child has none.
void lgpu_arena_reset(void);

#endif
