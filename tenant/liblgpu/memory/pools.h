// SPDX-License-Identifier: Apache-2.0

// pools.h: what the pools and the graphs of this process have reserved.
#ifndef LGPU_POOLS_H
#define LGPU_POOLS_H

#include "process/process.h"

// Memory that the driver reserves and tells the size of, and what was charged for
// it.
struct lgpu_reserve {
	uint32_t lock;
	int32_t device; // index in the limits
	uint64_t charged;
};

// lgpu_reserve_settle charges or gives back the difference to what the driver
// has reserved now. False: over the limit; as much as fits is charged. The
// caller has the lock.
bool lgpu_reserve_settle(struct lgpu_state *s, struct lgpu_reserve *r, uint64_t reserved);

// lgpu_pools_look asks the driver what pools have reserved, and charges the
// difference; without force, only if something has been freed since the last look.
// It is called after a synchronise, which is when pools shrink.
void lgpu_pools_look(bool force);
// lgpu_pools_trim gives back to a device what pools have reserved and do not use.
void lgpu_pools_trim(struct lgpu_state *s, int device);
// lgpu_pools_ended is for the end of a device's primary context: pools may have
// gone with it.
void lgpu_pools_ended(struct lgpu_state *s, int device);

// lgpu_pools_freed is called when memory that may be a pool's was freed in the order
// of a stream.
void lgpu_pools_freed(CUstream stream);

// One pool. lgpu_pool_find returns it, or NULL where it is not noted; lgpu_pool_add
// notes it. NULL: there is no memory for that, and nothing may be allocated from it.
struct lgpu_pool;
struct lgpu_pool *lgpu_pool_find(CUmemoryPool handle);
struct lgpu_pool *lgpu_pool_add(CUmemoryPool handle, int device);
// lgpu_pool_device returns the index in the limits of a pool's device.
int lgpu_pool_device(const struct lgpu_pool *p);
// lgpu_pool_made notes that the program has made the pool.
void lgpu_pool_made(struct lgpu_pool *p, CUdevice ordinal);
// lgpu_pool_trimmed is called when the program has trimmed it.
void lgpu_pool_trimmed(struct lgpu_state *s, struct lgpu_pool *p);

// lgpu_pool_alloc allocates from a pool by the driver's call, if the limit has room
// for what the pool may grow by; undo frees.
typedef CUresult (*lgpu_pool_call)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
typedef CUresult (*lgpu_pool_free)(CUdeviceptr, CUstream);
CUresult lgpu_pool_alloc(struct lgpu_state *s, struct lgpu_pool *p, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
			 CUstream stream, lgpu_pool_call driver, lgpu_pool_free undo);

// lgpu_pool_destroy destroys a pool by the driver's call, or as soon as the last of
// its memory is freed.
CUresult lgpu_pool_destroy(struct lgpu_state *s, struct lgpu_pool *p, CUmemoryPool pool);

// A forked child has none.
void lgpu_pools_reset(void);

#endif
