// Kernels that stream through arrays.
#include "lgpu_cuda.h"

KERNEL saxpy(u32 n, float a, const float *x, float *y) {
  u32 i = thread_index;
  if (i < n) y[i] = a * x[i] + y[i];
}

KERNEL vector_add(u32 n, const float *a, const float *b, float *c) {
  for (u32 i = thread_index; i < n; i += thread_count) c[i] = a[i] + b[i];
}

static __device__ u32 pattern(u32 i, u32 seed) {
  u32 v = (i ^ seed) * 2654435761u;
  return v ^ v >> 15;
}

// fill writes a pattern that depends on index and seed.
KERNEL fill(u32 *p, u64 n, u32 seed) {
  for (u64 i = thread_index; i < n; i += thread_count) p[i] = pattern((u32)i, seed);
}

// verify counts the words that are not what fill wrote.
KERNEL verify(const u32 *p, u64 n, u32 seed, u32 *bad) {
  for (u64 i = thread_index; i < n; i += thread_count)
    if (p[i] != pattern((u32)i, seed)) atomic_add(bad, 1);
}

// chase follows a chain of indexes and stores where it ends.
KERNEL chase(const u32 *next, u32 start, u32 steps, u32 *out) {
  u32 i = start + thread_index;
  for (u32 k = 0; k < steps; k++) i = next[i];
  out[thread_index] = i;
}
