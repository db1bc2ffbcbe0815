// Copies of a block by the bulk copy engine of its multiprocessor (sm_90 and newer), through shared memory that the
// caller lends. One thread keeps it busy; large copies of many blocks reach the links' limit, whatever piece each of
// them has. By loads and stores, one contiguous piece per block is some percent slower, since it touches many pages at
// a time.
#ifndef LSHMEM_BULK_CUH
#define LSHMEM_BULK_CUH

#include "lshmem.cuh"

#include "lshmem_rma.cuh"

namespace lshmem {
namespace bulk {

constexpr uint32_t stages = 6;           // of the ring in shared memory
constexpr uint32_t head_bytes = 128;     // the stages' barriers, before the ring
constexpr uint32_t stage_least = 512;    // below, loads and stores are as good
constexpr uint32_t stage_most = 1 << 15; // more brings nothing

#if LSHMEM_SM90
LSHMEM_DEVICE uint32_t shared_address(const void *p) {
  uint64_t r;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(r) : "l"(p));
  return (uint32_t)r;
}
// What ordinary loads and stores of this thread, or those it has synchronized with, did, is before what the engine does
// next, and the other way round.
LSHMEM_DEVICE void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

LSHMEM_DEVICE void barrier_begin(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
LSHMEM_DEVICE void barrier_end(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
LSHMEM_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}

// A load into a stage completes its barrier; a store from a stage is a group of its own.
LSHMEM_DEVICE void load(uint32_t stage, const char *src, uint32_t bytes, uint32_t barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(stage), "l"(src),
               "r"(bytes), "r"(barrier) : "memory");
}
LSHMEM_DEVICE void store(char *dst, uint32_t stage, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(stage), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// All stores but the last one have read their stages.
LSHMEM_DEVICE void wait_read() { asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); }
// All stores are done, as if by this thread.
LSHMEM_DEVICE void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// pump copies n bytes, a multiple of 16 between addresses that are too, by the calling thread alone.
LSHMEM_DEVICE void pump(char *dst, const char *src, uint64_t n, void *shared, uint32_t stage_bytes) {
  const uint32_t barriers = shared_address(shared), ring = barriers + head_bytes;
  for (uint32_t i = 0; i < stages; i++) barrier_begin(barriers + 8 * i);
  proxy_fence();
  const uint64_t pieces = (n + stage_bytes - 1) / stage_bytes;
  auto length = [&](uint64_t piece) {
    uint64_t left = n - piece * stage_bytes;
    return left < stage_bytes ? (uint32_t)left : stage_bytes;
  };
  auto begin = [&](uint64_t piece, uint32_t stage) {
    load(ring + stage * stage_bytes, src + piece * stage_bytes, length(piece), barriers + 8 * stage);
  };
  for (uint32_t i = 0; i < stages && i < pieces; i++) begin(i, i);
  uint32_t stage = 0, before = stages - 1, parity = 0;
  for (uint64_t piece = 0; piece < pieces; piece++) {
    barrier_wait(barriers + 8 * stage, parity);
    store(dst + piece * stage_bytes, ring + stage * stage_bytes, length(piece));
    // The stage of the piece before is free, for what is as many pieces ahead of that as there are stages.
    wait_read();
    if (piece > 0 && piece - 1 + stages < pieces) begin(piece - 1 + stages, before);
    before = stage;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  wait_stores();
  proxy_fence();
  for (uint32_t i = 0; i < stages; i++) barrier_end(barriers + 8 * i);
}
#endif

// copy copies by all threads of the block; true if it could use the engine and did all.
LSHMEM_DEVICE bool copy(void *dst, const void *src, uint64_t bytes, void *shared, uint32_t shared_bytes) {
#if LSHMEM_SM90
  uint32_t stage = shared_bytes > head_bytes ? ((shared_bytes - head_bytes) / stages) & ~127u : 0;
  if (stage > stage_most) stage = stage_most;
  if ((((uint64_t)dst ^ (uint64_t)src) & 15) || stage < stage_least || bytes < 2 * stage_least) return false;
  auto d = (char *)dst;
  auto s = (const char *)src;
  uint64_t head = -(uint64_t)dst & 15, whole = (bytes - head) & ~(uint64_t)15;
  // What all members wrote to the source, and to the shared memory, before the engine reads and overwrites it.
  proxy_fence();
  sync_block();
  if (thread_index() == 0) {
    pump(d + head, s + head, whole, shared, stage);
  } else if (block_threads() > 1 && thread_index() == block_threads() - 1) {
    copy_narrow<caller::kernel>(d, s, head, 0, 1);
    copy_narrow<caller::kernel>(d + head + whole, s + head + whole, bytes - head - whole, 0, 1);
  }
  if (block_threads() == 1) {
    copy_narrow<caller::kernel>(d, s, head, 0, 1);
    copy_narrow<caller::kernel>(d + head + whole, s + head + whole, bytes - head - whole, 0, 1);
  }
  sync_block();
  return true;
#else
  (void)dst, (void)src, (void)bytes, (void)shared, (void)shared_bytes;
  return false;
#endif
}

} // namespace bulk
} // namespace lshmem

// lshmem_putmem_block and lshmem_getmem_block by the bulk copy engine where that can be: memory that is mapped,
// addresses with the same distance to a multiple of 16, and shared memory of the block, 128-byte aligned and of 4 KiB
// at least (64 to 96 KiB are best), which is the library's until the call returns. Neither address may be shared or
// local memory. Else, and on GPUs before sm_90, they are the plain functions.
LSHMEM_DEVICE int lshmem_putmem_bulk_block(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe, void *shared,
                                           uint32_t shared_bytes) {
  char *to = lshmem::mapped(sh, (char *)dst, pe, bytes);
  if (to && lshmem::bulk::copy(to, src, bytes, shared, shared_bytes)) return LSHMEM_OK;
  return lshmem_putmem_block(sh, dst, src, bytes, pe);
}
LSHMEM_DEVICE int lshmem_getmem_bulk_block(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe, void *shared,
                                           uint32_t shared_bytes) {
  const char *from = lshmem::mapped(sh, (const char *)src, pe, bytes);
  if (from && lshmem::bulk::copy(dst, from, bytes, shared, shared_bytes)) return LSHMEM_OK;
  return lshmem_getmem_block(sh, dst, src, bytes, pe);
}

#endif
