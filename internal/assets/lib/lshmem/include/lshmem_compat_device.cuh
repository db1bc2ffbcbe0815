// NVSHMEM's functions on the device, or of device code as CPU code: a part of lshmem_compat.h, which programs include.
#ifndef LSHMEM_COMPAT_DEVICE_CUH
#define LSHMEM_COMPAT_DEVICE_CUH

#include "lshmem_collective.cuh"

// ---- The state ----

#if !LSHMEM_GPU
inline lshmem_t lshmem_compat_state{};
#elif defined(LSHMEM_COMPAT_MODULE) || !LSHMEM_COMPAT_HOST
// A module that the program loads: nvshmemx_cumodule_init finds this by its name.
extern "C" __attribute__((constant)) lshmem_t lshmem_compat_state;
__attribute__((constant)) lshmem_t lshmem_compat_state;
#else
static __constant__ lshmem_t lshmem_compat_state;
#endif

// The lowest level of every device function below.
#define LSHMEM_COMPAT_SH lshmem_compat_state

// The host's part learns of it before main, or when the library that the unit is in is loaded.
#if !LSHMEM_GPU
namespace lshmem_compat {
inline bool fill_cpu(const lshmem_t &state) {
  lshmem_compat_state = state;
  return true;
}
// One for all units, as the variable is.
inline registered cpu(fill_cpu);
} // namespace lshmem_compat
#elif LSHMEM_COMPAT_HOST && !defined(LSHMEM_COMPAT_MODULE)
namespace lshmem_compat {
static bool fill_here(const lshmem_t &state) {
  int device;
  if (lshmem_device(self, &device) != LSHMEM_OK) return false;
  // It stays the thread's: kernels that went to another device would find an empty constant there.
  if (device >= 0 && cudaSetDevice(device) != cudaSuccess) return false;
  return cudaMemcpyToSymbol(lshmem_compat_state, &state, sizeof state) == cudaSuccess || device < 0;
}
static registered here(fill_here);
} // namespace lshmem_compat
#endif

// ---- Functions ----

LSHMEM_DEVICE void lshmem_compat_ignore(int) {}
// Null if there is no such team here.
LSHMEM_DEVICE const lshmem_team *lshmem_compat_team(const lshmem_t &sh, int team) {
  if (team < 0 || team >= (int)LSHMEM_MAX_TEAMS) return nullptr;
  const lshmem_team *t = (const lshmem_team *)sh.teams + team;
  return t->pes ? t : nullptr;
}
LSHMEM_DEVICE int lshmem_compat_team_index(const lshmem_t &sh, int team) {
  const lshmem_team *t = lshmem_compat_team(sh, team);
  return t ? (int)t->index : -1;
}
LSHMEM_DEVICE int lshmem_compat_team_size(const lshmem_t &sh, int team) {
  const lshmem_team *t = lshmem_compat_team(sh, team);
  return t ? (int)t->pes : -1;
}

// Copies. name: put, get; scope: its suffix with nvshmem or nvshmemx before the name.
#define LSHMEM_COMPAT_COPY(prefix, type, T, name, scope)                                                               \
  LSHMEM_DEVICE void prefix##_##type##_##name##scope(T *dst, const T *src, size_t n, int pe) {                         \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, n, pe));                                     \
  }
#define LSHMEM_COMPAT_PUT_SIGNAL(prefix, type, T, name, scope)                                                         \
  LSHMEM_DEVICE void prefix##_##type##_##name##scope(T *dst, const T *src, size_t n, uint64_t *sig, uint64_t v,        \
                                                     int op, int pe) {                                                 \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, n, sig, v, op, pe));                         \
  }
#define LSHMEM_COMPAT_STRIDED(prefix, type, T, name, scope)                                                            \
  LSHMEM_DEVICE void prefix##_##type##_##name##scope(T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, \
                                                     size_t n, int pe) {                                               \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, dst_stride, src_stride, n, pe));             \
  }
#define LSHMEM_COMPAT_SCOPES(F, type, T, name)                                                                         \
  F(nvshmem, type, T, name, ) F(nvshmemx, type, T, name, _warp) F(nvshmemx, type, T, name, _block)
