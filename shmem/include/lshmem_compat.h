// NVSHMEM's names for lshmem: the part of its interface that programs mostly use, so that such a program compiles and runs by
// including this header instead. Written from names and documented behaviour only.
//
//	#include "lshmem_compat.h"
//	nvshmem_init();                                  // the job of lgpu run --pes, or nvshmemx_init_attr with a unique id
//	double *x = (double *)nvshmem_malloc(n);
//	kernel<<<...>>>(x);                              // nvshmem_double_p(x, 1.0, pe) and so on
//	nvshmemx_barrier_all_on_stream(stream);
//
// # The state
//
// These functions take no state, so there is one of this process: the PE that nvshmem_init made. Device code finds it in a
// constant of its translation unit, lshmem_compat_state, which every unit that includes this header has for itself and which
// is filled for all units when the PE is made. Hence no -rdc, but also: one PE for each process and device, and code in
// modules that the program loads itself must be told, by nvshmemx_cumodule_init. Programs that want several instances, or no
// global state, use lshmem.cuh.
//
// The host's part needs CUDA's headers (nvcc, or clang with them). Without them, device functions alone are declared
// (clang -nocudainc), for modules.
//
// # Differences
//
// A function that fails prints why and returns an error where it returns an int, or NULL; nvshmem_init, which cannot, ends
// the process. Waits end after LSHMEM_TIMEOUT. fence and quiet are of one PE's operations, as NVSHMEM's are. Of types there are
// the standard ones; of long double, complex and 16-bit floating-point numbers there are none. Multicast does not exist:
// nvshmemx_mc_ptr returns NULL.
//
// Not here: puts, gets, atomics, signals and reductions called on the host without a stream (use lshmem.h), queue pairs of
// one's choice (nvshmemx_qp_*; lshmem.cuh has them), MPI communicators in nvshmemx_init_attr.
#ifndef LSHMEM_COMPAT_H
#define LSHMEM_COMPAT_H

#include "lshmem_collective.cuh"
#include "lshmem.h"

#if LSHMEM_GPU && defined(__has_include)
#if defined(__CUDA_RUNTIME_H__) || defined(__NVCC__) || (defined(__CUDACC__) && __has_include(<cuda_runtime.h>) && defined(__CUDACC_VER_MAJOR__))
#define LSHMEM_COMPAT_HOST 1
#include <cuda_runtime.h>
#endif
#endif
#ifndef LSHMEM_COMPAT_HOST
#define LSHMEM_COMPAT_HOST (!LSHMEM_GPU)
#endif

// ---- Constants and types ----

#define NVSHMEM_MAJOR_VERSION 1
#define NVSHMEM_MINOR_VERSION 3
#define NVSHMEM_VENDOR_STRING "lshmem"
#define NVSHMEM_MAX_NAME_LEN 256

enum { NVSHMEM_CMP_EQ = LSHMEM_CMP_EQ, NVSHMEM_CMP_NE = LSHMEM_CMP_NE, NVSHMEM_CMP_GT = LSHMEM_CMP_GT, NVSHMEM_CMP_LE = LSHMEM_CMP_LE,
       NVSHMEM_CMP_LT = LSHMEM_CMP_LT, NVSHMEM_CMP_GE = LSHMEM_CMP_GE };
enum { NVSHMEM_SIGNAL_SET = LSHMEM_SIGNAL_SET, NVSHMEM_SIGNAL_ADD = LSHMEM_SIGNAL_ADD };
enum { NVSHMEM_THREAD_SINGLE = 0, NVSHMEM_THREAD_FUNNELED, NVSHMEM_THREAD_SERIALIZED, NVSHMEM_THREAD_MULTIPLE };
enum { NVSHMEMX_INIT_WITH_MPI_COMM = 1 << 1, NVSHMEMX_INIT_WITH_SHMEM = 1 << 2, NVSHMEMX_INIT_WITH_UNIQUEID = 1 << 3 };
enum { NVSHMEM_STATUS_NOT_INITIALIZED = 0, NVSHMEM_STATUS_IS_BOOTSTRAPPED, NVSHMEM_STATUS_IS_INITIALIZED };
enum { NVSHMEMX_SUCCESS = 0, NVSHMEMX_ERROR_INVALID_VALUE = 1, NVSHMEMX_ERROR_INTERNAL = 7 };

typedef int32_t nvshmem_team_t;
enum { NVSHMEM_TEAM_INVALID = LSHMEM_TEAM_INVALID, NVSHMEM_TEAM_WORLD = LSHMEM_TEAM_WORLD, NVSHMEM_TEAM_SHARED = LSHMEM_TEAM_SHARED,
       NVSHMEMX_TEAM_NODE = LSHMEM_TEAM_NODE, NVSHMEMX_TEAM_SAME_MYPE_NODE = LSHMEM_TEAM_SAME_MYPE_NODE,
       NVSHMEMI_TEAM_SAME_GPU = LSHMEM_TEAM_SAME_GPU };
#define NVSHMEM_TEAM_NUM_CONTEXTS_MASK 1
typedef struct {
  int num_contexts;
} nvshmem_team_config_t;
typedef struct lshmem_uniqueid nvshmemx_uniqueid_t;
#define NVSHMEMX_UNIQUEID_INITIALIZER {}
typedef struct {
  int pe, pes; // nvshmemx_set_attr_uniqueid_args
  const nvshmemx_uniqueid_t *id;
  void *mpi_comm;
} nvshmemx_init_attr_t;
#define NVSHMEMX_INIT_ATTR_INITIALIZER {-1, 0, nullptr, nullptr}

// Types by name. For RMA and collectives; for integers' atomics and waits; for bitwise ones.
#define LSHMEM_COMPAT_INTEGERS(X)                                                                                          \
  X(int, int) X(long, long) X(longlong, long long) X(uint, unsigned int) X(ulong, unsigned long)                          \
  X(ulonglong, unsigned long long) X(int32, int32_t) X(int64, int64_t) X(uint32, uint32_t) X(uint64, uint64_t)            \
  X(size, size_t) X(ptrdiff, ptrdiff_t)
