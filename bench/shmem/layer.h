// The same kernels on three back ends: lshmem, NVSHMEM, and raw pointers to peers' memory as the floor of both. One of
// BENCH_LSHMEM, BENCH_NVSHMEM and BENCH_RAW says which. Only names are translated here; what they do is the back end's.
#ifndef BENCH_LAYER_H
#define BENCH_LAYER_H

#include <stddef.h>
#include <stdint.h>

#if defined(__clang__) && !defined(__CUDA_RUNTIME_H__)
// clang without CUDA's headers: kernels for the software GPU.
#include "lshmem_platform.h"
#define BENCH_KERNEL extern "C" LSHMEM_GLOBAL void
#define BENCH_DEVICE LSHMEM_DEVICE
BENCH_DEVICE uint32_t bench_thread() { return lshmem::thread_index(); }
BENCH_DEVICE uint32_t bench_threads() { return lshmem::block_threads(); }
BENCH_DEVICE uint32_t bench_block() { return lshmem::block_index(); }
BENCH_DEVICE uint32_t bench_blocks() { return lshmem::grid_blocks(); }
BENCH_DEVICE void bench_sync() { asm volatile("bar.sync 0;" ::: "memory"); }
BENCH_DEVICE void bench_syncwarp() { asm volatile("bar.warp.sync -1;" ::: "memory"); }
#else
#ifdef BENCH_UNBOUNDED // kernels that do not say how many threads they have
#define BENCH_KERNEL extern "C" __global__ void
#else
#define BENCH_KERNEL extern "C" __global__ void __launch_bounds__(1024)
#endif
#define BENCH_DEVICE static __device__ __forceinline__
BENCH_DEVICE uint32_t bench_thread() { return threadIdx.x; }
BENCH_DEVICE uint32_t bench_threads() { return blockDim.x; }
BENCH_DEVICE uint32_t bench_block() { return blockIdx.x; }
BENCH_DEVICE uint32_t bench_blocks() { return gridDim.x; }
BENCH_DEVICE void bench_sync() { __syncthreads(); }
BENCH_DEVICE void bench_syncwarp() { __syncwarp(); }
#endif

BENCH_DEVICE uint64_t bench_nanos() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
// An add that no result of the benchmark depends on: errors counted on the own device.
BENCH_DEVICE void bench_count(uint64_t *p, uint64_t n) { asm volatile("red.gpu.add.u64 [%0], %1;" ::"l"(p), "l"(n) : "memory"); }

#if defined(BENCH_LSHMEM)

#include "lshmem.cuh"
typedef struct lshmem_state bench_state;
BENCH_DEVICE void bench_put_block(const bench_state &s, void *d, const void *p, size_t n, int pe) {
  lshmem_putmem_nbi_block(s, d, p, n, pe);
}
BENCH_DEVICE void bench_get_block(const bench_state &s, void *d, const void *p, size_t n, int pe) {
  lshmem_getmem_nbi_block(s, d, p, n, pe);
}
BENCH_DEVICE void bench_put_warp(const bench_state &s, void *d, const void *p, size_t n, int pe) {
  lshmem_putmem_nbi_warp(s, d, p, n, pe);
}
BENCH_DEVICE void bench_put(const bench_state &s, void *d, const void *p, size_t n, int pe) { lshmem_putmem_nbi(s, d, p, n, pe); }
BENCH_DEVICE void bench_p(const bench_state &s, uint64_t *d, uint64_t v, int pe) { lshmem_p<uint64_t>(s, d, v, pe); }
BENCH_DEVICE void bench_add(const bench_state &s, uint64_t *d, uint64_t v, int pe) { lshmem_atomic_add<uint64_t>(s, d, v, pe); }
BENCH_DEVICE uint64_t bench_fetch_add(const bench_state &s, uint64_t *d, uint64_t v, int pe) {
  return lshmem_atomic_fetch_add<uint64_t>(s, d, v, pe);
}
BENCH_DEVICE void bench_signal(const bench_state &s, uint64_t *d, uint64_t v, int pe) {
  lshmem_signal_op(s, d, v, LSHMEM_SIGNAL_SET, pe);
}
BENCH_DEVICE void bench_wait(const bench_state &s, uint64_t *p, uint64_t v) { lshmem_signal_wait_until(s, p, LSHMEM_CMP_GE, v); }
BENCH_DEVICE void bench_quiet(const bench_state &s) { lshmem_quiet(s); }

#elif defined(BENCH_NVSHMEM)

