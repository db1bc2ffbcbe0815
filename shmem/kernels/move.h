// The kernels that move data, for teams with or without members behind queues: LSHMEM_DIRECT says which.
#include "launch.h"

LSHMEM_KERNEL(512) lshmem_kernel_broadcast(const struct lshmem_collective a) {
  lshmem_member_of(a).broadcast((char *)a.dest, (const char *)a.source, a.bytes, a.root, lshmem_lines(a));
}
LSHMEM_KERNEL(512) lshmem_kernel_fcollect(const struct lshmem_collective a) {
  lshmem_member_of(a).fcollect((char *)a.dest, (const char *)a.source, a.bytes, lshmem_lines(a));
}
LSHMEM_KERNEL(512) lshmem_kernel_alltoall(const struct lshmem_collective a) {
  lshmem_member_of(a).alltoall((char *)a.dest, (const char *)a.source, a.bytes, lshmem_lines(a));
}