#define LSHMEM_COMPAT_SMALL(X)                                                                                             \
  X(char, char) X(schar, signed char) X(short, short) X(uchar, unsigned char) X(ushort, unsigned short)                   \
  X(int8, int8_t) X(int16, int16_t) X(uint8, uint8_t) X(uint16, uint16_t)
#define LSHMEM_COMPAT_FLOATS(X) X(float, float) X(double, double)
#define LSHMEM_COMPAT_BITWISE(X)                                                                                           \
  X(uint, unsigned int) X(ulong, unsigned long) X(ulonglong, unsigned long long) X(int32, int32_t) X(int64, int64_t)      \
  X(uint32, uint32_t) X(uint64, uint64_t)
#define LSHMEM_COMPAT_TYPES(X) LSHMEM_COMPAT_INTEGERS(X) LSHMEM_COMPAT_SMALL(X) LSHMEM_COMPAT_FLOATS(X)
#define LSHMEM_COMPAT_SIZES(X) X(8, 1) X(16, 2) X(32, 4) X(64, 8) X(128, 16)

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

// ---- Device ----

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
#define LSHMEM_COMPAT_COPY(prefix, type, T, name, scope)                                                                   \
  LSHMEM_DEVICE void prefix##_##type##_##name##scope(T *dst, const T *src, size_t n, int pe) {                             \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, n, pe));                                         \
  }
#define LSHMEM_COMPAT_PUT_SIGNAL(prefix, type, T, name, scope)                                                             \
  LSHMEM_DEVICE void prefix##_##type##_##name##scope(T *dst, const T *src, size_t n, uint64_t *sig, uint64_t v, int op,    \
                                                     int pe) {                                                            \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, n, sig, v, op, pe));                             \
  }
#define LSHMEM_COMPAT_STRIDED(prefix, type, T, name, scope)                                                                \
  LSHMEM_DEVICE void prefix##_##type##_##name##scope(T *dst, const T *src, ptrdiff_t dst_stride, ptrdiff_t src_stride,     \
                                                     size_t n, int pe) {                                                  \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, dst_stride, src_stride, n, pe));                 \
  }
#define LSHMEM_COMPAT_SCOPES(F, type, T, name)                                                                             \
  F(nvshmem, type, T, name, ) F(nvshmemx, type, T, name, _warp) F(nvshmemx, type, T, name, _block)
#define LSHMEM_COMPAT_RMA(type, T)                                                                                         \
  LSHMEM_DEVICE void nvshmem_##type##_p(T *dst, T v, int pe) { lshmem_compat_ignore(lshmem_p<T>(LSHMEM_COMPAT_SH, dst, v, pe)); } \
  LSHMEM_DEVICE T nvshmem_##type##_g(const T *src, int pe) { return lshmem_g<T>(LSHMEM_COMPAT_SH, src, pe); }              \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COPY, type, T, put)                                                                   \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COPY, type, T, put_nbi)                                                               \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COPY, type, T, get)                                                                   \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COPY, type, T, get_nbi)                                                               \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_STRIDED, type, T, iput)                                                               \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_STRIDED, type, T, iget)                                                               \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_PUT_SIGNAL, type, T, put_signal)                                                      \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_PUT_SIGNAL, type, T, put_signal_nbi)
LSHMEM_COMPAT_TYPES(LSHMEM_COMPAT_RMA)

#define LSHMEM_COMPAT_MEM(prefix, name, scope)                                                                             \
  LSHMEM_DEVICE void prefix##_##name##scope(void *dst, const void *src, size_t bytes, int pe) {                            \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, bytes, pe));                                     \
  }
#define LSHMEM_COMPAT_MEM_SIGNAL(prefix, name, scope)                                                                      \
  LSHMEM_DEVICE void prefix##_##name##scope(void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t v, int op,   \
                                            int pe) {                                                                     \
    lshmem_compat_ignore(lshmem_##name##scope(LSHMEM_COMPAT_SH, dst, src, bytes, sig, v, op, pe));                         \
  }
#define LSHMEM_COMPAT_MEM_SCOPES(F, name) F(nvshmem, name, ) F(nvshmemx, name, _warp) F(nvshmemx, name, _block)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM, putmem)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM, putmem_nbi)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM, getmem)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM, getmem_nbi)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM_SIGNAL, putmem_signal)
LSHMEM_COMPAT_MEM_SCOPES(LSHMEM_COMPAT_MEM_SIGNAL, putmem_signal_nbi)

// By size in bits: put32, get64_nbi, nvshmemx_put16_block and so on; n elements.
#define LSHMEM_COMPAT_SIZED(bits_, size, prefix, put, nbi, scope)                                                          \
  LSHMEM_DEVICE void prefix##_##put##bits_##nbi##scope(void *dst, const void *src, size_t n, int pe) {                     \
    lshmem_compat_ignore(lshmem_##put##mem##nbi##scope(LSHMEM_COMPAT_SH, dst, src, n * size, pe));                         \
  }
#define LSHMEM_COMPAT_SIZED_SIGNAL(bits_, size, prefix, nbi, scope)                                                        \
  LSHMEM_DEVICE void prefix##_put##bits_##_signal##nbi##scope(void *dst, const void *src, size_t n, uint64_t *sig,         \
                                                              uint64_t v, int op, int pe) {                               \
    lshmem_compat_ignore(lshmem_putmem_signal##nbi##scope(LSHMEM_COMPAT_SH, dst, src, n * size, sig, v, op, pe));          \
  }
#define LSHMEM_COMPAT_SIZED_SCOPE(bits_, size, prefix, scope)                                                              \
  LSHMEM_COMPAT_SIZED(bits_, size, prefix, put, , scope) LSHMEM_COMPAT_SIZED(bits_, size, prefix, put, _nbi, scope)        \
  LSHMEM_COMPAT_SIZED(bits_, size, prefix, get, , scope) LSHMEM_COMPAT_SIZED(bits_, size, prefix, get, _nbi, scope)        \
  LSHMEM_COMPAT_SIZED_SIGNAL(bits_, size, prefix, , scope) LSHMEM_COMPAT_SIZED_SIGNAL(bits_, size, prefix, _nbi, scope)
#define LSHMEM_COMPAT_SIZED_ALL(bits_, size)                                                                               \
  LSHMEM_COMPAT_SIZED_SCOPE(bits_, size, nvshmem, ) LSHMEM_COMPAT_SIZED_SCOPE(bits_, size, nvshmemx, _warp)                \
  LSHMEM_COMPAT_SIZED_SCOPE(bits_, size, nvshmemx, _block)
LSHMEM_COMPAT_SIZES(LSHMEM_COMPAT_SIZED_ALL)

// Atomics.
#define LSHMEM_COMPAT_SWAP(type, T)                                                                                        \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_fetch(const T *p, int pe) { return lshmem_atomic_fetch<T>(LSHMEM_COMPAT_SH, p, pe); } \
  LSHMEM_DEVICE void nvshmem_##type##_atomic_set(T *p, T v, int pe) {                                                      \
    lshmem_compat_ignore(lshmem_atomic_set<T>(LSHMEM_COMPAT_SH, p, v, pe));                                                \
  }                                                                                                                        \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_swap(T *p, T v, int pe) { return lshmem_atomic_swap<T>(LSHMEM_COMPAT_SH, p, v, pe); }
