// The load and store path on real threads: what is copied, every atomic operation, waits and their ends, and, under
// ThreadSanitizer, that data are visible where the library says so.
#include "check.h"

#include <string>

static char pattern(size_t i, unsigned seed) { return (char)(i * 7 + (i >> 8) * 3 + seed * 31 + 1); }

// One put and one get of n bytes between PEs 0 and 1 by all threads of a group; the bytes around them stay.
template <class Group> static void copy_once(job &j, size_t n, size_t to, size_t from, unsigned seed) {
  const lshmem_t &sh = j.pe[0];
  char *src = j.at<char>(0, 256 + from), *dst = j.at<char>(0, 65536 + to), *there = j.at<char>(1, 65536 + to);
  char *back = j.at<char>(0, 131072 + from);
  if (Group::index() == 0) {
    for (size_t i = 0; i < n; i++) src[i] = pattern(i, seed);
    memset(there - 64, 0x5a, n + 128);
    memset(back - 64, 0x5b, n + 128);
  }
  int status;
  if constexpr (lshmem::equal<Group, lshmem::thread_group>::yes) {
    status = lshmem_putmem(sh, dst, src, n, 1) | lshmem_getmem(sh, back, dst, n, 1);
  } else if constexpr (lshmem::equal<Group, lshmem::warp_group>::yes) {
    status = lshmem_putmem_warp(sh, dst, src, n, 1) | lshmem_getmem_warp(sh, back, dst, n, 1);
  } else {
    status = lshmem_putmem_block(sh, dst, src, n, 1) | lshmem_getmem_block(sh, back, dst, n, 1);
  }
  if (Group::index() == 0) {
    bool good = status == LSHMEM_OK;
    for (size_t i = 0; i < n; i++) good = good && there[i] == pattern(i, seed) && back[i] == pattern(i, seed);
    for (size_t i = 0; i < 64; i++)
      good = good && there[-1 - (int)i] == 0x5a && there[n + i] == 0x5a && back[-1 - (int)i] == 0x5b && back[n + i] == 0x5b;
    CHECK(good, "%zu bytes by %u threads, from %zu to %zu, status %d", n, Group::size(), from, to, status);
  }
}

static void copies() {
  job j(2);
  for (size_t n = 0; n <= 4096; n++)
    for (size_t k = 0; k < 5; k++) copy_once<lshmem::thread_group>(j, n, n * 5 % 16, (n * 5 + (k ? 1u << k >> 1 : 0)) % 16, (unsigned)n);
  for (size_t n = 0; n <= 70; n++)
    for (size_t to = 0; to < 16; to++)
      for (size_t from = 0; from < 16; from++) copy_once<lshmem::thread_group>(j, n, to, from, (unsigned)(to + from));
  lshmem::cpu::launch(1, 32, [&] {
    for (size_t n = 0; n <= 4096; n += n < 600 ? 1 : 13)
      copy_once<lshmem::warp_group>(j, n, n % 16, n % 3 ? n % 16 : n * 7 % 16, (unsigned)n);
  });
  for (uint32_t threads : {20u, 96u}) {
    lshmem::cpu::launch(1, threads, [&] {
      for (size_t n = 0; n <= 4096; n += n < 64 ? 1 : 61)
        copy_once<lshmem::block_group>(j, n, n % 16, n % 3 ? n % 16 : n * 7 % 16, (unsigned)n);
      // More than all warps have in flight, from and to any part of a line.
      for (size_t k = 0; k < 24; k++) copy_once<lshmem::block_group>(j, 4000 + 1789 * k, 3 + 16 * (k % 8), 3 + 16 * (k * 5 % 8), (unsigned)k);
    });
  }
}

template <class T> static void elements(job &j) {
  const lshmem_t &sh = j.pe[0];
  T src[64], back[64];
  for (int i = 0; i < 64; i++) src[i] = (T)(i + 1);
  T *dst = j.at<T>(0, 1024), *there = j.at<T>(1, 1024);
  for (ptrdiff_t to : {1, 3, -2})
    for (ptrdiff_t from : {1, 2, -1}) {
      memset(j.heap[1] + 1024, 0, 4096);
      memset(back, 0, sizeof back);
      T *d = dst + 32, *t = there + 32;
      const T *s = src + 20;
      CHECK(lshmem_iput<T>(sh, d, s, to, from, 8, 1) == LSHMEM_OK, "iput");
      CHECK(lshmem_iget<T>(sh, back + 20, d, from, to, 8, 1) == LSHMEM_OK, "iget");
      for (int i = 0; i < 8; i++)
        CHECK(t[i * to] == s[i * from] && back[20 + i * from] == s[i * from], "%zu-byte elements, %td from %td", sizeof(T), to, from);
    }
  lshmem_p<T>(sh, dst, (T)77, 1);
  CHECK(there[0] == (T)77 && lshmem_g<T>(sh, dst, 1) == (T)77, "p and g of %zu bytes", sizeof(T));
  CHECK(lshmem_put<T>(sh, dst, src, 9, 1) == LSHMEM_OK && memcmp(there, src, 9 * sizeof(T)) == 0, "put");
  CHECK(lshmem_get_nbi<T>(sh, back, dst, 9, 1) == LSHMEM_OK && memcmp(back, src, 9 * sizeof(T)) == 0, "get");
}

