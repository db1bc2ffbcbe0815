// Reductions of teams with members behind queues, a kernel for each type. Their speed is the network's.
#include "launch.h"

#define LSHMEM_REDUCTION(name, T)                                                                                        \
  LSHMEM_KERNEL(512) lshmem_kernel_reduce_##name(const struct lshmem_collective a) {                                     \
    lshmem_member<false>(a).reduce<T>(a.reduction, (char *)a.dest, (const char *)a.source, a.bytes, false);              \
  }                                                                                                                      \
  LSHMEM_KERNEL(512) lshmem_kernel_reducescatter_##name(const struct lshmem_collective a) {                              \
    lshmem_member<false>(a).reducescatter<T>(a.reduction, (char *)a.dest, (const char *)a.source, a.bytes, false);       \
  }

LSHMEM_REDUCTION(int8, int8_t)
LSHMEM_REDUCTION(uint8, uint8_t)
LSHMEM_REDUCTION(int16, int16_t)
LSHMEM_REDUCTION(uint16, uint16_t)
LSHMEM_REDUCTION(int32, int32_t)
LSHMEM_REDUCTION(uint32, uint32_t)
LSHMEM_REDUCTION(int64, int64_t)
LSHMEM_REDUCTION(uint64, uint64_t)
LSHMEM_REDUCTION(float16, lshmem::half)
LSHMEM_REDUCTION(bfloat16, lshmem::bfloat)
LSHMEM_REDUCTION(float32, float)
LSHMEM_REDUCTION(float64, double)
