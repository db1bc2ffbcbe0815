// Copies: by loads and stores where the PE's memory is mapped, else over its queues.
#ifndef LSHMEM_RMA_CUH
#define LSHMEM_RMA_CUH

#include "lshmem.cuh"

#include "lshmem_queue.cuh"

#if LSHMEM_GPU
#define LSHMEM_UNROLL _Pragma("unroll")
#else
#define LSHMEM_UNROLL
#endif

namespace lshmem {

LSHMEM_DEVICE uint64_t peer_heap(const lshmem_t &sh, int pe) {
  // Of the table in the state, what lies behind the last PE is 0.
  if ((uint32_t)pe < LSHMEM_INLINE_PEERS) return sh.peer[pe];
  // Not a plain load: a compiler that merges it with the other would need a pointer to the kernel's argument.
  return (uint32_t)pe < sh.pes ? load_local((const uint64_t *)sh.peers + pe) : 0;
}

// mapped is where bytes of a PE's heap at p are mapped here, null if they are not: then the queue path decides.
template <class T> LSHMEM_DEVICE T *mapped(const lshmem_t &sh, T *p, uint64_t bytes, int pe) {
  uint64_t heap = peer_heap(sh, pe) & ~LSHMEM_PEER_ATOMIC, offset = (uint64_t)p - sh.heap_base;
  return heap && nic::in_heap(sh, offset, bytes) ? (T *)(heap + offset) : nullptr;
}

// has_network says whether PEs whose memory is not mapped can be reached. Programs that know that all memory is mapped may
// define LSHMEM_P2P_ONLY, and carry no code for the network.
LSHMEM_DEVICE bool has_network(const lshmem_t &sh) {
#ifdef LSHMEM_P2P_ONLY
  (void)sh;
  return false;
#else
  return sh.queues != 0 && sh.self != 0;
#endif
}

// --- Copy between mapped memory ---

// By which loads a copy reads: of memory that only this GPU's threads write, or of a peer's.
enum class source { local, peer };

template <source From, class W> LSHMEM_DEVICE W load_from(const W *p) {
  return From == source::peer ? load_peer(p) : load_local(p);
}

// copy_words copies n words by all members of Group. Each member has several loads in flight before it stores: on the way,
// a warp's are of one contiguous piece, which spares address translations; of what is left at the end, members take
// neighbouring words, so that all take part.
template <class Group, source From, class W> LSHMEM_DEVICE void copy_words(W *dst, const W *src, uint64_t n) {
  constexpr uint32_t unroll = 8;
  const uint32_t size = Group::size(), index = Group::index();
  const uint32_t step = size % 32 == 0 ? 32 : size;
  const uint32_t tile = size * unroll;
  uint64_t i = index / step * step * unroll + index % step;
  uint64_t base = 0;
  W v[unroll];
  for (; n - base >= tile; base += tile, i += tile) {
    LSHMEM_UNROLL for (uint32_t k = 0; k < unroll; k++) v[k] = load_from<From>(src + i + k * step);
    LSHMEM_UNROLL for (uint32_t k = 0; k < unroll; k++) store_data(dst + i + k * step, v[k]);
  }
  i = base + index;
  LSHMEM_UNROLL for (uint32_t k = 0; k < unroll; k++)
    if (i + k * size < n) v[k] = load_from<From>(src + i + k * size);
  LSHMEM_UNROLL for (uint32_t k = 0; k < unroll; k++)
    if (i + k * size < n) store_data(dst + i + k * size, v[k]);
}

// copy copies in the widest words to which both addresses have the same distance; before the first and behind the last of
// them by single bytes.
template <class Group, source From> LSHMEM_DEVICE void copy(void *dst, const void *src, uint64_t bytes) {
  uint64_t apart = (uint64_t)dst ^ (uint64_t)src;
  uint32_t log = apart & 1 ? 0 : apart & 2 ? 1 : apart & 4 ? 2 : apart & 8 ? 3 : 4;
  uint64_t head = -(uint64_t)dst & ((1u << log) - 1);
  if (head > bytes) head = bytes;
  uint64_t words = (bytes - head) >> log, behind = LSHMEM_MUTATE(24) ? bytes : head + (words << log);
  for (uint64_t i = Group::index(); i < head + (bytes - behind); i += Group::size()) {
    uint64_t at = i < head ? i : behind + (i - head);
    store_data((uint8_t *)dst + at, load_from<From>((const uint8_t *)src + at));
  }
  auto d = (char *)dst + head;
  auto s = (const char *)src + head;
  switch (log) {
  case 4: copy_words<Group, From>((quad *)d, (const quad *)s, words); break;
  case 3: copy_words<Group, From>((uint64_t *)d, (const uint64_t *)s, words); break;
  case 2: copy_words<Group, From>((uint32_t *)d, (const uint32_t *)s, words); break;
  case 1: copy_words<Group, From>((uint16_t *)d, (const uint16_t *)s, words); break;
  default: copy_words<Group, From>((uint8_t *)d, (const uint8_t *)s, words);
  }
}

template <class Group> LSHMEM_DEVICE void copy_to(void *dst, const void *src, size_t bytes) {
  copy<Group, source::local>(dst, src, bytes);
}
template <class Group> LSHMEM_DEVICE void copy_from(void *dst, const void *src, size_t bytes) {
  copy<Group, source::peer>(dst, src, bytes);
}

// --- Put and get, either way ---

template <class Group>
LSHMEM_DEVICE int putmem(const lshmem_t &sh, void *dst, const void *src, size_t bytes, bool blocking, int pe, int which) {
  if (blocking) Group::sync();
  if (void *to = mapped(sh, dst, bytes, pe)) {
    copy_to<Group>(to, src, bytes);
    if (blocking) Group::sync();
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return nic::put<Group>(sh.self, nic::contiguous(sh, src, dst, bytes), nullptr, 0, 0, blocking, pe, which);
}

template <class Group>
LSHMEM_DEVICE int getmem(const lshmem_t &sh, void *dst, const void *src, size_t bytes, bool blocking, int pe, int which) {
  if (blocking) Group::sync();
  if (const void *from = mapped(sh, src, bytes, pe)) {
    copy_from<Group>(dst, from, bytes);
    if (blocking) Group::sync();
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return nic::get<Group>(sh.self, nic::contiguous(sh, dst, src, bytes), blocking, pe, which);
}

// A signal over mapped memory. Setting is a store; adding needs memory that takes atomic operations.
LSHMEM_DEVICE int signal_word(const lshmem_t &sh, uint64_t *sig, uint64_t v, int op, int pe, int which) {
  uint64_t *to = mapped(sh, sig, sizeof *sig, pe);
  if (to && op == LSHMEM_SIGNAL_SET) {
    store_relaxed<scope::sys>(to, v);
    return LSHMEM_OK;
  }
  if (to && op == LSHMEM_SIGNAL_ADD && peer_heap(sh, pe) & LSHMEM_PEER_ATOMIC) {
    reduce_add<scope::sys>(to, v);
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return nic::put<thread_group>(sh.self, nic::transfer{}, sig, v, op, false, pe, which);
}

template <class Group>
LSHMEM_DEVICE int putmem_signal(const lshmem_t &sh, void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t v,
                                int op, bool blocking, int pe, int which) {
  if (blocking) Group::sync();
  void *to = bytes ? mapped(sh, dst, bytes, pe) : mapped(sh, sig, sizeof *sig, pe);
  if (!to) {
    if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
    return nic::put<Group>(sh.self, nic::contiguous(sh, src, dst, bytes), sig, v, op, blocking, pe, which);
  }
  if (bytes) copy_to<Group>(to, src, bytes);
  // All members' stores, which the leader has synchronized with, before the signal for everybody.
  Group::sync();
  int status = LSHMEM_OK;
  if (Group::index() == 0) {
    fence<scope::sys>();
    status = signal_word(sh, sig, v, op, pe, which);
  }
  return status;
}

// iput and iget: element by element, neighbours by neighbours.
template <class Group, source From, class W>
LSHMEM_DEVICE void copy_strided(W *dst, const W *src, ptrdiff_t to, ptrdiff_t from, size_t n) {
  for (uint64_t i = Group::index(); i < n; i += Group::size())
    store_data(dst + (ptrdiff_t)i * to, load_from<From>(src + (ptrdiff_t)i * from));
}

// span gives the bytes that n elements of a stride reach over, from the lowest address of them, which goes to *first.
template <class T> LSHMEM_DEVICE uint64_t span(T *p, ptrdiff_t stride, size_t n, T **first) {
  *first = stride < 0 && n ? p + stride * (ptrdiff_t)(n - 1) : p;
  return n ? ((stride < 0 ? -(uint64_t)stride : (uint64_t)stride) * (n - 1) + 1) * sizeof(T) : 0;
}

template <class T> LSHMEM_DEVICE T *mapped_span(const lshmem_t &sh, T *p, ptrdiff_t stride, size_t n, int pe) {
  T *first;
  uint64_t bytes = span(p, stride, n, &first);
  T *there = mapped(sh, first, bytes, pe);
  return there ? there + (p - first) : nullptr;
}

template <class T>
LSHMEM_DEVICE nic::transfer strided(const lshmem_t &sh, const T *local, const T *remote, ptrdiff_t local_stride,
                                    ptrdiff_t remote_stride, size_t n) {
  return nic::transfer{(uint64_t)local, (uint64_t)remote - sh.heap_base, sizeof(T), local_stride * (int64_t)sizeof(T),
                       remote_stride * (int64_t)sizeof(T), n, 0};
}

template <class Group, class T>
LSHMEM_DEVICE int iput(const lshmem_t &sh, T *dst, const T *src, ptrdiff_t to, ptrdiff_t from, size_t n, int pe) {
  using W = bits_of<T>;
  Group::sync();
  if (T *there = mapped_span(sh, dst, to, n, pe)) {
    copy_strided<Group, source::local>((W *)there, (const W *)src, to, from, n);
    Group::sync();
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return nic::put<Group>(sh.self, strided(sh, src, dst, from, to, n), nullptr, 0, 0, true, pe, LSHMEM_QP_DEFAULT);
}
template <class Group, class T>
LSHMEM_DEVICE int iget(const lshmem_t &sh, T *dst, const T *src, ptrdiff_t to, ptrdiff_t from, size_t n, int pe) {
  using W = bits_of<T>;
  Group::sync();
  if (const T *there = mapped_span(sh, src, from, n, pe)) {
    copy_strided<Group, source::peer>((W *)dst, (const W *)there, to, from, n);
    Group::sync();
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return nic::get<Group>(sh.self, strided(sh, dst, src, to, from, n), true, pe, LSHMEM_QP_DEFAULT);
}

// --- Order and completion, either way ---

// The group meets and then every member fences: a fence covers what its thread has learned of from others, so that after it
// any member may signal that all members' stores are done. Then the queues' part, which is nothing where all memory is mapped.
template <class Group> LSHMEM_DEVICE int settle(const lshmem_t &sh, nic::ordering what, int pe, int which) {
  if (LSHMEM_MUTATE(8) && Group::index() == 0) fence<scope::sys>();
  Group::sync();
  if (!LSHMEM_MUTATE(8)) fence<scope::sys>();
  return has_network(sh) ? nic::settle<Group>(sh.self, what, pe, which) : LSHMEM_OK;
}

} // namespace lshmem

// --- Who and where ---

LSHMEM_DEVICE int lshmem_my_pe(const lshmem_t &sh) { return (int)sh.pe; }
LSHMEM_DEVICE int lshmem_n_pes(const lshmem_t &sh) { return (int)sh.pes; }
LSHMEM_DEVICE int lshmem_check_version(const lshmem_t &sh) {
  return sh.version == LSHMEM_STATE_VERSION ? LSHMEM_OK : LSHMEM_ERR_VERSION;
}
LSHMEM_DEVICE void *lshmem_ptr(const lshmem_t &sh, const void *p, int pe) {
  return (void *)lshmem::mapped(sh, (const char *)p, 1, pe);
}

// --- Single values ---

template <class T> LSHMEM_DEVICE int lshmem_qp_p(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe, int q) {
  static_assert(sizeof(T) <= 8, "a single value has 1, 2, 4 or 8 bytes; use put");
  if (T *to = lshmem::mapped(sh, dst, sizeof(T), pe)) {
    lshmem::store_relaxed<lshmem::scope::sys>(to, v);
    return LSHMEM_OK;
  }
  if (!lshmem::has_network(sh)) return lshmem::fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return lshmem::nic::put_value<T>(sh.self, dst, v, pe, q);
}
template <class T> LSHMEM_DEVICE int lshmem_p(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe) {
  return lshmem_qp_p<T>(sh, dst, v, pe, LSHMEM_QP_DEFAULT);
}
template <class T> LSHMEM_DEVICE T lshmem_qp_g(const lshmem_t &sh, const T *src, int pe, int q) {
  static_assert(sizeof(T) <= 8, "a single value has 1, 2, 4 or 8 bytes; use get");
  if (const T *from = lshmem::mapped(sh, src, sizeof(T), pe)) return lshmem::load_relaxed<lshmem::scope::sys>(from);
  T v{};
  if (lshmem::has_network(sh)) lshmem::nic::get_value<T>(sh.self, src, &v, pe, q);
  else lshmem::fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return v;
}
template <class T> LSHMEM_DEVICE T lshmem_g(const lshmem_t &sh, const T *src, int pe) {
  return lshmem_qp_g<T>(sh, src, pe, LSHMEM_QP_DEFAULT);
}

// --- The forms of one function ---

// name(_nbi) in one scope: of bytes, of elements, and over an explicit queue.
#define LSHMEM_COPY(name, suffix, group, blocking)                                                                       \
  LSHMEM_DEVICE int lshmem_##name##mem##suffix(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe) {   \
    return lshmem::name##mem<lshmem::group>(sh, dst, src, bytes, blocking, pe, LSHMEM_QP_DEFAULT);                       \
  }                                                                                                                      \
  LSHMEM_DEVICE int lshmem_qp_##name##mem##suffix(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe,  \
                                                  int q) {                                                               \
    return lshmem::name##mem<lshmem::group>(sh, dst, src, bytes, blocking, pe, q);                                       \
  }                                                                                                                      \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE int lshmem_##name##suffix(const lshmem_t &sh, T *dst, const lshmem::value<T> *src, size_t n, int pe) {   \
    return lshmem::name##mem<lshmem::group>(sh, dst, src, n * sizeof(T), blocking, pe, LSHMEM_QP_DEFAULT);               \
  }
#define LSHMEM_SIGNAL(suffix, group, blocking)                                                                           \
  LSHMEM_DEVICE int lshmem_putmem_signal##suffix(const lshmem_t &sh, void *dst, const void *src, size_t bytes,           \
                                                 uint64_t *sig, uint64_t v, int op, int pe) {                            \
    return lshmem::putmem_signal<lshmem::group>(sh, dst, src, bytes, sig, v, op, blocking, pe, LSHMEM_QP_DEFAULT);       \
  }                                                                                                                      \
  LSHMEM_DEVICE int lshmem_qp_putmem_signal##suffix(const lshmem_t &sh, void *dst, const void *src, size_t bytes,        \
                                                    uint64_t *sig, uint64_t v, int op, int pe, int q) {                  \
    return lshmem::putmem_signal<lshmem::group>(sh, dst, src, bytes, sig, v, op, blocking, pe, q);                       \
  }                                                                                                                      \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE int lshmem_put_signal##suffix(const lshmem_t &sh, T *dst, const lshmem::value<T> *src, size_t n,         \
                                              uint64_t *sig, uint64_t v, int op, int pe) {                               \
    return lshmem::putmem_signal<lshmem::group>(sh, dst, src, n * sizeof(T), sig, v, op, blocking, pe,                   \
                                                LSHMEM_QP_DEFAULT);                                                      \
  }
