// What each call writes into a send queue, printed for the Go side to compare. There is no NIC: the completion entry
// says from the beginning that everything is done, and results lie in the internal buffer before they are asked for.
#include "lshmem_collective.cuh"

#include "check.h"

#include <functional>

static constexpr uint64_t heap_bytes = 1 << 18, chunk_shift = 16, chunks = heap_bytes >> chunk_shift;
static constexpr uint32_t depth = 128, queues_per_pe = 2, pes = 2, cells = 4;

struct nic_job {
  lshmem_t sh;
  lshmem_control control;
  char *heap;
  char outside[256], unknown[256];
  lshmem_key local_keys[chunks], remote_keys[chunks * pes];
  lshmem_local local;
  uint64_t remote[pes];
  lshmem_queue queues[queues_per_pe * pes];
  struct memory {
    alignas(64) char wq[depth * 64];
    alignas(64) char cq[64];
    alignas(64) uint64_t ibuf[(1 + cells) * LSHMEM_IBUF_CELL / 8];
    alignas(8) uint32_t record[2];
    uint64_t doorbell;
  } mem[queues_per_pe * pes];

  // Queues begin with start blocks done.
  explicit nic_job(uint64_t start, uint32_t flags) {
    memset((void *)this, 0, sizeof *this);
    heap = (char *)aligned_alloc(65536, heap_bytes);
    memset(heap, 0, heap_bytes);
    for (uint64_t c = 0; c < chunks; c++) {
      local_keys[c] = lshmem_key{(c + 1) << chunk_shift, __builtin_bswap32(0x1000 + (uint32_t)c), 0};
      for (uint64_t p = 0; p < pes; p++) remote_keys[c * pes + p] = lshmem_key{(c + 1) << chunk_shift, __builtin_bswap32(0x2000 + (uint32_t)(16 * p + c)), 0};
    }
    local = lshmem_local{(uint64_t)outside, (uint64_t)outside + sizeof outside, {__builtin_bswap32(0x3000), 0, 0, 0, 0, 0, 0, 0}};
    remote[1] = UINT64_C(0x7f0000000000);
    for (uint32_t i = 0; i < queues_per_pe * pes; i++) {
      lshmem_queue &q = queues[i];
      memory &m = mem[i];
      q.wq = (uint64_t)m.wq, q.cq = (uint64_t)m.cq, q.ibuf = (uint64_t)m.ibuf;
      q.record = (uint64_t)&m.record[1], q.doorbell = (uint64_t)&m.doorbell;
      q.number = 0xabc00 + i, q.depth = depth, q.batch = 32, q.ibuf_cells = cells;
      q.ibuf_key = __builtin_bswap32(0x4000 + i), q.pe = i % pes, q.nic = 0, q.flags = flags;
      q.reserved = q.ready = q.posted = q.consumed = start;
      memset(m.cq, 0xff, sizeof m.cq);
      uint16_t done = __builtin_bswap16((uint16_t)(start + 64)); // everything a case posts
      memcpy(m.cq + LSHMEM_MLX5_COMPLETION_COUNTER_AT, &done, 2);
      for (auto &w : m.ibuf) w = UINT64_C(0x1122334455667788);
      memset(m.wq, 0xee, sizeof m.wq); // what is not written shows
    }
    sh.version = LSHMEM_STATE_VERSION, sh.pe = 0, sh.pes = pes, sh.heap_base = (uint64_t)heap, sh.heap_bytes = heap_bytes;
    sh.remote = (uint64_t)remote, sh.queues = (uint64_t)queues, sh.queues_per_pe = queues_per_pe, sh.nics = 1;
    sh.key_shift = chunk_shift, sh.local_count = 1, sh.local = (uint64_t)&local;
    sh.local_keys = (uint64_t)local_keys, sh.remote_keys = (uint64_t)remote_keys;
    sh.control = (uint64_t)&control, sh.timeout_nanos = 2000000000, sh.self = (uint64_t)&sh;
  }
  ~nic_job() { free(heap); }
};

static void hex(const void *p, size_t n) {
  for (size_t i = 0; i < n; i++) printf("%02x", ((const unsigned char *)p)[i]);
}