template <class T> static void atomics(job &j, const char *name) {
  const lshmem_t &sh = j.pe[0];
  T *dst = j.at<T>(0, 512), *there = j.at<T>(1, 512);
  const T big = (T)((~(uint64_t)0) >> 1), a = (T)0x123456789abcdef0, b = (T)0x0ff00ff0f00ff00f;
  auto set = [&](T v) { *there = v; };
#define IS(result, after) CHECK((result) && *there == (T)(after), "%s", name)
  set(a); IS(lshmem_atomic_fetch<T>(sh, dst, 1) == a, a);
  set(a); IS(lshmem_atomic_fetch_add<T>(sh, dst, b, 1) == a, (uint64_t)a + (uint64_t)b);
  set(big); IS(lshmem_atomic_fetch_inc<T>(sh, dst, 1) == big, (uint64_t)big + 1);
  set(a); IS(lshmem_atomic_fetch_and<T>(sh, dst, b, 1) == a, a & b);
  set(a); IS(lshmem_atomic_fetch_or<T>(sh, dst, b, 1) == a, a | b);
  set(a); IS(lshmem_atomic_fetch_xor<T>(sh, dst, b, 1) == a, a ^ b);
  set(a); IS(lshmem_atomic_swap<T>(sh, dst, b, 1) == a, b);
  set(a); IS(lshmem_atomic_compare_swap<T>(sh, dst, a, b, 1) == a, b);
  set(a); IS(lshmem_atomic_compare_swap<T>(sh, dst, b, b, 1) == a, a);
  set(a); IS(lshmem_atomic_add<T>(sh, dst, b, 1) == LSHMEM_OK, (uint64_t)a + (uint64_t)b);
  set(a); IS(lshmem_atomic_inc<T>(sh, dst, 1) == LSHMEM_OK, (uint64_t)a + 1);
  set(a); IS(lshmem_atomic_and<T>(sh, dst, b, 1) == LSHMEM_OK, a & b);
  set(a); IS(lshmem_atomic_or<T>(sh, dst, b, 1) == LSHMEM_OK, a | b);
  set(a); IS(lshmem_atomic_xor<T>(sh, dst, b, 1) == LSHMEM_OK, a ^ b);
  set(a); IS(lshmem_atomic_set<T>(sh, dst, b, 1) == LSHMEM_OK, b);
#undef IS
  set(0);
  lshmem::cpu::launch(2, 16, [&] {
    for (int i = 0; i < 50; i++) {
      lshmem_atomic_inc<T>(sh, dst, 1);
      lshmem_atomic_fetch_add<T>(sh, dst, 2, 1);
    }
  });
  CHECK(*there == (T)(32 * 150), "%s: sum %lld", name, (long long)*there);
}

template <class T> static void swaps(job &j) {
  const lshmem_t &sh = j.pe[0];
  T *dst = j.at<T>(0, 512), *there = j.at<T>(1, 512);
  *there = (T)1.25;
  CHECK(lshmem_atomic_fetch<T>(sh, dst, 1) == (T)1.25, "fetch");
  CHECK(lshmem_atomic_swap<T>(sh, dst, (T)-2.5, 1) == (T)1.25 && *there == (T)-2.5, "swap");
  CHECK(lshmem_atomic_set<T>(sh, dst, (T)7.5, 1) == LSHMEM_OK && *there == (T)7.5, "set");
}