#include <nvshmem.h>
#include <nvshmemx.h>
struct bench_state {
  uint64_t unused;
};
BENCH_DEVICE void bench_put_block(const bench_state &, void *d, const void *p, size_t n, int pe) {
  nvshmemx_putmem_nbi_block(d, p, n, pe);
}
BENCH_DEVICE void bench_get_block(const bench_state &, void *d, const void *p, size_t n, int pe) {
  nvshmemx_getmem_nbi_block(d, p, n, pe);
}
BENCH_DEVICE void bench_put_warp(const bench_state &, void *d, const void *p, size_t n, int pe) {
  nvshmemx_putmem_nbi_warp(d, p, n, pe);
}
BENCH_DEVICE void bench_put(const bench_state &, void *d, const void *p, size_t n, int pe) { nvshmem_putmem_nbi(d, p, n, pe); }
BENCH_DEVICE void bench_p(const bench_state &, uint64_t *d, uint64_t v, int pe) { nvshmem_uint64_p(d, v, pe); }
BENCH_DEVICE void bench_add(const bench_state &, uint64_t *d, uint64_t v, int pe) { nvshmem_uint64_atomic_add(d, v, pe); }
BENCH_DEVICE uint64_t bench_fetch_add(const bench_state &, uint64_t *d, uint64_t v, int pe) {
  return nvshmem_uint64_atomic_fetch_add(d, v, pe);
}
BENCH_DEVICE void bench_signal(const bench_state &, uint64_t *d, uint64_t v, int pe) {
  nvshmemx_signal_op(d, v, NVSHMEM_SIGNAL_SET, pe);
}
BENCH_DEVICE void bench_wait(const bench_state &, uint64_t *p, uint64_t v) { nvshmem_signal_wait_until(p, NVSHMEM_CMP_GE, v); }
BENCH_DEVICE void bench_quiet(const bench_state &) { nvshmem_quiet(); }
// What a block does together with those of the other PEs.
#define BENCH_TEAM 1
enum bench_operation { bench_barrier, bench_sum, bench_fcollect, bench_alltoall, bench_broadcast, bench_put_signal, bench_operations };
BENCH_DEVICE void bench_together(int what, char *d, const char *p, uint64_t bytes, uint64_t *signal, uint64_t v, int pe) {
  switch (what) {
  case bench_barrier: nvshmemx_barrier_all_block(); break;
  case bench_sum: nvshmemx_float_sum_reduce_block(NVSHMEM_TEAM_WORLD, (float *)d, (const float *)p, bytes / 4); break;
  case bench_fcollect: nvshmemx_uint32_fcollect_block(NVSHMEM_TEAM_WORLD, (uint32_t *)d, (const uint32_t *)p, bytes / 4); break;
  case bench_alltoall: nvshmemx_uint32_alltoall_block(NVSHMEM_TEAM_WORLD, (uint32_t *)d, (const uint32_t *)p, bytes / 4); break;
  case bench_broadcast: nvshmemx_uint32_broadcast_block(NVSHMEM_TEAM_WORLD, (uint32_t *)d, (const uint32_t *)p, bytes / 4, 0); break;
  case bench_put_signal:
    nvshmemx_putmem_signal_nbi_block(d, p, bytes, signal, v, NVSHMEM_SIGNAL_SET, pe);
    if (bench_thread() == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, v);
    bench_sync();
    break;
  }
}

#elif defined(BENCH_RAW)

struct bench_state {
  uint64_t base;
  uint64_t peer[16];
};
struct alignas(16) bench_vector {
  uint64_t a, b;
};
template <class T> BENCH_DEVICE T *bench_at(const bench_state &s, const T *p, int pe) {
  return (T *)((uint64_t)p - s.base + s.peer[pe]);
}
// The plain copy: 16 bytes for each thread, eight of them at a time. n is a multiple of 16.
BENCH_DEVICE void bench_copy(void *d, const void *p, size_t n, uint32_t thread, uint32_t threads) {
  bench_vector *to = (bench_vector *)d;
  const bench_vector *from = (const bench_vector *)p;
  size_t count = n / 16, i = thread;
  for (; i + 7 * (size_t)threads < count; i += 8 * (size_t)threads) {
    bench_vector v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = from[i + k * (size_t)threads];
#pragma unroll
    for (int k = 0; k < 8; k++) to[i + k * (size_t)threads] = v[k];
  }
  for (; i < count; i += threads) to[i] = from[i];
}
BENCH_DEVICE void bench_put_block(const bench_state &s, void *d, const void *p, size_t n, int pe) {
  bench_copy(bench_at(s, (char *)d, pe), p, n, bench_thread(), bench_threads());
}
BENCH_DEVICE void bench_get_block(const bench_state &s, void *d, const void *p, size_t n, int pe) {
  bench_copy(d, bench_at(s, (const char *)p, pe), n, bench_thread(), bench_threads());
}
BENCH_DEVICE void bench_put_warp(const bench_state &s, void *d, const void *p, size_t n, int pe) {
  bench_copy(bench_at(s, (char *)d, pe), p, n, bench_thread() & 31, 32);
}
BENCH_DEVICE void bench_put(const bench_state &s, void *d, const void *p, size_t n, int pe) {
  uint64_t *to = (uint64_t *)bench_at(s, (char *)d, pe);
  for (size_t i = 0; i < n / 8; i++) to[i] = ((const uint64_t *)p)[i];
}
BENCH_DEVICE void bench_p(const bench_state &s, uint64_t *d, uint64_t v, int pe) { *(volatile uint64_t *)bench_at(s, d, pe) = v; }
BENCH_DEVICE void bench_add(const bench_state &s, uint64_t *d, uint64_t v, int pe) {
  asm volatile("red.relaxed.sys.add.u64 [%0], %1;" ::"l"(bench_at(s, d, pe)), "l"(v) : "memory");
}
BENCH_DEVICE uint64_t bench_fetch_add(const bench_state &s, uint64_t *d, uint64_t v, int pe) {
  uint64_t r;
  asm volatile("atom.relaxed.sys.add.u64 %0, [%1], %2;" : "=l"(r) : "l"(bench_at(s, d, pe)), "l"(v) : "memory");
  return r;
}
BENCH_DEVICE void bench_signal(const bench_state &s, uint64_t *d, uint64_t v, int pe) {
  *(volatile uint64_t *)bench_at(s, d, pe) = v;
}
BENCH_DEVICE void bench_wait(const bench_state &, uint64_t *p, uint64_t v) {
  while (*(volatile uint64_t *)p < v) {
  }
}
BENCH_DEVICE void bench_quiet(const bench_state &) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

#else
#error "define BENCH_LSHMEM, BENCH_NVSHMEM or BENCH_RAW"
#endif

#endif