#define LSHMEM_COMPAT_ARITHMETIC(type, T)                                                                                  \
  LSHMEM_COMPAT_SWAP(type, T)                                                                                              \
  LSHMEM_DEVICE void nvshmem_##type##_atomic_inc(T *p, int pe) { lshmem_compat_ignore(lshmem_atomic_inc<T>(LSHMEM_COMPAT_SH, p, pe)); } \
  LSHMEM_DEVICE void nvshmem_##type##_atomic_add(T *p, T v, int pe) {                                                      \
    lshmem_compat_ignore(lshmem_atomic_add<T>(LSHMEM_COMPAT_SH, p, v, pe));                                                \
  }                                                                                                                        \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_fetch_inc(T *p, int pe) { return lshmem_atomic_fetch_inc<T>(LSHMEM_COMPAT_SH, p, pe); } \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_fetch_add(T *p, T v, int pe) {                                                   \
    return lshmem_atomic_fetch_add<T>(LSHMEM_COMPAT_SH, p, v, pe);                                                         \
  }                                                                                                                        \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_compare_swap(T *p, T expected, T desired, int pe) {                              \
    return lshmem_atomic_compare_swap<T>(LSHMEM_COMPAT_SH, p, expected, desired, pe);                                      \
  }
#define LSHMEM_COMPAT_BITS(type, T)                                                                                        \
  LSHMEM_COMPAT_BIT(type, T, and) LSHMEM_COMPAT_BIT(type, T, or) LSHMEM_COMPAT_BIT(type, T, xor)
#define LSHMEM_COMPAT_BIT(type, T, op)                                                                                     \
  LSHMEM_DEVICE void nvshmem_##type##_atomic_##op(T *p, T v, int pe) {                                                     \
    lshmem_compat_ignore(lshmem_atomic_##op<T>(LSHMEM_COMPAT_SH, p, v, pe));                                               \
  }                                                                                                                        \
  LSHMEM_DEVICE T nvshmem_##type##_atomic_fetch_##op(T *p, T v, int pe) {                                                  \
    return lshmem_atomic_fetch_##op<T>(LSHMEM_COMPAT_SH, p, v, pe);                                                        \
  }
LSHMEM_COMPAT_INTEGERS(LSHMEM_COMPAT_ARITHMETIC)
LSHMEM_COMPAT_FLOATS(LSHMEM_COMPAT_SWAP)
LSHMEM_COMPAT_BITWISE(LSHMEM_COMPAT_BITS)

