// Barriers and collective operations, called by kernels: all members of a team call the same one with the same
// arguments, each with one thread, warp or block. The host's on-stream operations are kernels around the same code
// (shmem/kernels).
//
//	lshmem_barrier_all_block(sh);
//	lshmem_reduce_block<float>(sh, LSHMEM_TEAM_WORLD, LSHMEM_SUM, out, in, n);
//
// A team does one operation at a time: not two blocks or kernels at once, and the order is the same on all members.
// Teams are independent of each other. What members exchange is in the team's synchronization area, see
// shmem/layout/collective.go for steps, channels and lines.
//
// Every operation begins when all members' sources are ready and their destinations may be written, as far as members
// themselves are concerned: it needs no barrier before it. When it returns, the results are there and the source may
// be overwritten. Functions return LSHMEM_OK or the error that ended a wait; after one, the team is out of step and
// can only be destroyed.
#ifndef LSHMEM_COLLECTIVE_CUH
#define LSHMEM_COLLECTIVE_CUH

#include "lshmem.cuh"
#include "lshmem_element.cuh"

namespace lshmem {
namespace collective {

// --- Over queues ---

template <class Group> LSHMEM_DEVICE int put_nbi(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe) {
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return call(nic::put_bytes<Group>, sh.self, dst, src, bytes, nullptr, 0, 0, false, pe, LSHMEM_QP_DEFAULT);
}
template <class Group> LSHMEM_DEVICE int get_nbi(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe) {
  if (!has_network(sh)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return call(nic::get_bytes<Group>, sh.self, dst, src, bytes, false, pe, LSHMEM_QP_DEFAULT);
}

// apart runs f, a part of an operation, which is not inlined unless the team is direct: the parts of an operation
// together, with those for queues, would take more registers than a thread of 1024 can have.
template <class F> LSHMEM_OUTLINE auto outlined(const F &f) { return f(); }
template <bool Direct, class F> LSHMEM_DEVICE auto apart(F f) {
  if constexpr (Direct) return f();
  else return outlined(f);
}

// A part of [0, bytes).
struct range {
  uint64_t from, to;
  LSHMEM_DEVICE uint64_t bytes() const { return to - from; }
};

// share is the part of number i of n, in multiples of unit but for the last.
LSHMEM_DEVICE range share(uint64_t bytes, uint32_t i, uint32_t n, uint32_t unit) {
  uint64_t each = ((bytes + n - 1) / n + unit - 1) / unit * unit, from = each * i, to = from + each;
  if (from > bytes) from = bytes;
  if (to > bytes) to = bytes;
  return range{from, to};
}

// member is a group's part in one operation of its team, on one channel. Direct: the team has LSHMEM_TEAM_DIRECT, and
// no code for queues is made. All methods but the plain questions are called by the whole group together; an int that
// they return is equal for all of it.
template <class Group, bool Direct> class member {
  // A kernel's argument is read where it lies; with code for queues, which is not inlined, a member is in memory
  // itself.
  template <bool Argument, class = void> struct held { using type = const lshmem_team &; };
  template <class Same> struct held<false, Same> { using type = const lshmem_team; };

public:
  LSHMEM_DEVICE member(const lshmem_t &sh, const lshmem_team &team, uint32_t channel, uint32_t channels)
      : sh(sh), team(team), channel(channel), channels(channels), me(team.index), n(team.pes) {
    step = load_relaxed<scope::gpu>((const uint64_t *)team.counters + channel);
  }

  LSHMEM_DEVICE int sync() { return finish(exchange(false)); }
  LSHMEM_DEVICE int barrier() {
    int status = Direct ? LSHMEM_OK : complete<Group>(sh, LSHMEM_PE_ALL);
    int came = exchange(true); // also after an error: others wait
    return finish(status ? status : came);
  }

  LSHMEM_DEVICE int broadcast(char *dst, const char *src, uint64_t bytes, uint32_t root, bool lines) {
    if (lines) return finish(apart<Direct>([=] { return broadcast_lines(dst, src, bytes, root); }));
    int status = exchange(false);
    if (status) return finish(status);
    // The root sends a part to each of the others, who pass it on.
    if (me == root) {
      for (uint32_t i = 0; i + 1 < n; i++)
        apart<Direct>([=] {
          range part = share(bytes, i, n - 1, 128);
          for (pieces p(part, channel, channels); p.more(); p.next())
            put((root + 1 + i) % n, dst + p.at, src + p.at, p.bytes());
        });
      if (dst != src)
        apart<Direct>([=] {
          for (pieces p(range{0, bytes}, channel, channels); p.more(); p.next())
            keep(dst + p.at, src + p.at, p.bytes());
        });
    }
    if (n > 2) {
      status = exchange(true);
      if (status) return finish(status);
      if (me != root)
        apart<Direct>([=] {
          range part = share(bytes, (me + n - root - 1) % n, n - 1, 128);
          for (pieces p(part, channel, channels); p.more(); p.next())
            for (uint32_t i = 1; i < n; i++) {
              uint32_t to = (me + i) % n;
              if (to != root) put(to, dst + p.at, dst + p.at, p.bytes());
            }
        });
    }
    return finish(exchange(true));
  }

  LSHMEM_DEVICE int fcollect(char *dst, const char *src, uint64_t bytes, bool lines) {
    if (lines) return finish(apart<Direct>([=] { return exchange_lines<uint8_t, false, false>(dst, src, bytes, 0); }));
    int status = exchange(false);
    if (status) return finish(status);
    apart<Direct>([=] { spread<false>(dst, src, bytes); });
    return finish(exchange(true));
  }

  LSHMEM_DEVICE int alltoall(char *dst, const char *src, uint64_t bytes, bool lines) {
    if (lines) return finish(apart<Direct>([=] { return exchange_lines<uint8_t, true, false>(dst, src, bytes, 0); }));
    int status = exchange(false);
    if (status) return finish(status);
    apart<Direct>([=] { spread<true>(dst, src, bytes); });
    return finish(exchange(true));
  }

  // Each member reduces one part of the elements for all: it reads that part of all sources and writes it to all
  // destinations. Nobody else reads that part of a source, so that it may also be the destination.
  template <class T> LSHMEM_DEVICE int reduce(uint32_t op, char *dst, const char *src, uint64_t bytes, bool lines) {
    if (lines) return finish(apart<Direct>([=] { return exchange_lines<T, false, true>(dst, src, bytes, op); }));
    int status = exchange(false);
    if (status) return finish(status);
    for (pieces p(share(bytes, me, n, 128), channel, channels); p.more() && !status; p.next())
      status = apart<Direct>([=] { return reduce_range<T, true>(op, dst + p.at, src + p.at, p.bytes()); });
    int came = exchange(true);
    return finish(status ? status : came);
  }

  template <class T> LSHMEM_DEVICE int reducescatter(uint32_t op, char *dst, const char *src, uint64_t bytes, bool lines) {
    if (lines) return finish(apart<Direct>([=] { return exchange_lines<T, true, true>(dst, src, bytes, op); }));
    int status = exchange(false);
    if (status) return finish(status);
    for (pieces p(range{0, bytes}, channel, channels); p.more() && !status; p.next())
      status = apart<Direct>([=] { return reduce_range<T, false>(op, dst + p.at, src + me * bytes + p.at, p.bytes()); });
    int came = exchange(true);
    return finish(status ? status : came);
  }

  // fits says whether bytes to each member can be sent in lines.
  static LSHMEM_DEVICE bool fits(const lshmem_team &team, uint64_t bytes) {
    return team.flags & LSHMEM_TEAM_DIRECT && bytes <= line_bytes(team.pes);
  }

private:
  const lshmem_t &sh;
  typename held<Direct>::type team;
  const uint32_t channel, channels, me, n;
  uint64_t step;
  int failed = LSHMEM_OK;

  LSHMEM_DEVICE int pe(uint32_t m) const {
    return team.stride ? (int)(team.start + m * team.stride) : (int)load_local((const uint32_t *)team.list + m);
  }
  // Where p of member m is mapped here, null if it is not.
  LSHMEM_DEVICE char *at(uint32_t m, const void *p) const {
    uint64_t heap = peer_heap(sh, pe(m)) & ~(uint64_t)LSHMEM_PEER_ATOMIC;
    if (!Direct && heap == 0) return nullptr;
    return (char *)(heap + ((uint64_t)(uintptr_t)p - sh.heap_base));
  }

  // pieces are what channel i of k has to do of a range. Those of neighbouring channels are neighbours, so that all
  // of them together are in few pages at any time; each is what a group has on its way at once.
  class pieces {
  public:
    LSHMEM_DEVICE pieces(range r, uint32_t i, uint32_t k) : end(r.to), size((uint64_t)Group::size() * 128) {
      if (r.bytes() < size * k) size = ((r.bytes() + k - 1) / k + 127) & ~(uint64_t)127;
      at = r.from + i * size;
      stride = k * size;
    }
    LSHMEM_DEVICE bool more() const { return at < end; }
    LSHMEM_DEVICE uint64_t bytes() const { return end - at < size ? end - at : size; }
    LSHMEM_DEVICE void next() { at += stride; }
    uint64_t at;

  private:
    uint64_t end, size, stride;
  };

  // spread sends bytes to each member's place in dst: the same ones, or with Slices those for that member.
  template <bool Slices> LSHMEM_DEVICE void spread(char *dst, const char *src, uint64_t bytes) {
    // So many of the last channels copy what stays here, at the same time as the others send: one CTA copies in its
    // memory several times as fast as its part of the links takes data. 0: every channel does both.
    uint32_t locals = n < 2 ? 0 : channels / (4 * n), senders = channels - locals;
    char *own = dst + me * bytes;
    const char *mine = src + (Slices ? me * bytes : 0);
    if (channel < senders)
      apart<Direct>([=] {
        for (pieces p(range{0, bytes}, channel, senders); p.more(); p.next())
          send(own + p.at, src + p.at, p.bytes(), Slices ? bytes : 0);
      });
    if (own != mine && (channel >= senders || locals == 0))
      apart<Direct>([=] {
        for (pieces p(range{0, bytes}, locals ? channel - senders : channel, locals ? locals : channels); p.more(); p.next())
          keep(own + p.at, mine + p.at, p.bytes());
      });
  }

  // send puts one piece to dst of each other member; that for member m is at src + m*distance.
  LSHMEM_DEVICE void send(char *dst, const char *src, uint64_t bytes, uint64_t distance) {
    apart<Direct>([=] {
      for (uint32_t i = 1; i < n; i++) {
        uint32_t to = me + i < n ? me + i : me + i - n;
        put(to, dst, src + to * distance, bytes);
      }
    });
  }

  LSHMEM_DEVICE char *area() const { return (char *)(sh.heap_base + team.sync); }
  LSHMEM_DEVICE uint64_t *flag(uint32_t m) const {
    return (uint64_t *)area() + (uint64_t)channel * ((n + 3) & ~3u) + m;
  }
  LSHMEM_DEVICE char *all_lines() const { return area() + LSHMEM_CHANNELS * ((n + 3) & ~3u) * 8; }
  // Own memory for the lines that member m sends in the current step.
  LSHMEM_DEVICE quad *lines_of(uint32_t m) const {
    return (quad *)(all_lines() + ((uint64_t)(channel * 2 + (uint32_t)(step & 1)) * n + m) * 2 * line_bytes(n));
  }

  // begin starts the next step. A line of 2^31 steps ago could be taken for one of now: before their numbers come
  // again, lines are set to one that is half the way away. Nobody sends lines of that parity until this step has been
  // announced.
  LSHMEM_DEVICE void begin() {
    step++;
    if (((step + 1) & 0x7fffffff) > 1 || n < 2 || !(team.flags & LSHMEM_TEAM_DIRECT) || channel >= LSHMEM_LINE_CHANNELS) return;
    uint32_t old = (uint32_t)~(step + 1) & 0x80000000;
    uint32_t count = n * 2 * line_bytes(n) / 16;
    quad *lines = (quad *)(all_lines() + (uint64_t)(channel * 2 + (uint32_t)((step + 1) & 1)) * n * 2 * line_bytes(n));
    for (uint32_t i = Group::index(); i < count; i += Group::size()) store_line(lines + i, 0, old);
    fence<scope::sys>();
    Group::sync();
  }

  // announce tells member m of the step, at the address to, where its flag for this member is mapped, or by a queue.
  LSHMEM_DEVICE void announce(uint32_t m, char *to) {
    if (to) {
      store_relaxed<scope::sys>((uint64_t *)to, step);
    } else if constexpr (!Direct) {
      // A channel's steps go over one queue, whichever block calls: over two, an earlier one might come last.
      int queue = sh.queues_per_pe ? (int)(channel % sh.queues_per_pe) : LSHMEM_QP_DEFAULT;
      lshmem_qp_signal_op(sh, flag(me), step, LSHMEM_SIGNAL_SET, pe(m), queue);
    }
  }

  // lost is what ended a wait within a loop, in which nothing is called that would record it.
  struct lost {
    int status = LSHMEM_OK, pe = 0;
  };

  // hear waits for all others to announce the step, unless something is lost already.
  LSHMEM_DEVICE int hear(lost l) {
    const uint64_t s = step;
    for (uint32_t m = Group::index(); m < n && !l.status; m += Group::size()) {
      if (m == me) continue;
      const uint64_t *f = flag(m);
      int status = patience(sh).until([=] { return load_acquire<scope::sys>(f) >= s; });
      if (status) l = lost{status, pe(m)};
    }
    return common(l);
  }

  // exchange tells all members that this one has come so far, and waits for them. What any thread of the group wrote
  // before is visible to the others' groups then; with sent, also what was put through queues, whose sources are
  // free.
  LSHMEM_DEVICE int exchange(bool sent) {
    return apart<Direct>([=] { return exchange_steps(sent); });
  }
  LSHMEM_DEVICE int exchange_steps(bool sent) {
    begin();
    Group::sync();
    lost l{failed, (int)sh.pe};
    uint32_t m = Group::index();
    // Looked up before the fence, which takes longer.
    char *to = m < n ? at(m, flag(me)) : nullptr;
    if (m < n) fence<scope::sys>();
    while (m < n) {
      if (m != me) {
        if constexpr (!Direct) {
          if (sent && !to) {
            int done = complete<thread_group>(sh, pe(m));
            if (done) l.status = done;
          }
        }
        announce(m, to);
      }
      m += Group::size();
      if (m < n) to = at(m, flag(me));
    }
    return hear(l);
  }

  // common is OK if status is so for all of the group, else an error, and synchronizes the group.
  LSHMEM_DEVICE int common(const lost &l) { return common(l.status ? fail(sh, l.status, l.pe) : LSHMEM_OK); }
  LSHMEM_DEVICE int common(int status) {
    if (!Group::any(status != LSHMEM_OK)) return LSHMEM_OK;
    const lshmem_control *c = (const lshmem_control *)sh.control;
    uint32_t first = load_relaxed<scope::sys>(&c->claim); // the thread that failed first has put it there
    return first ? (int)first : LSHMEM_ERR_TIMEOUT;
  }

  // finish is the end of every operation. The next one of the same group reads the count anew.
  LSHMEM_DEVICE int finish(int status) {
    if (Group::index() == 0) store_relaxed<scope::gpu>((uint64_t *)team.counters + channel, step);
    Group::sync();
    return status;
  }

  static LSHMEM_DEVICE void copy_here(void *dst, const void *src, uint64_t bytes) {
    copy<Group, source::local, Direct ? caller::kernel : caller::called>(dst, src, bytes);
  }

  // put copies to dst of member m; exchange(true) completes it and tells of errors.
  LSHMEM_DEVICE void put(uint32_t m, char *dst, const char *src, uint64_t bytes) {
    apart<Direct>([=] {
      if (bytes == 0) return;
      if (char *to = at(m, dst)) {
        copy_here(to, src, bytes);
      } else if constexpr (!Direct) {
        int status = put_nbi<Group>(sh, dst, src, bytes, pe(m));
        if (status) failed = status;
      }
    });
  }

  // keep copies what stays here.
  LSHMEM_DEVICE void keep(char *dst, const char *src, uint64_t bytes) {
    apart<Direct>([=] { copy_here(dst, src, bytes); });
  }

  // receive_line waits for the line and gives its data.
  LSHMEM_DEVICE uint64_t receive_line(const quad *p, uint32_t m, lost *l) {
    quad q = load_line(p);
    uint32_t s = (uint32_t)step;
    if ((uint32_t)(q.low >> 32) != s || (uint32_t)(q.high >> 32) != s) {
      int status = patience(sh).until([&] {
        q = load_line(p);
        return (uint32_t)(q.low >> 32) == s && (uint32_t)(q.high >> 32) == s;
      });
      if (status && !l->status) *l = lost{status, pe(m)};
    }
    return (q.low & 0xffffffff) | q.high << 32;
  }

  static LSHMEM_DEVICE uint32_t word_bytes(range r, uint64_t at8) { return r.to - at8 < 8 ? (uint32_t)(r.to - at8) : 8; }

  // exchange_lines is fcollect, alltoall, reduce and reducescatter in one step: each member sends all others its
  // source, or with Slices each its part of it; what it gets is placed by sender, or with Reduce combined, by all
  // members in the order of their numbers.
  template <class T, bool Slices, bool Reduce>
  LSHMEM_DEVICE int exchange_lines(char *dst, const char *src, uint64_t bytes, uint32_t op) {
    range r = share(bytes, channel, channels, 8);
    uint64_t first = r.from + Group::index() * 8, v = 0;
    // The first word is on its way while the step's number is.
    if (n > 1 && first < r.to) v = gather<false>(src + (Slices ? (me + 1 < n ? me + 1 : 0) * bytes : 0) + first, word_bytes(r, first));
    apart<Direct>([=] { begin(); });
    for (uint64_t at8 = first; at8 < r.to; at8 += Group::size() * 8) {
      const quad *line = lines_of(me) + (at8 - r.from) / 8;
      if (!Slices && at8 != first) v = gather<false>(src + at8, word_bytes(r, at8));
      for (uint32_t i = 1; i < n; i++) {
        uint32_t m = me + i < n ? me + i : me + i - n;
        if (Slices && (i > 1 || at8 != first)) v = gather<false>(src + m * bytes + at8, word_bytes(r, at8));
        store_line((quad *)at(m, line), v, (uint32_t)step);
      }
    }
    return apart<Direct>([=] { return receive_lines<T, Slices, Reduce>(dst, src, bytes, op); });
  }

  template <class T, bool Slices, bool Reduce>
  LSHMEM_DEVICE int receive_lines(char *dst, const char *src, uint64_t bytes, uint32_t op) {
    range r = share(bytes, channel, channels, 8);
    lost l;
    for (uint64_t at8 = r.from + Group::index() * 8; at8 < r.to && !l.status; at8 += Group::size() * 8) {
      uint32_t count = word_bytes(r, at8);
      uint64_t own = gather<false>(src + (Slices ? me * bytes : 0) + at8, count);
      uint64_t sum = 0;
      for (uint32_t m = 0; m < n; m++) {
        uint64_t v = own;
        if (m != me) v = receive_line(lines_of(m) + (at8 - r.from) / 8, m, &l);
        if (!Reduce) scatter(dst + m * bytes + at8, v, count);
        else sum = m == 0 ? v : combine_word<T>(op, sum, v);
      }
      if (Reduce) scatter(dst + at8, sum, count);
    }
    return common(l);
  }

  LSHMEM_DEVICE int broadcast_lines(char *dst, const char *src, uint64_t bytes, uint32_t root) {
    apart<Direct>([=] { begin(); });
    // Not even the root goes on to the next step before all others have begun this one.
    for (uint32_t m = Group::index(); m < n; m += Group::size())
      if (m != me) store_relaxed<scope::sys>((uint64_t *)at(m, flag(me)), step); // lines are for teams that are mapped
    range r = share(bytes, channel, channels, 8);
    lost l;
    for (uint64_t at8 = r.from + Group::index() * 8; at8 < r.to && !l.status; at8 += Group::size() * 8) {
      uint32_t count = word_bytes(r, at8);
      const quad *line = lines_of(root) + (at8 - r.from) / 8;
      uint64_t v;
      if (me == root) {
        v = gather<false>(src + at8, count);
        for (uint32_t m = 0; m < n; m++)
          if (m != me) store_line((quad *)at(m, line), v, (uint32_t)step);
        if (dst == src) continue;
      } else {
        v = receive_line(line, root, &l);
      }
      scatter(dst + at8, v, count);
    }
    return apart<Direct>([=] { return hear(l); });
  }

  // reduce_range combines bytes at src of all members to dst here, or with All to dst of all.
  template <class T, bool All> LSHMEM_DEVICE int reduce_range(uint32_t op, char *dst, const char *src, uint64_t bytes) {
    if constexpr (Direct) {
      reduce_piece<T, All>(op, dst, src, bytes, nullptr);
      return LSHMEM_OK;
    } else {
      // The sources of members that queues reach are read into the space of the lines, piece by piece.
      uint32_t piece = 4 * line_bytes(n);
      char *space = all_lines() + (uint64_t)channel * n * piece;
      for (uint64_t from = 0; from < bytes; from += piece) {
        uint64_t count = bytes - from < piece ? bytes - from : piece;
        int status = apart<Direct>([=] { return reduce_step<T, All>(op, dst + from, src + from, count, space); });
        if (status) return status;
      }
      return LSHMEM_OK;
    }
  }

  template <class T, bool All> LSHMEM_DEVICE int reduce_step(uint32_t op, char *dst, const char *src, uint64_t bytes, char *space) {
    int status = apart<Direct>([=] { return fetch(space, src, bytes); });
    if (status) return status;
    apart<Direct>([=] { reduce_piece<T, All>(op, dst, src, bytes, space); });
    Group::sync();
    if (All)
      for (uint32_t m = 0; m < n; m++)
        if (m != me && !at(m, dst)) put(m, dst, dst, bytes);
    return LSHMEM_OK;
  }

  // fetch reads what members that queues reach have at src, at most a piece, into their places in space.
  LSHMEM_DEVICE int fetch(char *space, const char *src, uint64_t bytes) {
    bool queued = false;
    for (uint32_t m = 0; m < n; m++) {
      if (m == me || at(m, src)) continue;
      queued = true;
      int status = get_nbi<Group>(sh, space + m * (uint64_t)(4 * line_bytes(n)), src, bytes, pe(m));
      if (status) return status;
    }
    return queued ? complete<Group>(sh, LSHMEM_PE_ALL) : LSHMEM_OK;
  }

  // source is where the group reads member m's piece at src; space holds those of members that queues reach.
  LSHMEM_DEVICE const char *source(uint32_t m, const char *src, const char *space) const {
    if (m == me) return src;
    const char *p = at(m, src);
    if (!Direct && !p) p = space + (uint64_t)m * 4 * line_bytes(n);
    return p;
  }

  template <class T, bool All>
  LSHMEM_DEVICE void reduce_piece(uint32_t op, char *dst, const char *src, uint64_t bytes, const char *space) {
    // Words of 8 bytes that each thread has on their way from every member, two to a load: as many as registers allow.
    constexpr int words = Direct ? 8 : sizeof(T) < 4 ? 2 : 4;
    uint64_t done = 0;
    // Of small integers, each takes a register: no more than 8 bytes of them at a time.
    if constexpr (!equal<T, any>::yes && (Direct || sizeof(T) >= 4 || is_small_float<T>)) {
      if ((((uint64_t)(uintptr_t)dst | (uint64_t)(uintptr_t)src) & 15) == 0)
        done = apart<Direct>([=] { return reduce_quads<T, All, words>(op, dst, src, bytes, space); });
    }
    for (uint64_t o = done + Group::index() * 8; o < bytes; o += Group::size() * 8) {
      uint32_t count = bytes - o < 8 ? (uint32_t)(bytes - o) : 8;
      uint64_t sum = gather<false>(src + o, count);
      for (uint32_t i = 1; i < n; i++) {
        uint32_t m = me + i < n ? me + i : me + i - n;
        sum = combine_word<T>(op, sum, gather<true>(source(m, src, space) + o, count));
      }
      scatter(dst + o, sum, count);
      if (All)
        for (uint32_t i = 1; i < n; i++)
          if (char *to = at(me + i < n ? me + i : me + i - n, dst)) scatter(to + o, sum, count);
    }
  }

  // reduce_quads combines what is whole words of 16 bytes, and returns how many bytes that were.
  template <class T, bool All, int Words>
  LSHMEM_DEVICE uint64_t reduce_quads(uint32_t op, char *dst, const char *src, uint64_t bytes, const char *space) {
    uint64_t row = (uint64_t)Group::size() * 16, pass = row * (Words / 2), whole = bytes / pass * pass, rest = bytes / 16 * 16;
    for (uint64_t o = Group::index() * 16; o < whole; o += pass)
      reduce_words<T, All, Words>(op, dst + o, src + o, space ? space + o : nullptr, row);
    for (uint64_t o = whole + Group::index() * 16; o < rest; o += row)
      reduce_words<T, All, 2>(op, dst + o, src + o, space ? space + o : nullptr, row);
    return rest;
  }

  template <bool Peer, int N> static LSHMEM_DEVICE void load_words(uint64_t (&a)[N], const char *p, uint64_t row) {
    LSHMEM_UNROLL for (int i = 0; i < N / 2; i++) {
      quad q = load_word<Peer, quad>(p + i * row);
      a[2 * i] = q.low;
      a[2 * i + 1] = q.high;
    }
  }
  template <int N> static LSHMEM_DEVICE void store_words(char *p, const uint64_t (&a)[N], uint64_t row) {
    LSHMEM_UNROLL for (int i = 0; i < N / 2; i++) store_data((quad *)(p + i * row), quad{a[2 * i], a[2 * i + 1]});
  }

  // reduce_words combines N words, 16 bytes of each row.
  template <class T, bool All, int N>
  LSHMEM_DEVICE void reduce_words(uint32_t op, char *dst, const char *src, const char *space, uint64_t row) {
    uint64_t sum[N], v[N];
    uint32_t m = me + 1 < n ? me + 1 : 0;
    if (n > 1) load_words<true>(v, source(m, src, space), row);
    load_words<false>(sum, src, row);
    for (uint32_t i = 1; i < n; i++) {
      combine<T>(op, sum, v);
      m = m + 1 < n ? m + 1 : 0;
      if (i + 1 < n) load_words<true>(v, source(m, src, space), row);
    }
    if (All)
      for (uint32_t i = 1; i < n; i++)
        if (char *to = at(me + i < n ? me + i : me + i - n, dst)) store_words(to, sum, row);
    store_words(dst, sum, row);
  }
};

// team_of finds a team; null, with the error recorded, if there is no such one here.
LSHMEM_DEVICE const lshmem_team *team_of(const lshmem_t &sh, int team) {
  if (team >= 0 && team < (int)LSHMEM_MAX_TEAMS) {
    const lshmem_team *t = (const lshmem_team *)sh.teams + team;
    if (t->pes != 0) return t;
  }
  fail(sh, LSHMEM_ERR_ARGUMENT, lshmem_my_pe(sh));
  return nullptr;
}

// The operations of one channel that kernels call, by pointer. They are not inlined, and read the state's copy in
// memory, as the network path is and does: inlined, each would take more registers than a thread of 1024 can have.

template <class Group> LSHMEM_OUTLINE int meet(uint64_t self, int team, bool complete) {
  const lshmem_t &sh = nic::state_at(self);
  const lshmem_team *t = team_of(sh, team);
  if (!t) return LSHMEM_ERR_ARGUMENT;
  member<Group, false> m(sh, *t, 0, 1);
  return complete ? m.barrier() : m.sync();
}

enum class move { broadcast, fcollect, alltoall };

// bytes: those from each member, or to each.
template <class Group, move What>
LSHMEM_OUTLINE int move_data(uint64_t self, int team, void *dst, const void *src, uint64_t bytes, int root) {
  const lshmem_t &sh = nic::state_at(self);
  const lshmem_team *t = team_of(sh, team);
  if (!t || root < 0 || root >= (int)t->pes) return LSHMEM_ERR_ARGUMENT;
  if (bytes == 0) return LSHMEM_OK;
  member<Group, false> m(sh, *t, 0, 1);
  bool lines = m.fits(*t, bytes);
  auto d = (char *)dst;
  auto s = (const char *)src;
  if constexpr (What == move::broadcast) return m.broadcast(d, s, bytes, (uint32_t)root, lines);
  else if constexpr (What == move::fcollect) return m.fcollect(d, s, bytes, lines);
  else return m.alltoall(d, s, bytes, lines);
}

template <class Group, class T, bool Scatter>
LSHMEM_OUTLINE int combine_data(uint64_t self, int team, int op, T *dst, const T *src, uint64_t n) {
  const lshmem_t &sh = nic::state_at(self);
  const lshmem_team *t = team_of(sh, team);
  constexpr int ops = is_real<T> ? LSHMEM_AND : LSHMEM_REDUCTIONS;
  if (!t || op < 0 || op >= ops) return LSHMEM_ERR_ARGUMENT;
  if (n == 0) return LSHMEM_OK;
  member<Group, false> m(sh, *t, 0, 1);
  uint64_t bytes = n * sizeof(T);
  bool lines = m.fits(*t, bytes);
  if constexpr (Scatter) return m.template reducescatter<T>((uint32_t)op, (char *)dst, (const char *)src, bytes, lines);
  else return m.template reduce<T>((uint32_t)op, (char *)dst, (const char *)src, bytes, lines);
}

} // namespace collective
} // namespace lshmem

// barrier: all that members began before has been done, and all have come. sync: all have come; what they stored is
// visible, what they put through queues may be under way.
#define LSHMEM_COLLECTIVE(name, group) \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, int team) { \
    return lshmem::call(lshmem::collective::meet<group>, sh.self, team, LSHMEM_COMPLETE); \
  }