static uint64_t start = 0;
static uint32_t queue_flags = 0;

// Runs one case by a grid and prints what became of queue 0 of PE 1, and the result.
static void run(const char *name, uint32_t threads, std::function<uint64_t(const lshmem_t &, char *, nic_job &)> f) {
  auto j = std::make_unique<nic_job>(start, queue_flags);
  std::atomic<uint64_t> result{0};
  auto one = [&] {
    uint64_t r = f(j->sh, j->heap, *j);
    if (lshmem::thread_index() == 0) result = r;
  };
  if (threads == 1) one();
  else lshmem::cpu::launch(1, threads, one);
  lshmem_queue &q = j->queues[1];
  auto &m = j->mem[1];
  printf("%s %llu %llx %u %llx %08x ", name, (unsigned long long)q.reserved, (unsigned long long)result.load(), j->control.status,
         (unsigned long long)j->queues[3].reserved, __builtin_bswap32(m.record[1]));
  hex(&m.doorbell, 8);
  printf(" %llx %llx %llx ", (unsigned long long)(uintptr_t)j->heap, (unsigned long long)(uintptr_t)j->outside,
         (unsigned long long)q.ibuf);
  hex(m.wq, sizeof m.wq);
  printf(" %llu %llu %llu %llu\n", (unsigned long long)q.ready, (unsigned long long)q.posted, (unsigned long long)q.atomics,
         (unsigned long long)q.get_head);
}

#define CASE(name, threads, ...) \
  run(name, threads, [](const lshmem_t &sh, char *h, nic_job &j) -> uint64_t { (void)sh, (void)h, (void)j; __VA_ARGS__; })