// Waits and tests. A wait that fails (a timeout, a dead PE) returns; the host's nvshmem_barrier_all says so.
#define LSHMEM_COMPAT_WAITS(type, T)                                                                                       \
  LSHMEM_DEVICE void nvshmem_##type##_wait_until(T *p, int cmp, T v) {                                                     \
    lshmem_compat_ignore(lshmem_wait_until<T>(LSHMEM_COMPAT_SH, p, cmp, v));                                               \
  }                                                                                                                        \
  LSHMEM_DEVICE void nvshmem_##type##_wait_until_all(T *p, size_t n, const int *status, int cmp, T v) {                    \
    lshmem_compat_ignore(lshmem_wait_until_all<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, v));                                \
  }                                                                                                                        \
  LSHMEM_DEVICE size_t nvshmem_##type##_wait_until_any(T *p, size_t n, const int *status, int cmp, T v) {                  \
    size_t index = SIZE_MAX;                                                                                               \
    lshmem_compat_ignore(lshmem_wait_until_any<T>(LSHMEM_COMPAT_SH, p, n, &index, status, cmp, v));                        \
    return index;                                                                                                          \
  }                                                                                                                        \
  LSHMEM_DEVICE size_t nvshmem_##type##_wait_until_some(T *p, size_t n, size_t *indices, const int *status, int cmp, T v) { \
    size_t count = 0;                                                                                                      \
    lshmem_compat_ignore(lshmem_wait_until_some<T>(LSHMEM_COMPAT_SH, p, n, indices, &count, status, cmp, v));              \
    return count;                                                                                                          \
  }                                                                                                                        \
  LSHMEM_DEVICE void nvshmem_##type##_wait_until_all_vector(T *p, size_t n, const int *status, int cmp, T *values) {       \
    lshmem_compat_ignore(lshmem_wait_until_all_vector<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, values));                    \
  }                                                                                                                        \
  LSHMEM_DEVICE size_t nvshmem_##type##_wait_until_any_vector(T *p, size_t n, const int *status, int cmp, T *values) {     \
    size_t index = SIZE_MAX;                                                                                               \
    lshmem_compat_ignore(lshmem_wait_until_any_vector<T>(LSHMEM_COMPAT_SH, p, n, &index, status, cmp, values));            \
    return index;                                                                                                          \
  }                                                                                                                        \
  LSHMEM_DEVICE size_t nvshmem_##type##_wait_until_some_vector(T *p, size_t n, size_t *indices, const int *status, int cmp, \
                                                               T *values) {                                                \
    size_t count = 0;                                                                                                      \
    lshmem_compat_ignore(lshmem_wait_until_some_vector<T>(LSHMEM_COMPAT_SH, p, n, indices, &count, status, cmp, values));  \
    return count;                                                                                                          \
  }                                                                                                                        \
  LSHMEM_DEVICE int nvshmem_##type##_test_all_vector(T *p, size_t n, const int *status, int cmp, T *values) {              \
    return lshmem_test_all_vector<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, values);                                         \
  }                                                                                                                        \
  LSHMEM_DEVICE size_t nvshmem_##type##_test_any_vector(T *p, size_t n, const int *status, int cmp, T *values) {           \
    return lshmem_test_any_vector<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, values);                                         \
  }                                                                                                                        \
  LSHMEM_DEVICE size_t nvshmem_##type##_test_some_vector(T *p, size_t n, size_t *indices, const int *status, int cmp,      \
                                                         T *values) {                                                      \
    return lshmem_test_some_vector<T>(LSHMEM_COMPAT_SH, p, n, indices, status, cmp, values);                               \
  }                                                                                                                        \
  LSHMEM_DEVICE int nvshmem_##type##_test(T *p, int cmp, T v) { return lshmem_test<T>(LSHMEM_COMPAT_SH, p, cmp, v); }      \
  LSHMEM_DEVICE int nvshmem_##type##_test_all(T *p, size_t n, const int *status, int cmp, T v) {                           \
    return lshmem_test_all<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, v);                                                     \
  }                                                                                                                        \
  LSHMEM_DEVICE size_t nvshmem_##type##_test_any(T *p, size_t n, const int *status, int cmp, T v) {                        \
    return lshmem_test_any<T>(LSHMEM_COMPAT_SH, p, n, status, cmp, v);                                                     \
  }                                                                                                                        \
  LSHMEM_DEVICE size_t nvshmem_##type##_test_some(T *p, size_t n, size_t *indices, const int *status, int cmp, T v) {      \
    return lshmem_test_some<T>(LSHMEM_COMPAT_SH, p, n, indices, status, cmp, v);                                           \
  }
LSHMEM_COMPAT_INTEGERS(LSHMEM_COMPAT_WAITS)

// Signals, order, barriers.
LSHMEM_DEVICE void nvshmemx_signal_op(uint64_t *sig, uint64_t v, int op, int pe) {
  lshmem_compat_ignore(lshmem_signal_op(LSHMEM_COMPAT_SH, sig, v, op, pe));
}
LSHMEM_DEVICE uint64_t nvshmem_signal_fetch(uint64_t *sig) { return lshmem_signal_fetch(LSHMEM_COMPAT_SH, sig); }
LSHMEM_DEVICE uint64_t nvshmem_signal_wait_until(uint64_t *sig, int cmp, uint64_t v) {
  lshmem_compat_ignore(lshmem_signal_wait_until(LSHMEM_COMPAT_SH, sig, cmp, v));
  return lshmem_signal_fetch(LSHMEM_COMPAT_SH, sig);
}
#define LSHMEM_COMPAT_MEET(prefix, scope)                                                                                  \
  LSHMEM_DEVICE void prefix##_barrier_all##scope() { lshmem_compat_ignore(lshmem_barrier_all##scope(LSHMEM_COMPAT_SH)); }  \
  LSHMEM_DEVICE void prefix##_sync_all##scope() { lshmem_compat_ignore(lshmem_sync_all##scope(LSHMEM_COMPAT_SH)); }        \
  LSHMEM_DEVICE int prefix##_barrier##scope(nvshmem_team_t team) { return lshmem_barrier##scope(LSHMEM_COMPAT_SH, team); } \
  LSHMEM_DEVICE int prefix##_team_sync##scope(nvshmem_team_t team) { return lshmem_sync##scope(LSHMEM_COMPAT_SH, team); } \
  LSHMEM_DEVICE int prefix##_sync##scope(nvshmem_team_t team) { return lshmem_sync##scope(LSHMEM_COMPAT_SH, team); }
LSHMEM_COMPAT_MEET(nvshmemx, _warp)
LSHMEM_COMPAT_MEET(nvshmemx, _block)

// Collective operations in kernels.
#define LSHMEM_COMPAT_COLLECT(prefix, type, T, scope)                                                                      \
  LSHMEM_DEVICE int prefix##_##type##_broadcast##scope(nvshmem_team_t team, T *dst, const T *src, size_t n, int root) {    \
    return lshmem_broadcast##scope<T>(LSHMEM_COMPAT_SH, team, dst, src, n, root);                                          \
  }                                                                                                                        \
  LSHMEM_DEVICE int prefix##_##type##_fcollect##scope(nvshmem_team_t team, T *dst, const T *src, size_t n) {               \
    return lshmem_fcollect##scope<T>(LSHMEM_COMPAT_SH, team, dst, src, n);                                                 \
  }                                                                                                                        \
  LSHMEM_DEVICE int prefix##_##type##_alltoall##scope(nvshmem_team_t team, T *dst, const T *src, size_t n) {               \
    return lshmem_alltoall##scope<T>(LSHMEM_COMPAT_SH, team, dst, src, n);                                                 \
  }
#define LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, name, op)                                                            \
  LSHMEM_DEVICE int prefix##_##type##_##name##_reduce##scope(nvshmem_team_t team, T *dst, const T *src, size_t n) {        \
    return lshmem_reduce##scope<T>(LSHMEM_COMPAT_SH, team, op, dst, src, n);                                               \
  }                                                                                                                        \
  LSHMEM_DEVICE int prefix##_##type##_##name##_reducescatter##scope(nvshmem_team_t team, T *dst, const T *src, size_t n) { \
    return lshmem_reducescatter##scope<T>(LSHMEM_COMPAT_SH, team, op, dst, src, n);                                        \
  }
