// The other way to a PE: work requests that the GPU writes into the send queue of a network interface.
//
// # The protocol
//
// A queue is a ring of 64-byte blocks, of which a work request (an entry) takes one or more. Four counters of blocks,
// from when the queue was made and never reduced, say how far it is:
//
//	consumed <= posted <= ready <= reserved
//
// One call goes through these steps, each a function below:
//
//  1. reserve: take n blocks by an atomic add on reserved, and wait until the blocks that were in their places are
//     consumed.
//  2. write: the entries. Only the last entry of a call asks the NIC for a completion.
//  3. publish: fence, then move ready from the first own block to behind the last one by compare-and-swap, so that
//     ready moves in the order of reservations and everything before it is written.
//  4. submit: the last caller posts. One who sees another reservation behind its own may leave posting to it, but not
//     over the end of a batch.
//  5. post: under the queue's lock raise posted by an atomic maximum; if it rose, write the doorbell record, then ring
//     the doorbell. Where only the host can ring, raise its word instead.
//  6. poll: wait until the NIC's one completion entry says that a block is done, and raise consumed.
//
// quiet waits until all is consumed that is ready: somebody posts it. And whoever waits (in 1 or 6) posts what is
// ready, so that no order of callers, batches and depths can leave entries behind that nobody posts.
//
// # Why it is right
//
// A block is written again only after it was consumed (1, 6). The NIC reads an entry only after the doorbell, which
// comes after the fence of the poster, who has seen ready, which came after the fence of the writer: fences add up. The
// record is written before the doorbell, both under the lock and by the maximum, so that neither ever goes back.
//
// Completions carry 16 bits of the counter of their entry's first block, thus an entry that asks for one takes one
// block. The distance of a counter and what is waited for can be told from 16 bits as long as posted has reached it and
// the depth is at most 32768 (the wrap lemma, docs/lshmem.md).
//
// Entries of one queue are executed in order, but a write may overtake a read or an atomic before it. Between queues
// there is no order. So data and their signal always share a queue; a fence waits for atomics of the only queue, or
// else for all queues of that PE.
//
// # The state
//
// This path is not inlined: it would be a thousand instructions at every call. Its entry points (the last part of this
// file) take the address of the state's copy in memory instead of the kernel's argument, since a pointer to an argument
// makes compilers copy it to local memory in every thread.
//
// # Registers
//
// A kernel takes as many registers as the largest of the functions that it may call, and a thread of a block of 1024 can
// have 64. No launch bound holds for a function, and along direct calls registers add up: kernels call the entry points by
// pointer (call). From there on each function saves what it uses, and needs fewer than 62 itself: it keeps few values over
// calls, since of the registers that a callee leaves alone some 32 are among the first 64, and what is larger lies in memory
// (batch). shmem/device's tests and bench/shmem_registers.py count.
//
// # Lanes
//
// Calls by one thread join if the whole warp makes the same call at that time over the same queue: one
// reservation, one doorbell. Calls by a warp or block are the work of one warp, each lane of which writes one entry.
#ifndef LSHMEM_QUEUE_CUH
#define LSHMEM_QUEUE_CUH

#include "lshmem.cuh"

namespace lshmem {
namespace nic {

// handle is a queue and what its functions need of the state.
struct handle {
  lshmem_queue *q;
  uint64_t control, timeout;
  uint32_t index; // of the queue, for errors

