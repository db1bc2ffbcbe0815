// One kernel for each form whose instructions the test looks at.
#include "lshmem_collective.cuh"

#define KERNEL extern "C" LSHMEM_GLOBAL void

KERNEL signal_set(const lshmem_t sh, uint64_t *p, int pe) { lshmem_signal_op(sh, p, 1, LSHMEM_SIGNAL_SET, pe); }
KERNEL signal_add(const lshmem_t sh, uint64_t *p, int pe) { lshmem_signal_op(sh, p, 1, LSHMEM_SIGNAL_ADD, pe); }
KERNEL put_value(const lshmem_t sh, float *p, int pe) { lshmem_p<float>(sh, p, 1.5f, pe); }
KERNEL get_value(const lshmem_t sh, uint64_t *p, int pe) { *p = lshmem_g<uint64_t>(sh, p, pe); }
KERNEL add4(const lshmem_t sh, int *p, int pe) { lshmem_atomic_add<int>(sh, p, 3, pe); }
KERNEL add8(const lshmem_t sh, long *p, int pe) { lshmem_atomic_add<long>(sh, p, 3, pe); }
KERNEL increment(const lshmem_t sh, uint64_t *p, int pe) { lshmem_atomic_inc<uint64_t>(sh, p, pe); }
KERNEL and4(const lshmem_t sh, unsigned *p, int pe) { lshmem_atomic_and<unsigned>(sh, p, 3, pe); }
KERNEL or8(const lshmem_t sh, uint64_t *p, int pe) { lshmem_atomic_or<uint64_t>(sh, p, 3, pe); }
KERNEL xor8(const lshmem_t sh, uint64_t *p, int pe) { lshmem_atomic_xor<uint64_t>(sh, p, 3, pe); }
KERNEL set_float(const lshmem_t sh, float *p, int pe) { lshmem_atomic_set<float>(sh, p, 3, pe); }
KERNEL fetch_add4(const lshmem_t sh, int *p, int pe) { *p = lshmem_atomic_fetch_add<int>(sh, p, 3, pe); }
KERNEL fetch_add8(const lshmem_t sh, unsigned long *p, int pe) { *p = lshmem_atomic_fetch_add<unsigned long>(sh, p, 3, pe); }
KERNEL swap8(const lshmem_t sh, double *p, int pe) { *p = lshmem_atomic_swap<double>(sh, p, 3, pe); }
KERNEL compare_swap4(const lshmem_t sh, int *p, int pe) { *p = lshmem_atomic_compare_swap<int>(sh, p, 3, 4, pe); }
KERNEL fetch8(const lshmem_t sh, double *p, int pe) { *p = lshmem_atomic_fetch<double>(sh, p, pe); }
KERNEL wait(const lshmem_t sh, uint64_t *p) { lshmem_signal_wait_until(sh, p, LSHMEM_CMP_EQ, 1); }
KERNEL quiet_thread(const lshmem_t sh) { lshmem_quiet(sh); }
KERNEL quiet_block(const lshmem_t sh) { lshmem_quiet_block(sh); }
KERNEL fence_warp(const lshmem_t sh) { lshmem_fence_warp(sh); }
KERNEL barrier_thread(const lshmem_t sh) { lshmem_barrier_all(sh); }
KERNEL put_block(const lshmem_t sh, char *to, char *from, size_t n, int pe) { lshmem_putmem_block(sh, to, from, n, pe); }
KERNEL put_nbi_block(const lshmem_t sh, char *to, char *from, size_t n, int pe) { lshmem_putmem_nbi_block(sh, to, from, n, pe); }
KERNEL get_block(const lshmem_t sh, char *to, char *from, size_t n, int pe) { lshmem_getmem_block(sh, to, from, n, pe); }
KERNEL put_signal_block(const lshmem_t sh, char *to, char *from, size_t n, uint64_t *sig, int pe) {
  lshmem_putmem_signal_block(sh, to, from, n, sig, 1, LSHMEM_SIGNAL_SET, pe);
}
KERNEL put_bulk_block(const lshmem_t sh, char *to, char *from, size_t n, int pe) {
  LSHMEM_SHARED __attribute__((aligned(128))) char ring[32768];
  lshmem_putmem_bulk_block(sh, to, from, n, pe, ring, sizeof ring);
}