#define LSHMEM_COMPAT_COLLECTS(type, T)                                                                                    \
  LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_COLLECT_, type, T, )
#define LSHMEM_COMPAT_COLLECT_(prefix, type, T, name, scope) LSHMEM_COMPAT_COLLECT(prefix, type, T, scope)
LSHMEM_COMPAT_TYPES(LSHMEM_COMPAT_COLLECTS)
#define LSHMEM_COMPAT_NUMBERS_(prefix, type, T, name, scope)                                                               \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, sum, LSHMEM_SUM) LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, prod, LSHMEM_PROD) \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, min, LSHMEM_MIN) LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, max, LSHMEM_MAX)
#define LSHMEM_COMPAT_NUMBERS(type, T) LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_NUMBERS_, type, T, )
#define LSHMEM_COMPAT_LOGIC_(prefix, type, T, name, scope)                                                                 \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, and, LSHMEM_AND) LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, or, LSHMEM_OR) \
  LSHMEM_COMPAT_COMBINE(prefix, type, T, scope, xor, LSHMEM_XOR)
#define LSHMEM_COMPAT_LOGIC(type, T) LSHMEM_COMPAT_SCOPES(LSHMEM_COMPAT_LOGIC_, type, T, )
// In kernels, of the types that programs reduce there; on streams there are all.
#define LSHMEM_COMPAT_REDUCED(X) X(int32, int32_t) X(uint32, uint32_t) X(int64, int64_t) X(uint64, uint64_t) X(int, int) LSHMEM_COMPAT_FLOATS(X)
#define LSHMEM_COMPAT_REDUCED_BITS(X) X(int32, int32_t) X(uint32, uint32_t) X(int64, int64_t) X(uint64, uint64_t)
LSHMEM_COMPAT_REDUCED(LSHMEM_COMPAT_NUMBERS)
LSHMEM_COMPAT_REDUCED_BITS(LSHMEM_COMPAT_LOGIC)

// ---- Host ----

#if LSHMEM_COMPAT_HOST

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !LSHMEM_GPU
typedef void *cudaStream_t;
#endif

namespace lshmem_compat {

// The PE of this process, 0 before there is one.
inline lshmem_pe_t self = 0;

// A translation unit with a constant to be filled.
struct unit {
  bool (*fill)(const lshmem_t &);
  unit *next;
};
inline unit *units = nullptr;

inline int failed(const char *what, int status) {
  if (status != LSHMEM_OK) fprintf(stderr, "%s: %s: %s\n", what, lshmem_strerror(status), lshmem_last_error());
  return status;
}

// Fills the constants of all units there are.
inline int fill_all() {
  lshmem_t state;
  int status = lshmem_get_state(self, &state);
  if (status != LSHMEM_OK) return failed("lshmem_get_state", status);
#if !LSHMEM_GPU
  lshmem_compat_state = state;
#endif
  for (unit *u = units; u; u = u->next)
    if (!u->fill(state)) {
      fprintf(stderr, "lshmem: the device did not take the state of PE %u\n", state.pe);
      return LSHMEM_ERR_SYSTEM;
    }
  return LSHMEM_OK;
}

inline int begin(const lshmem_config *config) {
  if (self) return LSHMEM_OK;
  int status = config ? lshmem_init(config, &self) : lshmem_init_env(&self);
  if (status != LSHMEM_OK) return failed("lshmem_init", status);
  return fill_all();
}

#if LSHMEM_GPU && !defined(LSHMEM_COMPAT_MODULE)
// This unit's. It is made before main, or when the library that the unit is in is loaded.
static bool fill_here(const lshmem_t &state) { return cudaMemcpyToSymbol(lshmem_compat_state, &state, sizeof state) == cudaSuccess; }
// The function comes as an argument: of what this class does itself, linkers keep one unit's.
struct registered {
  unit u;
  explicit registered(bool (*fill)(const lshmem_t &)) : u{fill, units} {
    units = &u;
    if (self) fill_all();
  }
};
static registered here(fill_here);
#endif

} // namespace lshmem_compat

#define LSHMEM_COMPAT_CALL(name, ...) lshmem_compat::failed(#name, name(lshmem_compat::self, ##__VA_ARGS__))
// For results that are returned.
#define LSHMEM_COMPAT_RESULT(T, otherwise, name, ...)                                                                      \
  T out;                                                                                                                   \
  return lshmem_compat::failed(#name, name(lshmem_compat::self, __VA_ARGS__, &out)) == LSHMEM_OK ? out : otherwise

inline void nvshmem_init() {
  if (lshmem_compat::begin(nullptr) != LSHMEM_OK) exit(EXIT_FAILURE);
}
inline int nvshmem_init_thread(int, int *provided) {
  if (provided) *provided = NVSHMEM_THREAD_MULTIPLE;
  return lshmem_compat::begin(nullptr);
}
inline void nvshmem_query_thread(int *provided) { *provided = NVSHMEM_THREAD_MULTIPLE; }
inline int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *id) {
  return lshmem_compat::failed("lshmem_get_uniqueid", lshmem_get_uniqueid(id));
}
// id must stay until nvshmemx_init_attr.
inline int nvshmemx_set_attr_uniqueid_args(int pe, int pes, const nvshmemx_uniqueid_t *id, nvshmemx_init_attr_t *attr) {
  *attr = {pe, pes, id, nullptr};
  return 0;
}
// With NVSHMEMX_INIT_WITH_UNIQUEID, or 0: the environment. MPI programs make a unique id and broadcast it.
inline int nvshmemx_init_attr(unsigned flags, nvshmemx_init_attr_t *attr) {
  if (flags & ~(unsigned)NVSHMEMX_INIT_WITH_UNIQUEID) {
    fprintf(stderr, "nvshmemx_init_attr: only a unique id or the environment; broadcast a unique id by MPI\n");
    return NVSHMEMX_ERROR_INVALID_VALUE;
  }
  if (flags == 0) return lshmem_compat::begin(nullptr);
  lshmem_config config;
  lshmem_config_init(&config);
  config.pe = attr->pe;
  config.pes = attr->pes;
  config.uniqueid = attr->id;
  return lshmem_compat::begin(&config);
}
inline int nvshmemx_init_status() { return lshmem_compat::self ? NVSHMEM_STATUS_IS_INITIALIZED : NVSHMEM_STATUS_NOT_INITIALIZED; }
inline void nvshmem_finalize() {
  LSHMEM_COMPAT_CALL(lshmem_finalize);
  lshmem_compat::self = 0;
}
inline void nvshmem_global_exit(int code) {
  LSHMEM_COMPAT_CALL(lshmem_global_exit, code);
  exit(code);
}
inline void nvshmem_info_get_version(int *major, int *minor) {
  *major = NVSHMEM_MAJOR_VERSION;
  *minor = NVSHMEM_MINOR_VERSION;
}
inline void nvshmem_info_get_name(char *name) { snprintf(name, NVSHMEM_MAX_NAME_LEN, "%s", lshmem_version_name()); }

