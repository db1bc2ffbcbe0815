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
	CUdevice ordinal;
	bool sync; // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
};
// lgpu_arena_find stores what is at an address. False: it is none of ours.
bool lgpu_arena_find(CUdeviceptr at, struct lgpu_arena_place *place);
// lgpu_arena_attribute answers cuPointerGetAttribute for a place.
CUresult lgpu_arena_attribute(const struct lgpu_arena_place *place, CUdeviceptr at, CUpointer_attribute attribute, void *data);
// lgpu_arena_set_sync sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of a live place.
CUresult lgpu_arena_set_sync(CUdeviceptr at, unsigned int on);

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
// lgpu_arena_look tells the daemon what has changed unasked; it is called now and then.
void lgpu_arena_look(void);
// lgpu_arena_wanted is called when something waits for memory that is away.
void lgpu_arena_wanted(void);
// A forked child has none.
void lgpu_arena_reset(void);

#endif
