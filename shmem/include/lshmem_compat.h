// NVSHMEM's names for lshmem: the part of its interface that programs mostly use, so that such a program compiles and
// runs by including this header instead. Written from names and documented behaviour only. It takes C++17.
//
//	#include "lshmem_compat.h"
//	nvshmem_init();                                  // the job of lgpu run --pes; or nvshmemx_init_attr
//	double *x = (double *)nvshmem_malloc(n);
//	kernel<<<...>>>(x);                              // nvshmem_double_p(x, 1.0, pe) and so on
//	nvshmemx_barrier_all_on_stream(stream);
//
// # Parts
//
// Which functions a translation unit gets depends on what compiles it:
//
//	nvcc; clang -x cuda with CUDA's headers   the device's and the host's
//	clang -x cuda -nocudainc -nocudalib       the device's, for modules that a program loads
//	a C++ compiler (main.cpp with g++)        the host's, those on streams among them
//	the same with -DLSHMEM_COMPAT_CPU         the device's as CPU code on real threads (lshmem_cpu.h), and the host's:
//	                                          for tests, sanitizers and debuggers, with heaps in host memory
//
// A program may have units of all kinds. What has one name on host and device (nvshmem_my_pe, nvshmem_barrier_all) is
// the host's in host code and the device's in device code; units of the last kind have the device's everywhere.
//
// The host's part alone needs no other header of lshmem's than lshmem.h, and none of CUDA's; nvshmemx_collective_launch
// is there with CUDA's runtime, and nvshmemx_cumodule_init after an #include <cuda.h>. All link with liblshmem.so.
//
// # The state
//
// These functions take no state, so there is one of this process: the PE that nvshmem_init made, in whichever unit.
// Device code finds it in a constant, lshmem_compat_state, which every unit of CUDA code that includes this header
// has for itself (CPU units have one variable together) and which is filled for all units when the PE is made, or
// when a library is loaded later; the thread that does that then has the PE's device as its current one. Hence no
// -rdc, but also: one PE for each process and device, and code in modules that the program loads itself must be
// told, by nvshmemx_cumodule_init. A library that comes by dlopen has the PE of a program that was linked with
// -rdynamic, else it would have one of its own. Programs that want several instances, or no global state, use
// lshmem.cuh.
//
// # Differences
//
// A function that fails prints why and returns an error where it returns an int, or NULL; nvshmem_init, which cannot,
// ends the process. Waits end after LSHMEM_TIMEOUT. fence and quiet are of one PE's operations, as NVSHMEM's are. Of
// types there are the standard ones; of long double, complex and 16-bit floating-point numbers there are none.
// Multicast does not exist: nvshmemx_mc_ptr returns NULL.
//
// Not here: puts, gets, atomics, signals and reductions called on the host without a stream (use lshmem.h), queue pairs
// of one's choice (nvshmemx_qp_*; lshmem.cuh has them), MPI communicators in nvshmemx_init_attr.
#ifndef LSHMEM_COMPAT_H
#define LSHMEM_COMPAT_H

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "lshmem_compat.h needs C++17"
#endif

#include "lshmem.h"

#if defined(__CUDACC__) || defined(__CUDA__)
#define LSHMEM_COMPAT_DEVICE 1
#if defined(__NVCC__) || defined(__CUDA_RUNTIME_H__)
#define LSHMEM_COMPAT_HOST 1
#include <cuda_runtime.h>
#else
#define LSHMEM_COMPAT_HOST 0
#endif
#else
#ifdef LSHMEM_COMPAT_CPU
#define LSHMEM_COMPAT_DEVICE 1
#else
#define LSHMEM_COMPAT_DEVICE 0
#endif
#define LSHMEM_COMPAT_HOST 1
#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#else
typedef struct CUstream_st *cudaStream_t; // as CUDA has it, whose headers may still follow
#endif
#endif

// ---- Constants and types ----

#define NVSHMEM_MAJOR_VERSION 1
#define NVSHMEM_MINOR_VERSION 3
#define NVSHMEM_VENDOR_STRING "lshmem"
#define NVSHMEM_MAX_NAME_LEN 256

