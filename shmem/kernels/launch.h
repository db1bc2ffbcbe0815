// What lshmem's kernels have in common. LSHMEM_DIRECT says whether they are for direct teams alone (1) or for any (0).
#ifndef LSHMEM_LAUNCH_H
#define LSHMEM_LAUNCH_H

#include "../include/lshmem_collective.cuh"
// Its types need those above.
#include "lshmem_kernels.h"

// A kernel of that many threads at most, one CTA on a multiprocessor: registers for loads on their way.
#define LSHMEM_KERNEL(threads) extern "C" LSHMEM_GLOBAL __attribute__((launch_bounds(threads, 1))) void

// The block of a kernel that is launched in one dimension.
struct lshmem_line_group : lshmem::block_group {
  static LSHMEM_DEVICE uint32_t index() { return lshmem::special::tid_x(); }
  static LSHMEM_DEVICE uint32_t size() { return lshmem::special::ntid_x(); }
};

// A kernel's argument is read where it lies, and never copied to local memory, as what it is given to is inlined.
#if LSHMEM_DIRECT
using lshmem_member = lshmem::collective::member<lshmem_line_group, true>;
LSHMEM_DEVICE const lshmem_t &lshmem_state_of(const struct lshmem_collective &a) { return a.state; }
#else
using lshmem_member = lshmem::collective::member<lshmem::block_group, false>;
// What has code for queues is not inlined: it is given the copy in memory.
LSHMEM_DEVICE const lshmem_t &lshmem_state_of(const struct lshmem_collective &a) { return lshmem::nic::state_at(a.state.self); }
#endif
LSHMEM_DEVICE lshmem_member lshmem_member_of(const struct lshmem_collective &a) {
  return lshmem_member(lshmem_state_of(a), a.team, lshmem::special::ctaid_x(), lshmem::special::nctaid_x());
}
LSHMEM_DEVICE bool lshmem_lines(const struct lshmem_collective &a) { return a.flags & LSHMEM_KERNEL_LINES; }

#endif
