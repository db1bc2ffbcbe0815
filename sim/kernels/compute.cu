// Kernels that cooperate or compute.
#include "lgpu_cuda.h"

// compute does iters dependent fused multiply-adds in each thread.
KERNEL compute(u32 iters, float *out) {
  float x = (float)thread_index * 0.001f, y = 0.5f;
  for (u32 i = 0; i < iters; i++) y = __nvvm_fma_rn_f(y, 0.999f, x);
  out[thread_index] = y;
}

// reduce_sum adds n values: in shared memory within a block, by an atomic across blocks. Blocks have 256 threads.
KERNEL reduce_sum(u32 n, const float *x, float *sum) {
  __shared__ float part[256];
  float s = 0;
  for (u32 i = thread_index; i < n; i += thread_count) s += x[i];
  part[tid_x] = s;
  sync_threads();
  for (u32 d = 128; d > 0; d >>= 1) {
    if (tid_x < d) part[tid_x] += part[tid_x + d];
    sync_threads();
  }
  if (tid_x == 0) atomic_add(sum, part[0]);
}

// shuffle_sum is reduce_sum without shared memory: each warp adds its own.
KERNEL shuffle_sum(u32 n, const float *x, float *sum) {
  float s = 0;
  for (u32 i = thread_index; i < n; i += thread_count) s += x[i];
  for (u32 d = 16; d > 0; d >>= 1) s += shfl_down(s, d);
  if ((tid_x & 31) == 0) atomic_add(sum, s);
}

// matmul is c = a * b for n x n matrices, n a multiple of 16, in blocks of 16 x 16.
KERNEL matmul(u32 n, const float *a, const float *b, float *c) {
  __shared__ float as[16][16], bs[16][16];
  u32 row = ctaid_y * 16 + tid_y, col = ctaid_x * 16 + tid_x;
  float s = 0;
  for (u32 t = 0; t < n; t += 16) {
    as[tid_y][tid_x] = a[row * n + t + tid_x];
    bs[tid_y][tid_x] = b[(t + tid_y) * n + col];
    sync_threads();
    for (u32 k = 0; k < 16; k++) s = __nvvm_fma_rn_f(as[tid_y][k], bs[k][tid_x], s);
    sync_threads();
  }
  c[row * n + col] = s;
}

// histogram counts bytes in shared memory, then in global memory.
KERNEL histogram(u32 n, const unsigned char *data, u32 *bins) {
  __shared__ u32 local[256];
  for (u32 i = tid_x; i < 256; i += ntid_x) local[i] = 0;
  sync_threads();
  for (u32 i = thread_index; i < n; i += thread_count) atomic_add(&local[data[i]], 1);
  sync_threads();
  for (u32 i = tid_x; i < 256; i += ntid_x)
    if (local[i]) atomic_add(&bins[i], local[i]);
}

// dynamic_reverse reverses each block's values through dynamic shared memory.
KERNEL dynamic_reverse(u32 *p) {
  extern __shared__ u32 buf[];
  buf[tid_x] = p[thread_index];
  sync_threads();
  p[thread_index] = buf[ntid_x - 1 - tid_x];
}
