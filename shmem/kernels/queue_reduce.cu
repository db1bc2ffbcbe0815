// Reductions of teams with members behind queues, of any type: the code for one at a time is small, and the speed is
// the network's.
#define LSHMEM_DIRECT 0
#include "launch.h"

using lshmem::collective::any;
using lshmem::collective::any_op;

LSHMEM_KERNEL(512) lshmem_kernel_reduce(const struct lshmem_collective a) {
  lshmem_member_of(a).reduce<any>(any_op(a.type, a.reduction), (char *)a.dest, (const char *)a.source, a.bytes, false);
}
LSHMEM_KERNEL(512) lshmem_kernel_reducescatter(const struct lshmem_collective a) {
  lshmem_member_of(a).reducescatter<any>(any_op(a.type, a.reduction), (char *)a.dest, (const char *)a.source, a.bytes, false);
}