// Fills the constant of the unit that calls it; needed by nobody, since all units are filled by themselves.
inline int nvshmemx_culibrary_init(void *) { return lshmem_compat::fill_all(); }
inline int nvshmemx_culibrary_finalize(void *) { return 0; }
#ifdef __cuda_cuda_h__
// The constant of a module that was compiled with LSHMEM_COMPAT_MODULE and loaded by cuModuleLoad.
inline int nvshmemx_cumodule_init(CUmodule module) {
  CUdeviceptr p;
  size_t bytes;
  lshmem_t state;
  int status = lshmem_get_state(lshmem_compat::self, &state);
  if (status != LSHMEM_OK) return lshmem_compat::failed("lshmem_get_state", status);
  if (cuModuleGetGlobal(&p, &bytes, module, "lshmem_compat_state") != CUDA_SUCCESS || bytes != sizeof state ||
      cuMemcpyHtoD(p, &state, sizeof state) != CUDA_SUCCESS) {
    fprintf(stderr, "nvshmemx_cumodule_init: the module has no lshmem_compat_state of %zu bytes\n", sizeof state);
    return NVSHMEMX_ERROR_INVALID_VALUE;
  }
  return 0;
}
inline int nvshmemx_cumodule_finalize(CUmodule) { return 0; }
#endif

inline void *nvshmem_malloc(size_t n) { LSHMEM_COMPAT_RESULT(void *, nullptr, lshmem_malloc, n); }
inline void *nvshmem_calloc(size_t count, size_t n) { LSHMEM_COMPAT_RESULT(void *, nullptr, lshmem_calloc, count, n); }
inline void *nvshmem_align(size_t alignment, size_t n) { LSHMEM_COMPAT_RESULT(void *, nullptr, lshmem_align, alignment, n); }
inline void nvshmem_free(void *p) { LSHMEM_COMPAT_CALL(lshmem_free, p); }
inline void *nvshmemx_mc_ptr(nvshmem_team_t, const void *) { return nullptr; }
inline int nvshmemx_buffer_register(void *p, size_t n) { return LSHMEM_COMPAT_CALL(lshmem_buffer_register, p, n); }
inline int nvshmemx_buffer_unregister(void *p) { return LSHMEM_COMPAT_CALL(lshmem_buffer_unregister, p); }
inline void nvshmemx_buffer_unregister_all() { LSHMEM_COMPAT_CALL(lshmem_buffer_unregister_all); }
inline void *nvshmemx_buffer_register_symmetric(void *p, size_t n, int) {
  LSHMEM_COMPAT_RESULT(void *, nullptr, lshmem_buffer_register_symmetric, p, n);
}
inline int nvshmemx_buffer_unregister_symmetric(void *p, size_t) { return LSHMEM_COMPAT_CALL(lshmem_buffer_unregister_symmetric, p); }

inline int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size, const nvshmem_team_config_t *, long,
                                      nvshmem_team_t *team) {
  return LSHMEM_COMPAT_CALL(lshmem_team_split_strided, parent, start, stride, size, team);
}
inline int nvshmem_team_split_2d(nvshmem_team_t parent, int xrange, const nvshmem_team_config_t *, long, nvshmem_team_t *x,
                                 const nvshmem_team_config_t *, long, nvshmem_team_t *y) {
  return LSHMEM_COMPAT_CALL(lshmem_team_split_2d, parent, xrange, x, y);
}
inline int nvshmem_team_get_config(nvshmem_team_t, nvshmem_team_config_t *config) {
  config->num_contexts = 0;
  return 0;
}
inline void nvshmem_team_destroy(nvshmem_team_t team) {
  if (team != NVSHMEM_TEAM_INVALID) LSHMEM_COMPAT_CALL(lshmem_team_destroy, team);
}

// ---- On streams ----

namespace lshmem_compat {
// The LSHMEM_INT8 to LSHMEM_FLOAT64 of a C++ type.
template <class T> constexpr int kind() {
  if constexpr (lshmem::is_float<T>)
    return sizeof(T) == 4 ? LSHMEM_FLOAT32 : LSHMEM_FLOAT64;
  else
    return (sizeof(T) == 1 ? LSHMEM_INT8 : sizeof(T) == 2 ? LSHMEM_INT16 : sizeof(T) == 4 ? LSHMEM_INT32 : LSHMEM_INT64) +
           ((T)-1 > (T)0 ? 1 : 0);
}
} // namespace lshmem_compat

