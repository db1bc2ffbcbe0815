// The device header as CPU code: tests that several PEs in one process run against each other and against network adapters in
// the parent process.
//
//	litmus FD BYTES TEST SEED ROUNDS
//
// FD is memory shared with the parent, which lays the PEs out in it. What the parent must do is written to stdout, one line
// each, and awaited on stdin: "base ADDRESS" when the memory is mapped, "connect" when queues are to be connected. A test
// that fails writes FAIL and why, and ends the process with status 1.
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

// With LITMUS_SWITCH the headers are a copy that has defects (shmem/mutation), of which one is chosen when the program starts.
#ifdef LITMUS_SWITCH
static int litmus_mutation;
#define LSHMEM_MUTATION litmus_mutation
#endif

#include "lshmem_collective.cuh"

namespace {

// --- The world ---

// What lies at the beginning of the shared memory: header in world_test.go.
struct world {
  uint64_t pes, heap_bytes, queues, depth, start;
  uint64_t state[16]; // offsets
};

char *memory;
uint64_t seed;
int rounds;

const world &the_world() { return *(const world *)memory; }
const lshmem_t &state_of(uint64_t pe) { return *(const lshmem_t *)(memory + the_world().state[pe]); }
lshmem_control *control_of(const lshmem_t &sh) { return (lshmem_control *)sh.control; }

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *format, ...) {
  static std::mutex once;
  once.lock(); // for good: the first one tells
  va_list args;
  va_start(args, format);
  printf("FAIL ");
  vprintf(format, args);
  printf("\n");
  va_end(args);
  fflush(stdout);
  _exit(1);
}

#define CHECK(condition, ...)            \
  do {                                   \
    if (!(condition)) die(__VA_ARGS__);  \
  } while (0)
