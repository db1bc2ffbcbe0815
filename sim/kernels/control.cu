// Kernels about control flow, time and faults.
#include "lgpu_cuda.h"

// spin runs until ns nanoseconds of device time have passed.
KERNEL spin(u64 ns) {
  u64 end = global_timer() + ns;
  while (global_timer() < end) {}
}

// spin_cycles runs until a number of cycles of the unit has passed.
KERNEL spin_cycles(u64 cycles) {
  u64 begin = clock_cycles();
  while (clock_cycles() - begin < cycles) {}
}

// wait_flag waits until a word has a value, then writes another word.
KERNEL wait_flag(volatile u32 *flag, u32 value, u32 *done) {
  while (*flag != value) {}
  if (thread_index == 0) *done = value + 1;
}

// collatz counts steps to 1: each lane leaves its loop at another time.
KERNEL collatz(u32 n, u32 *steps) {
  u32 i = thread_index;
  if (i >= n) return;
  u64 v = i + 1;
  u32 s = 0;
  while (v != 1) {
    if (v & 1) v = 3 * v + 1;
    else v >>= 1;
    s++;
  }
  steps[i] = s;
}

// spin_lock counts under a lock that all lanes of all warps want.
KERNEL spin_lock(u32 *lock, volatile u32 *count) {
  bool done = false;
  while (!done) {
    if (__nvvm_atom_cas_gen_i((int *)lock, 0, 1) == 0) {
      *count = *count + 1;
      fence();
      __nvvm_atom_xchg_gen_i((int *)lock, 0);
      done = true;
    }
  }
}

static __device__ __attribute__((noinline)) u32 fib(u32 n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

// fibonacci is recursive, to a depth that differs by lane.
KERNEL fibonacci(u32 *out) { out[thread_index] = fib(thread_index & 15); }

static __device__ __attribute__((noinline)) float twice(float x) { return x * 2; }
static __device__ __attribute__((noinline)) float square(float x) { return x * x; }

// apply calls one of two functions through a pointer.
KERNEL apply(float *x) {
  float (*f[2])(float) = {twice, square};
  u32 i = thread_index;
  x[i] = f[i & 1](x[i]);
}

// out_of_bounds writes far behind what it was given.
KERNEL out_of_bounds(u32 *p, u64 offset) { p[offset + thread_index] = 1; }

// smid records the unit that ran each block.
KERNEL smid(u32 *units) {
  if (tid_x == 0) units[ctaid_x] = sm_id();
}

__device__ u32 counter = 5;
__device__ u32 *counter_address = &counter;
__constant__ float coefficients[4] = {1, 2, 3, 4};

// count adds to a global variable through a pointer that is one too.
KERNEL count(u32 n) {
  if (thread_index < n) atomic_add(counter_address, 1);
}

// polynomial has its coefficients in constant memory.
KERNEL polynomial(u32 n, const float *x, float *y) {
  u32 i = thread_index;
  if (i >= n) return;
  float s = 0;
  for (int k = 3; k >= 0; k--) s = __nvvm_fma_rn_f(s, x[i], coefficients[k]);
  y[i] = s;
}
