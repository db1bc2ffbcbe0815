// lshmem_compat.h in a main.cpp, which no CUDA compiler sees: the host's functions alone. With CPU_UNIT and CUDA_UNIT
// the program has a unit of device code as CPU code (unit.cpp) and one of CUDA code (unit.cu), which must see the same
// PE.
#include "lshmem_compat.h"

#ifdef LSHMEM_PLATFORM_H
#error "the host's part includes device code"
#endif

#define CHECK(condition) \
  if (!(condition)) return __LINE__

#ifdef CPU_UNIT
int cpu_unit_before();
int cpu_unit(uint64_t *w, int me, int n);
#else
static int cpu_unit_before() { return 0; }
static int cpu_unit(uint64_t *, int, int) { return 0; }
#endif
#ifdef CUDA_UNIT
int cuda_unit(int me, int n);
#else
static int cuda_unit(int, int) { return 0; }
#endif

// Of 16 words that all start as 100 * me + i.
static int streams(uint64_t *w, int me, int n) {
  int next = (me + 1) % n, previous = (me + n - 1) % n;
  nvshmemx_uint64_put_on_stream(w + 32, w, 16, next, 0);
  nvshmemx_signal_op_on_stream(w + 120, 3, NVSHMEM_SIGNAL_SET, next, 0);
  nvshmemx_signal_wait_until_on_stream(w + 120, NVSHMEM_CMP_EQ, 3, 0);
  nvshmemx_quiet_on_stream(0);
  nvshmemx_barrier_all_on_stream(0);
  CHECK(w[32 + 15] == 100 * (uint64_t)previous + 15);
  nvshmemx_getmem_on_stream(w + 48, w + 1, 8, next, 0);
  CHECK(w[48] == 100 * (uint64_t)next + 1);
  CHECK(nvshmemx_uint64_broadcast_on_stream(NVSHMEM_TEAM_WORLD, w + 64, w, 16, n - 1, 0) == 0);
  CHECK(w[64 + 2] == 100 * (uint64_t)(n - 1) + 2);
  CHECK(nvshmemx_uint64_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, w + 80, w, 16, 0) == 0);
  CHECK(w[80 + 3] == 100 * (uint64_t)(n * (n - 1) / 2) + 3 * (uint64_t)n);
  auto *d = (double *)(w + 96);
  auto *c = (signed char *)(w + 104);
  d[0] = me + 0.5;
  c[0] = (signed char)-me;
  CHECK(nvshmemx_double_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, d + 1, d, 1, 0) == 0);
  CHECK(d[1] == n * (n - 1) / 2 + 0.5 * n);
  CHECK(nvshmemx_schar_min_reduce_on_stream(NVSHMEM_TEAM_WORLD, c + 8, c, 1, 0) == 0);
  CHECK(c[8] == 1 - n);
  return 0;
}

static int teams(int me, int n) {
  nvshmem_team_t last, x, y;
  CHECK(nvshmem_team_my_pe(NVSHMEM_TEAM_WORLD) == me && nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) == n);
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, n - 1, 1, 1, nullptr, 0, &last) == 0);
  CHECK((last == NVSHMEM_TEAM_INVALID) == (me != n - 1));
  if (last != NVSHMEM_TEAM_INVALID) {
    CHECK(nvshmem_team_my_pe(last) == 0 && nvshmem_team_n_pes(last) == 1 && nvshmem_team_sync(last) == 0);
    CHECK(nvshmem_team_translate_pe(last, 0, NVSHMEM_TEAM_WORLD) == me);
  }
  nvshmem_team_destroy(last);
  CHECK(nvshmem_team_split_2d(NVSHMEM_TEAM_WORLD, n, nullptr, 0, &x, nullptr, 0, &y) == 0);
  CHECK(nvshmem_team_n_pes(x) == n && nvshmem_team_n_pes(y) == 1 && nvshmem_barrier(x) == 0);
  nvshmem_team_destroy(x);
  nvshmem_team_destroy(y);
  return 0;
}

static int exercise() {
  // The host's functions fail where there is no PE; the device's know nothing of that.
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED && nvshmem_my_pe() == -1 && nvshmem_n_pes() == -1);
  if (int line = cpu_unit_before()) return line;
  nvshmem_init();
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_IS_INITIALIZED);
  int me = nvshmem_my_pe(), n = nvshmem_n_pes();
  CHECK(me >= 0 && n == 2);
  auto *w = (uint64_t *)nvshmem_malloc(4096);
  CHECK(w != nullptr);
  for (int i = 0; i < 512; i++) w[i] = 100 * (uint64_t)me + (uint64_t)i;
  nvshmem_fence();
  nvshmem_quiet();
  nvshmem_barrier_all();
  auto *there = (uint64_t *)nvshmem_ptr(w, 1 - me);
  CHECK(there != nullptr && there[7] == 100 * (uint64_t)(1 - me) + 7);
  nvshmem_sync_all();
  if (int line = streams(w, me, n)) return line;
  if (int line = teams(me, n)) return line;
  if (int line = cpu_unit(w + 256, me, n)) return line;
  if (int line = cuda_unit(me, n)) return line;
  nvshmem_barrier_all();
  nvshmem_free(w);
  nvshmem_finalize();
  CHECK(nvshmemx_init_status() == NVSHMEM_STATUS_NOT_INITIALIZED && nvshmem_my_pe() == -1);
  return 0;
}

int main() {
  int line = exercise();
  if (line) fprintf(stderr, "line %d of host.cpp, unit.cpp or unit.cu\n", line);
  return line != 0;
}