#define OK(call)                                                                        \
  do {                                                                                  \
    int status_ = (call);                                                               \
    if (status_ != LSHMEM_OK) die("line %d: %s: status %d", __LINE__, #call, status_);  \
  } while (0)

// tell writes a line to the parent and waits for its answer.
void tell(const char *format, uint64_t value = 0) {
  printf(format, (unsigned long)value);
  printf("\n");
  fflush(stdout);
  char answer[64];
  CHECK(fgets(answer, sizeof answer, stdin), "the parent has gone");
}

struct random_numbers {
  uint64_t s;
  explicit random_numbers(uint64_t a, uint64_t b = 0, uint64_t c = 0) : s(seed * 1000003 + a * 7919 + b * 104729 + c) {}
  uint64_t next() {
    uint64_t z = s += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  bool chance(uint64_t in) { return below(in) == 0; }
};

// Sizes that hurt: small ones of every remainder, and sometimes over ends of keys.
uint64_t a_size(random_numbers &r, uint64_t most) {
  uint64_t n;
  switch (r.below(8)) {
  case 0: n = r.below(4); break;
  case 1: case 2: case 3: n = r.below(48); break;
  case 4: case 5: n = r.below(400); break;
  case 6: n = r.below(5000); break;
  default: n = r.below(most + 1);
  }
  return std::min(n, most);
}

uint8_t pattern(uint64_t tag, uint64_t i) {
  uint64_t z = (tag * 0x2545f491 + i) * UINT64_C(0x9e3779b97f4a7c15);
  return (uint8_t)((z >> 56) ^ (z >> 24));
}

// everyone runs kernel(state) on blocks*threads threads of each PE, all PEs at a time, and waits for their end.
void everyone(uint32_t blocks, uint32_t threads, const std::function<void(const lshmem_t &)> &kernel) {
  std::vector<std::thread> pes;
  for (uint64_t pe = 0; pe < the_world().pes; pe++)
    pes.emplace_back([&, pe] {
      lshmem_t sh = state_of(pe); // by value, as a kernel's argument
      lshmem::cpu::launch(blocks, threads, [&] { kernel(sh); });
    });
  for (auto &t : pes) t.join();
}

uint8_t *heap_of(uint64_t pe) { return (uint8_t *)state_of(pe).heap_base; }
uint32_t my_thread() { return lshmem::block_index() * lshmem::block_threads() + lshmem::thread_index(); }

// --- Memory: what is written arrives, nothing else changes ---

// owner is one thread's, warp's or block's part of every PE's heap, and what it should contain.
struct owner {
  uint64_t at, bytes, scratch, scratch_bytes, used = 0;
  std::vector<std::vector<uint8_t>> expected;
  struct range { uint64_t at, bytes; };
  std::vector<std::vector<range>> pending, unordered;

  void start(uint64_t index, uint64_t of, uint64_t local_index, uint64_t local_of) {
    const world &w = the_world();
    bytes = (w.heap_bytes * 6 / 10 / of - 40) & ~UINT64_C(7);
    at = 64 + index * bytes;
    scratch_bytes = (w.heap_bytes * 3 / 10 / local_of) & ~UINT64_C(7);
    scratch = 64 + of * bytes + local_index * scratch_bytes + 8;
    scratch_bytes -= 8;
    expected.assign(w.pes, std::vector<uint8_t>(bytes, 0));
    pending.assign(w.pes, {});
    unordered.assign(w.pes, {});
  }
  static bool hit(const std::vector<range> &all, uint64_t at, uint64_t n) {
    for (auto &r : all)
      if (at < r.at + r.bytes && r.at < at + n) return true;
    return false;
  }
  void wrote(uint64_t pe, uint64_t from, uint64_t n) {
    pending[pe].push_back({from, n});
    unordered[pe].push_back({from, n});
  }
  void fenced(uint64_t pe) { unordered[pe].clear(); }
  void quieted(uint64_t pe) {
    unordered[pe].clear();
    pending[pe].clear();
  }
  void quieted() {
    for (uint64_t pe = 0; pe < pending.size(); pe++) quieted(pe);
    used = 0;
  }
  // The memory of all PEs is what it should be.
  void verify() const {
    for (uint64_t pe = 0; pe < expected.size(); pe++) {
      const uint8_t *have = heap_of(pe) + at;
      for (uint64_t i = 0; i < bytes; i++)
        CHECK(have[i] == expected[pe][i], "PE %lu, offset %#lx: %#x, not %#x", (unsigned long)pe, (unsigned long)(at + i), have[i],
              expected[pe][i]);
    }
  }
};

// value puts a random value of T at an aligned place of a PE.
template <class T> void put_one(const lshmem_t &sh, owner &o, random_numbers &r, uint64_t pe) {
  uint64_t at = (o.at + r.below(o.bytes - 16) + sizeof(T)) & ~(uint64_t)(sizeof(T) - 1);
  at -= o.at;
  if (owner::hit(o.unordered[pe], at, sizeof(T))) {
    OK(lshmem_fence(sh, (int)pe));
    o.fenced(pe);
  }
  T v = (T)r.next();
  OK(lshmem_p<T>(sh, (T *)(sh.heap_base + o.at + at), v, (int)pe));
  memcpy(&o.expected[pe][at], &v, sizeof v);
  o.wrote(pe, at, sizeof v);
}
template <class T> void get_one(const lshmem_t &sh, owner &o, random_numbers &r, uint64_t pe) {
  uint64_t at = (o.at + r.below(o.bytes - 16) + sizeof(T)) & ~(uint64_t)(sizeof(T) - 1);
  at -= o.at;
  if (owner::hit(o.pending[pe], at, sizeof(T))) {
    OK(lshmem_quiet(sh, (int)pe));
    o.quieted(pe);
  }
  T v = lshmem_g<T>(sh, (const T *)(sh.heap_base + o.at + at), (int)pe), want;
  memcpy(&want, &o.expected[pe][at], sizeof want);
  CHECK(v == want, "g of PE %lu at %#lx: %#lx, not %#lx", (unsigned long)pe, (unsigned long)(o.at + at), (unsigned long)v,
        (unsigned long)want);
}

void test_memory() {
  const uint32_t blocks = 2, threads = 3, each = blocks * threads;
  const uint64_t pes = the_world().pes;
  std::vector<owner> owners(pes * each);
  everyone(blocks, threads, [&](const lshmem_t &sh) {
    uint64_t me = sh.pe * each + my_thread();
    owner &o = owners[me];
    o.start(me, pes * each, my_thread(), each);
    random_numbers r(me, 1);
    auto heap = (uint8_t *)sh.heap_base;
    auto everything_quiet = [&] {
      OK(lshmem_quiet(sh));
      o.quieted();
    };
    auto room = [&](uint64_t n) {
      if (o.used + n + 16 > o.scratch_bytes) everything_quiet();
      uint8_t *p = heap + o.scratch + o.used + r.below(16);
      o.used += n + 16;
      return p;
    };
    auto check = [&](const uint8_t *have, uint64_t pe, uint64_t at, uint64_t n, const char *what) {
      for (uint64_t i = 0; i < n; i++)
        CHECK(have[i] == o.expected[pe][at + i], "%s of PE %lu, %lu bytes at %#lx: byte %lu is %#x, not %#x", what, (unsigned long)pe,
              (unsigned long)n, (unsigned long)(o.at + at), (unsigned long)i, have[i], o.expected[pe][at + i]);
    };
    uint8_t outside[200]; // not registered
    for (int k = 0; k < rounds; k++) {
      uint64_t pe = r.below(pes);
      uint64_t most = std::min(o.bytes, o.scratch_bytes - 64), n = a_size(r, most), at = r.below(o.bytes - n + 1);
      switch (r.below(16)) {
      default: { // put
        if (owner::hit(o.unordered[pe], at, n)) {
          if (r.chance(2)) OK(lshmem_fence(sh)); else OK(lshmem_fence(sh, (int)pe));
          o.fenced(pe);
        }
        bool unregistered = n <= sizeof outside && r.chance(4);
        uint8_t *src = unregistered ? outside : room(n);
        for (uint64_t i = 0; i < n; i++) o.expected[pe][at + i] = src[i] = (uint8_t)r.next();
        bool nbi = r.chance(2);
        OK(nbi ? lshmem_putmem_nbi(sh, heap + o.at + at, src, n, (int)pe) : lshmem_putmem(sh, heap + o.at + at, src, n, (int)pe));
        o.wrote(pe, at, n);
        break;
      }
      case 6: put_one<uint8_t>(sh, o, r, pe); break;
      case 7: put_one<uint16_t>(sh, o, r, pe); break;
      case 8: put_one<uint32_t>(sh, o, r, pe); put_one<uint64_t>(sh, o, r, pe); break;
      case 9:
        if (r.chance(2)) {
          everything_quiet();
        } else {
          OK(lshmem_quiet(sh, (int)pe));
          o.quieted(pe);
        }
        break;
      case 10: case 11: case 12: { // get
        if (owner::hit(o.pending[pe], at, n)) {
          OK(lshmem_quiet(sh, (int)pe));
          o.quieted(pe);
        }
        bool unregistered = n <= sizeof outside && r.chance(4);
        uint8_t *dst = unregistered ? outside : room(n);
        if (r.chance(3)) {
          OK(lshmem_getmem_nbi(sh, dst, heap + o.at + at, n, (int)pe));
          everything_quiet();
        } else {
          OK(lshmem_getmem(sh, dst, heap + o.at + at, n, (int)pe));
        }
        check(dst, pe, at, n, "get");
        break;
      }
      case 13: get_one<uint8_t>(sh, o, r, pe); get_one<uint16_t>(sh, o, r, pe); break;
      case 14: get_one<uint32_t>(sh, o, r, pe); get_one<uint64_t>(sh, o, r, pe); break;
      case 15: { // every third word, there and back
        uint64_t count = r.below(20), from = (o.at + r.below(o.bytes - 12 * 20 - 8) + 7) / 8 * 8 - o.at;
        OK(lshmem_fence(sh, (int)pe));
        auto src = (uint32_t *)(((uint64_t)room(count * 4 + 4) + 3) / 4 * 4);
        for (uint64_t i = 0; i < count; i++) {
          src[i] = (uint32_t)r.next();
          memcpy(&o.expected[pe][from + 12 * i], &src[i], 4);
        }
        OK(lshmem_iput<uint32_t>(sh, (uint32_t *)(heap + o.at + from), src, 3, 1, count, (int)pe));
        o.wrote(pe, from, 12 * 20);
        OK(lshmem_quiet(sh, (int)pe));
        auto dst = (uint32_t *)(((uint64_t)room(count * 8 + 8) + 3) / 4 * 4);
        OK(lshmem_iget<uint32_t>(sh, dst, (uint32_t *)(heap + o.at + from), 2, 3, count, (int)pe));
        for (uint64_t i = 0; i < count; i++) check((uint8_t *)(dst + 2 * i), pe, from + 12 * i, 4, "iget");
      }
      }
    }
    everything_quiet();
  });
  for (auto &o : owners) o.verify();
}

// --- The same by warps and blocks ---

template <bool Block> void group_memory(uint32_t blocks, uint32_t threads) {
  const uint64_t pes = the_world().pes;
  const uint32_t warps = (threads + 31) / 32, each = Block ? blocks : blocks * warps;
  std::vector<owner> owners(pes * each);
  everyone(blocks, threads, [&](const lshmem_t &sh) {
    uint32_t mine = Block ? lshmem::block_index() : lshmem::block_index() * warps + lshmem::thread_index() / 32;
    uint32_t index = Block ? lshmem::block_group::index() : lshmem::warp_group::index();
    uint32_t size = Block ? lshmem::block_group::size() : lshmem::warp_group::size();
    auto sync = [] { Block ? lshmem::block_group::sync() : lshmem::warp_group::sync(); };
    uint64_t me = sh.pe * each + mine;
    owner &o = owners[me];
    if (index == 0) o.start(me, pes * each, mine, each);
    sync();
    auto heap = (uint8_t *)sh.heap_base;
    random_numbers r(me, 2); // the same for all members
    for (int k = 0; k < rounds; k++) {
      uint64_t pe = r.below(pes), n = a_size(r, std::min(o.bytes, o.scratch_bytes)), at = r.below(o.bytes - n + 1), tag = r.next();
      uint8_t *local = heap + o.scratch, *remote = heap + o.at + at;
      for (uint64_t i = index; i < n; i += size) local[i] = pattern(tag, i);
      if (index == 0)
        for (uint64_t i = 0; i < n; i++) o.expected[pe][at + i] = pattern(tag, i);
      sync(); // what members give to a form that does not wait must be there
      switch (r.below(3)) {
      case 0:
        OK(Block ? lshmem_putmem_block(sh, remote, local, n, (int)pe) : lshmem_putmem_warp(sh, remote, local, n, (int)pe));
        break;
      case 1:
        OK(Block ? lshmem_putmem_nbi_block(sh, remote, local, n, (int)pe) : lshmem_putmem_nbi_warp(sh, remote, local, n, (int)pe));
        break;
      default: // in two halves, of which the second is behind a fence
        OK(Block ? lshmem_putmem_nbi_block(sh, remote, local, n, (int)pe) : lshmem_putmem_nbi_warp(sh, remote, local, n, (int)pe));
        OK(Block ? lshmem_fence_block(sh, (int)pe) : lshmem_fence_warp(sh, (int)pe));
        OK(Block ? lshmem_putmem_nbi_block(sh, remote, local, n / 2, (int)pe) : lshmem_putmem_nbi_warp(sh, remote, local, n / 2, (int)pe));
      }
      if (r.chance(2)) OK(Block ? lshmem_quiet_block(sh) : lshmem_quiet_warp(sh));
      else OK(Block ? lshmem_quiet_block(sh, (int)pe) : lshmem_quiet_warp(sh, (int)pe));
      for (uint64_t i = index; i < n; i += size) local[i] = 0;
      sync();
      if (r.chance(2)) {
        OK(Block ? lshmem_getmem_block(sh, local, remote, n, (int)pe) : lshmem_getmem_warp(sh, local, remote, n, (int)pe));
      } else {
        OK(Block ? lshmem_getmem_nbi_block(sh, local, remote, n, (int)pe) : lshmem_getmem_nbi_warp(sh, local, remote, n, (int)pe));
        OK(Block ? lshmem_quiet_block(sh) : lshmem_quiet_warp(sh));
      }
      for (uint64_t i = index; i < n; i += size)
        CHECK(local[i] == pattern(tag, i), "get of PE %lu, %lu bytes at %#lx: byte %lu is %#x, not %#x", (unsigned long)pe,
              (unsigned long)n, (unsigned long)(o.at + at), (unsigned long)i, local[i], pattern(tag, i));
      sync();
    }
  });
  for (auto &o : owners) o.verify();
}
void test_warps() { group_memory<false>(2, 40); }
void test_blocks() { group_memory<true>(2, 40); }

// --- Every size and alignment, between guards ---

void test_sizes() {
  const uint64_t pes = the_world().pes;
  everyone(1, 1, [&](const lshmem_t &sh) {
    auto heap = (uint8_t *)sh.heap_base;
    int to = (int)((sh.pe + 1) % pes);
    const uint64_t room = 512, there = 65536 + 4096 * sh.pe; // over the end of a key
    uint8_t *local = heap + 1024, *back = heap + 3072, *remote = heap + there - 300;
    for (uint64_t n = 0; n <= (uint64_t)rounds; n++) {
      for (uint64_t a = 0; a < 16; a++) {
        uint64_t b = (a * 7 + n) % 16, tag = n * 16 + a;
        for (uint64_t i = 0; i < room; i++) back[i] = 0xa5, local[i] = pattern(tag, i);
        OK(lshmem_putmem(sh, remote, back, room, to)); // guards
        OK(lshmem_quiet(sh));
        OK(lshmem_putmem(sh, remote + 256 + a, local + b, n, to));
        OK(lshmem_quiet(sh));
        OK(lshmem_getmem(sh, back, remote, room, to));
        for (uint64_t i = 0; i < room; i++) {
          uint8_t want = i >= 256 + a && i < 256 + a + n ? pattern(tag, b + i - 256 - a) : 0xa5;
          CHECK(back[i] == want, "put of %lu bytes from %lu to %lu: byte %ld is %#x, not %#x", (unsigned long)n, (unsigned long)b,
                (unsigned long)a, (long)i - 256 - (long)a, back[i], want);
        }
        for (uint64_t i = 0; i < room; i++) back[i] = 0x5a;
        OK(lshmem_getmem(sh, back + 200 + b, remote + 256 + a, n, to));
        for (uint64_t i = 0; i < room; i++) {
          uint8_t want = i >= 200 + b && i < 200 + b + n ? pattern(tag, b + i - 200 - b) : 0x5a;
          CHECK(back[i] == want, "get of %lu bytes from %lu to %lu: byte %ld is %#x, not %#x", (unsigned long)n, (unsigned long)a,
                (unsigned long)b, (long)i - 200 - (long)b, back[i], want);
        }
      }
    }
  });
}

// --- Messages ---

// Where message test number k of a sender has its things in every heap.
struct mailbox {
  uint64_t data, bytes, signal, ack, source;
  mailbox(uint64_t index, uint64_t of) {
    bytes = (the_world().heap_bytes * 4 / 10 / of - 64) & ~UINT64_C(7);
    data = 4096 + index * bytes + 3;
    source = 4096 + of * bytes + index * bytes + 5;
    bytes -= 16;
    signal = 64 + index * 16;
    ack = signal + 8;
  }
};

// Each thread, warp or block sends messages to its like on the next PE; who sees the signal must see the data.
template <class Group> void messages(uint32_t blocks, uint32_t threads, uint32_t each, uint64_t most) {
  const uint64_t pes = the_world().pes;
  everyone(blocks, threads, [&](const lshmem_t &sh) {
    uint32_t mine = my_thread();
    if (lshmem::equal<Group, lshmem::block_group>::yes) mine = lshmem::block_index();
    if (lshmem::equal<Group, lshmem::warp_group>::yes) mine = lshmem::block_index() * ((threads + 31) / 32) + lshmem::thread_index() / 32;
    mailbox m(mine, each);
    auto heap = (uint8_t *)sh.heap_base;
    auto sig = (uint64_t *)(heap + m.signal), ack = (uint64_t *)(heap + m.ack);
    int to = (int)((sh.pe + 1) % pes), from = (int)((sh.pe + pes - 1) % pes);
    for (int k = 1; k <= rounds; k++) {
      // Both sides draw the same numbers.
      random_numbers out(mine, (uint64_t)k, sh.pe), in(mine, (uint64_t)k, (uint64_t)from);
      uint64_t n = a_size(out, std::min(m.bytes, most)), tag = out.next(), form = out.below(4);
      for (uint64_t i = Group::index(); i < n; i += Group::size()) heap[m.source + i] = pattern(tag, i);
      if (form & 2) Group::sync(); // what members give to a form that does not wait must be there
      int op = form & 1 ? LSHMEM_SIGNAL_ADD : LSHMEM_SIGNAL_SET;
      uint64_t v = form & 1 ? 1 : (uint64_t)k;
      void *dst = heap + m.data, *src = heap + m.source;
      int status;
      if (lshmem::equal<Group, lshmem::thread_group>::yes)
        status = form & 2 ? lshmem_putmem_signal_nbi(sh, dst, src, n, sig, v, op, to) : lshmem_putmem_signal(sh, dst, src, n, sig, v, op, to);
      else if (lshmem::equal<Group, lshmem::warp_group>::yes)
        status = form & 2 ? lshmem_putmem_signal_nbi_warp(sh, dst, src, n, sig, v, op, to) : lshmem_putmem_signal_warp(sh, dst, src, n, sig, v, op, to);
      else
        status = form & 2 ? lshmem_putmem_signal_nbi_block(sh, dst, src, n, sig, v, op, to) : lshmem_putmem_signal_block(sh, dst, src, n, sig, v, op, to);
      OK(status);
      n = a_size(in, std::min(m.bytes, most));
      tag = in.next();
      if (Group::index() == 0) OK(lshmem_signal_wait_until(sh, sig, LSHMEM_CMP_GE, (uint64_t)k));
      Group::sync();
      for (uint64_t i = Group::index(); i < n; i += Group::size())
        CHECK(heap[m.data + i] == pattern(tag, i), "message %d of PE %d, %lu bytes: byte %lu is %#x, not %#x, behind its signal", k, from,
              (unsigned long)n, (unsigned long)i, heap[m.data + i], pattern(tag, i));
      Group::sync();
      if (Group::index() == 0) {
        lshmem::fence<lshmem::scope::sys>();
        OK(lshmem_signal_op(sh, ack, 1, LSHMEM_SIGNAL_ADD, from));
        OK(lshmem_wait_until<uint64_t>(sh, ack, LSHMEM_CMP_GE, (uint64_t)k));
        OK(lshmem_quiet(sh)); // the source is free
      }
      Group::sync();
    }
  });
}
void test_signals() { messages<lshmem::thread_group>(2, 3, 6, ~UINT64_C(0)); }
void test_signals_warp() { messages<lshmem::warp_group>(2, 40, 4, ~UINT64_C(0)); }
void test_signals_block() { messages<lshmem::block_group>(2, 40, 2, ~UINT64_C(0)); }

// Data over several queues, a fence, then a flag over any queue: who sees the flag must see the data and the sum.
void test_fence() {
  const uint64_t pes = the_world().pes;
  const uint32_t blocks = 2, threads = 2, each = blocks * threads;
  everyone(blocks, threads, [&](const lshmem_t &sh) {
    mailbox m(my_thread(), each);
    auto heap = (uint8_t *)sh.heap_base;
    auto flag = (uint64_t *)(heap + m.signal), ack = (uint64_t *)(heap + m.ack), sum = (uint64_t *)(heap + 2048 + 8 * my_thread());
    int to = (int)((sh.pe + 1) % pes), from = (int)((sh.pe + pes - 1) % pes);
    const uint64_t parts = 4, bytes = std::min<uint64_t>(m.bytes / parts, 600);
    random_numbers r(my_thread(), sh.pe);
    for (int k = 1; k <= rounds; k++) {
      for (uint64_t part = 0; part < parts; part++) {
        uint64_t tag = (uint64_t)k * parts + part;
        for (uint64_t i = 0; i < bytes; i++) heap[m.source + part * bytes + i] = pattern(tag, i);
        int q = r.chance(2) ? (int)r.below(sh.queues_per_pe) : LSHMEM_QP_DEFAULT;
        OK(lshmem_qp_putmem_nbi(sh, heap + m.data + part * bytes, heap + m.source + part * bytes, bytes, to, q));
        if (part == 1) OK(lshmem_qp_atomic_add<uint64_t>(sh, sum, 3, to, q));
      }
      if (k & 1) OK(lshmem_fence(sh)); else OK(lshmem_fence(sh, to));
      int q = r.chance(2) ? (int)r.below(sh.queues_per_pe) : LSHMEM_QP_DEFAULT;
      switch (k % 4) {
      case 0: OK(lshmem_qp_p<uint64_t>(sh, flag, (uint64_t)k, to, q)); break;
      case 1: OK(lshmem_qp_signal_op(sh, flag, 1, LSHMEM_SIGNAL_ADD, to, q)); break;
      case 2: OK(lshmem_atomic_set<uint64_t>(sh, flag, (uint64_t)k, to)); break;
      default: OK(lshmem_atomic_inc<uint64_t>(sh, flag, to));
      }
      OK(lshmem_wait_until<uint64_t>(sh, flag, LSHMEM_CMP_EQ, (uint64_t)k));
      for (uint64_t part = 0; part < parts; part++)
        for (uint64_t i = 0; i < bytes; i++) {
          uint8_t have = heap[m.data + part * bytes + i], want = pattern((uint64_t)k * parts + part, i);
          CHECK(have == want, "round %d: part %lu, byte %lu is %#x, not %#x, behind flag and fence", k, (unsigned long)part,
                (unsigned long)i, have, want);
        }
      uint64_t have = lshmem::load_relaxed<lshmem::scope::sys>(sum);
      CHECK(have == 3 * (uint64_t)k, "round %d: the sum is %lu behind flag and fence, not %lu", k, (unsigned long)have, (unsigned long)k * 3);
      lshmem::fence<lshmem::scope::sys>();
      OK(lshmem_signal_op(sh, ack, 1, LSHMEM_SIGNAL_ADD, from));
      OK(lshmem_signal_wait_until(sh, ack, LSHMEM_CMP_GE, (uint64_t)k));
      OK(lshmem_quiet(sh));
    }
  });
}

// Flags of the process, which tell beside the network that a quiet has returned.
uint64_t flags[1024];

// After a quiet everything is there: who is told so by other means must see it.
template <class Group> void quiets(uint32_t blocks, uint32_t threads, uint32_t each) {
  const uint64_t pes = the_world().pes;
  memset(flags, 0, sizeof flags);
  everyone(blocks, threads, [&](const lshmem_t &sh) {
    uint32_t mine = lshmem::equal<Group, lshmem::block_group>::yes ? lshmem::block_index() : my_thread();
    auto heap = (uint8_t *)sh.heap_base;
    int to = (int)((sh.pe + 1) % pes), from = (int)((sh.pe + pes - 1) % pes);
    mailbox m(mine, each);
    uint64_t lane = Group::index(), parts = Group::size(), bytes = std::min<uint64_t>(m.bytes / parts, 300);
    uint64_t *told = &flags[sh.pe * each + mine], *tell = &flags[(uint64_t)to * each + mine];
    uint64_t *free = &flags[512 + sh.pe * each + mine], *done = &flags[512 + (uint64_t)from * each + mine];
    random_numbers r(my_thread(), sh.pe, 5);
    for (int k = 1; k <= rounds; k++) {
      uint8_t *src = heap + m.source + lane * bytes, *dst = heap + m.data + lane * bytes;
      uint64_t half = bytes / 2;
      for (uint64_t i = 0; i < bytes; i++) src[i] = pattern((uint64_t)k * 64 + lane, i);
      int q = (int)r.below(sh.queues_per_pe);
      bool one_queue = Group::size() == 1 && k % 3 == 0;
      OK(lshmem_qp_putmem_nbi(sh, dst, src, half, to, q));
      if (one_queue) OK(lshmem_qp_putmem_nbi(sh, dst + half, src + half, bytes - half, to, q));
      else OK(lshmem_putmem_nbi(sh, dst + half, src + half, bytes - half, to));
      if (lshmem::equal<Group, lshmem::block_group>::yes) OK(k & 1 ? lshmem_quiet_block(sh) : lshmem_quiet_block(sh, to));
      else if (one_queue) OK(lshmem_qp_quiet(sh, to, q));
      else if (k % 3 == 1) OK(lshmem_qp_quiet(sh, LSHMEM_PE_ALL, LSHMEM_QP_ANY));
      else OK(k & 1 ? lshmem_quiet(sh) : lshmem_quiet(sh, to));
      if (lane == 0) {
        lshmem::store_relaxed<lshmem::scope::sys>(tell, (uint64_t)k);
        OK(lshmem_wait_until<uint64_t>(sh, told, LSHMEM_CMP_GE, (uint64_t)k));
        for (uint64_t p = 0; p < parts; p++)
          for (uint64_t i = 0; i < bytes; i++) {
            uint8_t have = heap[m.data + p * bytes + i], want = pattern((uint64_t)k * 64 + p, i);
            CHECK(have == want, "round %d: part %lu, byte %lu is %#x, not %#x, behind quiet", k, (unsigned long)p, (unsigned long)i, have, want);
          }
        lshmem::store_release<lshmem::scope::sys>(done, (uint64_t)k);
        OK(lshmem_wait_until<uint64_t>(sh, free, LSHMEM_CMP_GE, (uint64_t)k));
      }
      Group::sync();
    }
  });
}
void test_quiet() { quiets<lshmem::thread_group>(2, 3, 6); }
void test_quiet_block() { quiets<lshmem::block_group>(2, 8, 2); }

// --- Atomic operations ---

// All threads of all PEs add to one word: what they find is a permutation.
template <class T> void permutation(uint64_t offset, T start, T step, bool inc) {
  const uint32_t blocks = 2, threads = 4;
  const uint64_t pes = the_world().pes, each = blocks * threads;
  for (uint64_t pe = 0; pe < pes; pe++) memcpy(heap_of(pe) + offset, &start, sizeof start);
  std::vector<std::vector<T>> found(pes * each);
  const uint64_t owner = seed % pes;
  everyone(blocks, threads, [&](const lshmem_t &sh) {
    auto &mine = found[sh.pe * each + my_thread()];
    for (int k = 0; k < rounds; k++) {
      auto word = (T *)(sh.heap_base + offset);
      mine.push_back(inc ? lshmem_atomic_fetch_inc<T>(sh, word, (int)owner) : lshmem_atomic_fetch_add<T>(sh, word, step, (int)owner));
    }
  });
  std::vector<T> all;
  for (auto &f : found) all.insert(all.end(), f.begin(), f.end());
  std::sort(all.begin(), all.end(), [&](T a, T b) { return (T)(a - start) / step < (T)(b - start) / step; });
  T want = start;
  for (T v : all) {
    CHECK(v == want, "fetch_add of %zu bytes found %#lx where %#lx should have been found", sizeof(T), (unsigned long)v, (unsigned long)want);
    want = (T)(want + step);
  }
  T end;
  memcpy(&end, heap_of(owner) + offset, sizeof end);
  CHECK(end == want, "the sum is %#lx, not %#lx", (unsigned long)end, (unsigned long)want);
}

template <class T> void lock_and_count(uint64_t offset) {
  const uint32_t blocks = 2, threads = 2;
  const uint64_t pes = the_world().pes, each = blocks * threads;
  memset(heap_of(0) + offset, 0, 64);
  everyone(blocks, threads, [&](const lshmem_t &sh) {
    auto lock = (T *)(sh.heap_base + offset), sum = lock + 1, bits = lock + 2, turn = lock + 3;
    T me = (T)(sh.pe * each + my_thread() + 1);
    for (int k = 0; k < rounds; k++) {
      // A lock by compare-and-swap of one's number, also of high bits.
      T mine = (T)(me | me << (sizeof(T) * 8 - 8)), seen;
      while ((seen = lshmem_atomic_compare_swap<T>(sh, lock, 0, mine, 0)) != 0) {
        CHECK(seen == (T)(seen & 0xff) + (T)((T)(seen & 0xff) << (sizeof(T) * 8 - 8)), "compare_swap found %#lx", (unsigned long)seen);
        lshmem::pause();
      }
      T n = lshmem_atomic_fetch<T>(sh, sum, 0);
      OK(lshmem_atomic_set<T>(sh, sum, (T)(n + 1), 0));
      OK(lshmem_quiet(sh));
      T old = lshmem_atomic_swap<T>(sh, lock, 0, 0);
      CHECK(old == mine, "the lock holds %#lx, not %#lx", (unsigned long)old, (unsigned long)mine);
      // Each thread has a bit of its own.
      T bit = (T)1 << (me - 1);
      T before = lshmem_atomic_fetch_or<T>(sh, bits, bit, 0);
      CHECK(!(before & bit), "the bit was set already");
      before = lshmem_atomic_fetch_xor<T>(sh, bits, bit, 0);
      CHECK(before & bit, "the bit was not set");
      OK(lshmem_atomic_or<T>(sh, bits, bit, 0));
      OK(lshmem_quiet(sh));
      before = lshmem_atomic_fetch_and<T>(sh, bits, (T)~bit, 0);
      CHECK(before & bit, "the bit was not set by or");
      OK(lshmem_atomic_xor<T>(sh, bits, bit, 0));
      OK(lshmem_quiet(sh));
      OK(lshmem_atomic_and<T>(sh, bits, (T)~bit, 0));
      OK(lshmem_atomic_add<T>(sh, turn, (T)-3, 0));
      OK(lshmem_atomic_inc<T>(sh, turn, 0));
      OK(lshmem_quiet(sh));
    }
  });
  T end[4];
  memcpy(end, heap_of(0) + offset, sizeof end);
  T n = (T)(pes * each * (uint64_t)rounds);
  CHECK(end[0] == 0 && end[1] == n && end[2] == 0 && end[3] == (T)(0 - 2 * n), "at the end: lock %#lx, sum %lu of %lu, bits %#lx, turn %#lx",
        (unsigned long)end[0], (unsigned long)end[1], (unsigned long)n, (unsigned long)end[2], (unsigned long)end[3]);
}

void test_atomics() {
  permutation<uint64_t>(8192, UINT64_C(0xfffffff0), 1, true);
  permutation<uint64_t>(8192, 7, UINT64_C(0x100000001), false);
  permutation<uint32_t>(8204, 0xfffffff0u, 3, false);
  permutation<int64_t>(69632 + 8, -5, 2, false);
  lock_and_count<uint64_t>(8192);
  lock_and_count<uint32_t>(16384 + 4);
}

// A warp that comes together: one call of all lanes, whole and in part.
void test_together() {
  const uint64_t pes = the_world().pes;
  for (uint32_t threads : {32u, 13u}) {
    uint64_t counter = 4096, words = 8192, narrow = 16384;
    for (uint64_t pe = 0; pe < pes; pe++) memset(heap_of(pe) + counter, 0, 32768);
    std::vector<std::vector<uint64_t>> found(pes * 64);
    everyone(2, threads, [&](const lshmem_t &sh) {
      auto heap = (uint8_t *)sh.heap_base;
      int to = (int)((sh.pe + 1) % pes);
      uint64_t lane = lshmem::lane(), me = sh.pe * 64 + my_thread();
      lshmem::cpu::converged all(lshmem::warp_group::mask());
      for (int k = 1; k <= rounds; k++) {
        auto row = (uint64_t *)(heap + words) + sh.pe * 64 + lshmem::block_index() * 32;
        auto small = (uint32_t *)(heap + narrow) + sh.pe * 64 + lshmem::block_index() * 32;
        OK(lshmem_p<uint64_t>(sh, row + lane, (uint64_t)k * 1000 + me, to));
        OK(lshmem_p<uint32_t>(sh, small + (k & 1 ? lane : threads - 1 - lane), (uint32_t)(k * 1000 + (int)me), to));
        found[me].push_back(lshmem_atomic_fetch_add<uint64_t>(sh, (uint64_t *)(heap + counter), 1, 0));
        OK(lshmem_atomic_add<uint32_t>(sh, (uint32_t *)(heap + counter + 16), 2, 0));
        uint64_t old = lshmem_atomic_swap<uint64_t>(sh, (uint64_t *)(heap + counter + 1024) + me, (uint64_t)k, 0);
        CHECK(old == (uint64_t)k - 1, "swap %d of lane %lu found %lu", k, (unsigned long)lane, (unsigned long)old);
        OK(lshmem_quiet(sh));
        uint64_t have = lshmem_g<uint64_t>(sh, row + lane, to);
        CHECK(have == (uint64_t)k * 1000 + me, "lane %lu wrote %lu, and reads %lu", (unsigned long)lane, (unsigned long)k * 1000 + me, (unsigned long)have);
        uint32_t less = lshmem_g<uint32_t>(sh, small + (k & 1 ? lane : threads - 1 - lane), to);
        CHECK(less == (uint32_t)(k * 1000 + (int)me), "lane %lu reads %u", (unsigned long)lane, less);
        lshmem::warp_group::sync();
      }
    });
    std::vector<uint64_t> all;
    for (auto &f : found) all.insert(all.end(), f.begin(), f.end());
    std::sort(all.begin(), all.end());
    for (uint64_t i = 0; i < all.size(); i++) CHECK(all[i] == i, "fetch_add of a warp found %lu, not %lu", (unsigned long)all[i], (unsigned long)i);
    uint32_t sum;
    memcpy(&sum, heap_of(0) + counter + 16, sizeof sum);
    CHECK(sum == 2 * all.size(), "add of a warp: %u, not %zu", sum, 2 * all.size());
  }
}

// --- Every type: values that need all bits ---

template <class T> T high_value(int k) {
  uint64_t v = UINT64_C(0x8123456789abcdef) * (uint64_t)(2 * k + 1);
  T r;
  memcpy(&r, &v, sizeof r);
  return r;
}
template <class T> void same(T a, T b, const char *what) {
  CHECK(memcmp(&a, &b, sizeof a) == 0, "%s of %zu bytes: wrong value", what, sizeof(T));
}

template <class T> void plain_type(const lshmem_t &sh, int to) {
  auto heap = (uint8_t *)sh.heap_base;
  auto remote = (T *)(heap + 4096 + 256 * sh.pe), local = (T *)(heap + 2048), back = (T *)(heap + 3072);
  OK(lshmem_p<T>(sh, remote, high_value<T>(1), to));
  OK(lshmem_quiet(sh));
  same(lshmem_g<T>(sh, remote, to), high_value<T>(1), "p and g");
  for (int i = 0; i < 8; i++) local[i] = high_value<T>(i + 2);
  auto there_and_back = [&](const char *what) {
    OK(lshmem_quiet(sh));
    OK(lshmem_get<T>(sh, back, remote, 8, to));
    for (int i = 0; i < 8; i++) same(back[i], local[i], what), local[i] = high_value<T>(i + (int)what[3]);
  };
  OK(lshmem_put<T>(sh, remote, local, 8, to));
  there_and_back("put");
  OK(lshmem_put_nbi<T>(sh, remote, local, 8, to));
  there_and_back("put_nbi");
  OK(lshmem_put_warp<T>(sh, remote, local, 8, to));
  there_and_back("put_warp");
  OK(lshmem_put_nbi_warp<T>(sh, remote, local, 8, to));
  there_and_back("put_nbi_warp");
  OK(lshmem_put_block<T>(sh, remote, local, 8, to));
  there_and_back("put_block");
  OK(lshmem_put_nbi_block<T>(sh, remote, local, 8, to));
  there_and_back("put_nbi_block");
  auto sig = (uint64_t *)(heap + 1024 + 64 * sh.pe);
  OK(lshmem_put_signal<T>(sh, remote, local, 8, sig, 1, LSHMEM_SIGNAL_SET, to));
  there_and_back("put_signal");
  OK(lshmem_put_signal_nbi<T>(sh, remote, local, 8, sig, 1, LSHMEM_SIGNAL_ADD, to));
  there_and_back("put_signal_nbi");
  OK(lshmem_put_signal_warp<T>(sh, remote, local, 8, sig, 1, LSHMEM_SIGNAL_ADD, to));
  there_and_back("put_signal_warp");
  OK(lshmem_put_signal_nbi_warp<T>(sh, remote, local, 8, sig, 1, LSHMEM_SIGNAL_ADD, to));
  there_and_back("put_signal_nbi_warp");
  OK(lshmem_put_signal_block<T>(sh, remote, local, 8, sig, 1, LSHMEM_SIGNAL_ADD, to));
  there_and_back("put_signal_block");
  OK(lshmem_put_signal_nbi_block<T>(sh, remote, local, 8, sig, 1, LSHMEM_SIGNAL_ADD, to));
  there_and_back("put_signal_nbi_block");
  CHECK(lshmem_g<uint64_t>(sh, sig, to) == 6, "signals: %lu, not 6", (unsigned long)lshmem_g<uint64_t>(sh, sig, to));
  OK(lshmem_put<T>(sh, remote, local, 8, to));
  OK(lshmem_quiet(sh));
  auto compare = [&](const char *what) {
    OK(lshmem_quiet(sh));
    for (int i = 0; i < 8; i++) same(back[i], local[i], what), back[i] = T();
  };
  OK(lshmem_get_nbi<T>(sh, back, remote, 8, to));
  compare("get_nbi");
  OK(lshmem_get_warp<T>(sh, back, remote, 8, to));
  compare("get_warp");
  OK(lshmem_get_nbi_warp<T>(sh, back, remote, 8, to));
  compare("get_nbi_warp");
  OK(lshmem_get_block<T>(sh, back, remote, 8, to));
  compare("get_block");
  OK(lshmem_get_nbi_block<T>(sh, back, remote, 8, to));
  compare("get_nbi_block");
  OK(lshmem_iput<T>(sh, remote, local, 2, 1, 4, to));
  OK(lshmem_iput_warp<T>(sh, remote, local, 2, 1, 4, to));
  OK(lshmem_iput_block<T>(sh, remote, local, 2, 1, 4, to));
  OK(lshmem_quiet(sh));
  OK(lshmem_iget<T>(sh, back, remote, 1, 2, 4, to));
  OK(lshmem_iget_warp<T>(sh, back, remote, 1, 2, 4, to));
  OK(lshmem_iget_block<T>(sh, back, remote, 1, 2, 4, to));
  for (int i = 0; i < 4; i++) same(back[i], local[i], "iput and iget");
}

template <class T> void swap_type(const lshmem_t &sh, int to) {
  auto word = (T *)(sh.heap_base + 8192 + 64 * sh.pe);
  OK(lshmem_atomic_set<T>(sh, word, high_value<T>(1), to));
  OK(lshmem_quiet(sh));
  same(lshmem_atomic_fetch<T>(sh, word, to), high_value<T>(1), "atomic_set and fetch");
  same(lshmem_atomic_swap<T>(sh, word, high_value<T>(2), to), high_value<T>(1), "atomic_swap");
  same(lshmem_atomic_fetch<T>(sh, word, to), high_value<T>(2), "atomic_swap's new value");
}

template <class T> void integer_type(const lshmem_t &sh, int to) {
  swap_type<T>(sh, to);
  auto word = (T *)(sh.heap_base + 8192 + 64 * sh.pe);
  typedef typename lshmem::word<sizeof(T)>::type U;
  U v = (U)high_value<T>(2), a = (U)high_value<T>(3);
  auto is = [&](T have, U want, const char *what) { CHECK((U)have == want, "%s of %zu bytes: %#lx, not %#lx", what, sizeof(T), (unsigned long)(U)have, (unsigned long)want); };
  auto now = [&](U want, const char *what) {
    OK(lshmem_quiet(sh));
    is(lshmem_atomic_fetch<T>(sh, word, to), want, what);
    v = want;
  };
  is(lshmem_atomic_fetch_add<T>(sh, word, (T)a, to), v, "fetch_add");
  now((U)(v + a), "fetch_add's sum");
  is(lshmem_atomic_fetch_inc<T>(sh, word, to), v, "fetch_inc");
  now((U)(v + 1), "fetch_inc's sum");
  OK(lshmem_atomic_add<T>(sh, word, (T)a, to));
  now((U)(v + a), "add");
  OK(lshmem_atomic_inc<T>(sh, word, to));
  now((U)(v + 1), "inc");
  is(lshmem_atomic_fetch_and<T>(sh, word, (T)a, to), v, "fetch_and");
  now((U)(v & a), "fetch_and's result");
  is(lshmem_atomic_fetch_or<T>(sh, word, (T)high_value<T>(5), to), v, "fetch_or");
  now((U)(v | (U)high_value<T>(5)), "fetch_or's result");
  is(lshmem_atomic_fetch_xor<T>(sh, word, (T)a, to), v, "fetch_xor");
  now((U)(v ^ a), "fetch_xor's result");
  OK(lshmem_atomic_or<T>(sh, word, (T)a, to));
  now((U)(v | a), "or");
  OK(lshmem_atomic_and<T>(sh, word, (T)high_value<T>(7), to));
  now((U)(v & (U)high_value<T>(7)), "and");
  OK(lshmem_atomic_xor<T>(sh, word, (T)a, to));
  now((U)(v ^ a), "xor");
  is(lshmem_atomic_compare_swap<T>(sh, word, (T)(v ^ (U)1 << (sizeof(T) * 8 - 1)), 0, to), v, "compare_swap of something else");
  now(v, "compare_swap that must not");
  is(lshmem_atomic_compare_swap<T>(sh, word, (T)v, (T)a, to), v, "compare_swap");
  now(a, "compare_swap's result");
}

template <class T> void waiting_type(const lshmem_t &sh) {
  auto words = (T *)(sh.heap_base + 12288);
  T values[4];
  int status[4] = {0, 0, 1, 0};
  size_t index, indices[4], count;
  for (int i = 0; i < 4; i++) words[i] = values[i] = high_value<T>(i);
  OK(lshmem_wait_until<T>(sh, words, LSHMEM_CMP_EQ, values[0]));
  OK(lshmem_wait_until<T>(sh, words, LSHMEM_CMP_NE, values[1]));
  OK(lshmem_wait_until_all_vector<T>(sh, words, 4, status, LSHMEM_CMP_EQ, values));
  OK(lshmem_wait_until_any<T>(sh, words, 4, &index, status, LSHMEM_CMP_EQ, values[1]));
  CHECK(index == 1, "wait_until_any: %zu", index);
  OK(lshmem_wait_until_some_vector<T>(sh, words, 4, indices, &count, status, LSHMEM_CMP_EQ, values));
  CHECK(count == 3, "wait_until_some: %zu", count);
  CHECK(lshmem_test_any<T>(sh, words, 4, status, LSHMEM_CMP_EQ, values[2]) == SIZE_MAX, "test_any of one that is left out");
  CHECK(!lshmem_test_all<T>(sh, words, 4, nullptr, LSHMEM_CMP_EQ, values[0]), "test_all");
}

void test_types() {
  everyone(1, 1, [&](const lshmem_t &sh) {
    int to = (int)((sh.pe + 1) % sh.pes);
    plain_type<char>(sh, to);
    plain_type<int8_t>(sh, to);
    plain_type<uint16_t>(sh, to);
    plain_type<int>(sh, to);
    plain_type<float>(sh, to);
    plain_type<double>(sh, to);
    plain_type<unsigned long>(sh, to);
    plain_type<long long>(sh, to);
    integer_type<int>(sh, to);
    integer_type<unsigned>(sh, to);
    integer_type<long>(sh, to);
    integer_type<unsigned long>(sh, to);
    integer_type<long long>(sh, to);
    integer_type<unsigned long long>(sh, to);
    swap_type<float>(sh, to);
    swap_type<double>(sh, to);
    waiting_type<int16_t>(sh);
    waiting_type<uint16_t>(sh);
    waiting_type<int>(sh);
    waiting_type<unsigned>(sh);
    waiting_type<int64_t>(sh);
    waiting_type<uint64_t>(sh);
  });
}

// --- Calls that must not wait ---

// Nothing is connected, so nothing completes: the forms that need not wait return, then the parent connects, and then quiet
// returns too.
void test_nonblocking() {
  everyone(1, 1, [&](const lshmem_t &sh) {
    auto heap = (uint8_t *)sh.heap_base;
    int to = (int)((sh.pe + 1) % sh.pes);
    uint8_t *src = heap + 1024, *dst = heap + 2048;
    auto sig = (uint64_t *)(heap + 4096);
    OK(lshmem_putmem_nbi(sh, dst, src, 64, to));
    OK(lshmem_putmem_nbi_warp(sh, dst, src, 64, to));
    OK(lshmem_putmem_nbi_block(sh, dst, src, 64, to));
    OK(lshmem_getmem_nbi(sh, src + 256, dst, 64, to));
    OK(lshmem_putmem_signal_nbi(sh, dst, src, 64, sig, 1, LSHMEM_SIGNAL_ADD, to));
    OK(lshmem_putmem_signal_nbi_warp(sh, dst, src, 64, sig, 1, LSHMEM_SIGNAL_ADD, to));
    OK(lshmem_putmem_signal_nbi_block(sh, dst, src, 64, sig, 1, LSHMEM_SIGNAL_ADD, to));
    OK(lshmem_p<uint64_t>(sh, sig + 1, 5, to));
    OK(lshmem_atomic_add<uint64_t>(sh, sig, 1, to));
    OK(lshmem_signal_op(sh, sig, 1, LSHMEM_SIGNAL_ADD, to));
  });
  tell("connect");
  everyone(1, 1, [&](const lshmem_t &sh) {
    auto sig = (uint64_t *)(sh.heap_base + 4096);
    OK(lshmem_quiet(sh));
    OK(lshmem_signal_wait_until(sh, sig, LSHMEM_CMP_EQ, 5));
  });
}

// --- Errors ---

// Somewhere an entry fails: every thread comes to know it in time.
void test_error() {
  std::atomic<int> told{0};
  const uint32_t blocks = 2, threads = 4;
  everyone(blocks, threads, [&](const lshmem_t &sh) {
    auto heap = (uint8_t *)sh.heap_base;
    int to = (int)((sh.pe + 1) % sh.pes);
    random_numbers r(my_thread(), sh.pe, 9);
    uint8_t *src = heap + 1024 + 256 * my_thread(), *dst = heap + 65536 + 256 * my_thread();
    int status = LSHMEM_OK;
    for (int k = 0; k < 20000 && status == LSHMEM_OK; k++) {
      switch (r.below(6)) {
      case 0: status = lshmem_putmem_nbi(sh, dst, src, r.below(200), to); break;
      case 1: status = lshmem_putmem(sh, dst, src, r.below(200), to); break;
      case 2: status = lshmem_getmem(sh, dst, src, r.below(200), to); break;
      case 3: lshmem_atomic_fetch_add<uint64_t>(sh, (uint64_t *)(heap + 512), 1, to); break;
      case 4: status = lshmem_atomic_add<uint32_t>(sh, (uint32_t *)(heap + 512), 1, to); break;
      default: status = lshmem_quiet(sh, to);
      }
    }
    CHECK(status == LSHMEM_ERR_QUEUE, "the entry that fails leaves status %d", status);
    status = lshmem_quiet(sh, to);
    CHECK(status == LSHMEM_ERR_QUEUE, "quiet behind a failed entry: status %d", status);
    told++;
  });
  for (uint64_t pe = 0; pe < the_world().pes; pe++) {
    auto c = control_of(state_of(pe));
    // Its own error, or that of the entries behind it, or that the other side's queue has failed and does not answer.
    uint32_t syndrome = c->syndrome & 0xff;
    CHECK(c->status == LSHMEM_ERR_QUEUE && (syndrome == 0x14 || syndrome == 0x05 || syndrome == 0x15), "PE %lu: status %u, syndrome %#x", (unsigned long)pe, c->status, c->syndrome);
  }
  CHECK(told == (int)(blocks * threads * the_world().pes), "%d threads were told", told.load());
}

// A library of another version than this header: every call over the network says so, and none of them waits.
void test_version() {
  everyone(1, 1, [&](const lshmem_t &sh) {
    auto heap = (uint8_t *)sh.heap_base;
    int to = (int)((sh.pe + 1) % sh.pes);
    CHECK(lshmem_check_version(sh) == LSHMEM_ERR_VERSION, "the version is not compared");
    int status = lshmem_putmem(sh, heap + 1024, heap + 2048, 64, to);
    CHECK(status == LSHMEM_ERR_VERSION, "putmem with another version: status %d", status);
    status = lshmem_atomic_add<uint64_t>(sh, (uint64_t *)heap, 1, to);
    CHECK(status == LSHMEM_ERR_VERSION, "atomic_add with another version: status %d", status);
  });
}

// --- The protocol as the adapter sees it ---

// An adapter that executes nothing: it fetches each block as plain memory, so that ThreadSanitizer knows whether anything
// orders the fetch behind the writing, and completes. It checks what the model checks.
class watcher {
public:
  // It completes about once in lazy turns.
  watcher(lshmem_queue *q, uint64_t number, uint64_t lazy) : q(q), r(number, 77), lazy(lazy), known(q->posted), done(q->posted), completed(q->posted), consumed(q->consumed) {}

  void turn() {
    uint64_t now = __atomic_load_n(&q->consumed, __ATOMIC_ACQUIRE);
    CHECK(now >= consumed, "consumed went back from %lu to %lu", (unsigned long)consumed, (unsigned long)now);
    CHECK(now <= completed, "consumed is %lu, complete are %lu", (unsigned long)now, (unsigned long)completed);
    consumed = now;
    learn();
    while (done < known && !r.chance(8)) fetch();
    if (completed < done && r.chance(lazy)) complete();
  }
  bool rests() const { return completed == q->ready; }
  void last() const {
    CHECK(q->posted == q->ready && completed == q->ready, "at rest: ready %lu, posted %lu, complete %lu", (unsigned long)q->ready,
          (unsigned long)q->posted, (unsigned long)completed);
    CHECK(!unflushed, "quiet has returned, and what was read last was not flushed");
  }

private:
  void learn() {
    uint16_t index;
    if (q->flags & LSHMEM_QUEUE_HOST_POSTS) {
      index = (uint16_t)__atomic_load_n((uint64_t *)q->doorbell, __ATOMIC_ACQUIRE);
    } else {
      uint64_t bell = __atomic_load_n((uint64_t *)q->doorbell, __ATOMIC_ACQUIRE);
      if (bell == seen) return;
      seen = bell;
      // A real one may lose this doorbell and take the record: that must not be behind.
      uint16_t rung = (uint16_t)(__builtin_bswap32((uint32_t)bell) >> 8);
      index = (uint16_t)__builtin_bswap32(__atomic_load_n((uint32_t *)q->record, __ATOMIC_ACQUIRE));
      CHECK((uint16_t)(index - rung) <= q->depth, "the doorbell says %u, the record behind it %u", rung, index);
      CHECK((uint16_t)(rung - (uint16_t)known) <= q->depth, "the doorbell goes back from %u to %u", (uint16_t)known, rung);
    }
    uint16_t more = (uint16_t)(index - (uint16_t)known);
    CHECK(more <= q->depth, "posted goes from %u to %u", (uint16_t)known, index);
    known += more;
    CHECK(known - completed <= q->depth, "%lu blocks are posted and not complete", (unsigned long)(known - completed));
  }
  void fetch() {
    uint32_t entry[16];
    memcpy(entry, (char *)q->wq + (done & (q->depth - 1)) * 64, sizeof entry);
    uint32_t what = __builtin_bswap32(entry[0]), who = __builtin_bswap32(entry[1]), segments = who & 63, blocks = (segments + 3) / 4;
    CHECK((uint16_t)(what >> 8) == (uint16_t)done && who >> 8 == q->number && segments != 0, "block %lu holds %#x %#x", (unsigned long)done, what, who);
    uint32_t more[16];
    for (uint32_t b = 1; b < blocks; b++) memcpy(more, (char *)q->wq + ((done + b) & (q->depth - 1)) * 64, sizeof more);
    uint32_t flags = entry[2] >> 24, opcode = what & 0xff;
    if (opcode == LSHMEM_MLX5_OP_DUMP) {
      CHECK((flags & 0xe0) == LSHMEM_MLX5_FENCE_READS, "block %lu: a DUMP that does not wait for reads", (unsigned long)done);
      unflushed = false;
    } else if (opcode == LSHMEM_MLX5_OP_READ) {
      unflushed = q->flags & LSHMEM_QUEUE_FLUSH;
    }
    // An answer: to the address in the last segment.
    bool answered = opcode == LSHMEM_MLX5_OP_READ || opcode == LSHMEM_MLX5_OP_FETCH_ADD || opcode == LSHMEM_MLX5_OP_MASKED_ADD;
    if (answered && segments <= 4) {
      uint32_t *data = entry + 4 * (segments - 1);
      uint64_t bytes = __builtin_bswap32(data[0]), to = (uint64_t)__builtin_bswap32(data[2]) << 32 | __builtin_bswap32(data[3]);
      if (bytes <= 8) memset((void *)to, 0, bytes);
    }
    asked.push_back(entry[2] >> 24 & LSHMEM_MLX5_CTRL_COMPLETION ? (int)(uint16_t)done : -1);
    done += blocks;
    ends.push_back(done);
  }
  void complete() {
    size_t n = 1 + r.below(ends.size());
    int counter = -1;
    for (size_t i = 0; i < n; i++)
      if (asked[i] >= 0) counter = asked[i];
    completed = ends[n - 1];
    ends.erase(ends.begin(), ends.begin() + (long)n);
    asked.erase(asked.begin(), asked.begin() + (long)n);
    if (counter < 0) return;
    uint32_t word = __builtin_bswap32((uint32_t)counter << 16);
    __atomic_store_n((uint32_t *)(q->cq + LSHMEM_MLX5_COMPLETION_COUNTER_AT), word, __ATOMIC_RELEASE);
  }

  lshmem_queue *q;
  random_numbers r;
  uint64_t lazy, known, done, completed, consumed, seen = 0;
  bool unflushed = false;
  std::vector<uint64_t> ends; // of entries fetched and not complete
  std::vector<int> asked;     // their counters, or -1 for those that ask for no completion
};

// watch runs kernel on a grid, with a watcher of each queue.
void watch(uint64_t lazy, uint32_t blocks, uint32_t threads, const std::function<void(const lshmem_t &)> &kernel) {
  std::atomic<bool> end{false};
  std::vector<std::unique_ptr<watcher>> watchers;
  for (uint64_t pe = 0; pe < the_world().pes; pe++) {
    const lshmem_t &sh = state_of(pe);
    for (uint64_t i = 0; i < sh.pes * sh.queues_per_pe; i++)
      watchers.emplace_back(new watcher((lshmem_queue *)sh.queues + i, pe * 64 + i, lazy));
  }
  std::thread adapter([&] {
    while (!end) {
      for (auto &w : watchers) w->turn();
      std::this_thread::yield();
    }
  });
  everyone(blocks, threads, kernel);
  end = true;
  adapter.join();
  for (auto &w : watchers) w->last();
}

void test_watched() {
  watch(2, 3, 4, [&](const lshmem_t &sh) {
    auto heap = (uint8_t *)sh.heap_base;
    random_numbers r(my_thread(), sh.pe, 3);
    uint8_t *src = heap + 1024, *dst = heap + 65536 - 64;
    auto word = (uint64_t *)(heap + 512);
    for (int k = 0; k < rounds; k++) {
      int to = (int)r.below(sh.pes), q = r.chance(2) ? LSHMEM_QP_DEFAULT : (int)r.below(sh.queues_per_pe);
      switch (r.below(10)) {
      default: OK(lshmem_qp_putmem_nbi(sh, dst, src, r.below(200), to, q)); break;
      case 3: OK(lshmem_qp_getmem_nbi(sh, src + 256, dst, r.below(200), to, q)); break;
      case 4: OK(lshmem_qp_p<uint64_t>(sh, word, 1, to, q)); break;
      case 5: OK(lshmem_qp_atomic_add<uint64_t>(sh, word, 1, to, q)); break;
      case 6: lshmem_qp_atomic_fetch_add<uint64_t>(sh, word, 1, to, q); break;
      case 7: OK(lshmem_qp_putmem_signal_nbi(sh, dst, src, r.below(200), word, 1, LSHMEM_SIGNAL_SET, to, q)); break;
      case 8: OK(lshmem_qp_quiet(sh, to, q)); break;
      case 9: OK(lshmem_fence(sh, to)); break;
      }
    }
    OK(lshmem_quiet(sh));
  });
}

// More than fits: large calls of many threads, all of which wait for room.
void test_flood() {
  watch(20, 3, 6, [&](const lshmem_t &sh) {
    auto heap = (uint8_t *)sh.heap_base;
    random_numbers r(my_thread(), sh.pe, 4);
    for (int k = 0; k < rounds; k++)
      OK(lshmem_qp_putmem_nbi(sh, heap + (1 << 20), heap, r.chance(2) ? 120000 : r.below(20000), 0, (int)r.below(sh.queues_per_pe)));
    OK(lshmem_quiet(sh));
  });
}

// Who has sent nothing has nothing to wait for.
void test_idle() {
  everyone(2, 2, [&](const lshmem_t &sh) {
    OK(lshmem_quiet(sh));
    OK(lshmem_fence(sh));
    OK(lshmem_quiet_block(sh));
    OK(lshmem_fence_block(sh, 0));
    OK(lshmem_qp_quiet(sh, 0, 0));
  });
}

#include "collectives.h"

// A team's operations by two blocks in turn, that is over two queues.
void test_turns() {
  collective_world w(0);
  std::vector<std::atomic<int>> turn(the_world().pes);
  everyone(2, 1, [&](const lshmem_t &state) {
    lshmem_t sh = state;
    sh.teams = (uint64_t)w.teams[sh.pe].data();
    sh.self = (uint64_t)&sh;
    random_numbers r(my_thread(), sh.pe, 9);
    for (int k = (int)lshmem::block_index(); k < rounds; k += 2) {
      while (turn[sh.pe] != k) lshmem::cpu::yield();
      if (sh.pe == 1 && r.chance(4)) lshmem::cpu::sleep_nanos(300000);
      OK(lshmem_sync(sh, 0));
      turn[sh.pe] = k + 1;
    }
  });
}

const std::map<std::string, void (*)()> tests = {
    {"memory", test_memory},
    {"warps", test_warps},
    {"blocks", test_blocks},
    {"sizes", test_sizes},
    {"signals", test_signals},
    {"signals_warp", test_signals_warp},
    {"signals_block", test_signals_block},
    {"fence", test_fence},
    {"quiet", test_quiet},
    {"quiet_block", test_quiet_block},
    {"atomics", test_atomics},
    {"together", test_together},
    {"types", test_types},
    {"nonblocking", test_nonblocking},
    {"error", test_error},
    {"version", test_version},
    {"watched", test_watched},
    {"flood", test_flood},
    {"idle", test_idle},
    {"collectives", test_collectives},
    {"turns", test_turns},
};

// stumble gives way to others now and then, at random.
void stumble() {
  static std::atomic<uint64_t> threads{0};
  static thread_local random_numbers r(threads.fetch_add(1, std::memory_order_relaxed), 11);
  switch (r.below(256)) {
  case 0: lshmem::cpu::sleep_nanos(1000); break; // as long as the machine takes to come back
  case 1: case 2: case 3: case 4: std::this_thread::yield(); break;
  }
}

} // namespace

int main(int argc, char **argv) {
#ifdef LITMUS_SWITCH
  if (const char *m = getenv("LITMUS_MUTATION")) litmus_mutation = atoi(m);
#endif
  CHECK(argc == 6, "usage: litmus FD BYTES TEST SEED ROUNDS");
  auto test = tests.find(argv[3]);
  CHECK(test != tests.end(), "no test %s", argv[3]);
  seed = strtoull(argv[4], nullptr, 0);
  rounds = atoi(argv[5]);
  void *p = mmap(nullptr, strtoull(argv[2], nullptr, 0), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), 0);
  CHECK(p != MAP_FAILED, "mmap: %m");
  memory = (char *)p;
  lshmem::cpu::stumble = stumble;
  tell("base %lx", (uint64_t)memory);
  test->second();
  printf("ok\n");
  return 0;
}
