// The kernel that waits for own memory.
#define LSHMEM_DIRECT 1
#include "launch.h"

template <class T> LSHMEM_DEVICE void wait_for(const struct lshmem_rma &a) {
  lshmem_wait_until(a.state, (T *)a.dest, (int)a.code, (T)a.value);
}

LSHMEM_KERNEL(32) lshmem_kernel_wait(const struct lshmem_rma a) {
  if (lshmem::thread_index() != 0) return;
  switch (a.type) {
  case LSHMEM_INT16: return wait_for<int16_t>(a);
  case LSHMEM_UINT16: return wait_for<uint16_t>(a);
  case LSHMEM_INT32: return wait_for<int32_t>(a);
  case LSHMEM_UINT32: return wait_for<uint32_t>(a);
  case LSHMEM_INT64: return wait_for<int64_t>(a);
  default: return wait_for<uint64_t>(a);
  }
}