#define LSHMEM_COMPAT_RMA(type, T)                                                                                     \
  LSHMEM_DEVICE void nvshmem_##type##_p(T *dst, T v, int pe) {                                                         \
    lshmem_compat_ignore(lshmem_p<T>(LSHMEM_COMPAT_SH, dst, v, pe));                                                   \
  }                                                                                                                    \
  LSHMEM_DEVICE T nvshmem_##type##_g(const T *src, int pe) { return lshmem_g<T>(LSHMEM_COMPAT_SH, src, pe); }          \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COPY, type, T, put)                                                               \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COPY, type, T, put_nbi)                                                           \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COPY, type, T, get)                                                               \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COPY, type, T, get_nbi)                                                           \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_STRIDED, type, T, iput)                                                           \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_STRIDED, type, T, iget)                                                           \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_PUT_SIGNAL, type, T, put_signal)                                                  \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_PUT_SIGNAL, type, T, put_signal_nbi)
LSHMEM_COMPAT_TYPES(LSHMEM_COMPAT_RMA)

#define LSHMEM_COMPAT_MEM(prefix, name, scope)                                                                         \
  LSHMEM_DEVICE void prefix##_##name##scope(void *dst, const void *src, size_t bytes, int pe) {                        \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, bytes, pe));                                 \
  }
#define LSHMEM_COMPAT_MEM_SIGNAL(prefix, name, scope)                                                                  \
  LSHMEM_DEVICE void prefix##_##name##scope(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t v,       \
                                            int op,                                                                    \
                                            int pe) {                                                                  \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, bytes, sig, v, op, pe));                     \
  }
#define LSHMEM_COMPAT_MEM_SCOPES(F, name) F(nvshmem, name, ) F(nvshmemx, name, _warp) F(nvshmemx, name, _block)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM, putmem)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM, putmem_nbi)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM, getmem)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM, getmem_nbi)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM_SIGNAL, putmem_signal)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM_SIGNAL, putmem_signal_nbi)

// By size in bits: put32, get64_nbi, nvshmemx_put16_block and so on; n elements.
#define LSHMEM_COMPAT_SIZED(bits_, size, prefix, put, nbi, scope)                                                      \
  LSHMEM_DEVICE void prefix##_##put##bits_##nbi##scope(void *dst, const void *src, size_t n, int pe) {                 \
    lshmem_compat_ignore(lshmem_##put##mem##nbi##scope(LSHMEM_COMPAT_SH, dst, src, n * size, pe));                     \
  }
#define LSHMEM_COMPAT_SIZED_SIGNAL(bits_, size, prefix, nbi, scope)                                                    \
  LSHMEM_DEVICE void prefix##_put##bits_##_signal##nbi##scope(void *dst, const void *src, size_t n, uint64_t *sig,     \
                                                              uint64_t v, int op, int pe) {                            \
    lshmem_compat_ignore(lshmem_putmem_signal##nbi##scope(LSHMEM_COMPAT_SH, dst, src, n * size, sig, v, op, pe));      \
  }
#define LSHMEM_COMPAT_SIZED_SCOPE(bits_, size, prefix, scope)                                                          \
  LSHMEM_COMPAT_SIZED(bits_, size, prefix, put, , scope) LSHMEM_COMPAT_SIZED(bits_, size, prefix, put, _nbi, scope)    \
  LSHMEM_COMPAT_SIZED(bits_, size, prefix, get, , scope) LSHMEM_COMPAT_SIZED(bits_, size, prefix, get, _nbi, scope)    \
  LSHMEM_COMPAT_SIZED_SIGNAL(bits_, size, prefix, , scope) LSHMEM_COMPAT_SIZED_SIGNAL(bits_, size, prefix, _nbi, scope)
#define LSHMEM_COMPAT_SIZED_ALL(bits_, size)                                                                           \
  LSHMEM_COMPAT_SIZED_SCOPE(bits_, size, nvshmem, ) LSHMEM_COMPAT_SIZED_SCOPE(bits_, size, nvshmemx, _warp)            \
  LSHMEM_COMPAT_SIZED_SCOPE(bits_, size, nvshmemx, _block)
LSHMEM_COMPAT_SIZES(LSHMEM_COMPAT_SIZED_ALL)

// Atomics.
#define LSHMEM_COMPAT_SWAP(type, T)                                                                                    \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_fetch(const T *p, int pe) {                                                  \
    return lshmem_atomic_fetch<T>(LSHMEM_COMPAT_SH, p, pe);                                                            \
  }                                                                                                                    \
  LSHMEM_DEVICE void nvshmem_##type##_atomic_set(T *p, T v, int pe) {                                                  \
    lshmem_compat_ignore(lshmem_atomic_set<T>(LSHMEM_COMPAT_SH, p, v, pe));                                            \
  }                                                                                                                    \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_swap(T *p, T v, int pe) {                                                    \
    return lshmem_atomic_swap<T>(LSHMEM_COMPAT_SH, p, v, pe);                                                          \
  }