// A NIC that does nothing: calls that do not wait return, those that wait end with the timeout, and then the queue is
// broken for all.
static int silent() {
  auto j = std::make_unique<nic_job>(0, 0);
  for (auto &m : j->mem) memset(m.cq, 0xff, sizeof m.cq);
  j->sh.timeout_nanos = 1000000000;
  const lshmem_t &sh = j->sh;
  char *h = j->heap;
  uint64_t *sig = (uint64_t *)(h + 64);
  uint64_t before = lshmem::nanos();
  CHECK(lshmem_putmem_nbi(sh, h + 256, h + 512, 8, 1) == LSHMEM_OK, "put");
  CHECK(lshmem_getmem_nbi(sh, h + 256, h + 512, 8, 1) == LSHMEM_OK, "get");
  CHECK(lshmem_putmem_signal_nbi(sh, h + 256, h + 512, 8, sig, 1, LSHMEM_SIGNAL_SET, 1) == LSHMEM_OK, "put and signal");
  CHECK(lshmem_put_signal_nbi<int>(sh, (int *)h, (int *)h, 8, sig, 1, LSHMEM_SIGNAL_ADD, 1) == LSHMEM_OK, "put and signal");
  CHECK(lshmem_qp_putmem_signal_nbi(sh, h + 256, h + 512, 8, sig, 1, LSHMEM_SIGNAL_SET, 1, 0) == LSHMEM_OK, "put and signal");
  lshmem::cpu::launch(1, 40, [&] {
    int status = lshmem_putmem_signal_nbi_block(sh, h + 256, h + 512, 8, sig, 1, LSHMEM_SIGNAL_SET, 1);
    CHECK(status == LSHMEM_OK, "put and signal by a block: %d", status);
    if (lshmem::thread_index() < 32) status = lshmem_putmem_signal_nbi_warp(sh, h + 256, h + 512, 8, sig, 1, LSHMEM_SIGNAL_SET, 1);
    CHECK(status == LSHMEM_OK, "put and signal by a warp: %d", status);
  });
  CHECK(lshmem_signal_op(sh, sig, 1, LSHMEM_SIGNAL_SET, 1) == LSHMEM_OK, "signal");
  CHECK(lshmem_atomic_add<int>(sh, (int *)h, 1, 1) == LSHMEM_OK && lshmem_p<int>(sh, (int *)h, 1, 1) == LSHMEM_OK, "values");
  CHECK(j->control.status == 0 && lshmem::nanos() - before < 1000000000, "something waited");
  j->sh.timeout_nanos = 20000000;
  CHECK(lshmem_putmem_signal(sh, h + 256, h + 512, 8, sig, 1, LSHMEM_SIGNAL_SET, 1) == LSHMEM_ERR_TIMEOUT, "blocking put");
  CHECK(j->control.status == LSHMEM_ERR_TIMEOUT && j->control.pe == 1 && j->control.queue == 1, "control");
  uint64_t reserved = j->queues[1].reserved;
  CHECK(lshmem_putmem_nbi(sh, h + 256, h + 512, 8, 1) == LSHMEM_ERR_TIMEOUT && j->queues[1].reserved == reserved, "broken queue");
  lshmem::cpu::launch(1, 40, [&] {
    CHECK(lshmem_putmem_block(sh, h + 256, h + 512, 8, 1) == LSHMEM_ERR_TIMEOUT, "broken queue, block");
    CHECK(lshmem_quiet_block(sh) != LSHMEM_OK, "broken queue, quiet");
  });
  CHECK(lshmem_qp_putmem_nbi(sh, h + 256, h + 512, 8, 1, 1) == LSHMEM_OK, "the other queue");
  // An error completion is a status for whoever waits.
  auto &m = j->mem[3];
  const unsigned char failed[12] = {0, 0, 0x12, 0x13, 0, 0, 0, 0, 0, 0, 0, LSHMEM_MLX5_COMPLETION_ERROR << 4};
  memcpy(m.cq + 52, failed, sizeof failed);
  memset(&j->control, 0, sizeof j->control);
  CHECK(lshmem_qp_quiet(sh, 1, 1) == LSHMEM_ERR_QUEUE, "error completion");
  CHECK(j->control.status == LSHMEM_ERR_QUEUE && j->control.syndrome == 0x1213 && j->control.queue == 3 && j->control.index == 0,
        "control has %u, %x, %llu", j->control.status, j->control.syndrome, (unsigned long long)j->control.index);
  // The entry that failed may be after what is waited for.
  for (uint64_t begin : {UINT64_C(0), UINT64_C(65534), (UINT64_C(1) << 32) - 3}) {
    j = std::make_unique<nic_job>(begin, 0);
    for (int i = 0; i < 5; i++) lshmem_putmem_nbi(j->sh, j->heap, j->heap + 64, 8, 1);
    unsigned char entry[12];
    memcpy(entry, failed, sizeof entry);
    entry[8] = (unsigned char)((begin + 4) >> 8), entry[9] = (unsigned char)(begin + 4);
    memcpy(j->mem[1].cq + 52, entry, sizeof entry);
    CHECK(lshmem::nic::poll(lshmem::nic::queue_at(j->sh, 1), begin + 2) == LSHMEM_ERR_QUEUE, "error completion");
    CHECK(j->control.index == begin + 4, "entry %llu failed, control has %llu", (unsigned long long)begin + 4,
          (unsigned long long)j->control.index);
  }
  return failures ? 1 : 0;
}