inline void nvshmemx_putmem_on_stream(void *dst, const void *src, size_t n, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_put_on_stream, dst, src, n, pe, s);
}
inline void nvshmemx_getmem_on_stream(void *dst, const void *src, size_t n, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_get_on_stream, dst, src, n, pe, s);
}
inline void nvshmemx_putmem_nbi_on_stream(void *dst, const void *src, size_t n, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_put_on_stream, dst, src, n, pe, s);
}
inline void nvshmemx_getmem_nbi_on_stream(void *dst, const void *src, size_t n, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_get_on_stream, dst, src, n, pe, s);
}
inline void nvshmemx_putmem_signal_on_stream(void *dst, const void *src, size_t n, uint64_t *sig, uint64_t v, int op, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_put_signal_on_stream, dst, src, n, sig, v, op, pe, s);
}
inline void nvshmemx_putmem_signal_nbi_on_stream(void *dst, const void *src, size_t n, uint64_t *sig, uint64_t v, int op, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_put_signal_on_stream, dst, src, n, sig, v, op, pe, s);
}
inline void nvshmemx_signal_op_on_stream(uint64_t *sig, uint64_t v, int op, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_signal_op_on_stream, sig, v, op, pe, s);
}
inline void nvshmemx_signal_wait_until_on_stream(uint64_t *sig, int cmp, uint64_t v, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_signal_wait_until_on_stream, sig, cmp, v, s);
}
inline void nvshmemx_quiet_on_stream(cudaStream_t s) { LSHMEM_COMPAT_CALL(lshmem_quiet_on_stream, s); }
inline void nvshmemx_barrier_all_on_stream(cudaStream_t s) { LSHMEM_COMPAT_CALL(lshmem_barrier_on_stream, LSHMEM_TEAM_WORLD, s); }
inline void nvshmemx_sync_all_on_stream(cudaStream_t s) { LSHMEM_COMPAT_CALL(lshmem_sync_on_stream, LSHMEM_TEAM_WORLD, s); }
inline int nvshmemx_barrier_on_stream(nvshmem_team_t t, cudaStream_t s) { return LSHMEM_COMPAT_CALL(lshmem_barrier_on_stream, t, s); }
inline int nvshmemx_team_sync_on_stream(nvshmem_team_t t, cudaStream_t s) { return LSHMEM_COMPAT_CALL(lshmem_sync_on_stream, t, s); }
inline int nvshmemx_sync_on_stream(nvshmem_team_t t, cudaStream_t s) { return nvshmemx_team_sync_on_stream(t, s); }

#define LSHMEM_COMPAT_STREAM(type, T)                                                                                      \
  inline void nvshmemx_##type##_put_on_stream(T *dst, const T *src, size_t n, int pe, cudaStream_t s) {                    \
    nvshmemx_putmem_on_stream(dst, src, n * sizeof(T), pe, s);                                                             \
  }                                                                                                                        \
  inline void nvshmemx_##type##_get_on_stream(T *dst, const T *src, size_t n, int pe, cudaStream_t s) {                    \
    nvshmemx_getmem_on_stream(dst, src, n * sizeof(T), pe, s);                                                             \
  }                                                                                                                        \
  inline int nvshmemx_##type##_broadcast_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n, int root, cudaStream_t s) { \
    return LSHMEM_COMPAT_CALL(lshmem_broadcast_on_stream, t, lshmem_compat::kind<T>(), dst, src, n, root, s);              \
  }                                                                                                                        \
  inline int nvshmemx_##type##_fcollect_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n, cudaStream_t s) {      \
    return LSHMEM_COMPAT_CALL(lshmem_fcollect_on_stream, t, lshmem_compat::kind<T>(), dst, src, n, s);                     \
  }                                                                                                                        \
  inline int nvshmemx_##type##_alltoall_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n, cudaStream_t s) {      \
    return LSHMEM_COMPAT_CALL(lshmem_alltoall_on_stream, t, lshmem_compat::kind<T>(), dst, src, n, s);                     \
  }                                                                                                                        \
  LSHMEM_COMPAT_STREAM_OP(type, T, sum, LSHMEM_SUM) LSHMEM_COMPAT_STREAM_OP(type, T, prod, LSHMEM_PROD)                    \
  LSHMEM_COMPAT_STREAM_OP(type, T, min, LSHMEM_MIN) LSHMEM_COMPAT_STREAM_OP(type, T, max, LSHMEM_MAX)
#define LSHMEM_COMPAT_STREAM_OP(type, T, name, op)                                                                         \
  inline int nvshmemx_##type##_##name##_reduce_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n, cudaStream_t s) { \
    return LSHMEM_COMPAT_CALL(lshmem_reduce_on_stream, t, lshmem_compat::kind<T>(), op, dst, src, n, s);                   \
  }                                                                                                                        \
  inline int nvshmemx_##type##_##name##_reducescatter_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n, cudaStream_t s) { \
    return LSHMEM_COMPAT_CALL(lshmem_reducescatter_on_stream, t, lshmem_compat::kind<T>(), op, dst, src, n, s);            \
  }
LSHMEM_COMPAT_TYPES(LSHMEM_COMPAT_STREAM)
#define LSHMEM_COMPAT_STREAM_BITS(type, T)                                                                                 \
  LSHMEM_COMPAT_STREAM_OP(type, T, and, LSHMEM_AND) LSHMEM_COMPAT_STREAM_OP(type, T, or, LSHMEM_OR)                        \
  LSHMEM_COMPAT_STREAM_OP(type, T, xor, LSHMEM_XOR)
LSHMEM_COMPAT_BITWISE(LSHMEM_COMPAT_STREAM_BITS)
#define LSHMEM_COMPAT_STREAM_WAIT(type, T)                                                                                 \
  inline void nvshmemx_##type##_wait_until_on_stream(T *p, int cmp, T v, cudaStream_t s) {                                 \
    LSHMEM_COMPAT_CALL(lshmem_wait_until_on_stream, lshmem_compat::kind<T>(), p, cmp, (uint64_t)v, s);                     \
  }