#define LSHMEM_COMPAT_ARITHMETIC(type, T)                                                                              \
  LSHMEM_COMPAT_SWAP(type, T)                                                                                          \
  LSHMEM_DEVICE void nvshmem_##type##_atomic_inc(T *p, int pe) {                                                       \
    lshmem_compat_ignore(lshmem_atomic_inc<T>(LSHMEM_COMPAT_SH, p, pe));                                               \
  }                                                                                                                    \
  LSHMEM_DEVICE void nvshmem_##type##_atomic_add(T *p, T v, int pe) {                                                  \
    lshmem_compat_ignore(lshmem_atomic_add<T>(LSHMEM_COMPAT_SH, p, v, pe));                                            \
  }                                                                                                                    \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_fetch_inc(T *p, int pe) {                                                    \
    return lshmem_atomic_fetch_inc<T>(LSHMEM_COMPAT_SH, p, pe);                                                        \
  }                                                                                                                    \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_fetch_add(T *p, T v, int pe) {                                               \
    return lshmem_atomic_fetch_add<T>(LSHMEM_COMPAT_SH, p, v, pe);                                                     \
  }                                                                                                                    \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_compare_swap(T *p, T expected, T desired, int pe) {                          \
    return lshmem_atomic_compare_swap<T>(LSHMEM_COMPAT_SH, p, expected, desired, pe);                                  \
  }
#define LSHMEM_COMPAT_BITS(type, T)                                                                                    \
  LSHMEM_COMPAT_BIT(type, T, and) LSHMEM_COMPAT_BIT(type, T, or) LSHMEM_COMPAT_BIT(type, T, xor)
#define LSHMEM_COMPAT_BIT(type, T, op)                                                                                 \
  LSHMEM_DEVICE void nvshmem_##type##_atomic_##op(T *p, T v, int pe) {                                                 \
    lshmem_compat_ignore(lshmem_atomic_##op<T>(LSHMEM_COMPAT_SH, p, v, pe));                                           \
  }                                                                                                                    \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_fetch_##op(T *p, T v, int pe) {                                              \
    return lshmem_atomic_fetch_##op<T>(LSHMEM_COMPAT_SH, p, v, pe);                                                    \
  }
LSHMEM_COMPAT_INTEGERS(LSHMEM_COMPAT_ARITHMETIC)
LSHMEM_COMPAT_FLOATS(LSHMEM_COMPAT_SWAP)
LSHMEM_COMPAT_BITWISE(LSHMEM_COMPAT_BITS)