template <class T> static void waits(job &j) {
  const lshmem_t &sh = j.pe[1];
  T *v = j.at<T>(1, 2048);
  const T low = (T)-2, high = (T)5;
  const bool order = low < high; // unsigned: not
  struct { T a; int cmp; bool holds; } rows[] = {
      {high, LSHMEM_CMP_EQ, true}, {low, LSHMEM_CMP_EQ, false}, {low, LSHMEM_CMP_NE, true}, {high, LSHMEM_CMP_NE, false},
      {low, LSHMEM_CMP_GT, !order}, {high, LSHMEM_CMP_GT, false}, {low, LSHMEM_CMP_LE, order}, {high, LSHMEM_CMP_LE, true},
      {low, LSHMEM_CMP_LT, order}, {high, LSHMEM_CMP_LT, false}, {low, LSHMEM_CMP_GE, !order}, {high, LSHMEM_CMP_GE, true}};
  for (auto &r : rows) {
    *v = r.a;
    CHECK(lshmem_test<T>(sh, v, r.cmp, high) == r.holds, "%zu bytes, comparison %d", sizeof(T), r.cmp);
    if (r.holds) CHECK(lshmem_wait_until<T>(sh, v, r.cmp, high) == LSHMEM_OK, "comparison %d", r.cmp);
  }
  for (int i = 0; i < 4; i++) v[i] = (T)i;
  const int skip[4] = {0, 1, 0, 0}, skip_all[4] = {1, 1, 1, 1};
  const T each[4] = {0, 9, 9, 3};
  size_t index = 99, count = 99, indices[4];
  CHECK(lshmem_test_all<T>(sh, v, 4, skip, LSHMEM_CMP_NE, 1) == 1 && lshmem_test_all<T>(sh, v, 4, nullptr, LSHMEM_CMP_NE, 1) == 0, "all");
  CHECK(lshmem_test_any<T>(sh, v, 4, nullptr, LSHMEM_CMP_EQ, 2) == 2 && lshmem_test_any<T>(sh, v, 4, skip, LSHMEM_CMP_EQ, 1) == SIZE_MAX, "any");
  CHECK(lshmem_test_some<T>(sh, v, 4, indices, skip, LSHMEM_CMP_GE, 1) == 2 && indices[0] == 2 && indices[1] == 3, "some");
  CHECK(lshmem_test_any_vector<T>(sh, v, 4, skip, LSHMEM_CMP_EQ, each) == 0, "any of a vector");
  CHECK(lshmem_test_some_vector<T>(sh, v, 4, indices, nullptr, LSHMEM_CMP_EQ, each) == 2 && indices[1] == 3, "some of a vector");
  CHECK(lshmem_test_all_vector<T>(sh, v, 1, nullptr, LSHMEM_CMP_EQ, each) == 1, "all of a vector");
  CHECK(lshmem_wait_until_all<T>(sh, v, 4, skip_all, LSHMEM_CMP_EQ, 100) == LSHMEM_OK, "all of none");
  CHECK(lshmem_wait_until_any<T>(sh, v, 4, &index, skip_all, LSHMEM_CMP_EQ, 100) == LSHMEM_OK && index == SIZE_MAX, "any of none");
  CHECK(lshmem_wait_until_some<T>(sh, v, 4, indices, &count, skip_all, LSHMEM_CMP_EQ, 100) == LSHMEM_OK && count == 0, "some of none");
  CHECK(lshmem_wait_until_any_vector<T>(sh, v, 4, &index, nullptr, LSHMEM_CMP_EQ, each) == LSHMEM_OK && index == 0, "any of a vector");
  CHECK(lshmem_wait_until_some_vector<T>(sh, v, 4, indices, &count, nullptr, LSHMEM_CMP_EQ, each) == LSHMEM_OK && count == 2, "some");
  CHECK(lshmem_wait_until_all_vector<T>(sh, v, 1, nullptr, LSHMEM_CMP_EQ, each) == LSHMEM_OK, "all of a vector");
}