  LSHMEM_DEVICE patience wait() const { return patience(control, timeout); }
};

// --- 5. Post ---

// ring tells the NIC that all blocks before end are there to be executed. The caller has raised posted.
LSHMEM_DEVICE void ring(const lshmem_queue *q, uint64_t end) {
  uint32_t low = (uint32_t)(end & LSHMEM_MLX5_INDEX_MASK);
  auto doorbell = (uint64_t *)q->doorbell;
  auto word = (uint64_t)swap_bytes(low << 8) | (uint64_t)swap_bytes(q->number << 8) << 32;
  // The entries, which this thread or others have written, before the record.
  fence<scope::sys>();
  store_relaxed<scope::sys>((uint32_t *)q->record, swap_bytes(low));
  // The record before the doorbell.
  fence<scope::sys>();
  store_relaxed<scope::sys>(doorbell, word);
}

// post makes the NIC see all blocks before end, which are ready: now, or another thread is just doing so.
LSHMEM_OUTLINE void post(const handle &h, uint64_t end) {
  lshmem_queue *q = h.q;
  if (q->flags & LSHMEM_QUEUE_HOST_POSTS) {
    if (fetch_max<scope::gpu>(&q->posted, end) >= end) return;
    fence<scope::sys>();
    reduce_max<scope::sys>((uint64_t *)q->doorbell, end);
    return;
  }
  // The lock is taken, used and given back in one turn of the loop, so that lanes of a warp cannot wait for each other.
  while (load_relaxed<scope::gpu>(&q->posted) < end) {
    if (compare_swap<scope::gpu>(&q->lock, 0, 1) != 0) {
      pause();
      continue;
    }
    // After the previous holder: its record and doorbell come before ours, for the NIC too.
    fence<scope::sys>();
    if (fetch_max<scope::gpu>(&q->posted, end) < end) ring(q, end);
    store_release<scope::sys>(&q->lock, 0);
  }
}

// --- 6. Poll ---

// completion is the last four bytes of the NIC's completion entry.
struct completion {
  uint32_t word;
  LSHMEM_DEVICE uint16_t counter() const { return (uint16_t)(swap_bytes(word) >> 16); }
  LSHMEM_DEVICE uint32_t opcode() const { return word >> 28; }
  LSHMEM_DEVICE bool error() const {
    return opcode() == LSHMEM_MLX5_COMPLETION_ERROR || opcode() == LSHMEM_MLX5_COMPLETION_RESP_ERROR;
  }
};

LSHMEM_DEVICE completion look(const lshmem_queue *q) {
  return completion{load_acquire<scope::sys>((const uint32_t *)(q->cq + LSHMEM_MLX5_COMPLETION_COUNTER_AT))};
}

// broken makes an error that of the queue, for all who use it, and of the PE.
LSHMEM_OUTLINE int broken(const handle &h, int status, uint32_t syndrome, uint64_t index) {
  uint32_t first = compare_swap<scope::gpu>(&h.q->status, 0, (uint32_t)status);
  if (first) return (int)first;
  return record(h.control, status, (int)h.q->pe, h.index, syndrome, index);
}

// tired is called after a poll in vain, and says why to give up.
LSHMEM_OUTLINE int tired(const handle &h, patience &patient) {
  int status = patient.poll();
  if (status != LSHMEM_OK) return broken(h, status, 0, 0);
  return (int)load_relaxed<scope::gpu>(&h.q->status);
}

// poll waits until all blocks before end are executed.
LSHMEM_OUTLINE int poll(const handle &h, uint64_t end) {
  lshmem_queue *q = h.q;
  patience patient = h.wait();
  for (;;) {
    if (load_acquire<scope::gpu>(&q->consumed) >= end) return LSHMEM_OK;
    // The 16-bit counter says nothing about blocks that the NIC does not know yet.
    uint64_t posted = load_relaxed<scope::gpu>(&q->posted);
    if (posted < end) {
      uint64_t ready = load_acquire<scope::gpu>(&q->ready);
      if (ready > posted) post(h, ready);
      int status = tired(h, patient);
      if (status != LSHMEM_OK) return status;
      continue;
    }
    completion c = look(q);
    // Whoever saw later completions meanwhile has raised consumed; the counter may have gone round since.
    uint64_t consumed = load_acquire<scope::gpu>(&q->consumed);
    if (consumed >= end) return LSHMEM_OK;
    if (c.error()) {
      uint32_t syndrome = load_relaxed<scope::sys>((const uint32_t *)(q->cq + LSHMEM_MLX5_COMPLETION_HW_SYNDROME_AT));
      // Of the blocks that the NIC knows, which may be behind end: it had been told of the entry when it failed.
      posted = load_relaxed<scope::gpu>(&q->posted);
      return broken(h, LSHMEM_ERR_QUEUE, swap_bytes(syndrome), posted - (uint16_t)(posted - c.counter()));
    }
    // Blocks before done are executed: done and end differ by at most the depth if end is ahead.
    uint16_t done = (uint16_t)(c.counter() + 1), low = (uint16_t)end;
    if ((uint16_t)(low - done - 1) < q->depth) {
      int status = tired(h, patient);
      if (status != LSHMEM_OK) return status;
      continue;
    }
    uint64_t all = (end & ~LSHMEM_MLX5_INDEX_MASK) + done + (low > done ? 0x10000 : 0);
    // What the NIC wrote before the completion, for those who only see consumed.
    fence<scope::gpu>();
    reduce_max<scope::gpu>(&q->consumed, all);
    return LSHMEM_OK;
  }
}

// --- 1. Reserve ---

struct reservation {
  uint64_t base;
  int status;
};

// reserve takes n blocks, at most LSHMEM_MAX_CALL. After an error they stay unwritten, and the queue is broken for all.
LSHMEM_OUTLINE reservation reserve(const handle &h, uint32_t n) {
  lshmem_queue *q = h.q;
  uint64_t base = fetch_add<scope::gpu>(&q->reserved, n);
  uint64_t end = base + n;
  if (end <= q->depth) return reservation{base, LSHMEM_OK};
  return reservation{base, poll(h, end - q->depth)};
}

// --- 3. and 4. Publish and submit ---

LSHMEM_DEVICE bool ends_batch(const lshmem_queue *q, uint64_t base, uint32_t n) {
  uint32_t batch = q->batch;
  if (n >= batch) return true;
  uint64_t in_batch = batch & (batch - 1) ? base % batch : base & (batch - 1);
  return in_batch + n >= batch;
}

// publish makes blocks [base, base+n), which the caller and those it has synchronized with have written, ready.
LSHMEM_OUTLINE int publish(const handle &h, uint64_t base, uint32_t n) {
  lshmem_queue *q = h.q;
  // Another thread may post these blocks, also on a queue that only one block's threads write to: quiet by any thread
  // posts what is ready.
  if (q->flags & (LSHMEM_QUEUE_HOST_MEMORY | LSHMEM_QUEUE_HOST_POSTS)) fence<scope::sys>();
  else fence<scope::gpu>();
  patience patient = h.wait();
  while (compare_swap<scope::gpu>(&q->ready, base, base + n) != base) {
    int status = tired(h, patient);
    if (status != LSHMEM_OK) return status;
  }
  if (ends_batch(q, base, n) || load_relaxed<scope::gpu>(&q->reserved) == base + n) post(h, base + n);
  return LSHMEM_OK;
}

// --- 2. Write ---

// segment writes 16 bytes of the entry that begins at block index. Entries run on over the end of the ring.
LSHMEM_DEVICE void segment(const lshmem_queue *q, uint64_t index, uint32_t i, quad v) {
  uint64_t block = (index + i / 4) & (q->depth - 1);
  store_entry((quad *)(q->wq + block * LSHMEM_MLX5_BLOCK_BYTES) + i % 4, v);
}

LSHMEM_DEVICE uint64_t pair(uint32_t first, uint32_t second) { return (uint64_t)second << 32 | first; }

// The first segment of an entry of n segments. The index must not run into the bits of the opcode's modifier.
LSHMEM_DEVICE void write_control(const lshmem_queue *q, uint64_t index, uint32_t opcode, uint32_t n, uint32_t flags) {
  uint32_t what = opcode | (uint32_t)(index & LSHMEM_MLX5_INDEX_MASK) << 8;
  segment(q, index, 0, quad{pair(swap_bytes(what), swap_bytes(q->number << 8 | n)), (uint64_t)flags << 24});
}
// The second one: the address in the other process. Keys are in network byte order already.
LSHMEM_DEVICE void write_remote(const lshmem_queue *q, uint64_t index, uint64_t address, uint32_t key) {
  segment(q, index, 1, quad{swap_bytes(address), key});
}
LSHMEM_DEVICE void write_data(const lshmem_queue *q, uint64_t index, uint32_t i, uint32_t bytes, uint32_t key, uint64_t address) {
  segment(q, index, i, quad{pair(swap_bytes(bytes), key), swap_bytes(address)});
}

// An entry that does nothing but complete.
LSHMEM_DEVICE void write_nop(const lshmem_queue *q, uint64_t index) {
  write_control(q, index, LSHMEM_MLX5_OP_NOP, 1, LSHMEM_MLX5_CTRL_COMPLETION);
}
// An entry that completes when what earlier reads have brought is visible: it reads a byte of our own memory behind
// them.
LSHMEM_DEVICE void write_flush(const lshmem_queue *q, uint64_t index) {
  uint32_t flags = (uint32_t)LSHMEM_MLX5_CTRL_COMPLETION | (uint32_t)LSHMEM_MLX5_FENCE_READS;
  write_control(q, index, LSHMEM_MLX5_OP_DUMP, 2, flags);
  write_data(q, index, 1, 1, q->ibuf_key, q->ibuf);
}

// The last entry of a call, where the others cannot or must not complete it.
enum class tail { none, nop, flush };

LSHMEM_DEVICE void write_tail(const lshmem_queue *q, uint64_t index, tail t) {
  if (t == tail::nop) write_nop(q, index);
  if (t == tail::flush) write_flush(q, index);
}

// submit is a call of total blocks by the lanes of mask; write(base) writes the caller's entries, and the leader's a
// tail. The end of the call's blocks goes to *end.
template <class Write>
LSHMEM_DEVICE int submit(const handle &h, uint32_t mask, uint32_t total, tail t, Write write, uint64_t *end) {
  uint32_t leader = first_lane(mask);
  bool alone = (mask & (mask - 1)) == 0, leads = lane() == leader;
  reservation r{0, LSHMEM_OK};
  if (leads) r = reserve(h, total);
  if (!alone) {
    r.status = shuffle(mask, r.status, leader);
    r.base = shuffle(mask, r.base, leader);
  }
  if (r.status != LSHMEM_OK) return r.status;
  write(r.base);
  if (leads) write_tail(h.q, r.base + total - 1, t);
  // What the other lanes wrote is before the leader's fence.
  if (!alone) sync_warp(mask);
  if (leads) r.status = publish(h, r.base, total);
  // Lanes go on together or not at all.
  if (!alone) r.status = shuffle(mask, r.status, leader);
  *end = r.base + total;
  return r.status;
}

// --- Which queue ---

LSHMEM_DEVICE uint32_t choose(const lshmem_t &sh, int which) {
  uint32_t warp = block_index() * ((block_threads() + 31) / 32) + thread_index() / 32;
  uint32_t caller = block_index();
  if (which == LSHMEM_QP_ANY || sh.flags & LSHMEM_STATE_CALLER_WARP) caller = warp;
  else if (sh.flags & LSHMEM_STATE_CALLER_SM) caller = multiprocessor();
  return caller % sh.queues_per_pe;
}

LSHMEM_DEVICE handle queue_at(const lshmem_t &sh, uint32_t index) {
  return handle{(lshmem_queue *)sh.queues + index, sh.control, sh.timeout_nanos, index};
}

// is_queue says whether which is the number of a queue that each PE has, or LSHMEM_QP_*.
LSHMEM_DEVICE bool is_queue(const lshmem_t &sh, int which) {
  return which >= LSHMEM_QP_ANY && (which < 0 || (uint32_t)which < sh.queues_per_pe);
}

// open finds the queue of a PE: a number, or LSHMEM_QP_*.
LSHMEM_OUTLINE int open(const lshmem_t &sh, int pe, int which, handle *h) {
  if (sh.version != LSHMEM_STATE_VERSION) return fail(sh, LSHMEM_ERR_VERSION, pe);
  if ((uint32_t)pe >= sh.pes || sh.queues_per_pe == 0 || !is_queue(sh, which)) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  uint32_t i = which >= 0 ? (uint32_t)which : choose(sh, which);
  *h = queue_at(sh, i * sh.pes + (uint32_t)pe);
  if (h->q->wq == 0) return fail(sh, LSHMEM_ERR_ARGUMENT, pe);
  return (int)load_relaxed<scope::gpu>(&h->q->status);
}

// --- Keys ---

// found is a registered range: its key, and where it ends.
struct found {
  uint64_t end;
  uint32_t key;
};

// Entry i of a key table. The first ones are in the state, as they were when the kernel was launched.
LSHMEM_DEVICE found key_at(const lshmem_key (&some)[LSHMEM_INLINE_KEYS], uint64_t all, uint64_t i) {
  if (i < LSHMEM_INLINE_KEYS && some[i].end) return found{some[i].end, some[i].key};
  auto k = (const lshmem_key *)all + i;
  uint64_t end = load_acquire<scope::sys>(&k->end);
  return found{end, load_relaxed<scope::sys>(&k->key)};
}

LSHMEM_OUTLINE found remote_key(const lshmem_t &sh, uint64_t offset, uint32_t pe, uint32_t nic) {
  return key_at(sh.remote_inline, sh.remote_keys, ((offset >> sh.key_shift) * sh.pes + pe) * sh.nics + nic);
}

// local_key finds the key of our own memory, with an address as its end; 0 if it is not registered.
LSHMEM_OUTLINE found local_key(const lshmem_t &sh, uint64_t address, uint32_t nic) {
  uint64_t offset = address - sh.heap_base;
  if (offset < sh.heap_bytes) {
    found f = key_at(sh.local_inline, sh.local_keys, (offset >> sh.key_shift) * sh.nics + nic);
    f.end += f.end ? sh.heap_base : 0;
    return address < f.end ? f : found{0, 0}; // a buffer in the heap may end within an entry
  }
  for (uint32_t i = 0; i < sh.local_count; i++) {
    // The host writes the end last and clears it first: between two looks at the same end is one buffer.
    auto l = (const lshmem_local *)sh.local + i;
    uint64_t end = load_acquire<scope::sys>(&l->end), start = load_relaxed<scope::sys>(&l->start);
    if (address >= end || address < start) continue;
    uint32_t key = load_relaxed<scope::sys>(&l->keys[nic]);
    fence<scope::sys>();
    if (load_relaxed<scope::sys>(&l->end) == end) return found{end, key};
  }
  return found{0, 0};
}

LSHMEM_DEVICE uint64_t remote_address(const lshmem_t &sh, uint64_t offset, uint32_t pe) {
  return ((const uint64_t *)sh.remote)[pe] + offset;
}

LSHMEM_DEVICE bool in_heap(const lshmem_t &sh, uint64_t offset, uint64_t bytes) {
  return offset <= sh.heap_bytes && bytes <= sh.heap_bytes - offset;
}

// --- Copies ---

// transfer is what is left of a copy: n elements, at equal distances on either side.
struct transfer {
  uint64_t local;  // address
  uint64_t remote; // offset in the heap
  uint64_t element;
  int64_t local_step, remote_step;
  uint64_t n;
  uint64_t done; // bytes of the first of them

