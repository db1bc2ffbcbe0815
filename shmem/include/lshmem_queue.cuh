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
//  3. publish: fence, then move ready from the first own block to the end of the last one by compare-and-swap, so that
//     ready moves in the order of reservations and everything before it is written.
//  4. submit: the last caller posts. One who sees another reservation after its own may leave posting to it, but not
//     over the end of a batch.
//  5. post: under the queue's lock raise posted by an atomic maximum; if it rose, write the doorbell record, then ring
//     the doorbell. Where only the host can ring, raise its word instead.
//  6. poll: wait until the NIC's one completion entry says that a block is done, and raise consumed.
//
// quiet waits until all is consumed that is ready: somebody posts it. And whoever waits (in 1 or 6) posts what is
// ready, so that no order of callers, batches and depths can leave entries that nobody posts.
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
// This path is not inlined: it would be a thousand instructions at every call. Its entry points
// (lshmem_queue_calls.cuh) take the address of the state's copy in memory instead of the kernel's argument, since a
// pointer to an argument makes compilers copy it to local memory in every thread.
//
// # Registers
//
// A kernel takes as many registers as the largest of the functions that it may call, and a thread of a block of 1024
// can have 64. No launch bound holds for a function, and along direct calls registers add up: kernels call the entry
// points by pointer (call). From there on each function saves what it uses, and needs fewer than 62 itself: it keeps
// few values over calls, since of the registers that a callee leaves alone some 32 are among the first 64, and what is
// larger lies in memory (batch). shmem/device's tests and bench/shmem_registers.py count.
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
      // Of the blocks that the NIC knows, which may be after end: it had been told of the entry when it failed.
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
// An entry that completes when what earlier reads have brought is visible: it reads a byte of our own memory after
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

} // namespace nic
} // namespace lshmem

#include "lshmem_queue_calls.cuh"

#endif