// Waits end with the timeout and with the host's word, and say so.
static void ends() {
  job j(2, 20000000);
  uint64_t *sig = j.at<uint64_t>(0, 0);
  uint64_t before = lshmem::nanos();
  CHECK(lshmem_signal_wait_until(j.pe[0], sig, LSHMEM_CMP_EQ, 1) == LSHMEM_ERR_TIMEOUT, "timeout");
  CHECK(lshmem::nanos() - before >= 20000000, "too early");
  CHECK(j.control[0].status == LSHMEM_ERR_TIMEOUT && j.control[1].status == 0, "control says %u", j.control[0].status);
  lshmem_t forever = j.pe[1];
  forever.timeout_nanos = 0;
  std::thread host([&] { __atomic_store_n(&j.control[1].abort, (uint32_t)LSHMEM_ERR_PEER, __ATOMIC_RELEASE); });
  CHECK(lshmem_signal_wait_until(forever, j.at<uint64_t>(1, 0), LSHMEM_CMP_EQ, 1) == LSHMEM_ERR_PEER, "abort");
  host.join();
  // What cannot be reached.
  const lshmem_t &sh = j.pe[0];
  char *outside = j.heap[0] + job::heap_bytes;
  CHECK(lshmem_putmem(sh, outside - 4, outside - 100, 8, 1) == LSHMEM_ERR_ARGUMENT, "after the heap");
  CHECK(lshmem_getmem(sh, sig, sig - 1, 8, 1) == LSHMEM_ERR_ARGUMENT, "before the heap");
  CHECK(lshmem_signal_op(sh, sig, 1, 3, 1) == LSHMEM_ERR_ARGUMENT, "no such operation");
  CHECK(lshmem_putmem(sh, sig, sig, 8, 2) == LSHMEM_ERR_ARGUMENT && lshmem_putmem(sh, sig, sig, 8, -1) == LSHMEM_ERR_ARGUMENT, "no such PE");
  // Elements at distances, some of which leave the heap, and distances that do not fit into 64 bits of bytes.
  int *begin = (int *)j.heap[0], *end = (int *)outside, some[4] = {1, 2, 3, 4};
  struct { int *at; ptrdiff_t stride; size_t n; int status; } rows[] = {
      {end - 1, 2, 1, LSHMEM_OK}, {end - 1, 2, 2, LSHMEM_ERR_ARGUMENT}, {end, 1, 1, LSHMEM_ERR_ARGUMENT},
      {end - 4, 1, 4, LSHMEM_OK}, {end - 4, 1, 5, LSHMEM_ERR_ARGUMENT}, {end - 7, 3, 3, LSHMEM_OK}, {end - 6, 3, 3, LSHMEM_ERR_ARGUMENT},
      {end - 1, -1, 4, LSHMEM_OK}, {begin + 3, -1, 4, LSHMEM_OK}, {begin + 2, -1, 4, LSHMEM_ERR_ARGUMENT},
      {begin + 3, -2, 3, LSHMEM_ERR_ARGUMENT}, {begin, -1, 2, LSHMEM_ERR_ARGUMENT}, {begin, 0, 4, LSHMEM_OK},
      {begin, PTRDIFF_MAX, 2, LSHMEM_ERR_ARGUMENT}, {begin + 8, PTRDIFF_MIN, 2, LSHMEM_ERR_ARGUMENT},
      {begin, (ptrdiff_t)1 << 32, ((size_t)1 << 32) + 1, LSHMEM_ERR_ARGUMENT}, {begin, 2, (size_t)1 << 63, LSHMEM_ERR_ARGUMENT},
      {begin, 1, SIZE_MAX, LSHMEM_ERR_ARGUMENT}, {begin - 1, 1, 2, LSHMEM_ERR_ARGUMENT}};
  for (auto &r : rows) {
    CHECK(lshmem_iput<int>(sh, r.at, some, r.stride, 1, r.n, 1) == r.status, "iput of %zu at %td, stride %td", r.n, r.at - begin, r.stride);
    int back[5] = {0, 0, 0, 0, 99};
    CHECK(lshmem_iget<int>(sh, back, r.at, 1, r.stride, r.n, 1) == r.status && back[4] == 99, "iget of %zu at %td, stride %td", r.n,
          r.at - begin, r.stride);
  }
  // Nothing to copy, from and to anywhere; the members of a group meet all the same.
  lshmem_t fresh = sh;
  lshmem_control none = {};
  fresh.control = (uint64_t)&none;
  std::atomic<int> came{0};
  lshmem::cpu::launch(1, 40, [&] {
    int *null = nullptr;
    int status = lshmem_putmem(fresh, null, null, 0, 1) | lshmem_getmem_nbi(fresh, null, null, 0, 1);
    status |= lshmem_iput<int>(fresh, null, null, 1, 1, 0, 1) | lshmem_iget<int>(fresh, null, (int *)outside, 1, -1, 0, 1);
    came++;
    status |= lshmem_putmem_block(fresh, null, null, 0, 1);
    CHECK(came >= 40, "%d members came", came.load());
    came++;
    status |= lshmem_getmem_block(fresh, null, null, 0, 1) | lshmem_iput_block<int>(fresh, null, null, 1, 1, 0, 1);
    CHECK(came >= 80, "%d members came", came.load());
    status |= lshmem_iget_block<int>(fresh, null, null, 1, 1, 0, 1) | lshmem_putmem_signal_block(fresh, null, null, 0, sig, 4, LSHMEM_SIGNAL_SET, 1);
    CHECK(status == LSHMEM_OK, "nothing to copy: %d", status);
  });
  CHECK(none.status == 0, "nothing to copy: control says %u", none.status);
  CHECK(lshmem_putmem(sh, nullptr, nullptr, 0, 2) == LSHMEM_ERR_ARGUMENT, "nothing to no PE");
  CHECK(lshmem_ptr(sh, sig, 1) == j.heap[1] && lshmem_ptr(sh, sig, 16) == nullptr && lshmem_ptr(sh, outside, 1) == nullptr, "ptr");
  CHECK(lshmem_putmem_signal(sh, sig + 1, sig, 0, sig, 5, LSHMEM_SIGNAL_SET, 1) == LSHMEM_OK && *j.at<uint64_t>(1, 0) == 5, "signal only");
}

