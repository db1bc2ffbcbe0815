// The software HCA as device code: it executes mlx5 send queues in memory that the GPU reaches, by loads, stores and
// atomic operations on memory that is mapped there. What it does with an entry, down to the completion of a malformed
// one, is what the HCA in Go (shmem/hca) does, for it is tested against that.
//
// A queue is served by one group of threads: a warp of the kernel, or a single thread where this is CPU code.
#ifndef LSHMEM_HCA_CUH
#define LSHMEM_HCA_CUH

#include "../../include/lshmem_mlx5.h"
#include "../../include/lshmem_platform.h"
#include "lshmem_hca.h"

namespace lshmem {
namespace hca {

typedef struct lshmem_hca_adapter adapter_t;
typedef struct lshmem_hca_queue queue_t;
typedef struct lshmem_hca_key key_t;
typedef struct lshmem_hca_space space_t;

// Numbers of hca.access and hca.state.
constexpr uint32_t local_write = 1, remote_write = 2, remote_read = 4, remote_atomic = 8;
constexpr uint32_t state_rts = 3, state_error = 4;

template <class T> LSHMEM_DEVICE T *at(uint64_t address) { return (T *)(uintptr_t)address; }
LSHMEM_DEVICE uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

template <class Group> LSHMEM_DEVICE uint32_t broadcast(uint32_t v) {
  if constexpr (equal<Group, warp_group>::yes) return shuffle(warp_group::mask(), v, 0);
  return v;
}
template <class Group> LSHMEM_DEVICE uint64_t broadcast(uint64_t v) {
  if constexpr (equal<Group, warp_group>::yes) return shuffle(warp_group::mask(), v, 0);
  return v;
}

// entry is the work request at a block of a ring. A warp keeps two blocks of it, a word in each lane.
template <class Group> struct entry {
  const uint32_t *ring;
  uint32_t mask;  // of words
  uint32_t first; // word of the ring
  uint32_t base;  // the word of the entry that lane 0 has
  uint32_t mine;

  LSHMEM_DEVICE void load(uint32_t from) {
    base = from;
    if constexpr (equal<Group, warp_group>::yes) {
      mine = load_relaxed<scope::sys>(ring + ((first + from + Group::index()) & mask));
    }
  }
  LSHMEM_DEVICE void open(const queue_t &q, uint64_t block) {
    ring = at<const uint32_t>(q.wq);
    mask = q.depth * 16 - 1;
    first = (uint32_t)(block & (q.depth - 1)) * 16;
    load(0);
  }
  // be32 is the big-endian word at byte `offset` of the entry, a multiple of 4. Every thread of the group asks for the
  // same.
  LSHMEM_DEVICE uint32_t be32(uint32_t offset) {
    uint32_t w = offset / 4;
    if constexpr (equal<Group, warp_group>::yes) {
      if (w - base >= Group::size()) load(w & ~15u);
      return swap_bytes(shuffle(warp_group::mask(), mine, w - base));
    }
    return swap_bytes(load_relaxed<scope::sys>(ring + ((first + w) & mask)));
  }
  LSHMEM_DEVICE uint64_t be64(uint32_t offset) {
    uint64_t high = be32(offset);
    return high << 32 | be32(offset + 4);
  }
};

// What the segments of an entry say, but for its data.
struct request_t {
  uint32_t opcode, modifier, segments, flags;
  uint64_t remote;
  uint32_t key;
  uint32_t data;     // byte at which its data segments begin
  uint32_t inlined;  // bytes of payload in the entry, from data on + 4; ~0: none are
  uint32_t width;    // of an atomic: 4, 8; 0: it is none
  bool swap;
  uint64_t a, b, c, d; // add, boundary; or swap, compare, swap mask, compare mask
};

LSHMEM_DEVICE bool is_atomic(uint32_t opcode) {
  return opcode == LSHMEM_MLX5_OP_COMPARE_SWAP || opcode == LSHMEM_MLX5_OP_FETCH_ADD || opcode == LSHMEM_MLX5_OP_MASKED_SWAP ||
         opcode == LSHMEM_MLX5_OP_MASKED_ADD;
}

// payload checks the data segments, or the one inline segment, from r.data to end.
template <class Group> LSHMEM_DEVICE bool payload(entry<Group> &e, request_t &r, uint32_t end) {
  r.inlined = ~0u;
  if (r.data == end) return true;
  uint32_t n = e.be32(r.data);
  if (n & (uint32_t)LSHMEM_MLX5_INLINE_FLAG) {
    n &= ~(uint32_t)LSHMEM_MLX5_INLINE_FLAG;
    if (n > end - r.data - 4 || ((n + 4 + 15) & ~15u) != end - r.data) return false;
    r.inlined = n;
    return true;
  }
  for (uint32_t s = r.data; s != end; s += 16)
    if (e.be32(s) & (uint32_t)LSHMEM_MLX5_INLINE_FLAG) return false;
  return true;
}

// parse reads an entry whose control segment is in r already; false: no device executes the like.
template <class Group> LSHMEM_DEVICE bool parse(entry<Group> &e, request_t &r) {
  uint32_t end = r.segments * 16;
  r.data = 16;
  r.width = 0;
  r.inlined = ~0u;
  switch (r.opcode) {
  case LSHMEM_MLX5_OP_NOP:
    r.data = end;
    return r.modifier == 0;
  case LSHMEM_MLX5_OP_WAIT:
    return end == 32;
  case LSHMEM_MLX5_OP_DUMP:
    return payload(e, r, end) && r.inlined == ~0u && end == 32 && r.modifier == 0;
  case LSHMEM_MLX5_OP_SEND:
  case LSHMEM_MLX5_OP_SEND_IMM:
    return payload(e, r, end) && r.modifier == 0;
  case LSHMEM_MLX5_OP_WRITE:
  case LSHMEM_MLX5_OP_WRITE_IMM:
  case LSHMEM_MLX5_OP_READ:
  case LSHMEM_MLX5_OP_COMPARE_SWAP:
  case LSHMEM_MLX5_OP_FETCH_ADD:
  case LSHMEM_MLX5_OP_MASKED_SWAP:
  case LSHMEM_MLX5_OP_MASKED_ADD:
    break;
  default:
    return false;
  }
  if (end < 32) return false;
  r.remote = e.be64(16);
  r.key = e.be32(24);
  r.data = 32;
  if (!is_atomic(r.opcode)) {
    return payload(e, r, end) && r.modifier == 0 && !(r.opcode == LSHMEM_MLX5_OP_READ && r.inlined != ~0u);
  }
  bool masked = r.opcode == LSHMEM_MLX5_OP_MASKED_SWAP || r.opcode == LSHMEM_MLX5_OP_MASKED_ADD;
  if (masked ? r.modifier == LSHMEM_MLX5_MOD_ATOMIC8 >> 24 : r.modifier == 0)
    r.width = 8;
  else if (masked && r.modifier == LSHMEM_MLX5_MOD_ATOMIC4 >> 24)
    r.width = 4;
  else
    return false;
  r.swap = r.opcode == LSHMEM_MLX5_OP_MASKED_SWAP || r.opcode == LSHMEM_MLX5_OP_COMPARE_SWAP;
  r.data = r.opcode == LSHMEM_MLX5_OP_MASKED_SWAP && r.width == 8 ? 64 : 48;
  if (end < r.data) return false;
  if (r.width == 4) {
    r.a = e.be32(32);
    r.b = e.be32(36);
    r.c = r.swap ? e.be32(40) : 0;
    r.d = r.swap ? e.be32(44) : 0;
  } else {
    r.a = e.be64(32);
    r.b = r.opcode == LSHMEM_MLX5_OP_FETCH_ADD ? 0 : e.be64(40);
    r.c = r.opcode == LSHMEM_MLX5_OP_MASKED_SWAP ? e.be64(48) : ~UINT64_C(0);
    r.d = r.opcode == LSHMEM_MLX5_OP_MASKED_SWAP ? e.be64(56) : ~UINT64_C(0);
  }
  return payload(e, r, end) && r.inlined == ~0u && end - r.data == 16;
}

// apply is what an atomic makes of an old value: see mlx5.Atomic.
LSHMEM_DEVICE uint64_t apply(const request_t &r, uint64_t old) {
  if (r.swap) return (old ^ r.b) & r.d ? old : (old & ~r.c) | (r.a & r.c);
  return ((old & ~r.b) + (r.a & ~r.b)) ^ ((old ^ r.a) & r.b);
}

// modify carries out an atomic, as one of the GPU's where there is one that does the same.
template <class T> LSHMEM_DEVICE T modify(const request_t &r, T *p) {
  const T ones = (T)~(T)0, a = (T)r.a, b = (T)r.b, c = (T)r.c;
  if (!r.swap && b == 0) return fetch_add<scope::sys>(p, a);
  if (!r.swap && b == ones) return fetch_xor<scope::sys>(p, a);
  if (r.swap && (T)r.d == 0) {
    if (c == ones) return exchange<scope::sys>(p, a);
    if ((a & c) == c) return fetch_or<scope::sys>(p, c);
    if ((a & c) == 0) return fetch_and<scope::sys>(p, (T)~c);
  }
  if (r.swap && (T)r.d == ones && c == ones) return compare_swap<scope::sys>(p, b, a);
  T old = load_relaxed<scope::sys>(p);
  for (;;) {
    T seen = compare_swap<scope::sys>(p, old, (T)apply(r, old));
    if (seen == old) return old;
    old = seen;
  }
}

// find is where the kernel finds n bytes at an address that a key allows to use so; 0: it does not allow it.
LSHMEM_DEVICE uint64_t find(const space_t &s, uint32_t key, uint64_t address, uint64_t n, uint32_t access) {
  if (key >> LSHMEM_HCA_KEY_SHIFT >= s.count) return 0;
  const key_t *k = at<const key_t>(s.keys) + (key >> LSHMEM_HCA_KEY_SHIFT);
  if (key == 0 || load_relaxed<scope::sys>(&k->key) != key || (k->access & access) != access) return 0;
  if (address < k->start || address > k->end || n > k->end - address) return 0;
  return k->mapped + (address - k->start);
}

// copy_words moves n bytes, a multiple of sizeof(W), four words of each thread in flight.
template <class Group, class W> LSHMEM_DEVICE void copy_words(uint64_t to, uint64_t from, uint64_t n) {
  uint64_t words = n / sizeof(W), i = Group::index();
  const uint64_t step = Group::size();
  W *dst = at<W>(to);
  const W *src = at<const W>(from);
  for (; i + 3 * step < words; i += 4 * step) {
    W v0 = load_peer(src + i), v1 = load_peer(src + i + step), v2 = load_peer(src + i + 2 * step), v3 = load_peer(src + i + 3 * step);
    store_data(dst + i, v0);
    store_data(dst + i + step, v1);
    store_data(dst + i + 2 * step, v2);
    store_data(dst + i + 3 * step, v3);
  }
  for (; i < words; i += step) store_data(dst + i, load_peer(src + i));
}

// copy moves bytes. A word of 4 or 8 bytes at its own alignment is stored whole.
template <class Group> LSHMEM_OUTLINE void copy(uint64_t to, uint64_t from, uint64_t n) {
  if ((n == 8 || n == 4) && to % n == 0) {
    if (Group::index() == 0) {
      uint64_t v = 0;
      if (from % n == 0) {
        v = n == 8 ? load_relaxed<scope::sys>(at<const uint64_t>(from)) : load_relaxed<scope::sys>(at<const uint32_t>(from));
      } else {
        for (uint32_t i = 0; i < n; i++) v |= (uint64_t)load_peer(at<const uint8_t>(from + i)) << (8 * i);
      }
      if (n == 8)
        store_relaxed<scope::sys>(at<uint64_t>(to), v);
      else
        store_relaxed<scope::sys>(at<uint32_t>(to), (uint32_t)v);
    }
    return;
  }
  const uint64_t apart = to ^ from;
  const uint64_t width = apart % 16 == 0 ? 16 : apart % 8 == 0 ? 8 : apart % 4 == 0 ? 4 : apart % 2 == 0 ? 2 : 1;
  const uint64_t head = smaller((width - to % width) % width, n), body = (n - head) / width * width;
  copy_words<Group, uint8_t>(to, from, head);
  switch (width) {
  case 16: copy_words<Group, quad>(to + head, from + head, body); break;
  case 8: copy_words<Group, uint64_t>(to + head, from + head, body); break;
  case 4: copy_words<Group, uint32_t>(to + head, from + head, body); break;
  case 2: copy_words<Group, uint16_t>(to + head, from + head, body); break;
  default: copy_words<Group, uint8_t>(to + head, from + head, body); break;
  }
  copy_words<Group, uint8_t>(to + head + body, from + head + body, n - head - body);
}

// copy_row moves the payload of an entry in words that are each stored whole: they are the values of a warp's lanes. It
// begins at a multiple of 4 in the ring, and may go around the ring's end, also within a word.
template <class Group, class W>
LSHMEM_OUTLINE void copy_row(uint64_t to, uint64_t ring, uint64_t start, uint64_t size, uint64_t n) {
  for (uint64_t i = (uint64_t)Group::index() * sizeof(W); i < n; i += (uint64_t)Group::size() * sizeof(W)) {
    uint64_t v = load_relaxed<scope::sys>(at<const uint32_t>(ring + ((start + i) & (size - 1))));
    if (sizeof(W) == 8)
      v |= (uint64_t)load_relaxed<scope::sys>(at<const uint32_t>(ring + ((start + i + 4) & (size - 1)))) << 32;
    store_relaxed<scope::sys>(at<W>(to + i), (W)v);
  }
}

// server executes the entries of one queue.
template <class Group> struct server {
  const adapter_t &adapter;
  queue_t &q;
  queue_t local; // copies of what does not change, and the counters
  bool dirty;    // something was stored since the last fence

  LSHMEM_DEVICE server(const adapter_t &a, queue_t &queue) : adapter(a), q(queue), local(queue), dirty(false) {}

  LSHMEM_DEVICE space_t table(uint32_t i) const { return at<const space_t>(adapter.spaces)[i]; }

  // settle makes everything stored so far visible before what follows.
  LSHMEM_DEVICE void settle() {
    if (!dirty) return;
    fence<scope::sys>();
    Group::sync();
    dirty = false;
  }

  // complete writes a completion; syndrome 0: of a success.
  LSHMEM_DEVICE void complete(uint64_t block, const request_t &r, uint32_t syndrome, uint32_t bytes) {
    const uint64_t n = local.completed;
    uint64_t index = 0;
    if (local.flags & LSHMEM_HCA_FLAG_CYCLIC) {
      index = n & (local.depth_cq - 1);
      if (local.record_cq) {
        uint32_t consumed = broadcast<Group>(swap_bytes(load_relaxed<scope::sys>(at<const uint32_t>(local.record_cq))));
        if (((n - consumed) & 0xffffff) >= local.depth_cq) {
          local.flags |= LSHMEM_HCA_FLAG_OVERRUN;
          local.state = state_error;
          return;
        }
      }
    }
    local.completed++;
    uint64_t *c = at<uint64_t>(local.cq) + index * 8;
    if (Group::index() == 0) {
      for (int i = 0; i < 5; i++) store_relaxed<scope::sys>(c + i, 0);
      // Words of 8 bytes as they lie in memory: the second half of one is its upper half.
      store_relaxed<scope::sys>(c + 5, syndrome ? 0 : (uint64_t)swap_bytes(bytes) << 32);
      store_relaxed<scope::sys>(c + 6, syndrome ? (uint64_t)swap_bytes(syndrome) << 32 : swap_bytes(nanos()));
    }
    dirty = true;
    settle(); // what the entry did, and the above, are visible before the last word
    if (Group::index() != 0) return;
    const uint32_t owner = (uint32_t)(n / local.depth_cq & 1);
    const uint32_t status = syndrome ? (uint32_t)LSHMEM_MLX5_COMPLETION_ERROR : (uint32_t)LSHMEM_MLX5_COMPLETION_REQUESTER;
    const uint32_t queue = swap_bytes(r.opcode << 24 | local.number);
    const uint32_t last = swap_bytes(((uint32_t)block & 0xffff) << 16 | status << 4 | owner);
    store_relaxed<scope::sys>(c + 7, (uint64_t)last << 32 | queue);
  }

  // transfer moves a write's or a read's data; the result is a syndrome.
  LSHMEM_DEVICE uint32_t transfer(entry<Group> &e, const request_t &r, uint64_t length) {
    const bool reads = r.opcode == LSHMEM_MLX5_OP_READ;
    uint64_t remote = find(table(local.space), r.key, r.remote, length, reads ? remote_read : remote_write);
    if (!remote) return LSHMEM_MLX5_SYNDROME_REMOTE_ACCESS;
    settle();
    dirty = true;
    if (r.inlined != ~0u) {
      // The payload may go around the ring's end.
      const uint64_t ring = local.wq, size = (uint64_t)local.depth * 64;
      const uint64_t start = ((uint64_t)e.first * 4 + r.data + 4) & (size - 1), before = smaller(length, size - start);
      const uint64_t aligned = remote | length;
      if (aligned % 8 == 0) {
        copy_row<Group, uint64_t>(remote, ring, start, size, length);
        return 0;
      }
      if (aligned % 4 == 0) {
        copy_row<Group, uint32_t>(remote, ring, start, size, length);
        return 0;
      }
      copy<Group>(remote, ring + start, before);
      if (before < length) copy<Group>(remote + before, ring, length - before);
      return 0;
    }
    for (uint32_t s = r.data; s < r.segments * 16; s += 16) {
      const uint32_t bytes = e.be32(s);
      const uint64_t n = bytes == 0 ? UINT64_C(1) << 31 : bytes;
      const uint64_t here = find(table(0), e.be32(s + 4), e.be64(s + 8), n, reads ? local_write : 0);
      if (!here) return LSHMEM_MLX5_SYNDROME_LOCAL_PROTECT;
      if (reads)
        copy<Group>(here, remote, n);
      else
        copy<Group>(remote, here, n);
      remote += n;
    }
    return 0;
  }

  // atomic carries out an atomic operation.
  LSHMEM_DEVICE uint32_t atomic(entry<Group> &e, const request_t &r) {
    if (r.remote % r.width != 0) return LSHMEM_MLX5_SYNDROME_REMOTE_REQUEST;
    const uint64_t remote = find(table(local.space), r.key, r.remote, r.width, remote_atomic);
    if (!remote) return LSHMEM_MLX5_SYNDROME_REMOTE_ACCESS;
    const uint64_t here = find(table(0), e.be32(r.data + 4), e.be64(r.data + 8), r.width, local_write);
    settle();
    dirty = true;
    if (Group::index() != 0) return 0;
    uint64_t result; // as it lies in memory: 8 bytes in device order, 4 bytes big-endian
    if (r.width == 8)
      result = modify(r, at<uint64_t>(remote));
    else
      result = swap_bytes(modify(r, at<uint32_t>(remote)));
    if (here % r.width == 0 && r.width == 8) {
      store_relaxed<scope::sys>(at<uint64_t>(here), result);
    } else if (here % r.width == 0) {
      store_relaxed<scope::sys>(at<uint32_t>(here), (uint32_t)result);
    } else {
      for (uint32_t i = 0; i < r.width; i++) store_data(at<uint8_t>(here + i), (uint8_t)(result >> (8 * i)));
    }
    return 0;
  }

  // execute carries out an entry that parsed; *bytes is what it returned.
  LSHMEM_DEVICE uint32_t execute(entry<Group> &e, const request_t &r, uint32_t *bytes) {
    switch (r.opcode) {
    case LSHMEM_MLX5_OP_NOP:
    case LSHMEM_MLX5_OP_WAIT:
      return 0;
    case LSHMEM_MLX5_OP_SEND:
    case LSHMEM_MLX5_OP_SEND_IMM:
    case LSHMEM_MLX5_OP_WRITE_IMM:
      return LSHMEM_MLX5_SYNDROME_NOT_READY;
    }
    const bool returns = r.opcode == LSHMEM_MLX5_OP_READ || r.width;
    uint64_t length = 0;
    if (r.inlined != ~0u) {
      length = r.inlined;
    } else {
      for (uint32_t s = r.data; s < r.segments * 16; s += 16) {
        const uint32_t n = e.be32(s);
        length += n == 0 ? UINT64_C(1) << 31 : n;
      }
    }
    if (length > LSHMEM_HCA_MAX_MESSAGE) return LSHMEM_MLX5_SYNDROME_LOCAL_LENGTH;
    if (r.inlined == ~0u) {
      for (uint32_t s = r.data; s < r.segments * 16; s += 16) {
        const uint32_t n = e.be32(s);
        if (!find(table(0), e.be32(s + 4), e.be64(s + 8), n == 0 ? UINT64_C(1) << 31 : n, returns ? local_write : 0))
          return LSHMEM_MLX5_SYNDROME_LOCAL_PROTECT;
      }
    }
    if (r.opcode == LSHMEM_MLX5_OP_DUMP) return 0;
    if (r.width) {
      if (length < r.width) return LSHMEM_MLX5_SYNDROME_LOCAL_LENGTH;
      *bytes = r.width;
      return atomic(e, r);
    }
    if (returns) *bytes = (uint32_t)length;
    return length ? transfer(e, r, length) : 0;
  }

  // ready says whether the completion queue that a WAIT names has had so many completions. -1: there is none.
  LSHMEM_DEVICE int ready(uint32_t number, uint32_t count) {
    queue_t *all = at<queue_t>(adapter.queues);
    for (uint32_t i = 0; i < adapter.queue_count; i++) {
      uint32_t state = broadcast<Group>(load_relaxed<scope::gpu>(&all[i].state));
      if (state == 0 || broadcast<Group>(load_relaxed<scope::gpu>(&all[i].number_cq)) != number) continue;
      uint64_t done = broadcast<Group>(load_relaxed<scope::gpu>(&all[i].completed));
      return (int32_t)((uint32_t)done - count) >= 0;
    }
    return -1;
  }

  // step executes the next entry; false: it must wait.
  LSHMEM_DEVICE bool step() {
    const uint64_t block = local.head;
    entry<Group> e;
    request_t r;
    e.open(local, block);
    const uint32_t head = e.be32(0), tail = e.be32(4);
    r.opcode = head & 0xff;
    r.modifier = head >> 24;
    r.segments = tail & (uint32_t)LSHMEM_MLX5_MAX_SEGMENTS;
    r.flags = e.be32(8) & 0xff;
    uint64_t blocks = (r.segments + 3) / 4;
    bool good = true;
    if ((head >> 8 & 0xffff) != (block & 0xffff) || tail >> 8 != local.number || blocks == 0 || blocks > local.depth ||
        blocks > local.posted - block) {
      good = false;
      blocks = 1;
    } else {
      good = parse(e, r);
    }
    uint32_t syndrome = good ? 0 : (uint32_t)LSHMEM_MLX5_SYNDROME_LOCAL_QUEUE, bytes = 0;
    if (local.state == state_error) {
      syndrome = LSHMEM_MLX5_SYNDROME_FLUSHED;
    } else if (good) {
      if (r.opcode == LSHMEM_MLX5_OP_WAIT) {
        int is = ready(e.be32(28), e.be32(24));
        if (is == 0) return false;
        if (is < 0) syndrome = LSHMEM_MLX5_SYNDROME_LOCAL_QUEUE;
      }
      if (!syndrome) syndrome = execute(e, r, &bytes);
    }
    local.head = block + blocks;
    if (syndrome && local.state != state_error) {
      local.state = state_error;
      local.syndrome = syndrome;
      local.failed = block;
    }
    if (syndrome || r.flags & LSHMEM_MLX5_CTRL_COMPLETION) complete(block, r, syndrome, bytes);
    return true;
  }

  // run executes what is posted, up to a turn's worth. Every thread of the group knows posted.
  LSHMEM_DEVICE bool run(uint64_t posted) {
    bool any = false;
    local.posted = posted;
    Group::sync(); // what one thread acquired with the doorbell, all have
    for (uint32_t i = 0; i < LSHMEM_HCA_TURN_ENTRIES && local.head != local.posted; i++) {
      if (local.flags & LSHMEM_HCA_FLAG_OVERRUN || !step()) break;
      any = true;
    }
    settle();
    if (Group::index() == 0) {
      store_relaxed<scope::gpu>(&q.posted, local.posted);
      store_relaxed<scope::gpu>(&q.head, local.head);
      store_relaxed<scope::gpu>(&q.completed, local.completed);
      store_relaxed<scope::gpu>(&q.behind, 0);
      if (local.state == state_error) {
        store_relaxed<scope::gpu>(&q.flags, local.flags);
        store_relaxed<scope::gpu>(&q.syndrome, local.syndrome);
        store_relaxed<scope::gpu>(&q.failed, local.failed);
        store_relaxed<scope::gpu>(&q.state, local.state);
      }
    }
    Group::sync();
    return any;
  }
};

// posted_now is how far a queue's entries are posted, as one thread sees it now. recover: it looks for lost doorbells
// too.
LSHMEM_DEVICE uint64_t posted_now(queue_t &q, bool recover) {
  const uint64_t posted = q.posted, head = q.head, depth = q.depth;
  const uint32_t flags = q.flags;
  if (flags & LSHMEM_HCA_FLAG_HOST_POSTS) {
    const uint64_t v = load_acquire<scope::sys>(at<const uint64_t>(q.doorbell));
    return v - head <= depth && v - posted <= depth ? v : posted;
  }
  if (!(flags & LSHMEM_HCA_FLAG_RECORD)) {
    // The bytes are those of a control segment's head: opcode, modifier and index, then the number.
    const uint64_t v = load_acquire<scope::sys>(at<const uint64_t>(q.doorbell));
    const uint32_t index = swap_bytes((uint32_t)v) >> 8 & 0xffff, number = swap_bytes((uint32_t)(v >> 32)) >> 8;
    const uint64_t next = posted + (uint16_t)(index - (uint32_t)posted);
    if (number == q.number && next != posted && next - head <= depth) return next;
    if (!recover) return posted;
  }
  const uint32_t index = swap_bytes(load_acquire<scope::sys>(at<const uint32_t>(q.record) + 1));
  const uint64_t next = posted + (uint16_t)(index - (uint32_t)posted);
  if (next == posted || next - head > depth) {
    if (q.behind) q.behind = 0;
    return posted;
  }
  if (flags & LSHMEM_HCA_FLAG_RECORD) return next;
  const uint64_t now = nanos();
  if (q.behind == 0) q.behind = now | 1;
  return now - q.behind < LSHMEM_HCA_RECOVER_NANOS ? posted : next;
}

// turn serves the queues first, first+stride, … of an adapter once and says whether there was work. A warp looks at a
// queue with each of its lanes. In turns with recover it looks for lost doorbells too.
template <class Group> LSHMEM_DEVICE bool turn(const adapter_t &a, uint32_t first, uint32_t stride, bool recover) {
  bool any = false;
  queue_t *queues = at<queue_t>(a.queues);
  for (uint32_t base = first; base < a.queue_count; base += stride * Group::size()) {
    const uint32_t i = base + stride * Group::index();
    uint64_t posted = 0;
    bool work = false;
    if (i < a.queue_count) {
      queue_t &q = queues[i];
      const uint32_t state = load_relaxed<scope::sys>(&q.state);
      if (state == state_rts || state == state_error) {
        posted = posted_now(q, recover);
        work = posted != q.head && !(q.flags & LSHMEM_HCA_FLAG_OVERRUN);
      }
    }
    if constexpr (equal<Group, warp_group>::yes) {
      uint32_t set = ballot(warp_group::mask(), work);
      while (set) {
        const uint32_t l = first_lane(set);
        set &= set - 1;
        server<Group> s(a, queues[base + stride * l]);
        if (s.run(shuffle(warp_group::mask(), posted, l))) any = true;
      }
    } else if (work) {
      server<Group> s(a, queues[i]);
      if (s.run(posted)) any = true;
    }
  }
  return any;
}

} // namespace hca
} // namespace lshmem

#endif
