// What a CUDA kernel needs of CUDA, for compilers without its headers: attributes, coordinates, barriers, atomics, timers.
#ifndef LGPU_CUDA_H
#define LGPU_CUDA_H

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define KERNEL extern "C" __global__ void

typedef unsigned int u32;
typedef unsigned long long u64;

#define tid_x __nvvm_read_ptx_sreg_tid_x()
#define tid_y __nvvm_read_ptx_sreg_tid_y()
#define ntid_x __nvvm_read_ptx_sreg_ntid_x()
#define ctaid_x __nvvm_read_ptx_sreg_ctaid_x()
#define ctaid_y __nvvm_read_ptx_sreg_ctaid_y()
#define nctaid_x __nvvm_read_ptx_sreg_nctaid_x()
#define thread_index (ctaid_x * ntid_x + tid_x)
#define thread_count (nctaid_x * ntid_x)

static __device__ inline void sync_threads() { __syncthreads(); }
static __device__ inline void fence() { __nvvm_membar_gl(); }
static __device__ inline u32 atomic_add(u32 *p, u32 v) { return __nvvm_atom_add_gen_i((int *)p, v); }
static __device__ inline float atomic_add(float *p, float v) { return __nvvm_atom_add_gen_f(p, v); }
static __device__ inline float shfl_down(float v, u32 delta) { return __nvvm_shfl_sync_down_f32(~0u, v, delta, 31); }

static __device__ inline u64 global_timer() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
static __device__ inline u64 clock_cycles() {
  u64 t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
  return t;
}
static __device__ inline u32 sm_id() {
  u32 r;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(r));
  return r;
}

#endif