int main(int n, char **args) {
  if (n > 1 && !strcmp(args[1], "silent")) return silent();
  if (n > 1) start = strtoull(args[1], nullptr, 0);
  if (n > 2) queue_flags = (uint32_t)atoi(args[2]);
  auto u64 = [](char *p) { return (uint64_t *)p; };
  (void)u64;
#define U64(at) ((uint64_t *)(h + (at)))
#define U32(at) ((uint32_t *)(h + (at)))
  CASE("put", 1, return (uint64_t)lshmem_putmem_nbi(sh, h + 0x100, h + 0x200, 1000, 1));
  CASE("put-blocking", 1, return (uint64_t)lshmem_putmem(sh, h + 0x100, h + 0x200, 1000, 1));
  CASE("put-zero", 1, return (uint64_t)lshmem_putmem_nbi(sh, h + 0x100, h + 0x200, 0, 1));
  CASE("put-local", 1, return (uint64_t)lshmem_putmem_nbi(sh, h + 0x100, j.outside + 16, 100, 1));
  CASE("put-unknown", 1, memset(j.unknown, 7, 40); return (uint64_t)lshmem_putmem_nbi(sh, h + 0x100, j.unknown, 40, 1));
  CASE("put-chunks", 1, return (uint64_t)lshmem_putmem_nbi(sh, h + 0x18000, h + 0xf000, 0x10000, 1));
  CASE("put-behind", 1, return (uint64_t)lshmem_putmem_nbi(sh, h + heap_bytes - 8, h, 16, 1));
  // Addresses whose places in the table of keys do not exist: far after the heap, and before it.
  CASE("put-far", 1, return (uint64_t)lshmem_putmem_nbi(sh, h + (UINT64_C(1) << 44), h, 8, 1));
  CASE("get-far", 1, return (uint64_t)lshmem_getmem(sh, h, h - 4096, 8, 1));
  CASE("p-far", 1, return (uint64_t)lshmem_p<int>(sh, (int *)(h - 4096), 1, 1));
  CASE("signal-far", 1, return (uint64_t)lshmem_signal_op(sh, (uint64_t *)(h - 4096), 1, LSHMEM_SIGNAL_SET, 1));
  CASE("add-far", 1, return (uint64_t)lshmem_atomic_add<uint64_t>(sh, U64(UINT64_C(1) << 44), 1, 1));
  CASE("put-queue", 1, return (uint64_t)lshmem_qp_putmem_nbi(sh, h + 0x100, h + 0x200, 8, 1, 0));
  CASE("put-other-queue", 1, return (uint64_t)lshmem_qp_putmem_nbi(sh, h + 0x100, h + 0x200, 8, 1, 1));
  CASE("put-no-queue", 1, return (uint64_t)lshmem_qp_putmem_nbi(sh, h + 0x100, h + 0x200, 8, 1, 2));
  CASE("put-warp", 32, return (uint64_t)lshmem_putmem_nbi_warp(sh, h + 0x18000, h + 0xf000, 0x10000, 1));
  CASE("put-block", 48, return (uint64_t)lshmem_putmem_block(sh, h + 0x18000, h + 0xf000, 0x10000, 1));
  CASE("put-lanes", 32, lshmem::cpu::converged together(~0u); uint32_t l = lshmem::lane();
       return (uint64_t)lshmem_putmem_nbi(sh, h + 0x1000 + 64 * l, h + 64 * l, 8 + l, 1));
  CASE("iput", 1, return (uint64_t)lshmem_iput<uint32_t>(sh, U32(0x100), U32(0x200), 3, -1, 3, 1));
  CASE("get", 1, return (uint64_t)lshmem_getmem_nbi(sh, h + 0x100, h + 0x200, 1000, 1));
  CASE("get-blocking", 1, return (uint64_t)lshmem_getmem(sh, h + 0x100, h + 0x200, 1000, 1));
  CASE("get-unknown", 1, lshmem_getmem(sh, j.unknown, h + 0x200, 8, 1); uint64_t v; memcpy(&v, j.unknown, 8); return v);
  // Into registered memory from what is before it, and out of it.
  CASE("get-into-local", 1, memset(j.unknown, 0, sizeof j.unknown); j.local.start = (uint64_t)j.unknown + 40;
       j.local.end = (uint64_t)(&j.unknown + 1); lshmem_getmem(sh, j.unknown, h + 0x200, 200, 1);
       for (int i = 0; i < 200; i++) if (j.unknown[i] != ((char *)j.mem[1].ibuf)[i % 28 & 7]) return (uint64_t)i + 1;
       return (uint64_t)j.unknown[200]);
  CASE("get-out-of-local", 1, memset(j.unknown, 0, sizeof j.unknown); j.local.start = (uint64_t)j.unknown; j.local.end = j.local.start + 40;
       lshmem_getmem(sh, j.unknown, h + 0x200, 60, 1);
       for (int i = 0; i < 60; i++) if (j.unknown[i] != ((char *)j.mem[1].ibuf)[i % 28 & 7]) return (uint64_t)i + 1;
       return (uint64_t)j.unknown[60]);
  CASE("iget-out-of-local", 1, j.local.start = (uint64_t)j.unknown; j.local.end = j.local.start + 40;
       return (uint64_t)lshmem_iget<uint64_t>(sh, (uint64_t *)j.unknown, U64(0x200), 5, 1, 2, 1));
  CASE("get-quiet", 1, lshmem_getmem_nbi(sh, h + 0x100, h + 0x200, 1000, 1); return (uint64_t)lshmem_quiet(sh, 1));
  CASE("p8", 1, return (uint64_t)lshmem_p<uint64_t>(sh, U64(0x108), UINT64_C(0x0102030405060708), 1));
  CASE("p4", 1, return (uint64_t)lshmem_p<uint32_t>(sh, U32(0x104), 0x01020304, 1));
  CASE("p2", 1, return (uint64_t)lshmem_p<uint16_t>(sh, (uint16_t *)(h + 2), 0x0102, 1));
  CASE("p1", 1, return (uint64_t)lshmem_p<uint8_t>(sh, (uint8_t *)(h + 3), 5, 1));
  CASE("p-double", 1, return (uint64_t)lshmem_p<double>(sh, (double *)(h + 8), 1.0, 1));
  CASE("p8-row", 32, lshmem::cpu::converged together(~0u); uint32_t l = lshmem::lane();
       return (uint64_t)lshmem_p<uint64_t>(sh, U64(0x100) + l, UINT64_C(0x100000001) * (l + 1), 1));
  CASE("p4-row", 32, lshmem::cpu::converged together(~0u); uint32_t l = lshmem::lane();
       return (uint64_t)lshmem_p<uint32_t>(sh, U32(0x100) + l, l + 1, 1));
  CASE("p4-apart", 32, lshmem::cpu::converged together(~0u); uint32_t l = lshmem::lane();
       return (uint64_t)lshmem_p<uint32_t>(sh, U32(0x100) + 2 * l, l + 1, 1));
  CASE("g8", 1, return lshmem_g<uint64_t>(sh, U64(0x108), 1));
  CASE("g1", 1, return lshmem_g<uint8_t>(sh, (uint8_t *)h + 0x109, 1));
  CASE("g8-lanes", 32, lshmem::cpu::converged together(~0u); return lshmem_g<uint64_t>(sh, U64(0x108) + 2 * lshmem::lane(), 1));
  CASE("signal-set", 1, return (uint64_t)lshmem_signal_op(sh, U64(64), 77, LSHMEM_SIGNAL_SET, 1));
  CASE("signal-add", 1, return (uint64_t)lshmem_signal_op(sh, U64(64), 77, LSHMEM_SIGNAL_ADD, 1));
  CASE("put-signal-set", 1,
       return (uint64_t)lshmem_putmem_signal_nbi(sh, h + 0x100, h + 0x200, 8, U64(64), 77, LSHMEM_SIGNAL_SET, 1));
  CASE("put-signal-add", 1, return (uint64_t)lshmem_putmem_signal(sh, h + 0x100, h + 0x200, 8, U64(64), 77, LSHMEM_SIGNAL_ADD, 1));
  CASE("put-signal-zero", 1, return (uint64_t)lshmem_putmem_signal(sh, h + 0x100, h + 0x200, 0, U64(64), 77, LSHMEM_SIGNAL_ADD, 1));
  CASE("put-signal-warp", 32,
       return (uint64_t)lshmem_putmem_signal_warp(sh, h + 0x18000, h + 0xf000, 0x10000, U64(64), 77, LSHMEM_SIGNAL_SET, 1));
  CASE("put-signal-lanes", 32, lshmem::cpu::converged together(~0u); uint32_t l = lshmem::lane();
       return (uint64_t)lshmem_putmem_signal_nbi(sh, h + 0x1000 + 64 * l, h + 64 * l, 8, U64(64 + 8 * l), 77, LSHMEM_SIGNAL_SET, 1));
#define AMO8(name, call) CASE(name, 1, return (uint64_t)lshmem_atomic_##call);
  AMO8("add8", add<uint64_t>(sh, U64(8), 3, 1))
  AMO8("add4", add<uint32_t>(sh, U32(8), 3, 1))
  AMO8("inc8", inc<int64_t>(sh, (int64_t *)(h + 8), 1))
  AMO8("inc4", inc<int>(sh, (int *)(h + 8), 1))
  AMO8("set8", set<uint64_t>(sh, U64(8), 3, 1))
  AMO8("set4", set<uint32_t>(sh, U32(8), 3, 1))
  AMO8("set-float", set<float>(sh, (float *)(h + 8), 1.0f, 1))
  AMO8("and8", and<uint64_t>(sh, U64(8), 3, 1))
  AMO8("and4", and<uint32_t>(sh, U32(8), 3, 1))
  AMO8("or8", or<uint64_t>(sh, U64(8), 3, 1))
  AMO8("or4", or<uint32_t>(sh, U32(8), 3, 1))
  AMO8("xor8", xor<uint64_t>(sh, U64(8), 3, 1))
  AMO8("xor4", xor<uint32_t>(sh, U32(8), 3, 1))
  AMO8("fetch8", fetch<uint64_t>(sh, U64(8), 1))
  AMO8("fetch4", fetch<uint32_t>(sh, U32(8), 1))
  AMO8("fetch-inc8", fetch_inc<uint64_t>(sh, U64(8), 1))
  AMO8("fetch-inc4", fetch_inc<uint32_t>(sh, U32(8), 1))
  AMO8("fetch-add8", fetch_add<uint64_t>(sh, U64(8), 3, 1))
  AMO8("fetch-add4", fetch_add<uint32_t>(sh, U32(8), 3, 1))
  AMO8("fetch-and8", fetch_and<uint64_t>(sh, U64(8), 3, 1))
  AMO8("fetch-or4", fetch_or<uint32_t>(sh, U32(8), 3, 1))
  AMO8("fetch-xor8", fetch_xor<uint64_t>(sh, U64(8), 3, 1))
  AMO8("swap8", swap<uint64_t>(sh, U64(8), 3, 1))
  AMO8("swap4", swap<uint32_t>(sh, U32(8), 3, 1))
  AMO8("cas8", compare_swap<uint64_t>(sh, U64(8), 4, 3, 1))
  AMO8("cas4", compare_swap<uint32_t>(sh, U32(8), 4, 3, 1))
  CASE("add8-lanes", 32, lshmem::cpu::converged together(~0u); return (uint64_t)lshmem_atomic_add<uint64_t>(sh, U64(8) + lshmem::lane(), 3, 1));
  CASE("swap8-lanes", 32, lshmem::cpu::converged together(~0u); return lshmem_atomic_swap<uint64_t>(sh, U64(8) + lshmem::lane(), 3, 1));
  // A team's steps take the same queue, whichever block calls. The other member has come already.
  CASE("sync-blocks", 1, lshmem_team team[LSHMEM_MAX_TEAMS] = {}; uint64_t counters[LSHMEM_CHANNELS] = {}; int status = 0;
       team[0].pes = 2, team[0].stride = 1, team[0].sync = 4096, team[0].counters = (uint64_t)counters;
       U64(4096)[1] = 100; j.sh.teams = (uint64_t)team;
       for (uint32_t block : {0, 1, 5}) lshmem::cpu::self.block = block, status |= lshmem_sync(sh, 0);
       lshmem::cpu::self.block = 0; return (uint64_t)status);
  CASE("quiet-no-queue", 1, return (uint64_t)(lshmem_qp_quiet(sh, 1, 2) << 8 | lshmem_qp_quiet(sh, LSHMEM_PE_ALL, -3)));
  CASE("fence-no-queue", 1, return (uint64_t)(lshmem_qp_fence(sh, 1, 99) << 8 | lshmem_qp_fence(sh, LSHMEM_PE_ALL, 2)));
  CASE("quiet", 1, return (uint64_t)lshmem_quiet(sh));
  CASE("fence", 1, return (uint64_t)(lshmem_fence(sh) | lshmem_fence(sh, 1) | lshmem_qp_fence(sh, 1, 0) | lshmem_qp_quiet(sh, LSHMEM_PE_ALL, LSHMEM_QP_ANY)));
  return 0;
}