// Waits and tests. A wait that fails (a timeout, a dead PE) returns; the host's nvshmem_barrier_all says so.
#define LSHMEM_COMPAT_WAITS(type, T)                                                                                   \
  LSHMEM_DEVICE void nvshmem_##type##_wait_until(T *p, int cmp, T v) {                                                 \
    lshmem_compat_ignore(lshmem_wait_until<T>(LSHMEM_COMPAT_SH, p, cmp, v));                                           \
  }                                                                                                                    \
  LSHMEM_DEVICE void nvshmem_##type##_wait_until_all(T *p, size_t n, const int *status, int cmp, T v) {                \
    lshmem_compat_ignore(lshmem_wait_until_all<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, v));                            \
  }                                                                                                                    \
  LSHMEM_DEVICE size_t nvshmem_##type##_wait_until_any(T *p, size_t n, const int *status, int cmp, T v) {              \
    size_t index = SIZE_MAX;                                                                                           \
    lshmem_compat_ignore(lshmem_wait_until_any<T>(LSHMEM_COMPAT_SH, p, n, &index, status, cmp, v));                    \
    return index;                                                                                                      \
  }                                                                                                                    \
  LSHMEM_DEVICE size_t nvshmem_##type##_wait_until_some(T *p, size_t n, size_t *indices, const int *status, int cmp,   \
                                                        T v) {                                                         \
    size_t count = 0;                                                                                                  \
    lshmem_compat_ignore(lshmem_wait_until_some<T>(LSHMEM_COMPAT_SH, p, n, indices, &count, status, cmp, v));          \
    return count;                                                                                                      \
  }                                                                                                                    \
  LSHMEM_DEVICE void nvshmem_##type##_wait_until_all_vector(T *p, size_t n, const int *status, int cmp, T *values) {   \
    lshmem_compat_ignore(lshmem_wait_until_all_vector<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, values));                \
  }                                                                                                                    \
  LSHMEM_DEVICE size_t nvshmem_##type##_wait_until_any_vector(T *p, size_t n, const int *status, int cmp, T *values) { \
    size_t index = SIZE_MAX;                                                                                           \
    lshmem_compat_ignore(lshmem_wait_until_any_vector<T>(LSHMEM_COMPAT_SH, p, n, &index, status, cmp, values));        \
    return index;                                                                                                      \
  }                                                                                                                    \
  LSHMEM_DEVICE size_t nvshmem_##type##_wait_until_some_vector(T *p, size_t n, size_t *indices, const int *status,     \
                                                               int cmp, T *values) {                                   \
    size_t count = 0;                                                                                                  \
    lshmem_compat_ignore(                                                                                              \
        lshmem_wait_until_some_vector<T>(LSHMEM_COMPAT_SH, p, n, indices, &count, status, cmp, values));               \
    return count;                                                                                                      \
  }                                                                                                                    \
  LSHMEM_DEVICE int nvshmem_##type##_test_all_vector(T *p, size_t n, const int *status, int cmp, T *values) {          \
    return lshmem_test_all_vector<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, values);                                     \
  }                                                                                                                    \
  LSHMEM_DEVICE size_t nvshmem_##type##_test_any_vector(T *p, size_t n, const int *status, int cmp, T *values) {       \
    return lshmem_test_any_vector<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, values);                                     \
  }                                                                                                                    \
  LSHMEM_DEVICE size_t nvshmem_##type##_test_some_vector(T *p, size_t n, size_t *indices, const int *status, int cmp,  \
                                                         T *values) {                                                  \
    return lshmem_test_some_vector<T>(LSHMEM_COMPAT_SH, p, n, indices, status, cmp, values);                           \
  }                                                                                                                    \
  LSHMEM_DEVICE int nvshmem_##type##_test(T *p, int cmp, T v) { return lshmem_test<T>(LSHMEM_COMPAT_SH, p, cmp, v); }  \
  LSHMEM_DEVICE int nvshmem_##type##_test_all(T *p, size_t n, const int *status, int cmp, T v) {                       \
    return lshmem_test_all<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, v);                                                 \
  }                                                                                                                    \
  LSHMEM_DEVICE size_t nvshmem_##type##_test_any(T *p, size_t n, const int *status, int cmp, T v) {                    \
    return lshmem_test_any<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, v);                                                 \
  }                                                                                                                    \
  LSHMEM_DEVICE size_t nvshmem_##type##_test_some(T *p, size_t n, size_t *indices, const int *status, int cmp, T v) {  \
    return lshmem_test_some<T>(LSHMEM_COMPAT_SH, p, n, indices, status, cmp, v);                                       \
  }
LSHMEM_COMPAT_INTEGERS(LSHMEM_COMPAT_WAITS)

// Signals, order, barriers.
LSHMEM_DEVICE void nvshmemx_signal_op(uint64_t *sig, uint64_t v, int op, int pe) {
  lshmem_compat_ignore(lshmem_signal_op(LSHMEM_COMPAT_SH, sig, v, op, pe));
}
LSHMEM_DEVICE uint64_t nvshmem_signal_fetch(uint64_t *sig) { return lshmem_signal_fetch(LSHMEM_COMPAT_SH, sig); }
// The value that ended the wait. The signal may have another one by now.
LSHMEM_DEVICE uint64_t nvshmem_signal_wait_until(uint64_t *sig, int cmp, uint64_t v) {
  uint64_t seen = 0;
  lshmem_compat_ignore(lshmem::wait(LSHMEM_COMPAT_SH, (int)LSHMEM_COMPAT_SH.pe, [&] {
    seen = lshmem_signal_fetch(LSHMEM_COMPAT_SH, sig);
    return lshmem::compare(seen, cmp, v);
  }));
  return seen;
}
#define LSHMEM_COMPAT_MEET(prefix, scope)                                                                              \
  LSHMEM_DEVICE void prefix##_barrier_all##scope() {                                                                   \
    lshmem_compat_ignore(lshmem_barrier_all##scope(LSHMEM_COMPAT_SH));                                                 \
  }                                                                                                                    \
  LSHMEM_DEVICE void prefix##_sync_all##scope() { lshmem_compat_ignore(lshmem_sync_all##scope(LSHMEM_COMPAT_SH)); }    \
  LSHMEM_DEVICE int prefix##_barrier##scope(nvshmem_team_t team) {                                                     \
    return lshmem_barrier##scope(LSHMEM_COMPAT_SH, team);                                                              \
  }                                                                                                                    \
  LSHMEM_DEVICE int prefix##_team_sync##scope(nvshmem_team_t team) {                                                   \
    return lshmem_sync##scope(LSHMEM_COMPAT_SH, team);                                                                 \
  }                                                                                                                    \
  LSHMEM_DEVICE int prefix##_sync##scope(nvshmem_team_t team) { return lshmem_sync##scope(LSHMEM_COMPAT_SH, team); }
