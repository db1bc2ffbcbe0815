// The first kernel that most programs need. It is small, so that it need not wait long for the driver's compiler. It
// is also the barrier of PEs that use no queues: all that kernels before it in the stream stored is done when it
// begins.
#define LSHMEM_DIRECT 1
#include "launch.h"

LSHMEM_KERNEL(512) lshmem_kernel_sync(const struct lshmem_collective a) { lshmem_member_of(a).sync(); }
