// Atomic operations. Included by litmus.cc, in its namespace.

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
