// exports.h: memory that was given away under descriptors (exports.c).
#ifndef LGPU_EXPORTS_H
#define LGPU_EXPORTS_H

#include "core.h"

// lgpu_exports_add is called before memory that is charged is given away under a
// descriptor for the first time.
void lgpu_exports_add(struct lgpu_state *s, int device, uint64_t bytes);

// lgpu_exports_leave is called when this process has neither handle nor mapping of
// such memory any more. It stays charged until the device does not have it.
void lgpu_exports_leave(struct lgpu_state *s, int device, uint64_t bytes);

// lgpu_exports_left is what is charged of a device for memory that this process
// has left. NVML does not count it as this process's.
uint64_t lgpu_exports_left(int device);

// lgpu_exports_gone is what the daemon says: so much of what this process has left
// is on the device no more. lgpu_exports_look finds out where there is no daemon.
void lgpu_exports_gone(struct lgpu_state *s, int device, uint64_t bytes);
void lgpu_exports_look(struct lgpu_state *s, int device);
// A forked child has none.
void lgpu_exports_reset(void);

#endif