#define LSHMEM_COMPLETE true
LSHMEM_EACH_SCOPE(LSHMEM_COLLECTIVE, barrier)
#undef LSHMEM_COMPLETE
#define LSHMEM_COMPLETE false
LSHMEM_EACH_SCOPE(LSHMEM_COLLECTIVE, sync)
#undef LSHMEM_COMPLETE
#undef LSHMEM_COLLECTIVE

LSHMEM_DEVICE int lshmem_barrier_all(const lshmem_t &sh) { return lshmem_barrier(sh, LSHMEM_TEAM_WORLD); }
LSHMEM_DEVICE int lshmem_barrier_all_warp(const lshmem_t &sh) { return lshmem_barrier_warp(sh, LSHMEM_TEAM_WORLD); }
LSHMEM_DEVICE int lshmem_barrier_all_block(const lshmem_t &sh) { return lshmem_barrier_block(sh, LSHMEM_TEAM_WORLD); }
LSHMEM_DEVICE int lshmem_sync_all(const lshmem_t &sh) { return lshmem_sync(sh, LSHMEM_TEAM_WORLD); }
LSHMEM_DEVICE int lshmem_sync_all_warp(const lshmem_t &sh) { return lshmem_sync_warp(sh, LSHMEM_TEAM_WORLD); }
LSHMEM_DEVICE int lshmem_sync_all_block(const lshmem_t &sh) { return lshmem_sync_block(sh, LSHMEM_TEAM_WORLD); }

