// Device code as CPU code, which a test calls with the State that the transport made.
#include "lshmem.cuh"

#include <lshmem_cpu.h>

#include <atomic>

namespace {

constexpr uint64_t share = 1536; // bytes that a block sends to each PE

// Offsets in the heap.
constexpr uint64_t at_source = 0, at_words = 16384, at_put = 32768, at_get = 65536;

void exercise(const lshmem_t &sh, uint64_t *sum, std::atomic<int> *failure) {
  auto *heap = (uint8_t *)sh.heap_base;
  auto *words = (uint64_t *)(heap + at_words);
  uint32_t block = lshmem::block_index(), blocks = lshmem::grid_blocks();
  int me = lshmem_my_pe(sh), pes = lshmem_n_pes(sh), status = 0;
  auto check = [&](int s) {
    int none = 0;
    if (s != 0) failure->compare_exchange_strong(none, s);
    status |= s;
  };
  for (int i = 0; i < pes; i++) {
    int pe = (me + i) % pes;
    uint8_t *to = heap + at_put + ((uint64_t)me * blocks + block) * share;
    check(lshmem_putmem_signal_block(sh, to, heap + at_source + block * share, share, &words[8 + me], 1, LSHMEM_SIGNAL_ADD, pe));
    lshmem_atomic_add<uint64_t>(sh, &words[0], 1, pe);
    uint64_t old = lshmem_atomic_fetch_add<uint64_t>(sh, &words[1], 1ull << 32, pe);
    if (old & 0xffffffff) check(LSHMEM_ERR_STATE);
    lshmem_atomic_add<uint32_t>(sh, (uint32_t *)&words[2], 3, pe);
  }
  check(lshmem_quiet_block(sh));
  for (int pe = 0; pe < pes; pe++) {
    check(lshmem_signal_wait_until(sh, &words[8 + pe], LSHMEM_CMP_EQ, blocks));
    // What came from there, back from one PE further.
    uint8_t *from = heap + at_put + ((uint64_t)me * blocks + block) * share;
    check(lshmem_getmem_block(sh, heap + at_get + ((uint64_t)pe * blocks + block) * share, from, share, pe));
  }
  if (lshmem::thread_index() == 0) __atomic_fetch_add(sum, lshmem_signal_fetch(sh, &words[8 + me]), __ATOMIC_RELAXED);
}

} // namespace

extern "C" int run_exercise(const lshmem_t *sh, uint32_t blocks, uint32_t threads) {
  std::atomic<int> failure{0};
  uint64_t sum = 0;
  lshmem::cpu::launch(blocks, threads, [&] { exercise(*sh, &sum, &failure); });
  return failure.load();
}

// What a put to a PE that is gone returns, and the state's Control has then.
extern "C" int run_put(const lshmem_t *sh, int pe) {
  auto *heap = (uint8_t *)sh->heap_base;
  return lshmem_putmem(*sh, heap + at_put, heap, 64, pe);
}
