// NVSHMEM's functions on the host: a part of lshmem_compat.h, which programs include. All of this reads the same in
// every translation unit of a program, whichever other parts the unit has: of inline functions, linkers keep one
// unit's. Hence a unit with a state of its own registers it (lshmem_compat_device.cuh), and nothing here knows what
// states there are.
#ifndef LSHMEM_COMPAT_HOST_H
#define LSHMEM_COMPAT_HOST_H

#include <stdio.h>
#include <stdlib.h>

#include <type_traits>

namespace lshmem_compat {

// Of variables, a library and the program that loads it must have the same one, even if they hide other symbols.
#define LSHMEM_COMPAT_SHARED __attribute__((visibility("default"))) inline

// The PE of the process, 0 before there is one.
LSHMEM_COMPAT_SHARED lshmem_pe_t self = 0;

// A translation unit with a state to be filled.
struct unit {
  bool (*fill)(const lshmem_t &);
  unit *next;
};
LSHMEM_COMPAT_SHARED unit *units = nullptr;

inline int failed(const char *what, int status) {
  if (status != LSHMEM_OK) fprintf(stderr, "%s: %s: %s\n", what, lshmem_strerror(status), lshmem_last_error());
  return status;
}

// Fills the states of all units there are.
inline int fill_all() {
  lshmem_t state;
  int status = lshmem_get_state(self, &state);
  if (status != LSHMEM_OK) return failed("lshmem_get_state", status);
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

// A variable of this type is a unit's entry in the list, for as long as the unit is loaded. What fills the state comes
// as an argument and not as code of this class, which is the same for all units.
struct registered {
  unit u;
  explicit registered(bool (*fill)(const lshmem_t &)) : u{fill, units} {
    units = &u;
    if (self) fill_all();
  }
  registered(const registered &) = delete;
  registered &operator=(const registered &) = delete;
  ~registered() {
    unit **at = &units;
    while (*at && *at != &u) at = &(*at)->next;
    if (*at) *at = u.next;
  }
};

} // namespace lshmem_compat

#define LSHMEM_COMPAT_CALL(name, ...) lshmem_compat::failed(#name, name(lshmem_compat::self, ##__VA_ARGS__))
// For results that are returned.
#define LSHMEM_COMPAT_RESULT(T, otherwise, name, ...)                                                                  \
  T out;                                                                                                               \
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
inline int nvshmemx_init_status() {
  return lshmem_compat::self ? NVSHMEM_STATUS_IS_INITIALIZED : NVSHMEM_STATUS_NOT_INITIALIZED;
}
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

// Not needed, since all units are filled by themselves.
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
inline void *nvshmem_align(size_t alignment, size_t n) {
  LSHMEM_COMPAT_RESULT(void *, nullptr, lshmem_align, alignment, n);
}
inline void nvshmem_free(void *p) { LSHMEM_COMPAT_CALL(lshmem_free, p); }
inline void *nvshmemx_mc_ptr(nvshmem_team_t, const void *) { return nullptr; }
inline int nvshmemx_buffer_register(void *p, size_t n) { return LSHMEM_COMPAT_CALL(lshmem_buffer_register, p, n); }
inline int nvshmemx_buffer_unregister(void *p) { return LSHMEM_COMPAT_CALL(lshmem_buffer_unregister, p); }
inline void nvshmemx_buffer_unregister_all() { LSHMEM_COMPAT_CALL(lshmem_buffer_unregister_all); }
inline void *nvshmemx_buffer_register_symmetric(void *p, size_t n, int) {
  LSHMEM_COMPAT_RESULT(void *, nullptr, lshmem_buffer_register_symmetric, p, n);
}
inline int nvshmemx_buffer_unregister_symmetric(void *p, size_t) {
  return LSHMEM_COMPAT_CALL(lshmem_buffer_unregister_symmetric, p);
}

inline int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size,
                                      const nvshmem_team_config_t *, long, nvshmem_team_t *team) {
  return LSHMEM_COMPAT_CALL(lshmem_team_split_strided, parent, start, stride, size, team);
}
inline int nvshmem_team_split_2d(nvshmem_team_t parent, int xrange, const nvshmem_team_config_t *, long,
                                 nvshmem_team_t *x, const nvshmem_team_config_t *, long, nvshmem_team_t *y) {
  return LSHMEM_COMPAT_CALL(lshmem_team_split_2d, parent, xrange, x, y);
}
inline int nvshmem_team_get_config(nvshmem_team_t, nvshmem_team_config_t *config) {
  config->num_contexts = 0;
  return 0;
}
inline int nvshmem_team_translate_pe(nvshmem_team_t from, int index, nvshmem_team_t to) {
  LSHMEM_COMPAT_RESULT(int, -1, lshmem_team_translate_pe, from, index, to);
}
inline void nvshmem_team_destroy(nvshmem_team_t team) {
  if (team != NVSHMEM_TEAM_INVALID) LSHMEM_COMPAT_CALL(lshmem_team_destroy, team);
}