LSHMEM_COMPAT_INTEGERS(LSHMEM_COMPAT_STREAM_WAIT)
inline int nvshmemx_broadcastmem_on_stream(nvshmem_team_t t, void *dst, const void *src, size_t n, int root, cudaStream_t s) {
  return LSHMEM_COMPAT_CALL(lshmem_broadcast_on_stream, t, LSHMEM_UINT8, dst, src, n, root, s);
}
inline int nvshmemx_fcollectmem_on_stream(nvshmem_team_t t, void *dst, const void *src, size_t n, cudaStream_t s) {
  return LSHMEM_COMPAT_CALL(lshmem_fcollect_on_stream, t, LSHMEM_UINT8, dst, src, n, s);
}
inline int nvshmemx_alltoallmem_on_stream(nvshmem_team_t t, void *dst, const void *src, size_t n, cudaStream_t s) {
  return LSHMEM_COMPAT_CALL(lshmem_alltoall_on_stream, t, LSHMEM_UINT8, dst, src, n, s);
}

#if LSHMEM_GPU && !defined(LSHMEM_COMPAT_MODULE)
// All CTAs of the kernel run at the same time, so that they may wait for each other.
inline int nvshmemx_collective_launch(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) {
  return cudaLaunchCooperativeKernel(kernel, grid, block, args, shared, s) == cudaSuccess ? 0 : NVSHMEMX_ERROR_INTERNAL;
}
inline int nvshmemx_collective_launch_query_gridsize(const void *kernel, dim3 block, void **, size_t shared, int *grid) {
  int device, units, each;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, (int)(block.x * block.y * block.z), shared) != cudaSuccess)
    return NVSHMEMX_ERROR_INTERNAL;
  *grid = units * each;
  return 0;
}
#endif

#endif // LSHMEM_COMPAT_HOST

// ---- Names that host and device have alike ----

#if LSHMEM_GPU
#define LSHMEM_COMPAT_BOTH __attribute__((host)) __attribute__((device)) inline
#if LSHMEM_COMPAT_HOST && defined(__NVCC__)
#undef LSHMEM_COMPAT_BOTH
#define LSHMEM_COMPAT_BOTH __host__ __device__ inline
#endif
#else
#define LSHMEM_COMPAT_BOTH inline
#endif
// CPU code has one form, the device's. Where there is no host part, host code gets an error that cannot be reached.
#if defined(__CUDA_ARCH__) || !LSHMEM_GPU
#define LSHMEM_COMPAT_EITHER(device, host) device
#elif LSHMEM_COMPAT_HOST
#define LSHMEM_COMPAT_EITHER(device, host) host
#else
#define LSHMEM_COMPAT_EITHER(device, host)
#endif

LSHMEM_COMPAT_BOTH int nvshmem_my_pe() {
  int out = -1;
  LSHMEM_COMPAT_EITHER(out = lshmem_my_pe(LSHMEM_COMPAT_SH), LSHMEM_COMPAT_CALL(lshmem_my_pe, &out));
  return out;
}
LSHMEM_COMPAT_BOTH int nvshmem_n_pes() {
  int out = -1;
  LSHMEM_COMPAT_EITHER(out = lshmem_n_pes(LSHMEM_COMPAT_SH), LSHMEM_COMPAT_CALL(lshmem_n_pes, &out));
  return out;
}
LSHMEM_COMPAT_BOTH void *nvshmem_ptr(const void *p, int pe) {
  void *out = nullptr;
  (void)p, (void)pe;
  LSHMEM_COMPAT_EITHER(out = lshmem_ptr(LSHMEM_COMPAT_SH, p, pe), LSHMEM_COMPAT_CALL(lshmem_ptr, p, pe, &out));
  return out;
}
LSHMEM_COMPAT_BOTH void nvshmem_fence() { LSHMEM_COMPAT_EITHER(lshmem_compat_ignore(lshmem_fence(LSHMEM_COMPAT_SH)), LSHMEM_COMPAT_CALL(lshmem_fence)); }
LSHMEM_COMPAT_BOTH void nvshmem_quiet() { LSHMEM_COMPAT_EITHER(lshmem_compat_ignore(lshmem_quiet(LSHMEM_COMPAT_SH)), LSHMEM_COMPAT_CALL(lshmem_quiet)); }
LSHMEM_COMPAT_BOTH int nvshmem_barrier(nvshmem_team_t team) {
  int status = 0;
  (void)team;
  LSHMEM_COMPAT_EITHER(status = lshmem_barrier(LSHMEM_COMPAT_SH, team), status = LSHMEM_COMPAT_CALL(lshmem_barrier, team));
  return status;
}
LSHMEM_COMPAT_BOTH int nvshmem_team_sync(nvshmem_team_t team) {
  int status = 0;
  (void)team;
  LSHMEM_COMPAT_EITHER(status = lshmem_sync(LSHMEM_COMPAT_SH, team), status = LSHMEM_COMPAT_CALL(lshmem_sync, team));
  return status;
}
LSHMEM_COMPAT_BOTH int nvshmem_sync(nvshmem_team_t team) { return nvshmem_team_sync(team); }
LSHMEM_COMPAT_BOTH void nvshmem_barrier_all() { (void)nvshmem_barrier(NVSHMEM_TEAM_WORLD); }
LSHMEM_COMPAT_BOTH void nvshmem_sync_all() { (void)nvshmem_team_sync(NVSHMEM_TEAM_WORLD); }
LSHMEM_COMPAT_BOTH int nvshmem_team_my_pe(nvshmem_team_t team) {
  int out = -1;
  (void)team;
  LSHMEM_COMPAT_EITHER(out = lshmem_compat_team_index(LSHMEM_COMPAT_SH, team), LSHMEM_COMPAT_CALL(lshmem_team_my_pe, team, &out));
  return out;
}
LSHMEM_COMPAT_BOTH int nvshmem_team_n_pes(nvshmem_team_t team) {
  int out = -1;
  (void)team;
  LSHMEM_COMPAT_EITHER(out = lshmem_compat_team_size(LSHMEM_COMPAT_SH, team), LSHMEM_COMPAT_CALL(lshmem_team_n_pes, team, &out));
  return out;
}
#if LSHMEM_COMPAT_HOST
inline int nvshmem_team_translate_pe(nvshmem_team_t from, int pe, nvshmem_team_t to) {
  LSHMEM_COMPAT_RESULT(int, -1, lshmem_team_translate_pe, from, pe, to);
}
#endif

#endif
