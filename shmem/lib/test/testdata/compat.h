// The names of lshmem_compat.h that programs use in kernels, each doing what it says. exercise is called by one thread
// of each PE, with 4 KiB of symmetric memory that is zero, and returns the line of the first check that failed.
#include "lshmem_compat.h"

#define CHECK(condition) \
  if (!(condition)) return __LINE__

LSHMEM_DEVICE int exercise(uint64_t *w) {
  int me = nvshmem_my_pe(), n = nvshmem_n_pes(), next = (me + 1) % n, previous = (me + n - 1) % n;
  CHECK(nvshmem_team_my_pe(NVSHMEM_TEAM_WORLD) == me && nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) == n);
  CHECK(nvshmem_ptr(w, next) != nullptr);

  nvshmem_uint64_p(w, (uint64_t)me + 1, next);
  nvshmem_barrier_all();
  CHECK(w[0] == (uint64_t)previous + 1);
  CHECK(nvshmem_uint64_g(w, next) == (uint64_t)me + 1);

  float *f = (float *)(w + 16);
  for (int i = 0; i < 8; i++) f[i] = (float)(10 * me + i);
  nvshmem_float_put(f + 16, f, 8, next);
  nvshmem_fence();
  nvshmem_float_put_nbi(f + 8, f, 4, next);
  nvshmem_putmem_nbi(f + 12, f + 4, 16, next);
  nvshmem_quiet();
  nvshmem_barrier_all();
  CHECK(f[19] == (float)(10 * previous + 3) && f[15] == (float)(10 * previous + 7));
  float got[4];
  nvshmem_float_get(got, f, 4, next);
  CHECK(got[3] == (float)(10 * next + 3));
  nvshmem_getmem_nbi(got, f + 4, 16, next);
  nvshmem_quiet();
  CHECK(got[0] == (float)(10 * next + 4));
  nvshmem_put32(f + 24, f, 2, next);
  nvshmem_int32_iput((int32_t *)(w + 40), (const int32_t *)(w + 16), 2, 1, 2, next);
  nvshmem_barrier_all();
  CHECK(f[25] == (float)(10 * previous + 1) && ((float *)(w + 40))[2] == (float)(10 * previous + 1));

  uint64_t *signal = w + 64;
  nvshmem_float_put_signal(f + 32, f, 4, signal, 5, NVSHMEM_SIGNAL_SET, next);
  CHECK(nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, 5) == 5);
  CHECK(f[35] == (float)(10 * previous + 3));
  nvshmem_barrier_all();
  nvshmem_putmem_signal_nbi(f + 36, f + 4, 16, signal, 2, NVSHMEM_SIGNAL_ADD, next);
  nvshmem_uint64_wait_until(signal, NVSHMEM_CMP_EQ, 7);
  CHECK(f[39] == (float)(10 * previous + 7));
  nvshmem_sync_all();
  nvshmemx_signal_op(signal + 1, 1, NVSHMEM_SIGNAL_ADD, next);
  nvshmem_uint64_wait_until_all(signal, 2, nullptr, NVSHMEM_CMP_GT, 0);
  CHECK(nvshmem_signal_fetch(signal + 1) == 1 && nvshmem_uint64_test(signal, NVSHMEM_CMP_EQ, 7) == 1);
  CHECK(nvshmem_uint64_wait_until_any(signal, 2, nullptr, NVSHMEM_CMP_EQ, 1) == 1);

  uint64_t *a = w + 80;
  nvshmem_barrier_all();
  nvshmem_uint64_atomic_inc(a, next);
  nvshmem_uint64_atomic_add(a, 10, next);
  nvshmem_quiet();
  nvshmem_barrier_all();
  CHECK(nvshmem_uint64_atomic_fetch(a, me) == 11);
  CHECK(nvshmem_uint64_atomic_fetch_add(a, 1, me) == 11 && nvshmem_uint64_atomic_fetch_inc(a, me) == 12);
  CHECK(nvshmem_uint64_atomic_swap(a, 6, me) == 13 && nvshmem_uint64_atomic_compare_swap(a, 6, 12, me) == 6);
  nvshmem_uint64_atomic_or(a, 3, me);
  CHECK(nvshmem_uint64_atomic_fetch_and(a, 7, me) == 15);
  nvshmem_uint64_atomic_xor(a, 1, me);
  nvshmem_quiet();
  CHECK(nvshmem_uint64_atomic_fetch(a, me) == 6);
  nvshmem_uint32_atomic_set((uint32_t *)(a + 1), 9, me);
  nvshmem_float_atomic_set((float *)(a + 2), 2.5f, me);
  nvshmem_quiet();
  CHECK(nvshmem_uint32_atomic_fetch_xor((uint32_t *)(a + 1), 1, me) == 9 && nvshmem_float_atomic_fetch((float *)(a + 2), me) == 2.5f);

  uint64_t *c = w + 100;
  c[0] = (uint64_t)me + 1;
  CHECK(nvshmem_uint64_sum_reduce(NVSHMEM_TEAM_WORLD, c + 1, c, 1) == 0);
  CHECK(c[1] == (uint64_t)n * ((uint64_t)n + 1) / 2);
  CHECK(nvshmem_uint64_fcollect(NVSHMEM_TEAM_WORLD, c + 8, c, 1) == 0);
  CHECK(c[8 + next] == (uint64_t)next + 1);
  CHECK(nvshmem_uint64_broadcast(NVSHMEM_TEAM_WORLD, c + 2, c, 1, n - 1) == 0);
  CHECK(c[2] == (uint64_t)n);
  nvshmem_barrier(NVSHMEM_TEAM_WORLD);
  nvshmem_team_sync(NVSHMEM_TEAM_WORLD);
  return 0;
}

// Called by all threads of a block of one warp.
LSHMEM_DEVICE void exercise_block(uint64_t *w) {
  int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
  nvshmemx_putmem_block(w + 300, w + 200, 128, next);
  nvshmemx_uint64_put_nbi_block(w + 320, w + 200, 16, next);
  nvshmemx_uint64_put_warp(w + 340, w + 200, 16, next);
  nvshmemx_putmem_signal_block(w + 360, w + 200, 128, w + 299, 1, NVSHMEM_SIGNAL_ADD, next);
  nvshmem_signal_wait_until(w + 299, NVSHMEM_CMP_GE, 1);
  nvshmemx_getmem_block(w + 380, w + 200, 128, next);
  nvshmemx_barrier_all_block();
  nvshmemx_sync_all_warp();
}