// ---- On streams ----

namespace lshmem_compat {
// The LSHMEM_INT8 to LSHMEM_FLOAT64 of a C++ type.
template <class T> constexpr int kind() {
  if (std::is_floating_point<T>::value) return sizeof(T) == 4 ? LSHMEM_FLOAT32 : LSHMEM_FLOAT64;
  int of_signed = sizeof(T) == 1   ? LSHMEM_INT8
                  : sizeof(T) == 2 ? LSHMEM_INT16
                  : sizeof(T) == 4 ? LSHMEM_INT32
                                   : LSHMEM_INT64;
  return of_signed + (std::is_unsigned<T>::value ? 1 : 0);
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
inline void nvshmemx_putmem_signal_on_stream(void *dst, const void *src, size_t n, uint64_t *sig, uint64_t v, int op,
                                             int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_put_signal_on_stream, dst, src, n, sig, v, op, pe, s);
}
inline void nvshmemx_putmem_signal_nbi_on_stream(void *dst, const void *src, size_t n, uint64_t *sig, uint64_t v,
                                                 int op, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_put_signal_on_stream, dst, src, n, sig, v, op, pe, s);
}
inline void nvshmemx_signal_op_on_stream(uint64_t *sig, uint64_t v, int op, int pe, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_signal_op_on_stream, sig, v, op, pe, s);
}
inline void nvshmemx_signal_wait_until_on_stream(uint64_t *sig, int cmp, uint64_t v, cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_signal_wait_until_on_stream, sig, cmp, v, s);
}
inline void nvshmemx_quiet_on_stream(cudaStream_t s) { LSHMEM_COMPAT_CALL(lshmem_quiet_on_stream, s); }
inline void nvshmemx_barrier_all_on_stream(cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_barrier_on_stream, LSHMEM_TEAM_WORLD, s);
}
inline void nvshmemx_sync_all_on_stream(cudaStream_t s) {
  LSHMEM_COMPAT_CALL(lshmem_sync_on_stream, LSHMEM_TEAM_WORLD, s);
}
inline int nvshmemx_barrier_on_stream(nvshmem_team_t t, cudaStream_t s) {
  return LSHMEM_COMPAT_CALL(lshmem_barrier_on_stream, t, s);
}
inline int nvshmemx_team_sync_on_stream(nvshmem_team_t t, cudaStream_t s) {
  return LSHMEM_COMPAT_CALL(lshmem_sync_on_stream, t, s);
}
inline int nvshmemx_sync_on_stream(nvshmem_team_t t, cudaStream_t s) { return nvshmemx_team_sync_on_stream(t, s); }

#define LSHMEM_COMPAT_STREAM(type, T)                                                                                  \
  inline void nvshmemx_##type##_put_on_stream(T *dst, const T *src, size_t n, int pe, cudaStream_t s) {                \
    nvshmemx_putmem_on_stream(dst, src, n * sizeof(T), pe, s);                                                         \
  }                                                                                                                    \
  inline void nvshmemx_##type##_get_on_stream(T *dst, const T *src, size_t n, int pe, cudaStream_t s) {                \
    nvshmemx_getmem_on_stream(dst, src, n * sizeof(T), pe, s);                                                         \
  }                                                                                                                    \
  inline int nvshmemx_##type##_broadcast_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n, int root,         \
                                                   cudaStream_t s) {                                                   \
    return LSHMEM_COMPAT_CALL(lshmem_broadcast_on_stream, t, lshmem_compat::kind<T>(), dst, src, n, root, s);          \
  }                                                                                                                    \
  inline int nvshmemx_##type##_fcollect_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n, cudaStream_t s) {  \
    return LSHMEM_COMPAT_CALL(lshmem_fcollect_on_stream, t, lshmem_compat::kind<T>(), dst, src, n, s);                 \
  }                                                                                                                    \
  inline int nvshmemx_##type##_alltoall_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n, cudaStream_t s) {  \
    return LSHMEM_COMPAT_CALL(lshmem_alltoall_on_stream, t, lshmem_compat::kind<T>(), dst, src, n, s);                 \
  }                                                                                                                    \
  LSHMEM_COMPAT_STREAM_OP(type, T, sum, LSHMEM_SUM) LSHMEM_COMPAT_STREAM_OP(type, T, prod, LSHMEM_PROD)                \
  LSHMEM_COMPAT_STREAM_OP(type, T, min, LSHMEM_MIN) LSHMEM_COMPAT_STREAM_OP(type, T, max, LSHMEM_MAX)
