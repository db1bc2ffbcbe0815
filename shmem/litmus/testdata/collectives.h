// Device collectives of all scopes, on the team of all and on one of the others in reverse, over whatever reaches the
// members. Included by litmus.cc, in its namespace, after lshmem_collective.cuh.

// The scopes by their groups.
template <class Group> struct scope_calls;
#define LITMUS_SCOPE(group, suffix)                                                                                      \
  template <> struct scope_calls<lshmem::group> {                                                                        \
    static int barrier(const lshmem_t &sh, int team) { return lshmem_barrier##suffix(sh, team); }                        \
    static int sync(const lshmem_t &sh, int team) { return lshmem_sync##suffix(sh, team); }                              \
    template <class T> static int broadcast(const lshmem_t &sh, int team, T *d, const T *s, size_t n, int root) {        \
      return lshmem_broadcast##suffix(sh, team, d, s, n, root);                                                          \
    }                                                                                                                    \
    template <class T> static int fcollect(const lshmem_t &sh, int team, T *d, const T *s, size_t n) {                   \
      return lshmem_fcollect##suffix(sh, team, d, s, n);                                                                 \
    }                                                                                                                    \
    template <class T> static int alltoall(const lshmem_t &sh, int team, T *d, const T *s, size_t n) {                   \
      return lshmem_alltoall##suffix(sh, team, d, s, n);                                                                 \
    }                                                                                                                    \
    template <class T> static int reduce(const lshmem_t &sh, int team, int op, T *d, const T *s, size_t n) {             \
      return lshmem_reduce##suffix(sh, team, op, d, s, n);                                                               \
    }                                                                                                                    \
    template <class T> static int reducescatter(const lshmem_t &sh, int team, int op, T *d, const T *s, size_t n) {      \
      return lshmem_reducescatter##suffix(sh, team, op, d, s, n);                                                        \
    }                                                                                                                    \
  };
LITMUS_SCOPE(thread_group, )
LITMUS_SCOPE(warp_group, _warp)
LITMUS_SCOPE(block_group, _block)
#undef LITMUS_SCOPE

struct collective_world {
  static constexpr uint64_t area = 0;           // of the first team, in the heap
  static constexpr uint64_t source = 6 << 20, dest = source + (512 << 10);
  std::vector<std::vector<lshmem_team>> teams;  // by PE
  std::vector<std::vector<uint64_t>> counters;
  std::vector<uint32_t> reversed;               // PEs of team 1

  // steps is how many steps all channels have done: near a wrap of the numbers in lines.
  explicit collective_world(uint64_t steps) {
    uint64_t n = the_world().pes;
    uint32_t direct = LSHMEM_TEAM_DIRECT;
    for (uint64_t a = 0; a < n; a++)
      for (uint64_t b = 0; b < n; b++)
        if (state_of(a).peer[b] == 0) direct = 0;
    for (uint64_t pe = n; pe-- > (n > 2 ? 1 : 0);) reversed.push_back((uint32_t)pe);
    for (uint64_t pe = 0; pe < n; pe++) {
      counters.push_back(std::vector<uint64_t>(2 * LSHMEM_CHANNELS, steps));
      teams.push_back(std::vector<lshmem_team>(LSHMEM_MAX_TEAMS));
      auto &t = teams.back();
      t[0].pes = (uint32_t)n;
      t[0].index = (uint32_t)pe;
      t[0].stride = 1;
      t[0].sync = area;
      t[0].flags = direct;
      t[0].counters = (uint64_t)counters.back().data();
      for (uint32_t i = 0; i < reversed.size(); i++) {
        if (reversed[i] != pe) continue;
        t[1] = t[0];
        t[1].pes = (uint32_t)reversed.size();
        t[1].index = i;
        t[1].stride = 0;
        t[1].list = (uint64_t)reversed.data();
        t[1].sync = area + (3 << 20);
        t[1].counters += LSHMEM_CHANNELS * 8;
      }
    }
  }
};

// element makes small numbers, which no type rounds.
template <class T> T element(uint64_t tag, uint64_t i) { return (T)(pattern(tag, i) & 7); }
template <> lshmem::half element(uint64_t tag, uint64_t i) {
  return lshmem::collective::narrow((float)(pattern(tag, i) & 7), lshmem::half());
}
template <class T> double number_of(T v) { return (double)v; }
template <> double number_of(lshmem::half v) { return lshmem::collective::widen(v); }

// one_collective does one operation on a team with random arguments, which are the same on all members, and checks
// the result.
template <class Group, class T> void one_collective(const lshmem_t &sh, const collective_world &w, int team, random_numbers &r) {
  using call = scope_calls<Group>;
  const lshmem_team &t = w.teams[sh.pe][team];
  uint64_t n = t.pes, me = t.index, tag = r.below(1 << 20) * 16;
  size_t count = r.chance(4) ? r.below(3) : r.chance(3) ? 1000 + r.below(9000 / sizeof(T)) : r.below(300);
  uint64_t op = r.below(6), root = r.below(n), offset = r.below(3) * 8;
  bool slices = op == 2 || op == 4;
  T *src = (T *)(sh.heap_base + w.source + offset), *dst = (T *)(sh.heap_base + w.dest + r.below(2) * 16);
  if (op == 5) dst = src; // reduce in place
  uint64_t all = slices ? n * count : count;
  for (uint64_t i = Group::index(); i < all; i += Group::size()) src[i] = element<T>(tag + me, i);
  Group::sync();
  switch (op) {
  case 0: OK(call::broadcast(sh, team, dst, src, count, (int)root)); break;
  case 1: OK(call::fcollect(sh, team, dst, src, count)); break;
  case 2: OK(call::alltoall(sh, team, dst, src, count)); break;
  case 4: OK(call::reducescatter(sh, team, LSHMEM_SUM, dst, src, count)); break;
  default: OK(call::reduce(sh, team, LSHMEM_SUM, dst, src, count)); break;
  }
  uint64_t results = op == 1 || op == 2 ? n * count : count;
  for (uint64_t i = Group::index(); i < results; i += Group::size()) {
    double want = 0;
    uint64_t at = count ? i % count : 0;
    switch (op) {
    case 0: want = number_of(element<T>(tag + root, i)); break;
    case 1: want = number_of(element<T>(tag + i / count, at)); break;
    case 2: want = number_of(element<T>(tag + i / count, me * count + at)); break;
    default:
      for (uint64_t m = 0; m < n; m++) want += number_of(element<T>(tag + m, op == 4 ? me * count + i : i));
    }
    double have = number_of(dst[i]);
    CHECK(have == want, "operation %lu of %zu elements of %zu bytes on team %d, PE %u: element %lu is %g, not %g", (unsigned long)op, count,
          sizeof(T), team, sh.pe, (unsigned long)i, have, want);
  }
  // The next operation's source is not written before all have looked.
  if (r.chance(2)) OK(call::sync(sh, team));
  else OK(call::barrier(sh, team));
}

template <class Group> void collectives_of(uint32_t threads, uint64_t number, uint64_t steps) {
  collective_world w(steps);
  everyone(1, threads, [&](const lshmem_t &state) {
    lshmem_t sh = state;
    sh.teams = (uint64_t)w.teams[sh.pe].data();
    sh.self = (uint64_t)&sh;
    random_numbers common(number, 77);
    for (int k = 0; k < rounds; k++) {
      int team = (int)common.below(2);
      random_numbers r(common.next());
      uint64_t type = common.below(4);
      if (w.teams[sh.pe][team].pes == 0) continue; // not in it
      switch (type) {
      case 0: one_collective<Group, uint8_t>(sh, w, team, r); break;
      case 1: one_collective<Group, int32_t>(sh, w, team, r); break;
      case 2: one_collective<Group, lshmem::half>(sh, w, team, r); break;
      default: one_collective<Group, double>(sh, w, team, r); break;
      }
    }
    CHECK(lshmem_barrier(sh, 99) == LSHMEM_ERR_ARGUMENT, "a team that does not exist has a barrier");
  });
  for (uint64_t pe = 0; pe < the_world().pes; pe++) { // the areas' numbers begin anew
    memset(heap_of(pe), 0, w.source);
    *control_of(state_of(pe)) = lshmem_control{};
  }
}

void test_collectives() {
  collectives_of<lshmem::block_group>(40, 1, 0);
  collectives_of<lshmem::warp_group>(32, 2, (UINT64_C(1) << 32) - 5);
  collectives_of<lshmem::thread_group>(1, 3, (UINT64_C(1) << 31) - 5);
}