  LSHMEM_DEVICE bool left() const { return n != 0; }
};

// contiguous is a transfer of one element.
LSHMEM_DEVICE transfer contiguous(const lshmem_t &sh, const void *local, const void *remote, uint64_t bytes) {
  return transfer{(uint64_t)local, (uint64_t)remote - sh.heap_base, bytes, 0, 0, bytes ? 1u : 0u, 0};
}

// piece is a part of a transfer within one registered range on either side: what one entry carries.
struct piece {
  uint64_t local, remote; // addresses
  uint32_t bytes;
  uint32_t local_key, remote_key;
  bool by_value; // the source is not registered: the entry holds the data
};

constexpr uint32_t value_bytes = 28;        // of data that a one-block entry holds
constexpr uint64_t piece_bytes = 1u << 30;  // what a NIC takes at once
constexpr uint32_t call_pieces = 31;        // of one submission

// cut takes the next piece off a transfer; false if that memory is not registered. The table of keys has none for what
// is not in the heap. by_value: the piece is a small one, whether or not our own memory is registered.
LSHMEM_OUTLINE bool cut(const lshmem_t &sh, const lshmem_queue *q, transfer &t, piece *p, bool by_value = false) {
  uint64_t local = t.local + t.done, remote = t.remote + t.done, bytes = t.element - t.done;
  if (!in_heap(sh, remote, bytes)) return false;
  found r = remote_key(sh, remote, q->pe, q->nic), l = local_key(sh, local, q->nic);
  if (r.end <= remote) return false;
  p->by_value = by_value || l.end == 0;
  if (bytes > r.end - remote) bytes = r.end - remote;
  if (!p->by_value && bytes > l.end - local) bytes = l.end - local;
  uint64_t most = p->by_value ? value_bytes : piece_bytes;
  if (bytes > most) bytes = most;
  p->local = local;
  p->remote = remote_address(sh, remote, q->pe);
  p->bytes = (uint32_t)bytes;
  p->local_key = l.key;
  p->remote_key = r.key;
  t.done += bytes;
  if (t.done == t.element) {
    t.done = 0;
    t.local += (uint64_t)t.local_step;
    t.remote += (uint64_t)t.remote_step;
    t.n--;
  }
  return true;
}

// Up to 28 bytes of data in the entry itself, whose words get() gives.
template <class Get> LSHMEM_DEVICE void write_value(const lshmem_queue *q, uint64_t index, uint32_t bytes, Get get) {
  segment(q, index, 2, quad{pair(swap_bytes((uint32_t)LSHMEM_MLX5_INLINE_FLAG | bytes), get(0)), pair(get(1), get(2))});
  if (bytes > 12) segment(q, index, 3, quad{pair(get(3), get(4)), pair(get(5), get(6))});
}

// write_piece writes the entry of a piece: a WRITE or READ.
LSHMEM_OUTLINE void write_piece(const lshmem_queue *q, uint64_t index, uint32_t opcode, const piece &p, uint32_t flags) {
  uint32_t segments = p.by_value && p.bytes > 12 ? 4 : 3;
  write_control(q, index, opcode, segments, flags);
  write_remote(q, index, p.remote, p.remote_key);
  if (!p.by_value) {
    write_data(q, index, 2, p.bytes, p.local_key, p.local);
    return;
  }
  write_value(q, index, p.bytes, [&](uint32_t word) {
    uint32_t v = 0;
    for (uint32_t i = 4 * word; i < 4 * word + 4 && i < p.bytes; i++)
      v |= (uint32_t)load_local((const uint8_t *)p.local + i) << (8 * (i & 3));
    return v;
  });
}

// --- Atomics ---

enum class amo { add, fetch_add, fetch, increment, set, bit_and, bit_or, bit_xor, compare_swap };

// atomic is an atomic operation in wire format, without addresses.
struct atomic {
  uint32_t opcode, bytes, blocks;
  quad operands, masks;
};

// atomic_of is how the NIC does an operation on a word of that many bytes. A masked swap replaces the bits of swap_mask
// where those of compare_mask are equal; a masked add has no carry over the bits of boundary.
LSHMEM_OUTLINE atomic atomic_of(amo op, uint32_t bytes, uint64_t v, uint64_t compare) {
  uint64_t swap_mask = ~UINT64_C(0), compare_mask = 0, boundary = 0;
  bool add = false;
  switch (op) {
  case amo::add:
  case amo::fetch_add:
  case amo::increment: add = true; break;
  case amo::fetch: add = true, v = 0; break;
  case amo::bit_xor: add = true, boundary = ~UINT64_C(0); break;
  case amo::set: break;
  case amo::bit_and: swap_mask = ~v; break;
  case amo::bit_or: swap_mask = v; break;
  case amo::compare_swap: compare_mask = ~UINT64_C(0); break;
  }
  if (bytes == 4) {
    uint64_t swap = pair(swap_bytes((uint32_t)v), swap_bytes((uint32_t)(add ? boundary : compare)));
    uint64_t masks = add ? 0 : pair(swap_bytes((uint32_t)swap_mask), swap_bytes((uint32_t)compare_mask));
    uint32_t opcode = (uint32_t)((add ? LSHMEM_MLX5_OP_MASKED_ADD : LSHMEM_MLX5_OP_MASKED_SWAP) | LSHMEM_MLX5_MOD_ATOMIC4);
    return atomic{opcode, 4, 1, quad{swap, masks}, quad{0, 0}};
  }
  if (op == amo::fetch_add) return atomic{LSHMEM_MLX5_OP_FETCH_ADD, 8, 1, quad{swap_bytes(v), 0}, quad{0, 0}};
  if (op == amo::compare_swap)
    return atomic{LSHMEM_MLX5_OP_COMPARE_SWAP, 8, 1, quad{swap_bytes(v), swap_bytes(compare)}, quad{0, 0}};
  if (add)
    return atomic{(uint32_t)(LSHMEM_MLX5_OP_MASKED_ADD | LSHMEM_MLX5_MOD_ATOMIC8), 8, 1, quad{swap_bytes(v), boundary},
                  quad{0, 0}};
  return atomic{(uint32_t)(LSHMEM_MLX5_OP_MASKED_SWAP | LSHMEM_MLX5_MOD_ATOMIC8), 8, 2, quad{swap_bytes(v), 0},
                quad{swap_bytes(swap_mask), 0}};
}

// write_atomic writes an atomic's entry of one or two blocks, whose result goes to the queue's internal buffer.
LSHMEM_OUTLINE void write_atomic(const lshmem_queue *q, uint64_t index, const atomic &a, uint64_t remote, uint32_t key,
                                uint64_t result, uint32_t flags) {
  write_control(q, index, a.opcode, a.blocks == 2 ? 5 : 4, flags);
  write_remote(q, index, remote, key);
  segment(q, index, 2, a.operands);
  if (a.blocks == 2) segment(q, index, 3, a.masks);
  write_data(q, index, a.blocks == 2 ? 4 : 3, a.bytes, q->ibuf_key, result);
}

// An entry of two blocks cannot complete a call: the counter of a completion is that of an entry's first block.
LSHMEM_DEVICE tail tail_behind(const atomic &a) { return a.blocks == 2 ? tail::nop : tail::none; }

LSHMEM_DEVICE void raise_atomics(lshmem_queue *q, uint64_t end) { reduce_max<scope::gpu>(&q->atomics, end); }

// --- Lanes that make the same call ---

struct party {
  uint32_t mask, rank, size;
  LSHMEM_DEVICE bool leads() const { return rank == 0; }
  LSHMEM_DEVICE bool alone() const { return size == 1; }
};

LSHMEM_DEVICE party one_lane() { return party{1u << lane(), 0, 1}; }

// lanes_together is the whole warp, if all of it makes this call over the same queue. Fewer lanes go one by one: lanes
// that are somewhere else in their program must never be waited for, and parts of a warp that join as they happen to
// meet stood still on a GPU.
LSHMEM_DEVICE party lanes_together(const handle &h) {
  constexpr uint32_t warp = ~0u;
  if (active_mask() != warp) return one_lane();
  uint64_t of_first = shuffle(warp, (uint64_t)h.q, 0);
  if (!all_warp(warp, of_first == (uint64_t)h.q)) return one_lane();
  return party{warp, lane(), 32};
}

// --- Put, get and put with signal ---

// signal is an atomic behind the data of a call.
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

// batch is a transfer by one lane or a warp, submission by submission. It lies in memory: there is more of it than registers
// that outlive a call.
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

// cut_batch takes the pieces of the next submission off a batch: one for each lane, or as many as go into one by one lane.
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

// one_each says whether each lane of a party has one piece at most, and all have the same kinds of entries; the piece goes to p.
LSHMEM_OUTLINE bool one_each(const lshmem_t &sh, const handle &h, uint32_t mask, const transfer &all, uint32_t kind, piece *p) {
  transfer left = all;
  bool single = !left.left() || (cut(sh, h.q, left, p) && !left.left());
  uint32_t of_first = shuffle(mask, kind, first_lane(mask));
  return all_warp(mask, single && kind == of_first);
}

// copy posts a transfer by one thread or one warp, with a signal behind it, and returns where it ends.
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

// put_bytes is put of a contiguous transfer, whose arguments are values: a kernel that never makes this call keeps no memory
// for it.
template <class Group>
LSHMEM_OUTLINE int put_bytes(uint64_t self, void *dst, const void *src, uint64_t bytes, const uint64_t *sig, uint64_t v, int op,
                             bool blocking, int pe, int which) {
  return put<Group>(self, contiguous(state_at(self), src, dst, bytes), sig, v, op, blocking, pe, which);
}

// --- The internal buffer: results that a thread waits for ---

// A slot holds 8 bytes for each lane. Slots are taken in the order of ibuf_head and given back in the same order:
// ibuf_tail. A slot is taken before blocks are reserved, so that nobody waits for a slot with blocks that others wait
// for.
struct slot {
  uint64_t ticket;
  uint64_t address;
  int status;
};

LSHMEM_OUTLINE slot take_slot(const handle &h) {
  lshmem_queue *q = h.q;
  uint64_t ticket = fetch_add<scope::gpu>(&q->ibuf_head, 1);
  uint64_t address = q->ibuf + ((ticket & (q->ibuf_slots - 1)) + 1) * LSHMEM_IBUF_SLOT;
  patience patient = h.wait();
  while (ticket - load_acquire<scope::gpu>(&q->ibuf_tail) >= q->ibuf_slots) {
    int status = tired(h, patient);
    if (status != LSHMEM_OK) return slot{ticket, address, status};
  }
  return slot{ticket, address, LSHMEM_OK};
}

// The caller and those it has synchronized with have read what they want.
LSHMEM_OUTLINE int give_slot(const handle &h, uint64_t ticket) {
  patience patient = h.wait();
  fence<scope::gpu>();
  while (compare_swap<scope::gpu>(&h.q->ibuf_tail, ticket, ticket + 1) != ticket) {
    int status = tired(h, patient);
    if (status != LSHMEM_OK) return status;
  }
  return LSHMEM_OK;
}

// with_slot lends the lanes a slot of their queue: use(address of the lane's 8 bytes) posts and waits, take() reads the
// result. Lanes stay together to the end, whatever fails.
template <class Use, class Take>
LSHMEM_DEVICE int with_slot(const handle &h, const party &lanes, Use use, Take take) {
  slot s{0, 0, LSHMEM_OK};
  uint32_t leader = first_lane(lanes.mask);
  if (lanes.leads()) s = take_slot(h);
  if (!lanes.alone()) {
    s.status = shuffle(lanes.mask, s.status, leader);
    s.address = shuffle(lanes.mask, s.address, leader);
  }
  if (s.status != LSHMEM_OK) return s.status;
  int status = use(s.address);
  if (status == LSHMEM_OK) take(s.address);
  // After an error nobody knows whether the NIC still writes to the slot: it stays taken, and the queue is broken.
  bool failed = status != LSHMEM_OK;
  if (!lanes.alone()) failed = any_warp(lanes.mask, failed);
  if (failed && status == LSHMEM_OK) status = LSHMEM_ERR_QUEUE;
  // All lanes' reads before the slot is given back.
  if (!lanes.alone()) sync_warp(lanes.mask);
  if (status == LSHMEM_OK && lanes.leads()) status = give_slot(h, s.ticket);
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

// get_by_slot reads a piece of at most 28 bytes through the internal buffer to where that memory is.
LSHMEM_OUTLINE int get_by_slot(const handle &h, piece &p, uint8_t *to) {
  p.local_key = h.q->ibuf_key;
  p.by_value = false;
  return with_slot(h, one_lane(), [&](uint64_t at) {
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
    // No more at a time than a slot holds.
    if (!cut(sh, h.q, left, &p, true)) return fail(sh, LSHMEM_ERR_ARGUMENT, (int)h.q->pe);
    int status = get_by_slot(h, p, (uint8_t *)p.local);
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

// Values of one or two 4-byte words that the lanes of a whole warp write to neighbouring places, as one entry of up to 19
// segments and a NOP. Each of the first lanes gathers the four words of one segment: the length, then the lanes' words.
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
  with_slot(h, lanes, [&](uint64_t at) {
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
  with_slot(h, lanes, [&](uint64_t at) {
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