#define LSHMEM_COMPAT_STREAM_OP(type, T, name, op)                                                                     \
  inline int nvshmemx_##type##_##name##_reduce_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n,             \
                                                         cudaStream_t s) {                                             \
    return LSHMEM_COMPAT_CALL(lshmem_reduce_on_stream, t, lshmem_compat::kind<T>(), op, dst, src, n, s);               \
  }                                                                                                                    \
  inline int nvshmemx_##type##_##name##_reducescatter_on_stream(nvshmem_team_t t, T *dst, const T *src, size_t n,      \
                                                                cudaStream_t s) {                                      \
    return LSHMEM_COMPAT_CALL(lshmem_reducescatter_on_stream, t, lshmem_compat::kind<T>(), op, dst, src, n, s);        \
  }
LSHMEM_COMPAT_TYPES(LSHMEM_COMPAT_STREAM)
#define LSHMEM_COMPAT_STREAM_BITS(type, T)                                                                             \
  LSHMEM_COMPAT_STREAM_OP(type, T, and, LSHMEM_AND) LSHMEM_COMPAT_STREAM_OP(type, T, or, LSHMEM_OR)                    \
  LSHMEM_COMPAT_STREAM_OP(type, T, xor, LSHMEM_XOR)
LSHMEM_COMPAT_BITWISE(LSHMEM_COMPAT_STREAM_BITS)
#define LSHMEM_COMPAT_STREAM_WAIT(type, T)                                                                             \
  inline void nvshmemx_##type##_wait_until_on_stream(T *p, int cmp, T v, cudaStream_t s) {                             \
    LSHMEM_COMPAT_CALL(lshmem_wait_until_on_stream, lshmem_compat::kind<T>(), p, cmp, (uint64_t)v, s);                 \
  }
LSHMEM_COMPAT_INTEGERS(LSHMEM_COMPAT_STREAM_WAIT)
inline int nvshmemx_broadcastmem_on_stream(nvshmem_team_t t, void *dst, const void *src, size_t n, int root,
                                           cudaStream_t s) {
  return LSHMEM_COMPAT_CALL(lshmem_broadcast_on_stream, t, LSHMEM_UINT8, dst, src, n, root, s);
}
inline int nvshmemx_fcollectmem_on_stream(nvshmem_team_t t, void *dst, const void *src, size_t n, cudaStream_t s) {
  return LSHMEM_COMPAT_CALL(lshmem_fcollect_on_stream, t, LSHMEM_UINT8, dst, src, n, s);
}
inline int nvshmemx_alltoallmem_on_stream(nvshmem_team_t t, void *dst, const void *src, size_t n, cudaStream_t s) {
  return LSHMEM_COMPAT_CALL(lshmem_alltoall_on_stream, t, LSHMEM_UINT8, dst, src, n, s);
}

#ifdef __CUDA_RUNTIME_API_H__
// All CTAs of the kernel run at the same time, so that they may wait for each other.
inline int nvshmemx_collective_launch(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                      cudaStream_t s) {
  return cudaLaunchCooperativeKernel(kernel, grid, block, args, shared, s) == cudaSuccess ? 0 : NVSHMEMX_ERROR_INTERNAL;
}
inline int nvshmemx_collective_launch_query_gridsize(const void *kernel, dim3 block, void **, size_t shared,
                                                     int *grid) {
  int device, units, each, threads = (int)(block.x * block.y * block.z);
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared) != cudaSuccess)
    return NVSHMEMX_ERROR_INTERNAL;
  *grid = units * each;
  return 0;
}
#endif

#endif