#define LSHMEM_STRIDED(name, suffix, group)                                                                              \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE int lshmem_##name##suffix(const lshmem_t &sh, T *dst, const lshmem::value<T> *src, ptrdiff_t dst_stride, \
                                          ptrdiff_t src_stride, size_t n, int pe) {                                      \
    return lshmem::name<lshmem::group, T>(sh, dst, src, dst_stride, src_stride, n, pe);                                  \
  }
#define LSHMEM_ORDER(name, suffix, group)                                                                                \
  LSHMEM_DEVICE int lshmem_##name##suffix(const lshmem_t &sh, int pe) {                                                  \
    return lshmem::settle<lshmem::group>(sh, lshmem::nic::ordering::name, pe, lshmem::nic::all_queues);                  \
  }                                                                                                                      \
  LSHMEM_DEVICE int lshmem_##name##suffix(const lshmem_t &sh) { return lshmem_##name##suffix(sh, LSHMEM_PE_ALL); }
#define LSHMEM_IN_SCOPE(scope, group)                            \
  LSHMEM_COPY(put, scope, group, true)                           \
  LSHMEM_COPY(put, _nbi##scope, group, false)                    \
  LSHMEM_COPY(get, scope, group, true)                           \
  LSHMEM_COPY(get, _nbi##scope, group, false)                    \
  LSHMEM_SIGNAL(scope, group, true)                              \
  LSHMEM_SIGNAL(_nbi##scope, group, LSHMEM_MUTATE(7))            \
  LSHMEM_STRIDED(iput, scope, group)                             \
  LSHMEM_STRIDED(iget, scope, group)                             \
  LSHMEM_ORDER(quiet, scope, group) \
  LSHMEM_ORDER(fence, scope, group)
LSHMEM_IN_SCOPE(, thread_group)
LSHMEM_IN_SCOPE(_warp, warp_group)
LSHMEM_IN_SCOPE(_block, block_group)
#undef LSHMEM_COPY
#undef LSHMEM_SIGNAL
#undef LSHMEM_STRIDED
#undef LSHMEM_ORDER
#undef LSHMEM_IN_SCOPE

LSHMEM_DEVICE int lshmem_qp_signal_op(const lshmem_t &sh, uint64_t *sig, uint64_t v, int op, int pe, int q) {
  return lshmem::signal_word(sh, sig, v, op, pe, q);
}
LSHMEM_DEVICE int lshmem_signal_op(const lshmem_t &sh, uint64_t *sig, uint64_t v, int op, int pe) {
  return lshmem::signal_word(sh, sig, v, op, pe, LSHMEM_QP_DEFAULT);
}

LSHMEM_DEVICE int lshmem_qp_quiet(const lshmem_t &sh, int pe, int q) {
  return lshmem::settle<lshmem::thread_group>(sh, lshmem::nic::ordering::quiet, pe, q);
}
LSHMEM_DEVICE int lshmem_qp_fence(const lshmem_t &sh, int pe, int q) {
  bool all = q == lshmem::nic::all_queues;
  return lshmem::settle<lshmem::thread_group>(
      sh, all ? lshmem::nic::ordering::fence : lshmem::nic::ordering::fence_queue, pe, q);
}

#endif
