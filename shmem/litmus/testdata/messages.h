// Data and signals, fence and quiet. Included by litmus.cc, in its namespace.

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
        CHECK(heap[m.data + i] == pattern(tag, i), "message %d of PE %d, %lu bytes: byte %lu is %#x, not %#x, after its signal", k, from,
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
          CHECK(have == want, "round %d: part %lu, byte %lu is %#x, not %#x, after flag and fence", k, (unsigned long)part,
                (unsigned long)i, have, want);
        }
      uint64_t have = lshmem::load_relaxed<lshmem::scope::sys>(sum);
      CHECK(have == 3 * (uint64_t)k, "round %d: the sum is %lu after flag and fence, not %lu", k, (unsigned long)have, (unsigned long)k * 3);
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
            CHECK(have == want, "round %d: part %lu, byte %lu is %#x, not %#x, after quiet", k, (unsigned long)p, (unsigned long)i, have, want);
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
