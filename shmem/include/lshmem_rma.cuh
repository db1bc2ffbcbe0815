// Copies: by loads and stores where the PE's memory is mapped, else over its queues.
#ifndef LSHMEM_RMA_CUH
#define LSHMEM_RMA_CUH

#include "lshmem.cuh"

#include "lshmem_queue.cuh"

namespace lshmem {

// far_heap is where the heap of a PE is mapped whose place is not in the state itself. Not a plain load: a compiler
// that merges it with that from the state would need a pointer to the kernel's argument.
LSHMEM_DEVICE uint64_t far_heap(const lshmem_t &sh, int pe) {
  return (uint32_t)pe < sh.pes ? load_local((const uint64_t *)sh.peers + pe) : 0;
}

LSHMEM_DEVICE uint64_t peer_heap(const lshmem_t &sh, int pe) {
  // Of the table in the state, what lies after the last PE is 0.
  return (uint32_t)pe < LSHMEM_INLINE_PEERS ? sh.peer[pe] : far_heap(sh, pe);
}

// on_word calls f with where the word p of a PE is mapped, if it is with any of the bits in needs; else it returns
// false. p is not looked at. PEs in the state's table have a way of their own, without a place where it meets another:
// this is between the end of a wait and the store that ends another PE's, and a meeting costs 80 ns.
template <class T, class F> LSHMEM_DEVICE bool on_word(const lshmem_t &sh, T *p, int pe, uint64_t needs, F f) {
  uint64_t offset = (uint64_t)p - sh.heap_base;
  if ((uint32_t)pe < LSHMEM_INLINE_PEERS) {
    uint64_t heap = sh.peer[pe];
    if (!LSHMEM_LIKELY(heap & needs)) return false;
    f((T *)((heap & ~LSHMEM_PEER_ATOMIC) + offset));
    return true;
  }
  uint64_t heap = far_heap(sh, pe);
  if (!LSHMEM_LIKELY(heap & needs)) return false;
  f((T *)((heap & ~LSHMEM_PEER_ATOMIC) + offset));
  return true;
}

// What a word may be mapped for.
constexpr uint64_t for_any = ~(uint64_t)0, for_atomics = LSHMEM_PEER_ATOMIC;

// mapped is where bytes at p of a PE's heap are mapped here, null if they are not: then the queue path decides.
template <class T> LSHMEM_DEVICE T *mapped(const lshmem_t &sh, T *p, int pe, uint64_t bytes) {
  uint64_t heap = peer_heap(sh, pe) & ~LSHMEM_PEER_ATOMIC, offset = (uint64_t)p - sh.heap_base;
  return heap && nic::in_heap(sh, offset, bytes) ? (T *)(heap + offset) : nullptr;
}

// mapped_strided is where the first of n elements of a PE's heap is mapped, null unless all of them are; or if n is 0.
template <class T> LSHMEM_DEVICE T *mapped_strided(const lshmem_t &sh, T *p, ptrdiff_t stride, size_t n, int pe) {
  T *first = mapped(sh, p, pe, sizeof(T));
  if (!first || n == 0) return nullptr;
  // How far the last one is, and how far it may be, in elements.
  uint64_t step = stride < 0 ? -(uint64_t)stride : (uint64_t)stride, offset = (uint64_t)p - sh.heap_base;
  uint64_t room = stride < 0 ? offset : sh.heap_bytes - sizeof(T) - offset;
  return multiply_high(n - 1, step) == 0 && (n - 1) * step <= room / sizeof(T) ? first : nullptr;
}

// nothing says whether a copy that found no mapped memory has none to find: it has no bytes, and its PE is one that is
// reached by loads and stores. Its addresses may be any.
LSHMEM_DEVICE bool nothing(const lshmem_t &sh, size_t bytes, int pe) { return bytes == 0 && peer_heap(sh, pe) != 0; }

// has_network says whether PEs whose memory is not mapped can be reached. Programs that know that all memory is mapped
// may define LSHMEM_P2P_ONLY, and carry no code for the network.
LSHMEM_DEVICE bool has_network(const lshmem_t &sh) {
#ifdef LSHMEM_P2P_ONLY
  (void)sh;
  return false;
#else
  return (sh.queues != 0) & (sh.self != 0); // both loads at once
#endif
}

// --- Copy between mapped memory ---

// By which loads a copy reads: of memory that only this GPU's threads write, or of a peer's.
enum class source { local, peer };

// Who copies: a kernel, or what is called by pointer and so keeps to the calling convention (call). Each has code of
// its own, so that a kernel's need not save registers: that would take longer than a short copy.
enum class caller { kernel, called };

template <source From, class W> LSHMEM_DEVICE W load_from(const W *p) {
  return From == source::peer ? load_peer(p) : load_local(p);
}

// copy_part copies words first to end of a piece of a warp's, or of a thread's if step is 1, four of them at a time:
// what is at its place index of d and s, and every step words after it.
template <uint32_t step, source From>
LSHMEM_DEVICE void copy_part(quad *d, const quad *s, uint32_t index, uint32_t first, uint32_t end) {
  LSHMEM_ROLLED for (; index < end; index += 4 * step, s += 4 * step, d += 4 * step) {
    quad v[4] = {}; // else their registers would count as taken from the function's beginning on
    LSHMEM_UNROLL for (uint32_t k = 0; k < 4; k++)
      if (index + k * step - first < end - first) v[k] = load_from<From>(s + k * step);
    LSHMEM_UNROLL for (uint32_t k = 0; k < 4; k++)
      if (index + k * step - first < end - first) store_data(d + k * step, v[k]);
  }
}

// copy_quads copies n words of 16 bytes by all members of Group. A warp takes contiguous pieces, and has a whole piece
// in flight before it stores. Pieces begin at lines of 128 bytes of the peer's memory, so that a warp's access is no
// more packets than it must be: that is worth up to 15 % of the link. With which warp of a block a copy begins depends
// on its destination: so the warps of short copies one after the other overlap.
//
// It is not inlined, for the sake of kernels that may also call the network's functions: what lives on over such a
// call, made or not, gets registers that the callee must leave alone, of which there are few. In here nothing is
// called.
template <class Group, source From, caller By> LSHMEM_OUTLINE void copy_quads(quad *dst, const quad *src, uint64_t n) {
  // Reads from a peer take longer; writes leave registers to blocks of 1024 threads.
  constexpr uint32_t unroll = From == source::peer ? 8 : 4, step = equal<Group, thread_group>::yes ? 1 : 32;
  constexpr uint32_t piece = unroll * step;
  const uint32_t size = Group::size(), index = Group::index();
  if (size < step) {
    for (uint64_t i = index; i < n; i += size) store_data(dst + i, load_from<From>(src + i));
    return;
  }
  const uint32_t teams = size / step;
  uint32_t team = index / step;
  if (team >= teams) return; // of a warp that is not whole
  uint32_t before = 0;       // words of the first piece that are not the copy's
  if (step > 1) before = (uint32_t)((From == source::peer ? (uint64_t)src : (uint64_t)dst) >> 4) & 7;
  if (teams > 1) {
    team += ((uint32_t)((uint64_t)dst >> 10) * 0x9e3779b1u >> 22) * teams >> 10;
    if (team >= teams) team -= teams;
  }
  const uint64_t stride = (uint64_t)teams * piece, begin = (uint64_t)team * piece;
  const quad *s = src - before + begin + index % step;
  quad *d = dst - before + begin + index % step;
  int64_t left = (int64_t)(n + before - begin); // words from this piece's first on, none of it if that is not positive
  if (begin != 0) before = 0;
  for (; left > 0; left -= (int64_t)stride, s += stride, d += stride, before = 0) {
    if (left >= piece && before == 0) {
      quad v[unroll];
      LSHMEM_UNROLL for (uint32_t k = 0; k < unroll; k++) v[k] = load_from<From>(s + k * step);
      LSHMEM_UNROLL for (uint32_t k = 0; k < unroll; k++) store_data(d + k * step, v[k]);
    } else {
      copy_part<step, From>(d, s, index % step, before, left < piece ? (uint32_t)left : piece);
    }
  }
}

template <class W> LSHMEM_DEVICE void copy_words(char *dst, const char *src, uint64_t bytes, uint32_t index, uint32_t size) {
  for (uint64_t at = (uint64_t)index * sizeof(W); at < bytes; at += (uint64_t)size * sizeof(W))
    store_data((W *)(dst + at), load_peer((const W *)(src + at)));
}

// copy_narrow copies bytes between addresses whose distance allows no words of 16 bytes: member index of size members.
// Its code is not there at every call.
template <caller By> LSHMEM_OUTLINE void copy_narrow(char *dst, const char *src, uint64_t bytes, uint32_t index, uint32_t size) {
  uint32_t apart = (uint32_t)((uint64_t)dst ^ (uint64_t)src);
  uint32_t width = apart & 1 ? 1 : apart & 2 ? 2 : apart & 4 ? 4 : 8;
  uint64_t head = -(uint64_t)dst & (width - 1);
  if (head > bytes) head = bytes;
  uint64_t words = (bytes - head) & ~(uint64_t)(width - 1), behind = head + words;
  for (uint64_t i = index; i < head + (bytes - behind); i += size) {
    uint64_t at = i < head ? i : behind + (i - head);
    store_data((uint8_t *)dst + at, load_peer((const uint8_t *)src + at));
  }
  if (width == 8) copy_words<uint64_t>(dst + head, src + head, words, index, size);
  else if (width == 4) copy_words<uint32_t>(dst + head, src + head, words, index, size);
  else if (width == 2) copy_words<uint16_t>(dst + head, src + head, words, index, size);
  else copy_words<uint8_t>(dst + head, src + head, words, index, size);
}

// copy_ends copies what is before and after the words of 16 bytes.
template <class Group, caller By> LSHMEM_OUTLINE void copy_ends(char *dst, const char *src, uint64_t bytes) {
  uint64_t head = -(uint64_t)dst & 15, words = (bytes - head) & ~(uint64_t)15, tail = bytes - head - words;
  if (head) copy_narrow<By>(dst, src, head, Group::index(), Group::size());
  if (tail) copy_narrow<By>(dst + head + words, src + head + words, tail, Group::index(), Group::size());
}

// copy copies in the widest words to which both addresses have the same distance.
template <class Group, source From, caller By> LSHMEM_DEVICE void copy(void *dst, const void *src, uint64_t bytes) {
  auto d = (char *)dst;
  auto s = (const char *)src;
  if ((((uint64_t)dst ^ (uint64_t)src) & 15) != 0 || bytes < 16)
    return copy_narrow<By>(d, s, bytes, Group::index(), Group::size());
  if (((uint64_t)dst | bytes) & 15) copy_ends<Group, By>(d, s, bytes);
  uint64_t head = -(uint64_t)dst & 15;
  copy_quads<Group, From, By>((quad *)(d + head), (const quad *)(s + head), (bytes - head) / 16);
}

template <class Group> LSHMEM_DEVICE void copy_to(void *dst, const void *src, size_t bytes) {
  copy<Group, source::local, caller::kernel>(dst, src, bytes);
}
template <class Group> LSHMEM_DEVICE void copy_from(void *dst, const void *src, size_t bytes) {
  copy<Group, source::peer, caller::kernel>(dst, src, bytes);
}

// --- Put and get, either way ---

template <class Group>
LSHMEM_DEVICE int putmem(const lshmem_t &sh, void *dst, const void *src, size_t bytes, bool blocking, int pe, int which) {
  if (blocking) Group::sync();
  if (void *to = mapped(sh, (char *)dst, pe, bytes); LSHMEM_LIKELY(to)) {
    copy_to<Group>(to, src, bytes);
    if (blocking) Group::sync();
    return LSHMEM_OK;
  }
  if (nothing(sh, bytes, pe)) {
    if (blocking) Group::sync();
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return call(nic::put_bytes<Group>, sh.self, dst, src, bytes, nullptr, 0, 0, blocking, pe, which);
}

template <class Group>
LSHMEM_DEVICE int getmem(const lshmem_t &sh, void *dst, const void *src, size_t bytes, bool blocking, int pe, int which) {
  if (blocking) Group::sync();
  if (const void *from = mapped(sh, (const char *)src, pe, bytes); LSHMEM_LIKELY(from)) {
    copy_from<Group>(dst, from, bytes);
    if (blocking) Group::sync();
    return LSHMEM_OK;
  }
  if (nothing(sh, bytes, pe)) {
    if (blocking) Group::sync();
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return call(nic::get_bytes<Group>, sh.self, dst, src, bytes, blocking, pe, which);
}

// A signal over mapped memory. Setting is a store; adding needs memory that takes atomic operations.
LSHMEM_DEVICE int signal_word(const lshmem_t &sh, uint64_t *sig, uint64_t v, int op, int pe, int which) {
  if (op == LSHMEM_SIGNAL_SET && on_word(sh, sig, pe, for_any, [&](uint64_t *to) { store_relaxed<scope::sys>(to, v); }))
    return LSHMEM_OK;
  if (op == LSHMEM_SIGNAL_ADD && on_word(sh, sig, pe, for_atomics, [&](uint64_t *to) { reduce_add<scope::sys>(to, v); }))
    return LSHMEM_OK;
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return call(nic::put_bytes<thread_group>, sh.self, nullptr, nullptr, 0, sig, v, op, false, pe, which);
}

template <class Group>
LSHMEM_DEVICE int putmem_signal(const lshmem_t &sh, void *dst, const void *src, size_t bytes, uint64_t *sig, uint64_t v,
                                int op, bool blocking, int pe, int which) {
  if (blocking) Group::sync();
  char *to = mapped(sh, bytes ? (char *)dst : (char *)sig, pe, bytes);
  if (!LSHMEM_LIKELY(to)) {
    if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
    return call(nic::put_bytes<Group>, sh.self, dst, src, bytes, sig, v, op, blocking, pe, which);
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
  if (T *there = mapped_strided(sh, dst, to, n, pe); LSHMEM_LIKELY(there)) {
    copy_strided<Group, source::local>((W *)there, (const W *)src, to, from, n);
    Group::sync();
    return LSHMEM_OK;
  }
  if (nothing(sh, n, pe)) {
    Group::sync();
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return call(nic::put<Group>, sh.self, strided(sh, src, dst, from, to, n), nullptr, 0, 0, true, pe, LSHMEM_QP_DEFAULT);
}
template <class Group, class T>
LSHMEM_DEVICE int iget(const lshmem_t &sh, T *dst, const T *src, ptrdiff_t to, ptrdiff_t from, size_t n, int pe) {
  using W = bits_of<T>;
  Group::sync();
  if (const T *there = mapped_strided(sh, src, from, n, pe); LSHMEM_LIKELY(there)) {
    copy_strided<Group, source::peer>((W *)dst, (const W *)there, to, from, n);
    Group::sync();
    return LSHMEM_OK;
  }
  if (nothing(sh, n, pe)) {
    Group::sync();
    return LSHMEM_OK;
  }
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return call(nic::get<Group>, sh.self, strided(sh, dst, src, to, from, n), true, pe, LSHMEM_QP_DEFAULT);
}

// --- Order and completion, either way ---

// The group meets and then every member fences: a fence covers what its thread has learned of from others, so that
// after it any member may signal that all members' stores are done. Then the queues' part, which is nothing where all
// memory is mapped. Total: also what members stored before is ordered with what they load after it.
template <class Group, bool Total> LSHMEM_DEVICE int settle(const lshmem_t &sh, nic::ordering what, int pe, int which) {
  const bool network = has_network(sh); // before the fence, which empties the first-level cache
  Group::sync();
  Total ? fence_total<scope::sys>() : fence<scope::sys>();
  return LSHMEM_LIKELY(!network) ? LSHMEM_OK : call(nic::settle<Group>, sh.self, what, pe, which);
}

// complete is the library's own quiet, before something that tells others: a store, or the end of a kernel. That needs
// no total order, which costs more.
template <class Group> LSHMEM_DEVICE int complete(const lshmem_t &sh, int pe) {
  return settle<Group, false>(sh, nic::ordering::quiet, pe, nic::all_queues);
}

} // namespace lshmem

// --- Who and where ---

LSHMEM_DEVICE int lshmem_my_pe(const lshmem_t &sh) { return (int)sh.pe; }
LSHMEM_DEVICE int lshmem_n_pes(const lshmem_t &sh) { return (int)sh.pes; }
LSHMEM_DEVICE int lshmem_check_version(const lshmem_t &sh) {
  return sh.version == LSHMEM_STATE_VERSION ? LSHMEM_OK : LSHMEM_ERR_VERSION;
}
LSHMEM_DEVICE void *lshmem_ptr(const lshmem_t &sh, const void *p, int pe) {
  return (void *)lshmem::mapped(sh, (const char *)p, pe, 1);
}

// --- Single values ---

template <class T> LSHMEM_DEVICE int lshmem_qp_p(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe, int q) {
  static_assert(sizeof(T) <= 8, "a single value has 1, 2, 4 or 8 bytes; use put");
  if (lshmem::on_word(sh, dst, pe, lshmem::for_any, [&](T *to) { lshmem::store_relaxed<lshmem::scope::sys>(to, v); }))
    return LSHMEM_OK;
  if (!lshmem::has_network(sh)) return lshmem::fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return lshmem::call(lshmem::nic::put_value, sh.self, dst, lshmem::bits<T>(v), sizeof(T), pe, q);
}
template <class T> LSHMEM_DEVICE int lshmem_p(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe) {
  return lshmem_qp_p<T>(sh, dst, v, pe, LSHMEM_QP_DEFAULT);
}
template <class T> LSHMEM_DEVICE T lshmem_qp_g(const lshmem_t &sh, const T *src, int pe, int q) {
  static_assert(sizeof(T) <= 8, "a single value has 1, 2, 4 or 8 bytes; use get");
  T v{};
  if (lshmem::on_word(sh, src, pe, lshmem::for_any, [&](const T *from) { v = lshmem::load_relaxed<lshmem::scope::sys>(from); }))
    return v;
  if (lshmem::has_network(sh))
    return lshmem::number<T>((lshmem::bits_of<T>)lshmem::call(lshmem::nic::get_value, sh.self, src, sizeof(T), pe, q));
  lshmem::fail(sh, LSHMEM_ERR_ARGUMENT, pe);
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
#define LSHMEM_ORDER(name, suffix, group, total)                                                                         \
  LSHMEM_DEVICE int lshmem_##name##suffix(const lshmem_t &sh, int pe) {                                                  \
    return lshmem::settle<lshmem::group, total>(sh, lshmem::nic::ordering::name, pe, lshmem::nic::all_queues);           \
  }                                                                                                                      \
  LSHMEM_DEVICE int lshmem_##name##suffix(const lshmem_t &sh) { return lshmem_##name##suffix(sh, LSHMEM_PE_ALL); }
#define LSHMEM_IN_SCOPE(scope, group)                            \
  LSHMEM_COPY(put, scope, group, true)                           \
  LSHMEM_COPY(put, _nbi##scope, group, false)                    \
  LSHMEM_COPY(get, scope, group, true)                           \
  LSHMEM_COPY(get, _nbi##scope, group, false)                    \
  LSHMEM_SIGNAL(scope, group, true)                              \
  LSHMEM_SIGNAL(_nbi##scope, group, false)                       \
  LSHMEM_STRIDED(iput, scope, group)                             \
  LSHMEM_STRIDED(iget, scope, group)                             \
  LSHMEM_ORDER(quiet, scope, group, true)                        \
  LSHMEM_ORDER(fence, scope, group, false)
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
  return lshmem::settle<lshmem::thread_group, true>(sh, lshmem::nic::ordering::quiet, pe, q);
}
LSHMEM_DEVICE int lshmem_qp_fence(const lshmem_t &sh, int pe, int q) {
  bool all = q == lshmem::nic::all_queues;
  return lshmem::settle<lshmem::thread_group, false>(
      sh, all ? lshmem::nic::ordering::fence : lshmem::nic::ordering::fence_queue, pe, q);
}

#endif
