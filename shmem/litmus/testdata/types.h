// Every function for every type. Included by litmus.cc, in its namespace.

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
