// Every function of the header, so that compilers see them all.
#include "lshmem.cuh"

template <class T> LSHMEM_DEVICE void of_type(const lshmem_t &sh, T *p, int pe, int q) {
  size_t index, count, indices[2];
  int status[2] = {0, 0};
  lshmem_p<T>(sh, p, 1, pe), lshmem_qp_p<T>(sh, p, 1, pe, q);
  *p = lshmem_g<T>(sh, p, pe), *p = lshmem_qp_g<T>(sh, p, pe, q);
#define COPIES(suffix)                                                                                              \
  lshmem_put##suffix<T>(sh, p, p + 4, 2, pe), lshmem_put_nbi##suffix<T>(sh, p, p + 4, 2, pe);                          \
  lshmem_get##suffix<T>(sh, p, p + 4, 2, pe), lshmem_get_nbi##suffix<T>(sh, p, p + 4, 2, pe);                          \
  lshmem_iput##suffix<T>(sh, p, p + 4, 2, 3, 2, pe), lshmem_iget##suffix<T>(sh, p, p + 4, 2, 3, 2, pe);                \
  lshmem_put_signal##suffix<T>(sh, p, p + 4, 2, (uint64_t *)p, 1, LSHMEM_SIGNAL_SET, pe);                              \
  lshmem_put_signal_nbi##suffix<T>(sh, p, p + 4, 2, (uint64_t *)p, 1, LSHMEM_SIGNAL_ADD, pe);
  COPIES()
  COPIES(_warp)
  COPIES(_block)
  lshmem_wait_until<T>(sh, p, LSHMEM_CMP_EQ, 1), lshmem_test<T>(sh, p, LSHMEM_CMP_EQ, 1);
  lshmem_wait_until_all<T>(sh, p, 2, status, LSHMEM_CMP_EQ, 1), lshmem_wait_until_all_vector<T>(sh, p, 2, status, LSHMEM_CMP_EQ, p);
  lshmem_wait_until_any<T>(sh, p, 2, &index, status, LSHMEM_CMP_EQ, 1);
  lshmem_wait_until_any_vector<T>(sh, p, 2, &index, status, LSHMEM_CMP_EQ, p);
  lshmem_wait_until_some<T>(sh, p, 2, indices, &count, status, LSHMEM_CMP_EQ, 1);
  lshmem_wait_until_some_vector<T>(sh, p, 2, indices, &count, status, LSHMEM_CMP_EQ, p);
  lshmem_test_all<T>(sh, p, 2, status, LSHMEM_CMP_EQ, 1), lshmem_test_all_vector<T>(sh, p, 2, status, LSHMEM_CMP_EQ, p);
  lshmem_test_any<T>(sh, p, 2, status, LSHMEM_CMP_EQ, 1), lshmem_test_any_vector<T>(sh, p, 2, status, LSHMEM_CMP_EQ, p);
  lshmem_test_some<T>(sh, p, 2, indices, status, LSHMEM_CMP_EQ, 1);
  lshmem_test_some_vector<T>(sh, p, 2, indices, status, LSHMEM_CMP_EQ, p);
  lshmem_atomic_set<T>(sh, p, 1, pe), lshmem_qp_atomic_set<T>(sh, p, 1, pe, q);
  *p = lshmem_atomic_fetch<T>(sh, p, pe), *p = lshmem_atomic_swap<T>(sh, p, 1, pe), *p = lshmem_qp_atomic_swap<T>(sh, p, 1, pe, q);
  if constexpr (!lshmem::is_float<T>) {
#define AMO(op)                                                                      \
  lshmem_atomic_##op<T>(sh, p, 1, pe), lshmem_qp_atomic_##op<T>(sh, p, 1, pe, q);     \
  *p = lshmem_atomic_fetch_##op<T>(sh, p, 1, pe), *p = lshmem_qp_atomic_fetch_##op<T>(sh, p, 1, pe, q);
    AMO(add)
    AMO(and)
    AMO(or)
    AMO(xor)
    lshmem_atomic_inc<T>(sh, p, pe), *p = lshmem_atomic_fetch_inc<T>(sh, p, pe);
    *p = lshmem_atomic_compare_swap<T>(sh, p, 1, 2, pe);
  }
}

