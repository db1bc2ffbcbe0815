// What collective operations (lshmem_collective.cuh) move and combine: elements, words of any alignment, and lines,
// which carry data and the step's number together.
#ifndef LSHMEM_ELEMENT_CUH
#define LSHMEM_ELEMENT_CUH

#include "lshmem.cuh"

namespace lshmem {

// 16-bit floating-point numbers. Sums and products of them are rounded to 16 bits at every step.
struct half {
  uint16_t bits;
};
struct bfloat {
  uint16_t bits;
};

namespace collective {

// --- Elements ---

LSHMEM_DEVICE float widen(bfloat v) { return number<float>((uint32_t)v.bits << 16); }
LSHMEM_DEVICE bfloat narrow(float v, bfloat) {
  uint32_t b = bits<float>(v);
  if ((b & 0x7fffffff) > 0x7f800000) return bfloat{(uint16_t)(b >> 16 | 0x40)}; // not a number
  return bfloat{(uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16)};
}
#if LSHMEM_GPU
LSHMEM_DEVICE float widen(half v) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
  return r;
}
LSHMEM_DEVICE half narrow(float v, half) {
  half r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
#else
LSHMEM_DEVICE float widen(half v) {
  uint32_t sign = (uint32_t)(v.bits & 0x8000) << 16, exponent = v.bits >> 10 & 31, fraction = v.bits & 0x3ff;
  if (exponent == 31) return number<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return number<float>(sign | (exponent + 112) << 23 | fraction << 13);
  float r = (float)fraction / 16777216.f; // 2^-24 each
  return sign ? -r : r;
}
LSHMEM_DEVICE half narrow(float v, half) {
  uint32_t b = bits<float>(v), sign = b >> 16 & 0x8000, a = b & 0x7fffffff;
  if (a > 0x7f800000) return half{(uint16_t)(sign | 0x7fff)};
  if (a >= 0x477ff000) return half{(uint16_t)(sign | 0x7c00)}; // 65520 and more round to infinity
  if (a < 0x38800000) {                                        // subnormal: a multiple of 2^-24
    float scaled = number<float>(a) * 16777216.f;
    uint32_t whole = (uint32_t)scaled;
    float rest = scaled - (float)whole;
    return half{(uint16_t)(sign | (whole + (rest > .5f || (rest == .5f && (whole & 1)))))};
  }
  a += 0xfff + (a >> 13 & 1);
  return half{(uint16_t)(sign | ((a >> 13) - (112 << 10)))};
}
#endif

template <class T> constexpr bool is_small_float = equal<T, half>::yes || equal<T, bfloat>::yes;
template <class T> constexpr bool is_real = is_float<T> || is_small_float<T>;

// apply is one step of a reduction. Integers wrap. Of two numbers of which one is not a number, min and max give the
// first.
template <int Op, class T> LSHMEM_DEVICE T apply(T a, T b) {
  if constexpr (is_small_float<T>) {
    return narrow(apply<Op>(widen(a), widen(b)), T());
  } else if constexpr (Op == LSHMEM_MIN) {
    return b < a ? b : a;
  } else if constexpr (Op == LSHMEM_MAX) {
    return a < b ? b : a;
  } else if constexpr (is_float<T>) {
    return Op == LSHMEM_SUM ? a + b : a * b;
  } else {
    uint64_t x = (uint64_t)a, y = (uint64_t)b;
    if constexpr (Op == LSHMEM_SUM) return (T)(x + y);
    if constexpr (Op == LSHMEM_PROD) return (T)(x * y);
    if constexpr (Op == LSHMEM_AND) return (T)(x & y);
    if constexpr (Op == LSHMEM_OR) return (T)(x | y);
    if constexpr (Op == LSHMEM_XOR) return (T)(x ^ y);
  }
}

template <int Op, class T> LSHMEM_DEVICE uint64_t apply_word(uint64_t a, uint64_t b) {
  if constexpr (Op == LSHMEM_AND || Op == LSHMEM_OR || Op == LSHMEM_XOR) {
    return apply<Op, uint64_t>(a, b);
  } else if constexpr (sizeof(T) == 8) {
    return bits<T>(apply<Op>(number<T>(a), number<T>(b)));
  } else {
    uint64_t r = 0;
    LSHMEM_UNROLL for (uint32_t i = 0; i < 64; i += 8 * sizeof(T)) {
      T v = apply<Op>(number<T>((bits_of<T>)(a >> i)), number<T>((bits_of<T>)(b >> i)));
      r |= (uint64_t)bits<T>(v) << i;
    }
    return r;
  }
}

template <int Op, class T, int N> LSHMEM_DEVICE void apply_words(uint64_t (&a)[N], const uint64_t (&b)[N]) {
  LSHMEM_UNROLL for (int i = 0; i < N; i++) a[i] = apply_word<Op, T>(a[i], b[i]);
}

// combine applies op, one for which T has a meaning, to each element of a and b.
template <class T, int N> LSHMEM_DEVICE void combine(uint32_t op, uint64_t (&a)[N], const uint64_t (&b)[N]) {
  if (op == LSHMEM_SUM) apply_words<LSHMEM_SUM, T>(a, b);
  else if (op == LSHMEM_PROD) apply_words<LSHMEM_PROD, T>(a, b);
  else if (op == LSHMEM_MIN) apply_words<LSHMEM_MIN, T>(a, b);
  else if (op == LSHMEM_MAX) apply_words<LSHMEM_MAX, T>(a, b);
  if constexpr (!is_real<T>) {
    if (op == LSHMEM_AND) apply_words<LSHMEM_AND, T>(a, b);
    else if (op == LSHMEM_OR) apply_words<LSHMEM_OR, T>(a, b);
    else if (op == LSHMEM_XOR) apply_words<LSHMEM_XOR, T>(a, b);
  }
}

// any stands for the type of an element where that is known at run time only: op is then any_op(type, op).
struct any {};
LSHMEM_DEVICE uint32_t any_op(uint32_t type, uint32_t op) { return type << 8 | op; }

template <class T> LSHMEM_DEVICE uint64_t combine_word(uint32_t op, uint64_t a, uint64_t b) {
  uint64_t sum[1] = {a}, v[1] = {b};
  combine<T>(op, sum, v);
  return sum[0];
}

LSHMEM_OUTLINE uint64_t combine_any(uint32_t op, uint64_t a, uint64_t b) {
  uint32_t what = op & 0xff;
  switch (op >> 8) {
  case LSHMEM_INT8: return combine_word<int8_t>(what, a, b);
  case LSHMEM_UINT8: return combine_word<uint8_t>(what, a, b);
  case LSHMEM_INT16: return combine_word<int16_t>(what, a, b);
  case LSHMEM_UINT16: return combine_word<uint16_t>(what, a, b);
  case LSHMEM_INT32: return combine_word<int32_t>(what, a, b);
  case LSHMEM_UINT32: return combine_word<uint32_t>(what, a, b);
  case LSHMEM_INT64: return combine_word<int64_t>(what, a, b);
  case LSHMEM_UINT64: return combine_word<uint64_t>(what, a, b);
  case LSHMEM_FLOAT16: return combine_word<half>(what, a, b);
  case LSHMEM_BFLOAT16: return combine_word<bfloat>(what, a, b);
  case LSHMEM_FLOAT32: return combine_word<float>(what, a, b);
  default: return combine_word<double>(what, a, b);
  }
}
template <> LSHMEM_DEVICE uint64_t combine_word<any>(uint32_t op, uint64_t a, uint64_t b) { return combine_any(op, a, b); }

// --- Words of any alignment ---

template <bool Peer, class W> LSHMEM_DEVICE W load_word(const void *p) {
  if constexpr (Peer) return load_peer((const W *)p);
  else return load_local((const W *)p);
}

template <bool Peer, class W> LSHMEM_DEVICE uint64_t gather_by(const char *p, uint32_t n) {
  uint64_t v = 0;
  LSHMEM_ROLLED for (uint32_t i = 0; i < n; i += sizeof(W)) v |= (uint64_t)load_word<Peer, W>(p + i) << (8 * i);
  return v;
}

// gather reads n bytes at p, 1 to 8; those after them are 0. Loops are not unrolled: that would take registers.
template <bool Peer> LSHMEM_DEVICE uint64_t gather(const char *p, uint32_t n) {
  uint32_t a = (uint32_t)(uintptr_t)p | n;
  if ((a & 7) == 0) return load_word<Peer, uint64_t>(p);
  if ((a & 3) == 0) return gather_by<Peer, uint32_t>(p, n);
  if ((a & 1) == 0) return gather_by<Peer, uint16_t>(p, n);
  return gather_by<Peer, uint8_t>(p, n);
}

template <class W> LSHMEM_DEVICE void scatter_by(char *p, uint64_t v, uint32_t n) {
  LSHMEM_ROLLED for (uint32_t i = 0; i < n; i += sizeof(W)) store_data((W *)(p + i), (W)(v >> (8 * i)));
}

LSHMEM_DEVICE void scatter(char *p, uint64_t v, uint32_t n) {
  uint32_t a = (uint32_t)(uintptr_t)p | n;
  if ((a & 7) == 0) store_data((uint64_t *)p, v);
  else if ((a & 3) == 0) scatter_by<uint32_t>(p, v, n);
  else if ((a & 1) == 0) scatter_by<uint16_t>(p, v, n);
  else scatter_by<uint8_t>(p, v, n);
}

// --- Lines ---

// A line holds 8 bytes of data. Each half is stored and loaded as one.
LSHMEM_DEVICE void store_line(quad *p, uint64_t v, uint32_t step) {
  quad q = {(v & 0xffffffff) | (uint64_t)step << 32, v >> 32 | (uint64_t)step << 32};
#if LSHMEM_GPU
  asm volatile("st.relaxed.sys.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(q.low), "l"(q.high) : "memory");
#else
  store_relaxed<scope::sys>(&p->low, q.low);
  store_relaxed<scope::sys>(&p->high, q.high);
#endif
}

LSHMEM_DEVICE quad load_line(const quad *p) {
#if LSHMEM_GPU
  return load_peer(p);
#else
  return quad{load_relaxed<scope::sys>(&p->low), load_relaxed<scope::sys>(&p->high)};
#endif
}

// line_bytes is how many bytes of data one of n members can send to another on a channel in a step.
LSHMEM_DEVICE uint32_t line_bytes(uint32_t n) {
  uint32_t v = (uint32_t)LSHMEM_LINE_SPACE / n / (uint32_t)LSHMEM_LINE_MULTIPLE * (uint32_t)LSHMEM_LINE_MULTIPLE;
  return v < LSHMEM_LINE_MINIMUM ? (uint32_t)LSHMEM_LINE_MINIMUM : v;
}

} // namespace collective
} // namespace lshmem

#endif