enum { NVSHMEM_CMP_EQ = LSHMEM_CMP_EQ, NVSHMEM_CMP_NE = LSHMEM_CMP_NE, NVSHMEM_CMP_GT = LSHMEM_CMP_GT,
       NVSHMEM_CMP_LE = LSHMEM_CMP_LE, NVSHMEM_CMP_LT = LSHMEM_CMP_LT, NVSHMEM_CMP_GE = LSHMEM_CMP_GE };
enum { NVSHMEM_SIGNAL_SET = LSHMEM_SIGNAL_SET, NVSHMEM_SIGNAL_ADD = LSHMEM_SIGNAL_ADD };
enum { NVSHMEM_THREAD_SINGLE = 0, NVSHMEM_THREAD_FUNNELED, NVSHMEM_THREAD_SERIALIZED, NVSHMEM_THREAD_MULTIPLE };
enum { NVSHMEMX_INIT_WITH_MPI_COMM = 1 << 1, NVSHMEMX_INIT_WITH_SHMEM = 1 << 2, NVSHMEMX_INIT_WITH_UNIQUEID = 1 << 3 };
enum { NVSHMEM_STATUS_NOT_INITIALIZED = 0, NVSHMEM_STATUS_IS_BOOTSTRAPPED, NVSHMEM_STATUS_IS_INITIALIZED };
enum { NVSHMEMX_SUCCESS = 0, NVSHMEMX_ERROR_INVALID_VALUE = 1, NVSHMEMX_ERROR_INTERNAL = 7 };

typedef int32_t nvshmem_team_t;
enum { NVSHMEM_TEAM_INVALID = LSHMEM_TEAM_INVALID, NVSHMEM_TEAM_WORLD = LSHMEM_TEAM_WORLD,
       NVSHMEM_TEAM_SHARED = LSHMEM_TEAM_SHARED, NVSHMEMX_TEAM_NODE = LSHMEM_TEAM_NODE,
       NVSHMEMX_TEAM_SAME_MYPE_NODE = LSHMEM_TEAM_SAME_MYPE_NODE, NVSHMEMI_TEAM_SAME_GPU = LSHMEM_TEAM_SAME_GPU };
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
#define LSHMEM_COMPAT_INTEGERS(X)                                                                                      \
  X(int, int) X(long, long) X(longlong, long long) X(uint, unsigned int) X(ulong, unsigned long)                       \
  X(ulonglong, unsigned long long) X(int32, int32_t) X(int64, int64_t) X(uint32, uint32_t) X(uint64, uint64_t)         \
  X(size, size_t) X(ptrdiff, ptrdiff_t)
#define LSHMEM_COMPAT_SMALL(X)                                                                                         \
  X(char, char) X(schar, signed char) X(short, short) X(uchar, unsigned char) X(ushort, unsigned short)                \
  X(int8, int8_t) X(int16, int16_t) X(uint8, uint8_t) X(uint16, uint16_t)
#define LSHMEM_COMPAT_FLOATS(X) X(float, float) X(double, double)
#define LSHMEM_COMPAT_BITWISE(X)                                                                                       \
  X(uint, unsigned int) X(ulong, unsigned long) X(ulonglong, unsigned long long) X(int32, int32_t) X(int64, int64_t)   \
  X(uint32, uint32_t) X(uint64, uint64_t)
#define LSHMEM_COMPAT_TYPES(X) LSHMEM_COMPAT_INTEGERS(X) LSHMEM_COMPAT_SMALL(X) LSHMEM_COMPAT_FLOATS(X)
#define LSHMEM_COMPAT_SIZES(X) X(8, 1) X(16, 2) X(32, 4) X(64, 8) X(128, 16)

#if LSHMEM_COMPAT_HOST
#include "lshmem_compat_host.h"
#endif
#if LSHMEM_COMPAT_DEVICE
#include "lshmem_compat_device.cuh"
#endif

// ---- Names that host and device have alike ----

#if !LSHMEM_COMPAT_DEVICE
#define LSHMEM_COMPAT_ALIKE inline
#define LSHMEM_COMPAT_EITHER(device, host) host
#elif !LSHMEM_GPU || !LSHMEM_COMPAT_HOST
#define LSHMEM_COMPAT_ALIKE LSHMEM_DEVICE
#define LSHMEM_COMPAT_EITHER(device, host) device
#else
#ifdef __NVCC__
#define LSHMEM_COMPAT_ALIKE __host__ __device__ inline
#else
#define LSHMEM_COMPAT_ALIKE __attribute__((host)) __attribute__((device)) inline
#endif
#ifdef __CUDA_ARCH__
#define LSHMEM_COMPAT_EITHER(device, host) device
#else
#define LSHMEM_COMPAT_EITHER(device, host) host
#endif
#endif

