// Copies: what is written arrives, and nothing else changes. Included by litmus.cc, in its namespace.

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
      default: // in two halves, of which the second is after a fence
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