// Of two threads that meet errors, the host sees one's, and all of it when it sees the status.
static void records(int rounds) {
  for (int r = 0; r < rounds && failures == 0; r++) {
    lshmem_control c = {};
    std::atomic<int> came{0};
    auto meet = [&] {
      came++;
      while (came < 3) lshmem::cpu::yield();
    };
    auto one = [&](int status) {
      meet();
      lshmem::record((uint64_t)&c, status, 10 * status, 20 * (uint32_t)status, 30 * (uint32_t)status, 40 * (uint64_t)status);
    };
    std::thread first(one, LSHMEM_ERR_QUEUE), second(one, LSHMEM_ERR_ARGUMENT);
    meet();
    uint32_t s;
    while (!(s = lshmem::load_acquire<lshmem::scope::sys>(&c.status))) lshmem::cpu::yield();
    uint32_t pe = lshmem::load_relaxed<lshmem::scope::sys>(&c.pe), queue = lshmem::load_relaxed<lshmem::scope::sys>(&c.queue);
    uint32_t syndrome = lshmem::load_relaxed<lshmem::scope::sys>(&c.syndrome);
    uint64_t index = lshmem::load_relaxed<lshmem::scope::sys>(&c.index);
    CHECK(pe == 10 * s && queue == 20 * s && syndrome == 30 * s && index == 40 * s, "round %d: status %u with %u, %u, %u, %llu", r, s, pe,
          queue, syndrome, (unsigned long long)index);
    first.join();
    second.join();
  }
}

// More PEs than the state has room for.
static void many() {
  job j(20);
  for (int i = 0; i < 20; i++) lshmem_p<int>(j.pe[3], j.at<int>(3, 64), 100 + i, i);
  for (int i = 0; i < 20; i++) CHECK(*j.at<int>(i, 64) == 100 + i && lshmem_g<int>(j.pe[5], j.at<int>(5, 64), i) == 100 + i, "PE %d", i);
}

// Two PEs, each a block, hand data to each other in every way that promises that they are there.
static void messages(int rounds) {
  job j(2);
  constexpr int threads = 40, words = 300;
  enum { signal, signal_nbi, warp_signal, fenced, quieted, single, ways };
  auto pe = [&](int me) {
    lshmem::cpu::launch(1, threads, [&, me] {
      const lshmem_t &sh = j.pe[(size_t)me];
      const int other = 1 - me;
      int *src = j.at<int>(me, 4096), *in = j.at<int>(me, 8192);
      uint64_t *sig = j.at<uint64_t>(me, 0), *ack = sig + 1;
      uint32_t t = lshmem::thread_index();
      for (int r = 1; r <= rounds; r++) {
        const int way = r % ways;
        if (me == 0) {
          for (uint32_t i = t; i < words; i += threads) src[i] = r * 1000 + (int)i;
          const bool leader = t == 0;
          uint64_t v = (uint64_t)r;
          switch (way) {
          case signal: lshmem_put_signal_block<int>(sh, in, src, words, sig, v, LSHMEM_SIGNAL_SET, other); break;
          case signal_nbi:
            lshmem::sync_block();
            lshmem_put_signal_nbi_block<int>(sh, in, src, words, sig, 1, LSHMEM_SIGNAL_ADD, other);
            break;
          case warp_signal:
            lshmem::sync_block();
            if (t < 32) lshmem_put_signal_warp<int>(sh, in, src, words, sig, v, LSHMEM_SIGNAL_SET, other);
            break;
          case fenced:
            lshmem_put_block<int>(sh, in, src, words, other);
            if (leader) lshmem_fence(sh, other), lshmem_signal_op(sh, sig, v, LSHMEM_SIGNAL_SET, other);
            break;
          case quieted:
            lshmem::sync_block();
            lshmem_put_nbi_block<int>(sh, in, src, words, other);
            lshmem_quiet_block(sh);
            if (leader) lshmem_atomic_add<uint64_t>(sh, sig, 1, other);
            break;
          case single:
            lshmem::sync_block();
            if (leader) {
              lshmem_put_nbi<int>(sh, in, src, words, other);
              lshmem_fence(sh);
              lshmem_p<uint64_t>(sh, sig, v, other);
            }
            break;
          }
          if (leader) CHECK(lshmem_signal_wait_until(sh, ack, LSHMEM_CMP_GE, v) == LSHMEM_OK, "round %d", r);
          lshmem::sync_block();
        } else {
          if (t == 0) CHECK(lshmem_signal_wait_until(sh, sig, LSHMEM_CMP_GE, (uint64_t)r) == LSHMEM_OK, "round %d, way %d", r, way);
          lshmem::sync_block();
          for (uint32_t i = t; i < words; i += threads) CHECK(in[i] == r * 1000 + (int)i, "round %d, way %d: word %u", r, way, i);
          lshmem_fence_block(sh);
          if (t == 0) lshmem_signal_op(sh, ack, 1, LSHMEM_SIGNAL_ADD, other);
        }
      }
    });
  };
  std::thread first(pe, 0), second(pe, 1);
  first.join();
  second.join();
}

