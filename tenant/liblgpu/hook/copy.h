// SPDX-License-Identifier: Apache-2.0

// copy.h: whether copies and memsets stay within allocations (lgpu_arena_holds). What the driver refuses anyhow, such as
// pitches that are too small, it is left to: that counts as within.
#ifndef LGPU_COPY_H
#define LGPU_COPY_H

#include <stdbool.h>
#include <stddef.h>

#include "arena/arena.h"

// lgpu_copy_within_row is for count elements of size bytes, lgpu_copy_within_rows for so many rows of them.
bool lgpu_copy_within_row(CUdeviceptr at, size_t count, size_t size);
bool lgpu_copy_within_rows(CUdeviceptr at, size_t pitch, size_t count, size_t size, size_t rows);

// These are for both sides of a copy of a box; NULL is the driver's.
bool lgpu_copy_within_2d(const CUDA_MEMCPY2D *c);
bool lgpu_copy_within_3d(const CUDA_MEMCPY3D *c);
bool lgpu_copy_within_peer(const CUDA_MEMCPY3D_PEER *c);

#endif