// Sources and destinations are in the heap, at the same offset on all members, and do not overlap, except as said. n
// is in elements.
//   broadcast      n from the member root's src (an index in the team) to every member's dst; they may be equal
//   fcollect       n of each to each: member i's to dst + i*n of all; a src may be the member's own place in dst
//   alltoall       n from each to each: src + j*n of member i to dst + i*n of member j
//   reduce         n, combined by op (LSHMEM_SUM to LSHMEM_XOR) over all members, to dst of all; it may be src
//   reducescatter  src + i*n of all, combined, to dst of member i; it may be the member's own src + i*n
// T is any type for the first three, else an integer of 1, 2, 4 or 8 bytes, lshmem::half, lshmem::bfloat, float or
// double; bitwise operations are for integers.
#define LSHMEM_COLLECTIVE(name, group)                                                                                   \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, int team, T *dst, const lshmem::value<T> *src, size_t n LSHMEM_MORE) { \
    return lshmem::call(lshmem::collective::move_data<group, lshmem::collective::move::LSHMEM_CALL>, sh.self, team, dst, \
                        src, n * sizeof(T), LSHMEM_ROOT);                                                                \
  }
#define LSHMEM_CALL broadcast
#define LSHMEM_MORE , int root
#define LSHMEM_ROOT root
LSHMEM_EACH_SCOPE(LSHMEM_COLLECTIVE, broadcast)
#undef LSHMEM_CALL
#undef LSHMEM_MORE
#undef LSHMEM_ROOT

#define LSHMEM_MORE
#define LSHMEM_ROOT 0
#define LSHMEM_CALL fcollect
LSHMEM_EACH_SCOPE(LSHMEM_COLLECTIVE, fcollect)
#undef LSHMEM_CALL
#define LSHMEM_CALL alltoall
LSHMEM_EACH_SCOPE(LSHMEM_COLLECTIVE, alltoall)
#undef LSHMEM_CALL
#undef LSHMEM_MORE
#undef LSHMEM_ROOT
#undef LSHMEM_COLLECTIVE

#define LSHMEM_COLLECTIVE(name, group)                                                                                   \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, int team, int op, T *dst, const lshmem::value<T> *src, size_t n) { \
    return lshmem::call(lshmem::collective::combine_data<group, T, LSHMEM_SCATTER>, sh.self, team, op, dst, src, n);     \
  }
#define LSHMEM_SCATTER false
LSHMEM_EACH_SCOPE(LSHMEM_COLLECTIVE, reduce)
#undef LSHMEM_SCATTER
#define LSHMEM_SCATTER true
LSHMEM_EACH_SCOPE(LSHMEM_COLLECTIVE, reducescatter)
#undef LSHMEM_SCATTER
#undef LSHMEM_COLLECTIVE

#endif
