// A unit with device code as CPU code, of a program whose main.cpp has the host's functions alone (host.cpp).
#define LSHMEM_COMPAT_CPU
#include "lshmem_compat.h"

#define CHECK(condition) \
  if (!(condition)) return __LINE__
#define EXPORTED __attribute__((visibility("default"))) // for the test in which this is a library

// The device's functions look at a state that is still empty.
EXPORTED int cpu_unit_before() {
  CHECK(nvshmem_my_pe() == 0 && nvshmem_n_pes() == 0);
  return 0;
}

// Called by one thread of each PE, with memory for 8 words.
EXPORTED int cpu_unit(uint64_t *w, int me, int n) {
  int next = (me + 1) % n, previous = (me + n - 1) % n;
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_IS_INITIALIZED);
  CHECK(nvshmem_my_pe() == me && nvshmem_n_pes() == n && nvshmem_team_my_pe(NVSHMEM_TEAM_WORLD) == me);
  CHECK(LSHMEM_COMPAT_SH.pe == (uint32_t)me);
  w[1] = 0;
  nvshmem_barrier_all();
  nvshmem_uint64_p(w, 1000 * (uint64_t)me, next);
  nvshmem_fence();
  nvshmemx_signal_op(w + 1, 7, NVSHMEM_SIGNAL_SET, next);
  CHECK(nvshmem_signal_wait_until(w + 1, NVSHMEM_CMP_NE, 0) == 7);
  CHECK(w[0] == 1000 * (uint64_t)previous);
  nvshmemx_barrier_all_on_stream(0);
  return 0;
}
