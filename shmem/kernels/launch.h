// What lshmem's kernels have in common.
#ifndef LSHMEM_LAUNCH_H
#define LSHMEM_LAUNCH_H

#include "../include/lshmem_collective.cuh"
// Its types need those above.
#include "lshmem_kernels.h"

// A kernel of that many threads at most, one CTA on a multiprocessor: registers for loads on their way.
#define LSHMEM_KERNEL(threads) extern "C" LSHMEM_GLOBAL __attribute__((launch_bounds(threads, 1))) void

using lshmem::block_group;

// As a kernel's argument is read where it lies, and never copied to local memory, what it calls must be inlined.
template <bool Direct>
LSHMEM_DEVICE lshmem::collective::member<block_group, Direct> lshmem_member(const struct lshmem_collective &a) {
  return lshmem::collective::member<block_group, Direct>(a.state, a.team, lshmem::block_index(), lshmem::grid_blocks());
}

LSHMEM_DEVICE bool lshmem_lines(const struct lshmem_collective &a) { return a.flags & LSHMEM_KERNEL_LINES; }

#endif
