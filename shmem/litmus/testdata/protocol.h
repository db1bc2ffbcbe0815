// The queue protocol as the adapter sees it. Included by litmus.cc, in its namespace.

// --- The protocol as the adapter sees it ---

// An adapter that executes nothing: it fetches each block as plain memory, so that ThreadSanitizer knows whether
// anything orders the fetch after the writing, and completes. It checks what the model checks.
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
      // A real one may lose this doorbell and take the record: that must not be older.
      uint16_t rung = (uint16_t)(__builtin_bswap32((uint32_t)bell) >> 8);
      index = (uint16_t)__builtin_bswap32(__atomic_load_n((uint32_t *)q->record, __ATOMIC_ACQUIRE));
      CHECK((uint16_t)(index - rung) <= q->depth, "the doorbell says %u, the record %u", rung, index);
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
