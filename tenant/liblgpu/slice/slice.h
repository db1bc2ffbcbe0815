// SPDX-License-Identifier: Apache-2.0

// slice.h: the hardware's time slices of this process's contexts.
//
// On the device, a context's work runs in a channel group. While other groups have
// work too, each runs for its time slice; then the hardware switches, in the middle
// of a kernel if need be. A process may set the slice of its own groups. The daemon
// says to what (message Slice), and is told what is in force (message Sliced).
//
// Without a daemon, or before its first Slice, nothing is set: groups are only
// noticed. Their slices go back to the driver's own when the daemon says so, and
// when it is lost.
#ifndef LGPU_SLICE_H
#define LGPU_SLICE_H

#include <stdbool.h>

#include "lgpu_cuda.h"

// lgpu_slice_init begins to notice channel groups. It is called once, after the
// driver's cuInit has succeeded in a process that has a daemon. False: there is no
// memory.
bool lgpu_slice_init(void);

// lgpu_slice_told acts on a Slice, and answers it.
struct lgpu_message;
void lgpu_slice_told(const struct lgpu_message *m);

// lgpu_slice_look finds out whether the slices that were set are still in force,
// sets those that are not, and says so. It is called by the thread that hears the
// daemon, now and then; unless a slice is set and half a second has passed, it
// returns at once.
void lgpu_slice_look(void);

// lgpu_slice_release puts the driver's own slices back: there is no daemon any more.
void lgpu_slice_release(void);

// lgpu_slice_making is called before the driver makes a context, and returns what
// lgpu_slice_making_ended is given when it has: until then the driver sets slices
// itself. lgpu_slice_context_made is called afterwards, by the thread that made it,
// with the index of the device in the limits. lgpu_slice_context_gone is called before
// a context is destroyed.
bool lgpu_slice_making(void);
void lgpu_slice_making_ended(bool making);
void lgpu_slice_context_made(int device, CUcontext context);
void lgpu_slice_context_gone(CUcontext context);

#endif
