// lshmem_compat.h as CPU code: the PEs are processes whose heaps lie in host memory.
#define LSHMEM_COMPAT_CPU
#include "compat.h"

#include <stdio.h>

#include <atomic>
#include <thread>

// Of a signal that changes all the time, a wait returns the value that it has waited for.
static bool wait_returns_what_it_saw(uint64_t *signal) {
  std::atomic<bool> enough{false};
  std::thread changes([&] {
    for (uint64_t v = 0; !enough; v++) __atomic_store_n(signal, v % 3, __ATOMIC_RELEASE);
  });
  int others = 0;
  for (int i = 0; i < 20000; i++) others += nvshmem_signal_wait_until(signal, NVSHMEM_CMP_EQ, 1) != 1;
  enough = true;
  changes.join();
  return others == 0;
}

int main() {
  nvshmem_init();
  if (nvshmemx_init_status() != NVSHMEM_STATUS_IS_INITIALIZED) return 1;
  int me = nvshmem_my_pe(), n = nvshmem_n_pes(), previous = (me + n - 1) % n;
  auto *w = (uint64_t *)nvshmem_calloc(512, 8);
  auto *t = (float *)nvshmem_align(4096, 4096);
  if (!w || !t || (uintptr_t)t % 4096) return 1;
  for (uint64_t i = 0; i < 16; i++) w[200 + i] = 1000 * (uint64_t)me + i;
  nvshmem_barrier_all();
  if (int line = exercise(w)) return fprintf(stderr, "PE %d: line %d of compat.h\n", me, line), 1;
  lshmem::cpu::launch(1, 32, [&] { exercise_block(w); });
  for (uint64_t i = 0; i < 16; i++)
    for (int at : {300, 320, 340, 360})
      if (w[at + (int)i] != 1000 * (uint64_t)previous + i) return fprintf(stderr, "PE %d: block forms at %d\n", me, at), 1;

  if (!wait_returns_what_it_saw(w + 295)) return fprintf(stderr, "PE %d: nvshmem_signal_wait_until\n", me), 1;

  // On a "stream", which for a PE without a GPU is at once.
  for (int i = 0; i < 64; i++) t[i] = (float)(me + i);
  nvshmem_barrier_all();
  nvshmem_team_t pairs;
  if (nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, n, nullptr, 0, &pairs)) return 1;
  if (nvshmemx_float_sum_reduce_on_stream(pairs, t + 64, t, 64, nullptr)) return 1;
  if (t[64 + 5] != (float)(n * (n - 1) / 2 + 5 * n)) return fprintf(stderr, "PE %d: %g\n", me, t[64 + 5]), 1;
  if (nvshmemx_float_alltoall_on_stream(NVSHMEM_TEAM_WORLD, t + 128, t, 4, nullptr)) return 1;
  nvshmemx_barrier_all_on_stream(nullptr);
  if (t[128 + 4 * previous] != (float)(previous + 4 * me)) return 1;
  nvshmemx_float_put_on_stream(t + 200, t, 4, (me + 1) % n, nullptr);
  nvshmemx_signal_op_on_stream(w + 290, 3, NVSHMEM_SIGNAL_SET, (me + 1) % n, nullptr);
  nvshmemx_signal_wait_until_on_stream(w + 290, NVSHMEM_CMP_EQ, 3, nullptr);
  nvshmemx_quiet_on_stream(nullptr);
  nvshmem_team_destroy(pairs);
  nvshmem_barrier_all();
  nvshmem_free(t);
  nvshmem_free(w);
  nvshmem_finalize();
  return nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED ? 0 : 1;
}