// Each of two PEs writes to the other, completes that, and reads what the other has written to it: one of them at least
// must find it. On a busy machine there is time for fewer rounds.
static void order(int rounds) {
  job j(2);
  const uint64_t began = lshmem::nanos(), longest = 2000000000;
  std::atomic<bool> stop{false};
  std::atomic<int> came{0};
  std::atomic<bool> found[2];
  auto meet = [&](int n) {
    came++;
    for (int spins = 0; came < n; spins++)
      if (spins > 1000) lshmem::cpu::yield();
  };
  auto pe = [&](int me) {
    const lshmem_t &sh = j.pe[(size_t)me];
    int *word = j.at<int>(me, 0);
    for (int r = 1; r <= rounds; r++) {
      meet(4 * r - 2);
      lshmem_p<int>(sh, word, r, 1 - me);
      if (r & 1) lshmem_quiet(sh);
      else lshmem_qp_quiet(sh, 1 - me, LSHMEM_QP_DEFAULT);
      found[me] = lshmem_g<int>(sh, word, me) == r;
      if (me == 0 && lshmem::nanos() - began > longest) stop = true;
      meet(4 * r);
      if (me == 0) CHECK(found[0] || found[1], "round %d: neither PE found what the other had put and completed", r);
      if (stop) return;
    }
  };
  std::thread first(pe, 0), second(pe, 1);
  first.join();
  second.join();
}

int main(int, char **args) {
  std::string what = args[1];
  job j(2);
  if (what == "copies") {
    copies();
    elements<int>(j);
#ifndef FEW_TYPES
    elements<int8_t>(j), elements<uint16_t>(j), elements<float>(j), elements<double>(j), elements<long long>(j);
#endif
  } else if (what == "atomics") {
    atomics<int>(j, "int"), atomics<unsigned long>(j, "unsigned long");
    swaps<double>(j);
#ifndef FEW_TYPES
    atomics<unsigned>(j, "unsigned"), atomics<long>(j, "long");
    atomics<long long>(j, "long long"), atomics<unsigned long long>(j, "unsigned long long");
    atomics<int32_t>(j, "int32_t"), atomics<uint32_t>(j, "uint32_t"), atomics<int64_t>(j, "int64_t"), atomics<uint64_t>(j, "uint64_t");
    atomics<size_t>(j, "size_t"), atomics<ptrdiff_t>(j, "ptrdiff_t");
    swaps<float>(j), swaps<int>(j), swaps<uint64_t>(j);
#endif
  } else if (what == "waits") {
    waits<int>(j), waits<uint64_t>(j);
#ifndef FEW_TYPES
    waits<short>(j), waits<unsigned short>(j), waits<unsigned>(j), waits<long>(j), waits<long long>(j);
#endif
    ends();
    records(5000);
    many();
  } else if (what == "messages") {
    messages(120);
  } else if (what == "order") {
    order(200000);
  } else {
    return 2;
  }
  return failures ? 1 : 0;
}
