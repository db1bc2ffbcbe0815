// The device header as CPU code: tests that several PEs in one process run against each other and against network
// adapters in the parent process.
//
//	litmus FD BYTES TEST SEED ROUNDS
//
// FD is memory shared with the parent, which lays the PEs out in it. What the parent must do is written to stdout, one
// line each, and awaited on stdin: "base ADDRESS" when the memory is mapped, "connect" when queues are to be connected.
// A test that fails writes FAIL and why, and ends the process with status 1.
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

// With LITMUS_SWITCH the headers are a copy that has defects (shmem/mutation), of which one is chosen when the program
// starts.
#ifdef LITMUS_SWITCH
static int litmus_mutation;
#define LSHMEM_MUTATION litmus_mutation
#endif

#include "lshmem_collective.cuh"

namespace {

#include "world.h"

#include "memory.h"
#include "messages.h"
#include "atomics.h"
#include "types.h"

// --- Calls that must not wait ---

// Nothing is connected, so nothing completes: the forms that need not wait return, then the parent connects, and then
// quiet returns too.
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
    CHECK(status == LSHMEM_ERR_QUEUE, "quiet after a failed entry: status %d", status);
    told++;
  });
  for (uint64_t pe = 0; pe < the_world().pes; pe++) {
    auto c = control_of(state_of(pe));
    // Its own error, or that of the entries after it, or that the other side's queue has failed and does not answer.
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

#include "protocol.h"
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
