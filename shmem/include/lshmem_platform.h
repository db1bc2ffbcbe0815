// What lshmem's device code needs of a machine: coordinates, loads and stores by order and scope, atomic operations,
// fences, warp and block operations, time. Everything above is written once, on top of this file.
//
// Three compilers are served:
//
//   nvcc                          PTX, with CUDA's own headers
//   clang -x cuda                 PTX, with or without CUDA's headers (-nocudainc -nocudalib)
//   any C++17 compiler, as C++    CPU code: a grid is a set of operating system threads, see lshmem_cpu.h
//
// The PTX is legal from sm_70 on. Newer instructions are used if LSHMEM_SM90 is true.
//
// # Order
//
// Names say what is ordered. "relaxed" is an atomic access without order; a "plain" one may not race with another
// access to the same bytes. Atomic operations here are relaxed; what must be ordered says so by a fence before or after
// it, so that a reader finds each fence of the protocol where it acts.
//
// ThreadSanitizer does not understand fences. With it, the CPU code keeps their meaning by other means: relaxed atomic
// stores and read-modify-writes are releases as long as a fence of the thread covers all data and queue entries written
// that it knows of, its own and those of threads that it has met in a warp or block; relaxed read-modify-writes acquire
// as well. So a fence that is missing, or that comes before what it should cover, is found as a race.
#ifndef LSHMEM_PLATFORM_H
#define LSHMEM_PLATFORM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__) || defined(__CUDA__)
#define LSHMEM_GPU 1
#else
#define LSHMEM_GPU 0
#endif

#if LSHMEM_GPU
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LSHMEM_SM90 1
#else
#define LSHMEM_SM90 0
#endif
// For kernels that must also compile without CUDA's headers.
#define LSHMEM_GLOBAL __attribute__((global))
#define LSHMEM_SHARED __attribute__((shared))
#if defined(__clang__)
#define LSHMEM_DEVICE __attribute__((device)) __attribute__((always_inline)) inline
#define LSHMEM_OUTLINE __attribute__((device)) __attribute__((noinline)) inline
#else
#define LSHMEM_DEVICE __device__ __forceinline__
#define LSHMEM_OUTLINE __device__ __noinline__ inline
#endif
#else
#define LSHMEM_SM90 0
#define LSHMEM_GLOBAL
#define LSHMEM_SHARED static
#define LSHMEM_DEVICE inline
#define LSHMEM_OUTLINE inline
#if defined(__SANITIZE_THREAD__)
#define LSHMEM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LSHMEM_TSAN 1
#endif
#endif
#ifndef LSHMEM_TSAN
#define LSHMEM_TSAN 0
#endif
#include "lshmem_cpu.h"
#endif

#if LSHMEM_GPU
#define LSHMEM_UNROLL _Pragma("unroll")
#define LSHMEM_ROLLED _Pragma("unroll 1")
#else
#define LSHMEM_UNROLL
#define LSHMEM_ROLLED
#endif

// What is nearly always true: the code for the rest goes out of the way.
#define LSHMEM_LIKELY(condition) __builtin_expect(!!(condition), 1)

