#define LSHMEM_DIRECT false
#include "move.h"

LSHMEM_KERNEL(512) lshmem_kernel_sync(const struct lshmem_collective a) { lshmem_member<false>(a).sync(); }
LSHMEM_KERNEL(512) lshmem_kernel_barrier(const struct lshmem_collective a) { lshmem_member<false>(a).barrier(); }
