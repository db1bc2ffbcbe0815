// Atomic operations on symmetric memory: instructions at system scope where the PE's memory is mapped and takes them,
// else over its queues.
#ifndef LSHMEM_ATOMIC_CUH
#define LSHMEM_ATOMIC_CUH

#include "lshmem.cuh"

#include "lshmem_rma.cuh"

namespace lshmem {

template <class T> constexpr bool is_word = sizeof(T) == 4 || sizeof(T) == 8;

// Atomic operations over the network, where there is one.
template <class T> LSHMEM_DEVICE int network_atomic(const lshmem_t &sh, nic::amo op, T *dst, T v, int pe, int q) {
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return call(nic::atomic_to, sh.self, op, sizeof(T), dst, bits<T>(v), pe, q);
}
template <class T> LSHMEM_DEVICE T network_fetch(const lshmem_t &sh, nic::amo op, const T *dst, T v, T compare, int pe, int q) {
  if (!has_network(sh)) {
    fail(sh, LSHMEM_ERR_ARGUMENT, pe);
    return T();
  }
  return number<T>((bits_of<T>)call(nic::atomic_fetch, sh.self, op, sizeof(T), dst, bits<T>(v), bits<T>(compare), pe, q));
}

} // namespace lshmem

// Without a result: the reduction form of the instruction, which does not wait for an answer.
#define LSHMEM_AMO(name, instruction, op, check)                                                                         \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE int lshmem_qp_atomic_##name(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe, int q) {             \
    static_assert(lshmem::is_word<T> && (check), "not an atomic type: 4 or 8 bytes, floating point only for set");       \
    if (lshmem::on_word(sh, dst, pe, lshmem::for_atomics,                                                                \
                        [&](T *to) { lshmem::instruction<lshmem::scope::sys>(to, v); }))                                 \
      return LSHMEM_OK;                                                                                                  \
    return lshmem::network_atomic<T>(sh, lshmem::nic::amo::op, dst, v, pe, q);                                           \
  }                                                                                                                      \
  template <class T> LSHMEM_DEVICE int lshmem_atomic_##name(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe) {    \
    return lshmem_qp_atomic_##name<T>(sh, dst, v, pe, LSHMEM_QP_DEFAULT);                                                \
  }
LSHMEM_AMO(add, reduce_add, add, !lshmem::is_float<T>)
LSHMEM_AMO(and, reduce_and, bit_and, !lshmem::is_float<T>)
LSHMEM_AMO(or, reduce_or, bit_or, !lshmem::is_float<T>)
LSHMEM_AMO(xor, reduce_xor, bit_xor, !lshmem::is_float<T>)
LSHMEM_AMO(set, store_relaxed, set, true)
#undef LSHMEM_AMO

#define LSHMEM_AMO(name, instruction, op, check)                                                                         \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE T lshmem_qp_atomic_##name(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe, int q) {               \
    static_assert(lshmem::is_word<T> && (check), "not an atomic type: 4 or 8 bytes, floating point only for swap");      \
    T old;                                                                                                               \
    if (lshmem::on_word(sh, dst, pe, lshmem::for_atomics, [&](T *to) {                                                   \
          old = lshmem::instruction<lshmem::scope::sys>(to, v);                                                          \
        }))                                                                                                              \
      return old;                                                                                                        \
    return lshmem::network_fetch<T>(sh, lshmem::nic::amo::op, dst, v, T(), pe, q);                                       \
  }                                                                                                                      \
  template <class T> LSHMEM_DEVICE T lshmem_atomic_##name(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe) {      \
    return lshmem_qp_atomic_##name<T>(sh, dst, v, pe, LSHMEM_QP_DEFAULT);                                                \
  }
LSHMEM_AMO(fetch_add, fetch_add, fetch_add, !lshmem::is_float<T>)
LSHMEM_AMO(fetch_and, fetch_and, bit_and, !lshmem::is_float<T>)
LSHMEM_AMO(fetch_or, fetch_or, bit_or, !lshmem::is_float<T>)
LSHMEM_AMO(fetch_xor, fetch_xor, bit_xor, !lshmem::is_float<T>)
LSHMEM_AMO(swap, exchange, set, true)
#undef LSHMEM_AMO

template <class T> LSHMEM_DEVICE int lshmem_atomic_inc(const lshmem_t &sh, T *dst, int pe) {
  return lshmem_atomic_add<T>(sh, dst, 1, pe);
}

template <class T> LSHMEM_DEVICE T lshmem_atomic_fetch_inc(const lshmem_t &sh, T *dst, int pe) {
  static_assert(lshmem::is_word<T> && !lshmem::is_float<T>, "not an atomic type: an integer of 4 or 8 bytes");
  T old;
  if (lshmem::on_word(sh, dst, pe, lshmem::for_atomics,
                      [&](T *to) { old = lshmem::fetch_add<lshmem::scope::sys>(to, 1); }))
    return old;
  return lshmem::network_fetch<T>(sh, lshmem::nic::amo::increment, dst, 1, T(), pe, LSHMEM_QP_DEFAULT);
}

template <class T> LSHMEM_DEVICE T lshmem_atomic_fetch(const lshmem_t &sh, const T *src, int pe) {
  static_assert(lshmem::is_word<T>, "not an atomic type: 4 or 8 bytes");
  T old;
  if (lshmem::on_word(sh, src, pe, lshmem::for_atomics,
                      [&](const T *from) { old = lshmem::load_relaxed<lshmem::scope::sys>(from); }))
    return old;
  return lshmem::network_fetch<T>(sh, lshmem::nic::amo::fetch, src, T(), T(), pe, LSHMEM_QP_DEFAULT);
}

template <class T>
LSHMEM_DEVICE T lshmem_atomic_compare_swap(const lshmem_t &sh, T *dst, lshmem::value<T> expected, lshmem::value<T> desired,
                                           int pe) {
  static_assert(lshmem::is_word<T> && !lshmem::is_float<T>, "not an atomic type: an integer of 4 or 8 bytes");
  T old;
  if (lshmem::on_word(sh, dst, pe, lshmem::for_atomics,
                      [&](T *to) { old = lshmem::compare_swap<lshmem::scope::sys>(to, expected, desired); }))
    return old;
  return lshmem::network_fetch<T>(sh, lshmem::nic::amo::compare_swap, dst, desired, expected, pe, LSHMEM_QP_DEFAULT);
}

#endif