namespace lshmem {

// The threads that must see an order: those of the block, of the GPU, or of the whole system with its other GPUs, CPUs
// and NICs.
enum class scope { cta, gpu, sys };

// A 16-byte word. Its halves are single-copy atomic only one by one.
struct alignas(16) quad {
  uint64_t low, high;
};

// word<N>::type is the unsigned type of N bytes.
template <size_t N> struct word;
template <> struct word<1> { using type = uint8_t; };
template <> struct word<2> { using type = uint16_t; };
template <> struct word<4> { using type = uint32_t; };
template <> struct word<8> { using type = uint64_t; };
template <> struct word<16> { using type = quad; };
template <class T> using bits_of = typename word<sizeof(T)>::type;

// same<T>::type is T, where it must not take part in deduction: f(uint64_t *, value<uint64_t>) may be called with 1.
template <class T> struct same { using type = T; };
template <class T> using value = typename same<T>::type;

template <class A, class B> struct equal { static constexpr bool yes = false; };
template <class A> struct equal<A, A> { static constexpr bool yes = true; };
template <class T> constexpr bool is_float = equal<T, float>::yes || equal<T, double>::yes;

// bits is the representation of a number; number is its inverse.
template <class T> LSHMEM_DEVICE bits_of<T> bits(T v) {
  union { T from; bits_of<T> to; } u;
  u.from = v;
  return u.to;
}
template <class T> LSHMEM_DEVICE T number(bits_of<T> v) {
  union { bits_of<T> from; T to; } u;
  u.from = v;
  return u.to;
}

LSHMEM_DEVICE uint32_t swap_bytes(uint32_t v) {
#if LSHMEM_GPU
  uint32_t r;
  asm("prmt.b32 %0, %1, 0, 0x0123;" : "=r"(r) : "r"(v));
  return r;
#else
  return __builtin_bswap32(v);
#endif
}
LSHMEM_DEVICE uint64_t swap_bytes(uint64_t v) {
  return (uint64_t)swap_bytes((uint32_t)v) << 32 | swap_bytes((uint32_t)(v >> 32));
}

// multiply_high is the upper half of a product.
LSHMEM_DEVICE uint64_t multiply_high(uint64_t a, uint64_t b) {
#if LSHMEM_GPU
  uint64_t r;
  asm("mul.hi.u64 %0, %1, %2;" : "=l"(r) : "l"(a), "l"(b));
  return r;
#else
  return (uint64_t)((unsigned __int128)a * b >> 64);
#endif
}

#if LSHMEM_GPU

// --- Coordinates ---

#define LSHMEM_SPECIAL(name, reg)                         \
  LSHMEM_DEVICE uint32_t name() {                         \
    uint32_t r;                                           \
    asm("mov.u32 %0, %%" reg ";" : "=r"(r));              \
    return r;                                             \
  }
namespace special {
LSHMEM_SPECIAL(tid_x, "tid.x")
LSHMEM_SPECIAL(tid_y, "tid.y")
LSHMEM_SPECIAL(tid_z, "tid.z")
LSHMEM_SPECIAL(ntid_x, "ntid.x")
LSHMEM_SPECIAL(ntid_y, "ntid.y")
LSHMEM_SPECIAL(ntid_z, "ntid.z")
LSHMEM_SPECIAL(ctaid_x, "ctaid.x")
LSHMEM_SPECIAL(ctaid_y, "ctaid.y")
LSHMEM_SPECIAL(ctaid_z, "ctaid.z")
LSHMEM_SPECIAL(nctaid_x, "nctaid.x")
LSHMEM_SPECIAL(nctaid_y, "nctaid.y")
LSHMEM_SPECIAL(nctaid_z, "nctaid.z")
LSHMEM_SPECIAL(smid, "smid")
LSHMEM_SPECIAL(laneid, "laneid")
} // namespace special
#undef LSHMEM_SPECIAL

LSHMEM_DEVICE uint32_t thread_index() {
  return special::tid_x() + special::ntid_x() * (special::tid_y() + special::ntid_y() * special::tid_z());
}
LSHMEM_DEVICE uint32_t block_threads() { return special::ntid_x() * special::ntid_y() * special::ntid_z(); }
LSHMEM_DEVICE uint32_t block_index() {
  return special::ctaid_x() + special::nctaid_x() * (special::ctaid_y() + special::nctaid_y() * special::ctaid_z());
}
LSHMEM_DEVICE uint32_t grid_blocks() { return special::nctaid_x() * special::nctaid_y() * special::nctaid_z(); }
LSHMEM_DEVICE uint32_t lane() { return special::laneid(); }
LSHMEM_DEVICE uint32_t multiprocessor() { return special::smid(); }

// --- Time ---

// nanos is a clock in nanoseconds that all threads of a GPU share; its step can be as long as a microsecond.
LSHMEM_DEVICE uint64_t nanos() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
LSHMEM_DEVICE void sleep_nanos(uint32_t n) { asm volatile("nanosleep.u32 %0;" ::"r"(n)); }
// pause is what a poll does between two looks.
LSHMEM_DEVICE void pause() {}

// --- Loads, stores and atomic operations ---

// One instruction, with its scope between two parts of its text.
#define LSHMEM_SCOPED(S, head, tail, ...)                             \
  do {                                                                \
    if constexpr (S == scope::cta) asm volatile(head ".cta" tail __VA_ARGS__); \
    if constexpr (S == scope::gpu) asm volatile(head ".gpu" tail __VA_ARGS__); \
    if constexpr (S == scope::sys) asm volatile(head ".sys" tail __VA_ARGS__); \
  } while (0)

#define LSHMEM_LOAD(name, order)                                                                        \
  template <scope S, class T> LSHMEM_DEVICE T name(const T *p) {                                        \
    if constexpr (sizeof(T) == 8) {                                                                     \
      uint64_t v;                                                                                       \
      LSHMEM_SCOPED(S, "ld." order, ".b64 %0, [%1];", : "=l"(v) : "l"(p) : "memory");                   \
      return number<T>(v);                                                                              \
    } else if constexpr (sizeof(T) == 4) {                                                              \
      uint32_t v;                                                                                       \
      LSHMEM_SCOPED(S, "ld." order, ".b32 %0, [%1];", : "=r"(v) : "l"(p) : "memory");                   \
      return number<T>(v);                                                                              \
    } else if constexpr (sizeof(T) == 2) {                                                              \
      uint16_t v;                                                                                       \
      LSHMEM_SCOPED(S, "ld." order, ".b16 %0, [%1];", : "=h"(v) : "l"(p) : "memory");                   \
      return number<T>(v);                                                                              \
    } else {                                                                                            \
      uint32_t v;                                                                                       \
      LSHMEM_SCOPED(S, "ld." order, ".u8 %0, [%1];", : "=r"(v) : "l"(p) : "memory");                    \
      return number<T>((uint8_t)v);                                                                     \
    }                                                                                                   \
  }
LSHMEM_LOAD(load_relaxed, "relaxed")
LSHMEM_LOAD(load_acquire, "acquire")
#undef LSHMEM_LOAD

#define LSHMEM_STORE(name, order)                                                                       \
  template <scope S, class T> LSHMEM_DEVICE void name(T *p, value<T> v) {                               \
    if constexpr (sizeof(T) == 8)                                                                       \
      LSHMEM_SCOPED(S, "st." order, ".b64 [%0], %1;", ::"l"(p), "l"(bits<T>(v)) : "memory");            \
    else if constexpr (sizeof(T) == 4)                                                                  \
      LSHMEM_SCOPED(S, "st." order, ".b32 [%0], %1;", ::"l"(p), "r"(bits<T>(v)) : "memory");            \
    else if constexpr (sizeof(T) == 2)                                                                  \
      LSHMEM_SCOPED(S, "st." order, ".b16 [%0], %1;", ::"l"(p), "h"(bits<T>(v)) : "memory");            \
    else                                                                                                \
      LSHMEM_SCOPED(S, "st." order, ".u8 [%0], %1;", ::"l"(p), "r"((uint32_t)bits<T>(v)) : "memory");   \
  }
LSHMEM_STORE(store_relaxed, "relaxed")
LSHMEM_STORE(store_release, "release")
#undef LSHMEM_STORE

// fence is a release of what the thread did or saw before it and an acquire for what it does after it, for all of the
// scope. A load after it may still come before a store before it.
template <scope S> LSHMEM_DEVICE void fence() { LSHMEM_SCOPED(S, "fence.acq_rel", ";", ::: "memory"); }
// fence_total orders that, too: all such fences have one order, which all threads of the scope agree on.
template <scope S> LSHMEM_DEVICE void fence_total() { LSHMEM_SCOPED(S, "fence.sc", ";", ::: "memory"); }

// Read-modify-writes of 4 and 8 bytes, relaxed. They return the value before.
#define LSHMEM_FETCH(name, op, type)                                                                    \
  template <scope S, class T> LSHMEM_DEVICE T name(T *p, value<T> v) {                                  \
    if constexpr (sizeof(T) == 8) {                                                                     \
      uint64_t r;                                                                                       \
      LSHMEM_SCOPED(S, "atom.relaxed", op type "64 %0, [%1], %2;", : "=l"(r) : "l"(p), "l"(bits<T>(v)) : "memory"); \
      return number<T>(r);                                                                              \
    } else {                                                                                            \
      uint32_t r;                                                                                       \
      LSHMEM_SCOPED(S, "atom.relaxed", op type "32 %0, [%1], %2;", : "=r"(r) : "l"(p), "r"(bits<T>(v)) : "memory"); \
      return number<T>(r);                                                                              \
    }                                                                                                   \
  }
LSHMEM_FETCH(fetch_add, ".add", ".u")
LSHMEM_FETCH(fetch_max, ".max", ".u")
LSHMEM_FETCH(fetch_and, ".and", ".b")
LSHMEM_FETCH(fetch_or, ".or", ".b")
LSHMEM_FETCH(fetch_xor, ".xor", ".b")
LSHMEM_FETCH(exchange, ".exch", ".b")
#undef LSHMEM_FETCH

// The same without a result: a reduction, which does not wait for an answer.
#define LSHMEM_REDUCE(name, op, type)                                                                   \
  template <scope S, class T> LSHMEM_DEVICE void name(T *p, value<T> v) {                               \
    if constexpr (sizeof(T) == 8)                                                                       \
      LSHMEM_SCOPED(S, "red.relaxed", op type "64 [%0], %1;", ::"l"(p), "l"(bits<T>(v)) : "memory");    \
    else                                                                                                \
      LSHMEM_SCOPED(S, "red.relaxed", op type "32 [%0], %1;", ::"l"(p), "r"(bits<T>(v)) : "memory");    \
  }
LSHMEM_REDUCE(reduce_add, ".add", ".u")
LSHMEM_REDUCE(reduce_max, ".max", ".u")
LSHMEM_REDUCE(reduce_and, ".and", ".b")
LSHMEM_REDUCE(reduce_or, ".or", ".b")
LSHMEM_REDUCE(reduce_xor, ".xor", ".b")
#undef LSHMEM_REDUCE

template <scope S, class T> LSHMEM_DEVICE T compare_swap(T *p, value<T> expected, value<T> desired) {
  if constexpr (sizeof(T) == 8) {
    uint64_t r;
    LSHMEM_SCOPED(S, "atom.relaxed", ".cas.b64 %0, [%1], %2, %3;",
                  : "=l"(r) : "l"(p), "l"(bits<T>(expected)), "l"(bits<T>(desired)) : "memory");
    return number<T>(r);
  } else {
    uint32_t r;
    LSHMEM_SCOPED(S, "atom.relaxed", ".cas.b32 %0, [%1], %2, %3;",
                  : "=r"(r) : "l"(p), "r"(bits<T>(expected)), "r"(bits<T>(desired)) : "memory");
    return number<T>(r);
  }
}

// store_entry writes a part of a queue entry: 16 bytes, visible to a thread that sees a later release.
LSHMEM_DEVICE void store_entry(quad *p, quad v) {
  asm volatile("st.relaxed.gpu.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(v.low), "l"(v.high) : "memory");
}

// --- Data ---

// load_local reads data that this GPU's threads wrote or that an acquire has made visible; it leaves the first-level
// cache to others. load_peer reads data that another GPU may write at any time: never from the first-level cache.
#define LSHMEM_LOAD_DATA(name, by)                                                                      \
  template <class W> LSHMEM_DEVICE W name(const W *p) {                                                 \
    if constexpr (sizeof(W) == 16) {                                                                    \
      quad v;                                                                                           \
      asm volatile("ld" by ".v2.b64 {%0, %1}, [%2];" : "=l"(v.low), "=l"(v.high) : "l"(p) : "memory");  \
      return v;                                                                                         \
    } else if constexpr (sizeof(W) == 8) {                                                              \
      uint64_t v;                                                                                       \
      asm volatile("ld" by ".b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");                             \
      return v;                                                                                         \
    } else if constexpr (sizeof(W) == 4) {                                                              \
      uint32_t v;                                                                                       \
      asm volatile("ld" by ".b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");                             \
      return v;                                                                                         \
    } else if constexpr (sizeof(W) == 2) {                                                              \
      uint16_t v;                                                                                       \
      asm volatile("ld" by ".b16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");                             \
      return v;                                                                                         \
    } else {                                                                                            \
      uint32_t v;                                                                                       \
      asm volatile("ld" by ".u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");                              \
      return (W)v;                                                                                      \
    }                                                                                                   \
  }
LSHMEM_LOAD_DATA(load_local, ".L1::no_allocate")
LSHMEM_LOAD_DATA(load_peer, ".relaxed.sys")
#undef LSHMEM_LOAD_DATA

template <class W> LSHMEM_DEVICE void store_data(W *p, W v) {
  if constexpr (sizeof(W) == 16)
    asm volatile("st.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(v.low), "l"(v.high) : "memory");
  else if constexpr (sizeof(W) == 8)
    asm volatile("st.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
  else if constexpr (sizeof(W) == 4)
    asm volatile("st.b32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  else if constexpr (sizeof(W) == 2)
    asm volatile("st.b16 [%0], %1;" ::"l"(p), "h"(v) : "memory");
  else
    asm volatile("st.u8 [%0], %1;" ::"l"(p), "r"((uint32_t)v) : "memory");
}

// --- Warp and block ---

LSHMEM_DEVICE uint32_t first_lane(uint32_t mask) {
  uint32_t r;
  asm("{ .reg .b32 t; brev.b32 t, %1; clz.b32 %0, t; }" : "=r"(r) : "r"(mask));
  return r;
}
LSHMEM_DEVICE uint32_t population(uint32_t mask) {
  uint32_t r;
  asm("popc.b32 %0, %1;" : "=r"(r) : "r"(mask));
  return r;
}

// All lanes of the mask call the following with the same mask, which contains the caller. sync_warp and what is for
// blocks also order memory among the callers; shuffles and votes do not.
#if defined(__clang__)
LSHMEM_DEVICE uint32_t active_mask() {
  uint32_t r;
  asm volatile("activemask.b32 %0;" : "=r"(r));
  return r;
}
LSHMEM_DEVICE void sync_warp(uint32_t mask) { __nvvm_bar_warp_sync(mask); }
LSHMEM_DEVICE uint32_t shuffle32(uint32_t mask, uint32_t v, uint32_t from) {
  return (uint32_t)__nvvm_shfl_sync_idx_i32(mask, (int)v, (int)from, 31);
}
LSHMEM_DEVICE uint32_t ballot(uint32_t mask, bool p) { return __nvvm_vote_ballot_sync(mask, p); }
LSHMEM_DEVICE void sync_block() { __syncthreads(); }
LSHMEM_DEVICE bool all_block(bool p) { return __nvvm_bar0_and(p) != 0; }
LSHMEM_DEVICE bool any_block(bool p) { return __nvvm_bar0_or(p) != 0; }
#else
LSHMEM_DEVICE uint32_t active_mask() { return __activemask(); }
LSHMEM_DEVICE void sync_warp(uint32_t mask) { __syncwarp(mask); }
LSHMEM_DEVICE uint32_t shuffle32(uint32_t mask, uint32_t v, uint32_t from) {
  return __shfl_sync(mask, v, (int)from);
}
LSHMEM_DEVICE uint32_t ballot(uint32_t mask, bool p) { return __ballot_sync(mask, p); }
LSHMEM_DEVICE void sync_block() { __syncthreads(); }
LSHMEM_DEVICE bool all_block(bool p) { return __syncthreads_and(p) != 0; }
LSHMEM_DEVICE bool any_block(bool p) { return __syncthreads_or(p) != 0; }
#endif

#else // CPU

LSHMEM_DEVICE uint32_t thread_index() { return cpu::self.thread; }
LSHMEM_DEVICE uint32_t block_threads() { return cpu::self.threads; }
LSHMEM_DEVICE uint32_t block_index() { return cpu::self.block; }
LSHMEM_DEVICE uint32_t grid_blocks() { return cpu::self.blocks; }
LSHMEM_DEVICE uint32_t lane() { return cpu::self.thread & 31; }
LSHMEM_DEVICE uint32_t multiprocessor() { return cpu::self.block; }

LSHMEM_DEVICE uint64_t nanos() { return cpu::nanos(); }
LSHMEM_DEVICE void sleep_nanos(uint32_t n) { cpu::sleep_nanos(n); }
// Threads outnumber CPUs: a thread that waits lets the others run.
LSHMEM_DEVICE void pause() { cpu::yield(); }

// release_order is that of a relaxed atomic store, modify_order that of a read-modify-write: see "Order" above.
LSHMEM_DEVICE int release_order() {
  if (cpu::stumble) cpu::stumble();
  return LSHMEM_TSAN && cpu::self.writes.covered() ? __ATOMIC_RELEASE : __ATOMIC_RELAXED;
}
LSHMEM_DEVICE int modify_order() {
  if (cpu::stumble) cpu::stumble();
  return !LSHMEM_TSAN ? __ATOMIC_RELAXED : cpu::self.writes.covered() ? __ATOMIC_ACQ_REL : __ATOMIC_ACQUIRE;
}

// The access is of the integer type of T's width: T may be a floating-point number.
template <scope, class T> LSHMEM_DEVICE T load_relaxed(const T *p) {
  return number<T>(__atomic_load_n((const cpu::alias<bits_of<T>> *)p, __ATOMIC_RELAXED));
}
template <scope, class T> LSHMEM_DEVICE T load_acquire(const T *p) {
  return number<T>(__atomic_load_n((const cpu::alias<bits_of<T>> *)p, __ATOMIC_ACQUIRE));
}
template <scope, class T> LSHMEM_DEVICE void store_relaxed(T *p, value<T> v) {
  if (release_order() == __ATOMIC_RELEASE)
    __atomic_store_n((cpu::alias<bits_of<T>> *)p, bits<T>(v), __ATOMIC_RELEASE);
  else
    __atomic_store_n((cpu::alias<bits_of<T>> *)p, bits<T>(v), __ATOMIC_RELAXED);
}
template <scope, class T> LSHMEM_DEVICE void store_release(T *p, value<T> v) {
  __atomic_store_n((cpu::alias<bits_of<T>> *)p, bits<T>(v), __ATOMIC_RELEASE);
}
template <scope> LSHMEM_DEVICE void fence() {
  cpu::self.writes.fence();
#if !LSHMEM_TSAN
  __atomic_thread_fence(__ATOMIC_ACQ_REL); // no stronger than the GPU's
#endif
}
template <scope> LSHMEM_DEVICE void fence_total() {
  cpu::self.writes.fence();
#if !LSHMEM_TSAN
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

#define LSHMEM_FETCH(name, builtin)                                                     \
  template <scope, class T> LSHMEM_DEVICE T name(T *p, value<T> v) {                    \
    auto q = (cpu::alias<bits_of<T>> *)p;                                               \
    switch (modify_order()) {                                                           \
    case __ATOMIC_ACQ_REL: return number<T>(builtin(q, bits<T>(v), __ATOMIC_ACQ_REL));  \
    case __ATOMIC_ACQUIRE: return number<T>(builtin(q, bits<T>(v), __ATOMIC_ACQUIRE));  \
    default: return number<T>(builtin(q, bits<T>(v), __ATOMIC_RELAXED));                \
    }                                                                                   \
  }
LSHMEM_FETCH(fetch_add, __atomic_fetch_add)
LSHMEM_FETCH(fetch_and, __atomic_fetch_and)
LSHMEM_FETCH(fetch_or, __atomic_fetch_or)
LSHMEM_FETCH(fetch_xor, __atomic_fetch_xor)
LSHMEM_FETCH(exchange, __atomic_exchange_n)
#undef LSHMEM_FETCH

template <scope, class T> LSHMEM_DEVICE T compare_swap(T *p, value<T> expected, value<T> desired) {
  bits_of<T> e = bits<T>(expected);
  auto q = (cpu::alias<bits_of<T>> *)p;
  switch (modify_order()) {
  case __ATOMIC_ACQ_REL:
    __atomic_compare_exchange_n(q, &e, bits<T>(desired), false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    break;
  case __ATOMIC_ACQUIRE:
    __atomic_compare_exchange_n(q, &e, bits<T>(desired), false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
    break;
  default:
    __atomic_compare_exchange_n(q, &e, bits<T>(desired), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
  return number<T>(e);
}
template <scope S, class T> LSHMEM_DEVICE T fetch_max(T *p, value<T> v) {
  bits_of<T> old = bits<T>(load_relaxed<S>(p));
  for (;;) {
    bits_of<T> seen = bits<T>(compare_swap<S>(p, number<T>(old), old < bits<T>(v) ? v : number<T>(old)));
    if (seen == old) return number<T>(old);
    old = seen;
  }
}

template <scope S, class T> LSHMEM_DEVICE void reduce_add(T *p, value<T> v) { fetch_add<S>(p, v); }
template <scope S, class T> LSHMEM_DEVICE void reduce_max(T *p, value<T> v) { fetch_max<S>(p, v); }
template <scope S, class T> LSHMEM_DEVICE void reduce_and(T *p, value<T> v) { fetch_and<S>(p, v); }
template <scope S, class T> LSHMEM_DEVICE void reduce_or(T *p, value<T> v) { fetch_or<S>(p, v); }
template <scope S, class T> LSHMEM_DEVICE void reduce_xor(T *p, value<T> v) { fetch_xor<S>(p, v); }

LSHMEM_DEVICE void store_entry(quad *p, quad v) {
  cpu::self.writes.write();
  __atomic_store_n((cpu::alias<uint64_t> *)&p->low, v.low, __ATOMIC_RELAXED);
  __atomic_store_n((cpu::alias<uint64_t> *)&p->high, v.high, __ATOMIC_RELAXED);
}

template <class W> LSHMEM_DEVICE W load_local(const W *p) {
  W v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class W> LSHMEM_DEVICE W load_peer(const W *p) { return load_local(p); }
template <class W> LSHMEM_DEVICE void store_data(W *p, W v) {
  cpu::self.writes.write();
  __builtin_memcpy(p, &v, sizeof v);
}

LSHMEM_DEVICE uint32_t first_lane(uint32_t mask) { return (uint32_t)__builtin_ctz(mask); }
LSHMEM_DEVICE uint32_t population(uint32_t mask) { return (uint32_t)__builtin_popcount(mask); }
// Threads of the CPU do not run in step: only a program that has brought them together may say so (lshmem_cpu.h).
LSHMEM_DEVICE uint32_t active_mask() { return cpu::self.together ? cpu::self.together : 1u << lane(); }
LSHMEM_DEVICE void sync_warp(uint32_t mask) { cpu::exchange(mask, 0, nullptr); }
LSHMEM_DEVICE uint32_t shuffle32(uint32_t mask, uint32_t v, uint32_t from) {
  uint64_t all[32];
  cpu::exchange(mask, v, all);
  return (uint32_t)all[from & 31];
}
LSHMEM_DEVICE uint32_t ballot(uint32_t mask, bool p) {
  uint64_t all[32];
  cpu::exchange(mask, p, all);
  uint32_t r = 0;
  for (uint32_t i = 0; i < 32; i++)
    if (mask >> i & 1 && all[i]) r |= 1u << i;
  return r;
}
LSHMEM_DEVICE void sync_block() { cpu::count_block(false); }
LSHMEM_DEVICE bool all_block(bool p) { return cpu::count_block(!p) == 0; }
LSHMEM_DEVICE bool any_block(bool p) { return cpu::count_block(p) != 0; }

#endif

// shuffle gives every lane of the mask the value of lane from.
template <class T> LSHMEM_DEVICE T shuffle(uint32_t mask, T v, uint32_t from) {
  if constexpr (sizeof(T) == 8) {
    uint64_t b = bits<T>(v);
    uint32_t low = shuffle32(mask, (uint32_t)b, from), high = shuffle32(mask, (uint32_t)(b >> 32), from);
    return number<T>((uint64_t)high << 32 | low);
  } else {
    return number<T>((bits_of<T>)shuffle32(mask, bits<T>(v), from));
  }
}
LSHMEM_DEVICE bool all_warp(uint32_t mask, bool p) { return ballot(mask, p) == mask; }
LSHMEM_DEVICE bool any_warp(uint32_t mask, bool p) { return ballot(mask, p) != 0; }

// --- Calls that bound registers ---

// call calls f, a function that is not inlined and makes no such call itself, by a pointer that hides which it is.
// Where the assembler sees a direct call, it gives the callee other registers than what the caller and its callers
// keep, instead of saving those: a kernel then takes the sum of what all functions of a chain of calls keep. A pointer
// makes it keep to the calling convention: f and what f calls save what they use, and a kernel takes the most of its
// own and any of theirs.
template <class R, class... A> LSHMEM_DEVICE R call(R (*f)(A...), value<A>... args) {
#if LSHMEM_GPU
  asm volatile("" : "+l"(f));
#endif
  return f(args...);
}

// --- Groups ---
//
// A group is the set of threads that make one call together: each has an index below size(), and sync() and any() order
// what members did before it with what members do after it. All members make the call with equal arguments.

struct thread_group {
  static LSHMEM_DEVICE uint32_t index() { return 0; }
  static LSHMEM_DEVICE uint32_t size() { return 1; }
  static LSHMEM_DEVICE void sync() {}
  static LSHMEM_DEVICE bool any(bool p) { return p; }
};

// A warp: all of its threads; the last one of a block may have fewer than 32.
struct warp_group {
  static LSHMEM_DEVICE uint32_t index() { return lane(); }
  static LSHMEM_DEVICE uint32_t size() {
    uint32_t left = block_threads() - (thread_index() & ~31u);
    return left < 32 ? left : 32;
  }
  static LSHMEM_DEVICE uint32_t mask() { return size() == 32 ? ~0u : (1u << size()) - 1; }
  static LSHMEM_DEVICE void sync() { sync_warp(mask()); }
  static LSHMEM_DEVICE bool any(bool p) {
    sync();
    return any_warp(mask(), p);
  }
};

struct block_group {
  static LSHMEM_DEVICE uint32_t index() { return thread_index(); }
  static LSHMEM_DEVICE uint32_t size() { return block_threads(); }
  static LSHMEM_DEVICE void sync() { sync_block(); }
  static LSHMEM_DEVICE bool any(bool p) { return any_block(p); }
};

// from_leader synchronizes the group and gives every member the value of its first thread.
template <class Group> LSHMEM_DEVICE uint32_t from_leader(uint32_t v) {
  if constexpr (equal<Group, warp_group>::yes) {
    sync_warp(warp_group::mask());
    return shuffle(warp_group::mask(), v, 0);
  }
  if constexpr (equal<Group, block_group>::yes) {
    LSHMEM_SHARED uint32_t shared;
#if LSHMEM_GPU
    if (thread_index() == 0) shared = v;
    sync_block();
    v = shared;
    sync_block();
#else
    (void)shared;
    v = cpu::block_value(v);
#endif
  }
  return v;
}

} // namespace lshmem

#endif
