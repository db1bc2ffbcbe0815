#define LSHMEM_DIRECT 0
#include "move.h"

LSHMEM_KERNEL(512) lshmem_kernel_sync(const struct lshmem_collective a) { lshmem_member_of(a).sync(); }
LSHMEM_KERNEL(512) lshmem_kernel_barrier(const struct lshmem_collective a) { lshmem_member_of(a).barrier(); }
