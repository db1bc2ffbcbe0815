// Operations on one PE, however it is reached, each complete when its kernel ends, which orders it with all that comes
// later in the stream.
#define LSHMEM_DIRECT 0
#include "launch.h"

LSHMEM_DEVICE int queue_of(const struct lshmem_rma &a) { return (int)a.queue; }

LSHMEM_KERNEL(512) lshmem_kernel_put(const struct lshmem_rma a) {
  lshmem_qp_putmem_block(a.state, (void *)a.dest, (const void *)a.source, a.bytes, (int)a.pe, queue_of(a));
}
LSHMEM_KERNEL(512) lshmem_kernel_get(const struct lshmem_rma a) {
  lshmem_qp_getmem_block(a.state, (void *)a.dest, (const void *)a.source, a.bytes, (int)a.pe, queue_of(a));
}
LSHMEM_KERNEL(512) lshmem_kernel_put_signal(const struct lshmem_rma a) {
  lshmem_qp_putmem_signal_block(a.state, (void *)a.dest, (const void *)a.source, a.bytes, (uint64_t *)a.signal, a.value, (int)a.code,
                                (int)a.pe, queue_of(a));
}

template <class T> LSHMEM_DEVICE void strided_put(const struct lshmem_rma &a) {
  lshmem_iput_block<T>(a.state, (T *)a.dest, (const T *)a.source, a.dest_stride, a.source_stride, a.bytes / sizeof(T), (int)a.pe);
}
template <class T> LSHMEM_DEVICE void strided_get(const struct lshmem_rma &a) {
  lshmem_iget_block<T>(a.state, (T *)a.dest, (const T *)a.source, a.dest_stride, a.source_stride, a.bytes / sizeof(T), (int)a.pe);
}

// Calls f<T>(a) for the unsigned integer of a.type's size.
#define LSHMEM_BY_SIZE(f)                                                     \
  do {                                                                        \
    switch (a.type) {                                                         \
    case LSHMEM_INT8:                                                         \
    case LSHMEM_UINT8: return f<uint8_t>(a);                                  \
    case LSHMEM_INT16:                                                        \
    case LSHMEM_UINT16:                                                       \
    case LSHMEM_FLOAT16:                                                      \
    case LSHMEM_BFLOAT16: return f<uint16_t>(a);                              \
    case LSHMEM_INT32:                                                        \
    case LSHMEM_UINT32:                                                       \
    case LSHMEM_FLOAT32: return f<uint32_t>(a);                               \
    default: return f<uint64_t>(a);                                           \
    }                                                                         \
  } while (0)

// The same for those that have atomic operations.
#define LSHMEM_BY_WIDTH(f)                                                    \
  do {                                                                        \
    if (a.type == LSHMEM_INT32 || a.type == LSHMEM_UINT32 || a.type == LSHMEM_FLOAT32) f<uint32_t>(a); \
    else f<uint64_t>(a);                                                      \
  } while (0)

LSHMEM_KERNEL(512) lshmem_kernel_iput(const struct lshmem_rma a) { LSHMEM_BY_SIZE(strided_put); }
LSHMEM_KERNEL(512) lshmem_kernel_iget(const struct lshmem_rma a) { LSHMEM_BY_SIZE(strided_get); }

LSHMEM_KERNEL(32) lshmem_kernel_signal(const struct lshmem_rma a) {
  if (lshmem::thread_index() != 0) return;
  // What came before it in the stream is there before it.
  if (lshmem_fence(a.state, (int)a.pe) == LSHMEM_OK)
    lshmem_qp_signal_op(a.state, (uint64_t *)a.signal, a.value, (int)a.code, (int)a.pe, queue_of(a));
  lshmem::complete<lshmem::thread_group>(a.state, (int)a.pe);
}

// The unsigned forms serve for signed integers too: no operation here depends on the sign.
template <class T> LSHMEM_DEVICE void atomic(const struct lshmem_rma &a) {
  T *p = (T *)a.dest;
  T v = lshmem::number<T>((lshmem::bits_of<T>)a.value);
  int pe = (int)a.pe;
  switch (a.code) {
  case LSHMEM_AMO_SET: lshmem_atomic_set<T>(a.state, p, v, pe); break;
  case LSHMEM_AMO_ADD: lshmem_atomic_add<T>(a.state, p, v, pe); break;
  case LSHMEM_AMO_AND: lshmem_atomic_and<T>(a.state, p, v, pe); break;
  case LSHMEM_AMO_OR: lshmem_atomic_or<T>(a.state, p, v, pe); break;
  case LSHMEM_AMO_XOR: lshmem_atomic_xor<T>(a.state, p, v, pe); break;
  default: lshmem_atomic_compare_swap<T>(a.state, p, (T)a.compare, v, pe); break;
  }
  lshmem::complete<lshmem::thread_group>(a.state, pe);
}
template <class T> LSHMEM_DEVICE void fetch(const struct lshmem_rma &a) {
  T *p = (T *)a.dest, old;
  T v = lshmem::number<T>((lshmem::bits_of<T>)a.value);
  int pe = (int)a.pe;
  switch (a.code) {
  case LSHMEM_AMO_SET: old = lshmem_atomic_swap<T>(a.state, p, v, pe); break;
  case LSHMEM_AMO_ADD: old = lshmem_atomic_fetch_add<T>(a.state, p, v, pe); break;
  case LSHMEM_AMO_AND: old = lshmem_atomic_fetch_and<T>(a.state, p, v, pe); break;
  case LSHMEM_AMO_OR: old = lshmem_atomic_fetch_or<T>(a.state, p, v, pe); break;
  case LSHMEM_AMO_XOR: old = lshmem_atomic_fetch_xor<T>(a.state, p, v, pe); break;
  default: old = lshmem_atomic_compare_swap<T>(a.state, p, (T)a.compare, v, pe); break;
  }
  lshmem::store_data((T *)a.source, old);
}

LSHMEM_KERNEL(32) lshmem_kernel_atomic(const struct lshmem_rma a) {
  if (lshmem::thread_index() == 0) LSHMEM_BY_WIDTH(atomic);
}
LSHMEM_KERNEL(32) lshmem_kernel_fetch(const struct lshmem_rma a) {
  if (lshmem::thread_index() == 0) LSHMEM_BY_WIDTH(fetch);
}

LSHMEM_KERNEL(32) lshmem_kernel_quiet(const struct lshmem_rma a) {
  lshmem::complete<lshmem::warp_group>(a.state, (int)a.pe);
}
