// Reductions of one type on direct teams. The generator says which: LSHMEM_TYPE is the C++ type, LSHMEM_REDUCE_NAME and
// LSHMEM_REDUCESCATTER_NAME are the kernels' names.
#define LSHMEM_DIRECT 1
#include "launch.h"

LSHMEM_KERNEL(512) LSHMEM_REDUCE_NAME(const struct lshmem_collective a) {
  lshmem_member_of(a).reduce<LSHMEM_TYPE>(a.reduction, (char *)a.dest, (const char *)a.source, a.bytes, lshmem_lines(a));
}
LSHMEM_KERNEL(512) LSHMEM_REDUCESCATTER_NAME(const struct lshmem_collective a) {
  lshmem_member_of(a).reducescatter<LSHMEM_TYPE>(a.reduction, (char *)a.dest, (const char *)a.source, a.bytes, lshmem_lines(a));
}
