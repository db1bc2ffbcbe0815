// The calls over the queues of lshmem_queue.cuh, which includes this file: put, get and put with signal; values and
// atomics, whose results a thread waits for; quiet and fence.
#ifndef LSHMEM_QUEUE_CALLS_CUH
#define LSHMEM_QUEUE_CALLS_CUH

#include "lshmem_queue.cuh"

namespace lshmem {
namespace nic {

// --- Put, get and put with signal ---

// signal is an atomic after the data of a call.
struct signal {
  bool wanted;
  atomic what;
  uint64_t remote;
  uint32_t key;
  LSHMEM_DEVICE uint32_t blocks() const { return wanted ? what.blocks : 0; }
};

LSHMEM_DEVICE signal no_signal() { return signal{false, atomic{0, 0, 0, quad{0, 0}, quad{0, 0}}, 0, 0}; }

LSHMEM_OUTLINE int signal_to(const lshmem_t &sh, const handle &h, const uint64_t *sig, uint64_t v, int op, signal *s) {
  uint64_t offset = (uint64_t)sig - sh.heap_base;
  bool known = in_heap(sh, offset, 8) && (op == LSHMEM_SIGNAL_SET || op == LSHMEM_SIGNAL_ADD);
  found r = known ? remote_key(sh, offset, h.q->pe, h.q->nic) : found{0, 0};
  if (!known || r.end < offset + 8) return fail(sh, LSHMEM_ERR_ARGUMENT, (int)h.q->pe);
  *s = signal{true, atomic_of(op == LSHMEM_SIGNAL_SET ? amo::set : amo::add, 8, v, 0),
              remote_address(sh, offset, h.q->pe), r.key};
  return LSHMEM_OK;
}

LSHMEM_DEVICE void write_signal(const lshmem_queue *q, uint64_t index, const signal &s, uint32_t flags) {
  write_atomic(q, index, s.what, s.remote, s.key, q->ibuf, flags);
}

// flags_of asks for a completion if an entry is the last one of its call.
LSHMEM_DEVICE uint32_t flags_of(bool last) { return last ? (uint32_t)LSHMEM_MLX5_CTRL_COMPLETION : 0; }

// Each lane of a party writes one piece, and a signal where they are wanted: all of them or none.
LSHMEM_OUTLINE int submit_lanes(const handle &h, const party &lanes, uint32_t opcode, bool has_data, const piece &p,
                               const signal &s, tail t, uint64_t *end) {
  uint32_t each = (has_data ? 1 : 0) + s.blocks();
  uint32_t total = lanes.size * each + (t == tail::none ? 0 : 1);
  return submit(h, lanes.mask, total, t, [&](uint64_t base) {
    uint64_t index = base + lanes.rank * each;
    bool last = t == tail::none && lanes.rank == lanes.size - 1;
    if (has_data) write_piece(h.q, index, opcode, p, flags_of(last && !s.wanted));
    if (s.wanted) write_signal(h.q, index + (has_data ? 1 : 0), s, flags_of(last));
  }, end);
}

// batch is a transfer by one lane or a warp, submission by submission. It lies in memory: there is more of it than
// registers that outlive a call.
struct batch {
  const lshmem_t &sh;
  handle to;
  const signal &s;
  uint32_t opcode, rank, width; // of the caller among the lanes
  tail behind_data;
  transfer left, first; // what is not submitted yet; the same as it was before this submission
  piece mine;           // this lane's, where each has one at most
  uint32_t count, total;
  tail t;
  bool last;
};

// cut_batch takes the pieces of the next submission off a batch: one for each lane, or as many as go into one by one
// lane.
LSHMEM_OUTLINE bool cut_batch(batch &b) {
  uint32_t limit = b.width > 1 && b.width < call_pieces ? b.width : call_pieces;
  b.first = b.left;
  piece other{};
  for (b.count = 0; b.count < limit && b.left.left(); b.count++)
    if (!cut(b.sh, b.to.q, b.left, b.count == b.rank ? &b.mine : &other)) return false;
  b.last = !b.left.left();
  b.t = !b.last ? tail::none : b.s.wanted ? tail_behind(b.s.what) : b.behind_data;
  b.total = b.count + (b.last ? b.s.blocks() : 0) + (b.t == tail::none ? 0 : 1);
  return true;
}

// write_batch writes the caller's entries of a submission whose blocks begin at base.
LSHMEM_OUTLINE void write_batch(batch &b, uint64_t base) {
  for (uint32_t i = b.rank; i < b.count; i += b.width) {
    if (b.width == 1) cut(b.sh, b.to.q, b.first, &b.mine);
    write_piece(b.to.q, base + i, b.opcode, b.mine, flags_of(i == b.total - 1));
  }
  if (b.last && b.s.wanted && b.rank == 0) write_signal(b.to.q, base + b.count, b.s, flags_of(b.t == tail::none));
}

// submit_batch does one submission.
LSHMEM_OUTLINE int submit_batch(batch &b, uint32_t mask, uint64_t *end) {
  return submit(b.to, mask, b.total, b.t, [&](uint64_t base) { write_batch(b, base); }, end);
}

// One transfer by the lanes of mask, of which each writes one piece at a time, or all where it is only one. The signal
// is in the last submission, and all of them are on one queue.
LSHMEM_OUTLINE int submit_pieces(const lshmem_t &sh, const handle &h, uint32_t mask, uint32_t opcode, const transfer &all,
                                 const signal &s, tail behind_data, uint64_t *end) {
  batch b{sh, h, s, opcode, population(mask & ((1u << lane()) - 1)), population(mask), behind_data, all, all, piece{}, 0, 0,
          tail::none, false};
  for (;;) {
    if (!cut_batch(b)) return fail(sh, LSHMEM_ERR_ARGUMENT, (int)h.q->pe);
    int status = submit_batch(b, mask, end);
    if (b.last || status != LSHMEM_OK) return status;
  }
}

// one_each says whether each lane of a party has one piece at most, and all have the same kinds of entries; the piece
// goes to p.
LSHMEM_OUTLINE bool one_each(const lshmem_t &sh, const handle &h, uint32_t mask, const transfer &all, uint32_t kind, piece *p) {
  transfer left = all;
  bool single = !left.left() || (cut(sh, h.q, left, p) && !left.left());
  uint32_t of_first = shuffle(mask, kind, first_lane(mask));
  return all_warp(mask, single && kind == of_first);
}

// copy posts a transfer by one thread or one warp, with a signal after it, and returns where it ends.
template <class Group>
LSHMEM_OUTLINE int copy(const lshmem_t &sh, const handle &h, uint32_t opcode, const transfer &all, const signal &s,
                       tail behind_data, uint64_t *end) {
  tail t = s.wanted ? tail_behind(s.what) : behind_data;
  if constexpr (!equal<Group, thread_group>::yes) {
    (void)t;
    return submit_pieces(sh, h, warp_group::mask(), opcode, all, s, behind_data, end);
  } else {
    party lanes = lanes_together(h);
    piece p{};
    uint32_t kind = (all.left() ? 1u : 0u) + 2 * s.blocks() + 8 * (uint32_t)t;
    if (!lanes.alone() && one_each(sh, h, lanes.mask, all, kind, &p))
      return submit_lanes(h, lanes, opcode, all.left(), p, s, t, end);
    return submit_pieces(sh, h, 1u << lane(), opcode, all, s, behind_data, end);
  }
}

// agreed gives all lanes of a group's posting warp an error if any has one: they go on together or not at all.
template <class Group> LSHMEM_DEVICE int agreed(int status) {
  if constexpr (!equal<Group, thread_group>::yes) {
    bool failed = any_warp(warp_group::mask(), status != LSHMEM_OK);
    if (failed && status == LSHMEM_OK) status = LSHMEM_ERR_QUEUE;
  }
  return status;
}

// posts says whether the caller is among those of its group that post: one warp of a block.
template <class Group> LSHMEM_DEVICE bool posts() { return !equal<Group, block_group>::yes || thread_index() < 32; }

// state_at is the state's copy in memory.
LSHMEM_DEVICE const lshmem_t &state_at(uint64_t self) { return *(const lshmem_t *)self; }

// put writes a transfer to a PE, and then a signal unless sig is null. When it returns, the source may be overwritten
// if blocking.
template <class Group>
LSHMEM_OUTLINE int put(uint64_t self, const transfer &all, const uint64_t *sig, uint64_t v, int op, bool blocking, int pe, int which) {
  const lshmem_t &sh = state_at(self);
  int status = LSHMEM_OK;
  if (posts<Group>()) {
    handle h{};
    signal s = no_signal();
    status = open(sh, pe, which, &h);
    if (status == LSHMEM_OK && sig) status = signal_to(sh, h, sig, v, op, &s);
    status = agreed<Group>(status);
    if (status == LSHMEM_OK && (all.left() || s.wanted)) {
      uint64_t end = 0;
      status = copy<Group>(sh, h, LSHMEM_MLX5_OP_WRITE, all, s, tail::none, &end);
      if (status == LSHMEM_OK && s.wanted) raise_atomics(h.q, end);
      if (status == LSHMEM_OK && blocking) status = poll(h, end);
    }
  }
  return (int)from_leader<Group>((uint32_t)status);
}

// put_bytes is put of a contiguous transfer, whose arguments are values: a kernel that never makes this call keeps no
// memory for it.
template <class Group>
LSHMEM_OUTLINE int put_bytes(uint64_t self, void *dst, const void *src, uint64_t bytes, const uint64_t *sig, uint64_t v, int op,
                             bool blocking, int pe, int which) {
  return put<Group>(self, contiguous(state_at(self), src, dst, bytes), sig, v, op, blocking, pe, which);
}

// --- The internal buffer: results that a thread waits for ---

// A cell holds 8 bytes for each lane. Cells are taken in the order of ibuf_head and given back in the same order:
// ibuf_tail. A cell is taken before blocks are reserved, so that nobody waits for a cell with blocks that others wait
// for.
struct cell {
  uint64_t ticket;
  uint64_t address;
  int status;
};

LSHMEM_OUTLINE cell take_cell(const handle &h) {
  lshmem_queue *q = h.q;
  uint64_t ticket = fetch_add<scope::gpu>(&q->ibuf_head, 1);
  uint64_t address = q->ibuf + ((ticket & (q->ibuf_cells - 1)) + 1) * LSHMEM_IBUF_CELL;
  patience patient = h.wait();
  while (ticket - load_acquire<scope::gpu>(&q->ibuf_tail) >= q->ibuf_cells) {
    int status = tired(h, patient);
    if (status != LSHMEM_OK) return cell{ticket, address, status};
  }
  return cell{ticket, address, LSHMEM_OK};
}

// The caller and those it has synchronized with have read what they want.
LSHMEM_OUTLINE int give_cell(const handle &h, uint64_t ticket) {
  patience patient = h.wait();
  fence<scope::gpu>();
  while (compare_swap<scope::gpu>(&h.q->ibuf_tail, ticket, ticket + 1) != ticket) {
    int status = tired(h, patient);
    if (status != LSHMEM_OK) return status;
  }
  return LSHMEM_OK;
}

// with_cell lends the lanes a cell of their queue: use(address of the lane's 8 bytes) posts and waits, take() reads the
// result. Lanes stay together to the end, whatever fails.
template <class Use, class Take>
LSHMEM_DEVICE int with_cell(const handle &h, const party &lanes, Use use, Take take) {
  cell s{0, 0, LSHMEM_OK};
  uint32_t leader = first_lane(lanes.mask);
  if (lanes.leads()) s = take_cell(h);
  if (!lanes.alone()) {
    s.status = shuffle(lanes.mask, s.status, leader);
    s.address = shuffle(lanes.mask, s.address, leader);
  }
  if (s.status != LSHMEM_OK) return s.status;
  int status = use(s.address);
  if (status == LSHMEM_OK) take(s.address);
  // After an error nobody knows whether the NIC still writes to the cell: it stays taken, and the queue is broken.
  bool failed = status != LSHMEM_OK;
  if (!lanes.alone()) failed = any_warp(lanes.mask, failed);
  if (failed && status == LSHMEM_OK) status = LSHMEM_ERR_QUEUE;
  // All lanes' reads before the cell is given back.
  if (!lanes.alone()) sync_warp(lanes.mask);
  if (status == LSHMEM_OK && lanes.leads()) status = give_cell(h, s.ticket);
  return status;
}

LSHMEM_DEVICE tail flush_of(const lshmem_queue *q) { return q->flags & LSHMEM_QUEUE_FLUSH ? tail::flush : tail::none; }

// read_piece reads one piece and waits for it.
LSHMEM_OUTLINE int read_piece(const handle &h, const piece &p) {
  tail t = flush_of(h.q);
  uint64_t end = 0;
  int status = submit(h, 1u << lane(), t == tail::none ? 1 : 2, t, [&](uint64_t base) {
    write_piece(h.q, base, LSHMEM_MLX5_OP_READ, p, flags_of(t == tail::none));
  }, &end);
  return status != LSHMEM_OK ? status : poll(h, end);
}

// registered says whether all of our own side of a transfer has keys: what a NIC reads into cannot be in an entry.
LSHMEM_OUTLINE bool registered(const lshmem_t &sh, const handle &h, const transfer &all) {
  found l = local_key(sh, all.local, h.q->nic);
  if (all.n == 1 && l.end != 0 && all.element <= l.end - all.local) return true; // nearly always
  transfer left = all;
  piece p{};
  // What is wrong with the other side is found when the transfer begins.
  while (left.left() && cut(sh, h.q, left, &p))
    if (p.by_value) return false;
  return true;
}

// get_by_cell reads a piece of at most 28 bytes through the internal buffer to where that memory is.
LSHMEM_OUTLINE int get_by_cell(const handle &h, piece &p, uint8_t *to) {
  p.local_key = h.q->ibuf_key;
  p.by_value = false;
  return with_cell(h, one_lane(), [&](uint64_t at) {
    p.local = at;
    return read_piece(h, p);
  }, [&](uint64_t at) {
    for (uint32_t i = 0; i < p.bytes; i++) store_data(to + i, load_relaxed<scope::sys>((const uint8_t *)at + i));
  });
}

// get_unregistered reads into memory that has no key, or not everywhere, through the internal buffer: slow, and
// complete when it returns.
LSHMEM_OUTLINE int get_unregistered(const lshmem_t &sh, const handle &h, const transfer &all) {
  transfer left = all;
  while (left.left()) {
    piece p{};
    // No more at a time than a cell holds.
    if (!cut(sh, h.q, left, &p, true)) return fail(sh, LSHMEM_ERR_ARGUMENT, (int)h.q->pe);
    int status = get_by_cell(h, p, (uint8_t *)p.local);
    if (status != LSHMEM_OK) return status;
  }
  return LSHMEM_OK;
}

// get reads a transfer from a PE. When it returns, the data are there if blocking.
template <class Group> LSHMEM_OUTLINE int get(uint64_t self, const transfer &all, bool blocking, int pe, int which) {
  const lshmem_t &sh = state_at(self);
  int status = LSHMEM_OK;
  if (posts<Group>()) {
    handle h{};
    status = agreed<Group>(open(sh, pe, which, &h));
    if (status == LSHMEM_OK && all.left() && !registered(sh, h, all)) {
      if (Group::index() == 0) status = get_unregistered(sh, h, all);
    } else if (status == LSHMEM_OK && all.left()) {
      uint64_t end = 0;
      tail t = blocking ? flush_of(h.q) : tail::none;
      status = copy<Group>(sh, h, LSHMEM_MLX5_OP_READ, all, no_signal(), t, &end);
      if (status == LSHMEM_OK && blocking) status = poll(h, end);
      // A later quiet flushes: it waits for at least this end.
      if (status == LSHMEM_OK && !blocking && flush_of(h.q) == tail::flush)
        reduce_max<scope::gpu>(&h.q->get_head, end);
    }
  }
  return (int)from_leader<Group>((uint32_t)status);
}

template <class Group>
LSHMEM_OUTLINE int get_bytes(uint64_t self, void *dst, const void *src, uint64_t bytes, bool blocking, int pe, int which) {
  return get<Group>(self, contiguous(state_at(self), dst, src, bytes), blocking, pe, which);
}

// --- Values and atomics of one thread ---

// remote_word finds the address and key of a word of a PE.
LSHMEM_OUTLINE int remote_word(const lshmem_t &sh, const handle &h, const void *p, uint32_t bytes, piece *w) {
  uint64_t offset = (uint64_t)p - sh.heap_base;
  bool known = in_heap(sh, offset, bytes);
  found r = known ? remote_key(sh, offset, h.q->pe, h.q->nic) : found{0, 0};
  if (!known || r.end < offset + bytes) return fail(sh, LSHMEM_ERR_ARGUMENT, (int)h.q->pe);
  w->remote = remote_address(sh, offset, h.q->pe);
  w->remote_key = r.key;
  w->bytes = bytes;
  return LSHMEM_OK;
}

// aim opens the queue to a PE and finds a word there: how each operation on one word begins.
LSHMEM_DEVICE int aim(const lshmem_t &sh, const void *p, uint32_t bytes, int pe, int which, handle *h, piece *w) {
  int status = open(sh, pe, which, h);
  return status == LSHMEM_OK ? remote_word(sh, *h, p, bytes, w) : status;
}

// Values of one or two 4-byte words that the lanes of a whole warp write to neighbouring places, as one entry of up to
// 19 segments and a NOP. Each of the first lanes gathers the four words of one segment: the length, then the lanes'
// words.
LSHMEM_OUTLINE int put_row(const handle &h, uint64_t remote, uint32_t key, uint64_t all, uint32_t words, uint64_t *end) {
  uint32_t bytes = 128 * words, segments = 2 + (4 + bytes + 15) / 16, blocks = (segments + 3) / 4;
  uint32_t at = lane() * 4, part[4];
  LSHMEM_UNROLL for (uint32_t i = 0; i < 4; i++) {
    uint32_t word = at + i - 1, from = word / words;
    uint32_t low = shuffle32(~0u, (uint32_t)all, from & 31), high = shuffle32(~0u, (uint32_t)(all >> 32), from & 31);
    part[i] = from > 31 ? 0 : words == 2 && (word & 1) ? high : low;
  }
  if (lane() == 0) part[0] = swap_bytes((uint32_t)LSHMEM_MLX5_INLINE_FLAG | bytes);
  return submit(h, ~0u, blocks + 1, tail::nop, [&](uint64_t base) {
    if (lane() == 0) {
      write_control(h.q, base, LSHMEM_MLX5_OP_WRITE, segments, 0);
      write_remote(h.q, base, remote, key);
    }
    if (lane() + 2 < segments) segment(h.q, base, lane() + 2, quad{pair(part[0], part[1]), pair(part[2], part[3])});
  }, end);
}

// put_value writes a value of 1 to 8 bytes, which travels in the entry.
LSHMEM_OUTLINE int put_value(uint64_t self, void *dst, uint64_t v, uint32_t bytes, int pe, int which) {
  const lshmem_t &sh = state_at(self);
  handle h{};
  piece w{};
  int status = aim(sh, dst, bytes, pe, which, &h, &w);
  if (status != LSHMEM_OK) return status;
  party lanes = lanes_together(h);
  uint64_t end = 0;
  if (!lanes.alone()) {
    uint64_t first = shuffle(~0u, w.remote, 0);
    uint32_t key = shuffle(~0u, w.remote_key, 0), size = shuffle(~0u, bytes, 0);
    bool next = bytes >= 4 && bytes == size && w.remote == first + lane() * bytes && w.remote_key == key;
    if (all_warp(~0u, next)) return put_row(h, first, key, v, bytes / 4, &end);
  }
  return submit(h, lanes.mask, lanes.size, tail::none, [&](uint64_t base) {
    uint64_t index = base + lanes.rank;
    write_control(h.q, index, LSHMEM_MLX5_OP_WRITE, 3, flags_of(lanes.rank == lanes.size - 1));
    write_remote(h.q, index, w.remote, w.remote_key);
    write_value(h.q, index, bytes, [&](uint32_t word) { return word == 0 ? (uint32_t)v : word == 1 ? (uint32_t)(v >> 32) : 0; });
  }, &end);
}

// wait_for waits for the end of a call that went well so far.
LSHMEM_DEVICE int wait_for(const handle &h, int status, uint64_t end) { return status != LSHMEM_OK ? status : poll(h, end); }

// result_at is a value of 1, 2, 4 or 8 bytes that has come.
LSHMEM_DEVICE uint64_t result_at(uint64_t at, uint32_t bytes) {
  if (bytes == 8) return load_relaxed<scope::sys>((const uint64_t *)at);
  if (bytes == 4) return load_relaxed<scope::sys>((const uint32_t *)at);
  if (bytes == 2) return load_relaxed<scope::sys>((const uint16_t *)at);
  return load_relaxed<scope::sys>((const uint8_t *)at);
}

// get_value reads a value of 1 to 8 bytes; 0 after an error.
LSHMEM_OUTLINE uint64_t get_value(uint64_t self, const void *src, uint32_t bytes, int pe, int which) {
  const lshmem_t &sh = state_at(self);
  handle h{};
  piece w{};
  if (aim(sh, src, bytes, pe, which, &h, &w) != LSHMEM_OK) return 0;
  party lanes = lanes_together(h);
  uint64_t result = 0;
  with_cell(h, lanes, [&](uint64_t at) {
    w.local = at + 8 * lane();
    w.local_key = h.q->ibuf_key;
    uint64_t end = 0;
    int status = submit_lanes(h, lanes, LSHMEM_MLX5_OP_READ, true, w, no_signal(), flush_of(h.q), &end);
    return wait_for(h, status, end);
  }, [&](uint64_t at) { result = result_at(at + 8 * lane(), bytes); });
  return result;
}

// atomic_to does an atomic operation without a result on a word of 4 or 8 bytes.
LSHMEM_OUTLINE int atomic_to(uint64_t self, amo op, uint32_t bytes, void *dst, uint64_t v, int pe, int which) {
  const lshmem_t &sh = state_at(self);
  handle h{};
  piece w{};
  int status = aim(sh, dst, bytes, pe, which, &h, &w);
  if (status != LSHMEM_OK) return status;
  signal s{true, atomic_of(op, bytes, v, 0), w.remote, w.remote_key};
  uint64_t end = 0;
  status = copy<thread_group>(sh, h, 0, transfer{}, s, tail::none, &end);
  if (status == LSHMEM_OK) raise_atomics(h.q, end);
  return status;
}

// submit_atomics posts each lane's atomic on the word w, with its result at an address, and waits for them.
LSHMEM_OUTLINE int submit_atomics(const handle &h, const party &lanes, const atomic &a, const piece &w, tail t, uint64_t result) {
  uint32_t total = lanes.size * a.blocks + (t == tail::none ? 0 : 1);
  uint64_t end = 0;
  int status = submit(h, lanes.mask, total, t, [&](uint64_t base) {
    bool last = t == tail::none && lanes.rank == lanes.size - 1;
    write_atomic(h.q, base + lanes.rank * a.blocks, a, w.remote, w.remote_key, result, flags_of(last));
  }, &end);
  return wait_for(h, status, end);
}

// atomic_fetch does an atomic operation on such a word and waits for the value before; 0 after an error.
LSHMEM_OUTLINE uint64_t atomic_fetch(uint64_t self, amo op, uint32_t bytes, const void *dst, uint64_t v, uint64_t compare, int pe,
                                     int which) {
  const lshmem_t &sh = state_at(self);
  handle h{};
  piece w{};
  if (aim(sh, dst, bytes, pe, which, &h, &w) != LSHMEM_OK) return 0;
  atomic a = atomic_of(op, bytes, v, compare);
  party lanes = lanes_together(h);
  if (!lanes.alone()) {
    uint32_t of_first = shuffle(lanes.mask, a.blocks, first_lane(lanes.mask));
    if (!all_warp(lanes.mask, a.blocks == of_first)) lanes = one_lane();
  }
  tail t = flush_of(h.q) == tail::flush ? tail::flush : tail_behind(a);
  uint64_t result = 0;
  with_cell(h, lanes, [&](uint64_t at) {
    return submit_atomics(h, lanes, a, w, t, at + 8 * lane());
  }, [&](uint64_t at) {
    // Results of 4 bytes arrive in network byte order, those of 8 in ours.
    result = result_at(at + 8 * lane(), bytes);
    if (bytes == 4) result = swap_bytes((uint32_t)result);
  });
  return result;
}

// --- Quiet and fence ---

// quiet waits until everything is executed that is ready now, and what was read is visible.
LSHMEM_OUTLINE int quiet(const handle &h) {
  lshmem_queue *q = h.q;
  bool flush = q->flags & LSHMEM_QUEUE_FLUSH;
  uint64_t reads = flush ? load_acquire<scope::gpu>(&q->get_head) : 0;
  uint64_t end = load_acquire<scope::gpu>(&q->ready);
  int status = poll(h, end > reads ? end : reads);
  if (status != LSHMEM_OK || !flush || load_acquire<scope::gpu>(&q->get_tail) >= reads) return status;
  status = submit(h, 1u << lane(), 1, tail::flush, [](uint64_t) {}, &end);
  if (status == LSHMEM_OK) status = poll(h, end);
  if (status == LSHMEM_OK) {
    fence<scope::gpu>();
    reduce_max<scope::gpu>(&q->get_tail, reads);
  }
  return status;
}

// order_within makes the NIC execute what was posted to a queue before what will be: a write may overtake atomics only.
LSHMEM_DEVICE int order_within(const handle &h) { return poll(h, load_acquire<scope::gpu>(&h.q->atomics)); }

// order does so for a queue among all of its PE.
LSHMEM_DEVICE int order(const lshmem_t &sh, const handle &h) {
  return sh.queues_per_pe > 1 ? poll(h, load_acquire<scope::gpu>(&h.q->ready)) : order_within(h);
}

// all_queues, as which, is all queues of the PE or PEs.
constexpr int all_queues = LSHMEM_QP_ANY;

// selected says whether a queue is meant by which: a number or LSHMEM_QP_*.
LSHMEM_DEVICE bool selected(const lshmem_t &sh, const handle &h, int which) {
  return which == all_queues || h.index / sh.pes == (which >= 0 ? (uint32_t)which : choose(sh, which));
}

enum class ordering { fence, fence_queue, quiet };

// settle does one of these for all queues of a PE or of all, or one selected queue of each. Every queue is the work of
// one of the group's threads, which meet at the end.
template <class Group> LSHMEM_OUTLINE int settle(uint64_t self, ordering what, int pe, int which) {
  const lshmem_t &sh = state_at(self);
  bool all = pe == LSHMEM_PE_ALL;
  int status = LSHMEM_OK;
  if ((!all && (uint32_t)pe >= sh.pes) || !is_queue(sh, which)) status = fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  uint32_t n = status != LSHMEM_OK ? 0 : sh.queues_per_pe * (all ? sh.pes : 1);
  for (uint32_t i = Group::index(); i < n; i += Group::size()) {
    uint32_t index = all ? i : i * sh.pes + (uint32_t)pe;
    handle h = queue_at(sh, index);
    if (h.q->wq == 0 || !selected(sh, h, which)) continue;
    int r = what == ordering::quiet ? quiet(h) : what == ordering::fence ? order(sh, h) : order_within(h);
    if (r != LSHMEM_OK) status = r;
  }
  // All members return an error if any has one; the first is in Control.
  bool failed = Group::any(status != LSHMEM_OK);
  if (failed && status == LSHMEM_OK) status = LSHMEM_ERR_QUEUE;
  return status;
}

} // namespace nic
} // namespace lshmem

#endif
