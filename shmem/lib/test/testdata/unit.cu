// A unit of CUDA code in the same program (host.cpp), with what stands in for CUDA's runtime: that calls compile on
// both sides, and on the host that the unit has the program's PE and its constant the PE's state.
#include <cuda_runtime.h>

#include "lshmem_compat.h"

#define CHECK(condition) \
  if (!(condition)) return __LINE__

__attribute__((device)) void of_kernels(uint64_t *w) {
  nvshmem_uint64_p(w, 1, (nvshmem_my_pe() + 1) % nvshmem_n_pes());
  nvshmem_barrier_all();
}

int cuda_unit(int me, int n) {
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_IS_INITIALIZED && nvshmem_my_pe() == me && nvshmem_n_pes() == n);
  const volatile lshmem_t *constant = &lshmem_compat_state;
  CHECK(constant->version == LSHMEM_STATE_VERSION && constant->pe == (uint32_t)me && constant->pes == (uint32_t)n);
  int device;
  CHECK(lshmem_device(lshmem_compat::self, &device) == LSHMEM_OK && device == stub_device);
  nvshmem_barrier_all();
  nvshmemx_barrier_all_on_stream(0);
  return 0;
}
