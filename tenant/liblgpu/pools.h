// pools.h: what the pools and the graphs of this process have reserved.
#ifndef LGPU_POOLS_H
#define LGPU_POOLS_H

#include "core.h"

// Something of the driver's whose size is read off it, and what was charged
// for it.
struct lgpu_reserve {
	uint32_t lock;
	int32_t device; // index in the limits
	uint64_t charged;
};

// lgpu_reserve_settle charges or gives back the difference to what the driver
// has reserved now. False: over the limit; as much as fits is charged. The
// caller has the lock.
bool lgpu_reserve_settle(struct lgpu_state *s, struct lgpu_reserve *r, uint64_t reserved);

// A forked child has none.
void lgpu_pools_reset(void);

#endif