// In CPU units these are other functions than in the program's other units, so linkers must not take them for the same.
#if LSHMEM_COMPAT_DEVICE && !LSHMEM_GPU
inline namespace lshmem_compat_cpu {
#endif
LSHMEM_COMPAT_ALIKE int nvshmem_my_pe() {
  int out = -1;
  LSHMEM_COMPAT_EITHER(out = lshmem_my_pe(LSHMEM_COMPAT_SH), LSHMEM_COMPAT_CALL(lshmem_my_pe, &out));
  return out;
}
LSHMEM_COMPAT_ALIKE int nvshmem_n_pes() {
  int out = -1;
  LSHMEM_COMPAT_EITHER(out = lshmem_n_pes(LSHMEM_COMPAT_SH), LSHMEM_COMPAT_CALL(lshmem_n_pes, &out));
  return out;
}
LSHMEM_COMPAT_ALIKE void *nvshmem_ptr(const void *p, int pe) {
  void *out = nullptr;
  LSHMEM_COMPAT_EITHER(out = lshmem_ptr(LSHMEM_COMPAT_SH, p, pe), LSHMEM_COMPAT_CALL(lshmem_ptr, p, pe, &out));
  return out;
}
LSHMEM_COMPAT_ALIKE void nvshmem_fence() {
  LSHMEM_COMPAT_EITHER(lshmem_compat_ignore(lshmem_fence(LSHMEM_COMPAT_SH)), LSHMEM_COMPAT_CALL(lshmem_fence));
}
LSHMEM_COMPAT_ALIKE void nvshmem_quiet() {
  LSHMEM_COMPAT_EITHER(lshmem_compat_ignore(lshmem_quiet(LSHMEM_COMPAT_SH)), LSHMEM_COMPAT_CALL(lshmem_quiet));
}
LSHMEM_COMPAT_ALIKE int nvshmem_barrier(nvshmem_team_t team) {
  int status = 0;
  LSHMEM_COMPAT_EITHER(status = lshmem_barrier(LSHMEM_COMPAT_SH, team),
                       status = LSHMEM_COMPAT_CALL(lshmem_barrier, team));
  return status;
}
LSHMEM_COMPAT_ALIKE int nvshmem_team_sync(nvshmem_team_t team) {
  int status = 0;
  LSHMEM_COMPAT_EITHER(status = lshmem_sync(LSHMEM_COMPAT_SH, team),
                       status = LSHMEM_COMPAT_CALL(lshmem_sync, team));
  return status;
}
LSHMEM_COMPAT_ALIKE int nvshmem_sync(nvshmem_team_t team) { return nvshmem_team_sync(team); }
LSHMEM_COMPAT_ALIKE void nvshmem_barrier_all() { (void)nvshmem_barrier(NVSHMEM_TEAM_WORLD); }
LSHMEM_COMPAT_ALIKE void nvshmem_sync_all() { (void)nvshmem_team_sync(NVSHMEM_TEAM_WORLD); }
LSHMEM_COMPAT_ALIKE int nvshmem_team_my_pe(nvshmem_team_t team) {
  int out = -1;
  LSHMEM_COMPAT_EITHER(out = lshmem_compat_team_index(LSHMEM_COMPAT_SH, team),
                       LSHMEM_COMPAT_CALL(lshmem_team_my_pe, team, &out));
  return out;
}
LSHMEM_COMPAT_ALIKE int nvshmem_team_n_pes(nvshmem_team_t team) {
  int out = -1;
  LSHMEM_COMPAT_EITHER(out = lshmem_compat_team_size(LSHMEM_COMPAT_SH, team),
                       LSHMEM_COMPAT_CALL(lshmem_team_n_pes, team, &out));
  return out;
}
#if LSHMEM_COMPAT_DEVICE && !LSHMEM_GPU
} // namespace lshmem_compat_cpu
#endif

#endif
