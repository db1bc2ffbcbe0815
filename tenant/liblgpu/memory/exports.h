// SPDX-License-Identifier: Apache-2.0

// exports.h: memory that was given away under descriptors (exports.c).
#ifndef LGPU_EXPORTS_H
#define LGPU_EXPORTS_H

#include "process/process.h"

// lgpu_exports_add is called before memory that is charged is given away under a
// descriptor for the first time.
void lgpu_exports_add(struct lgpu_state *s, int device, uint64_t bytes);

// lgpu_exports_release is called when this process has lost its last handle and
// mapping of such memory. It stays charged until it has left the device.
void lgpu_exports_release(struct lgpu_state *s, int device, uint64_t bytes);

// lgpu_exports_released is what is charged of a device for memory that this process
// has released. NVML does not count it as this process's.
uint64_t lgpu_exports_released(int device);

// lgpu_exports_gone is called when the daemon says how much of what this process has
// released has left the device. Without a daemon, lgpu_exports_look finds that out.
void lgpu_exports_gone(struct lgpu_state *s, int device, uint64_t bytes);
void lgpu_exports_look(struct lgpu_state *s, int device);
// A forked child has none.
void lgpu_exports_reset(void);

#endif