#define TYPE(T, name) \
  extern "C" LSHMEM_GLOBAL void every_##name(const lshmem_t sh, T *p, int pe, int q) { of_type<T>(sh, p, pe, q); }
TYPE(int, int)
TYPE(double, double)
TYPE(uint64_t, uint64)

extern "C" LSHMEM_GLOBAL void every(const lshmem_t sh, char *to, const char *from, size_t n, uint64_t *sig, int pe, int q) {
  *to = (char)lshmem_my_pe(sh) + (char)lshmem_n_pes(sh) + (char)lshmem_check_version(sh);
  *to = *(char *)lshmem_ptr(sh, to, pe);
  lshmem_put<lshmem::quad>(sh, (lshmem::quad *)to, (const lshmem::quad *)from, n, pe);
  lshmem_get_block<lshmem::quad>(sh, (lshmem::quad *)to, (const lshmem::quad *)from, n, pe);
  lshmem_iput<lshmem::quad>(sh, (lshmem::quad *)to, (const lshmem::quad *)from, 2, 3, n, pe);
  lshmem_p<int8_t>(sh, (int8_t *)to, 1, pe), lshmem_p<int16_t>(sh, (int16_t *)to, 1, pe);
#define BYTES(suffix)                                                                                            \
  lshmem_putmem##suffix(sh, to, from, n, pe), lshmem_putmem_nbi##suffix(sh, to, from, n, pe);                       \
  lshmem_getmem##suffix(sh, to, from, n, pe), lshmem_getmem_nbi##suffix(sh, to, from, n, pe);                       \
  lshmem_qp_putmem##suffix(sh, to, from, n, pe, q), lshmem_qp_putmem_nbi##suffix(sh, to, from, n, pe, q);           \
  lshmem_qp_getmem##suffix(sh, to, from, n, pe, q), lshmem_qp_getmem_nbi##suffix(sh, to, from, n, pe, q);           \
  lshmem_putmem_signal##suffix(sh, to, from, n, sig, 1, LSHMEM_SIGNAL_SET, pe);                                     \
  lshmem_putmem_signal_nbi##suffix(sh, to, from, n, sig, 1, LSHMEM_SIGNAL_SET, pe);                                 \
  lshmem_qp_putmem_signal##suffix(sh, to, from, n, sig, 1, LSHMEM_SIGNAL_SET, pe, q);                               \
  lshmem_qp_putmem_signal_nbi##suffix(sh, to, from, n, sig, 1, LSHMEM_SIGNAL_SET, pe, q);                           \
  lshmem_fence##suffix(sh), lshmem_fence##suffix(sh, pe), lshmem_quiet##suffix(sh), lshmem_quiet##suffix(sh, pe);
  BYTES()
  BYTES(_warp)
  BYTES(_block)
  LSHMEM_SHARED __attribute__((aligned(128))) char ring[16384];
  lshmem_putmem_bulk_block(sh, to, from, n, pe, ring, sizeof ring), lshmem_getmem_bulk_block(sh, to, from, n, pe, ring, sizeof ring);
  lshmem_signal_op(sh, sig, 1, LSHMEM_SIGNAL_SET, pe), lshmem_qp_signal_op(sh, sig, 1, LSHMEM_SIGNAL_SET, pe, q);
  *sig = lshmem_signal_fetch(sh, sig);
  lshmem_signal_wait_until(sh, sig, LSHMEM_CMP_GE, 1);
  lshmem_qp_quiet(sh, pe, q), lshmem_qp_fence(sh, pe, q);
}