LSHMEM_COMPAT_MEET(nvshmemx, _warp)
LSHMEM_COMPAT_MEET(nvshmemx, _block)

// Collective operations in kernels.
#define LSHMEM_COMPAT_COLLECT(prefix, type, T, scope)                                                                  \
  LSHMEM_DEVICE int prefix##_##type##_broadcast##scope(nvshmem_team_t team, T *dst, const T *src, size_t n,            \
                                                       int root) {                                                     \
    return lshmem_broadcast##scope<T>(LSHMEM_COMPAT_SH, team, dst, src, n, root);                                      \
  }                                                                                                                    \
  LSHMEM_DEVICE int prefix##_##type##_fcollect##scope(nvshmem_team_t team, T *dst, const T *src, size_t n) {           \
    return lshmem_fcollect##scope<T>(LSHMEM_COMPAT_SH, team, dst, src, n);                                             \
  }                                                                                                                    \
  LSHMEM_DEVICE int prefix##_##type##_alltoall##scope(nvshmem_team_t team, T *dst, const T *src, size_t n) {           \
    return lshmem_alltoall##scope<T>(LSHMEM_COMPAT_SH, team, dst, src, n);                                             \
  }
#define LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, name, op)                                                        \
  LSHMEM_DEVICE int prefix##_##type##_##name##_reduce##scope(nvshmem_team_t team, T *dst, const T *src, size_t n) {    \
    return lshmem_reduce##scope<T>(LSHMEM_COMPAT_SH, team, op, dst, src, n);                                           \
  }                                                                                                                    \
  LSHMEM_DEVICE int prefix##_##type##_##name##_reducescatter##scope(nvshmem_team_t team, T *dst, const T *src,         \
                                                                    size_t n) {                                        \
    return lshmem_reducescatter##scope<T>(LSHMEM_COMPAT_SH, team, op, dst, src, n);                                    \
  }
#define LSHMEM_COMPAT_COLLECTS(type, T) LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COLLECT_, type, T, )
#define LSHMEM_COMPAT_COLLECT_(prefix, type, T, name, scope) LSHMEM_COMPAT_COLLECT(prefix, type, T, scope)
LSHMEM_COMPAT_TYPES(LSHMEM_COMPAT_COLLECTS)
#define LSHMEM_COMPAT_NUMBERS_(prefix, type, T, name, scope)                                                           \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, sum, LSHMEM_SUM)                                                       \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, prod, LSHMEM_PROD)                                                     \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, min, LSHMEM_MIN)                                                       \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, max, LSHMEM_MAX)
#define LSHMEM_COMPAT_NUMBERS(type, T) LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_NUMBERS_, type, T, )
#define LSHMEM_COMPAT_LOGIC_(prefix, type, T, name, scope)                                                             \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, and, LSHMEM_AND)                                                       \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, or, LSHMEM_OR)                                                         \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, xor, LSHMEM_XOR)
#define LSHMEM_COMPAT_LOGIC(type, T) LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_LOGIC_, type, T, )
// In kernels, of the types that programs reduce there; on streams there are all.
#define LSHMEM_COMPAT_REDUCED_BITS(X) X(int32, int32_t) X(uint32, uint32_t) X(int64, int64_t) X(uint64, uint64_t)
#define LSHMEM_COMPAT_REDUCED(X) LSHMEM_COMPAT_REDUCED_BITS(X) X(int, int) LSHMEM_COMPAT_FLOATS(X)
LSHMEM_COMPAT_REDUCED(LSHMEM_COMPAT_NUMBERS)
LSHMEM_COMPAT_REDUCED_BITS(LSHMEM_COMPAT_LOGIC)

#endif
