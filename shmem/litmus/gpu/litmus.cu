// Litmus tests on GPUs: what a PE sees of another one's writes, in what order, under load, in millions of runs.
//
//	nvcc -std=c++17 -O3 -arch=native -I shmem/include -o litmus shmem/litmus/gpu/litmus.cu -L build/lib/lshmem -llshmem
//	lgpu run --pes 8 -- ./litmus [ROUNDS] [TEST]
//
// Every PE sends to the next one and checks what the previous one sends. One line of JSON for each test and PE; the
// exit status is 0 if nothing was seen that must not be. Which way the data take (loads and stores, or queues) is the
// job's choice: LSHMEM_DISABLE_P2P=1 takes the queues.
//
// A run is: write data to the other side; order it somehow; tell. Who was told must see all of the data. Then it
// answers, and the next run begins. Besides, blocks that take no part write to and read from the same memories as fast
// as they can.
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>

#include "lshmem.cuh"
#include "lshmem.h"

namespace {

// How the data are sent and told of.
enum form : int {
  words_fence_word, // single words, fence, a word
  put_fence_word,   // puts that need not be complete, fence, a word
  put_signal,       // data and signal in one call
  put_signal_nbi,
  put_quiet_word, // puts that need not be complete, quiet, a word
};

// Where things are, from the beginning of the symmetric memory.
struct plan {
  uint64_t flags, acks, data, source, stress; // offsets
  uint64_t stride;                            // between the data of two instances
  uint64_t stress_bytes;
  uint32_t spacing; // bytes between two flags: close together or in lines of their own
  uint32_t blocks;  // that test; those after are stress
  uint32_t most;    // bytes of a message
  uint32_t rounds;
};

// What a grid found, in memory of the GPU.
struct outcome {
  unsigned long long runs, bad;
  unsigned int done; // blocks
  int status;        // the first that is not LSHMEM_OK
  // Where: sending 1, ordering 2, telling 3, waiting 4, answering 5, waiting for the answer 6, quiet 7.
  unsigned int step;
  unsigned int first; // claimed by the first to be wrong, of which the following is
  unsigned int round, instance, at;
  unsigned long long bytes;
  unsigned int have, want;
};

LSHMEM_DEVICE uint32_t mix(uint32_t a, uint32_t b) {
  uint32_t z = (a * 0x9e3779b9u) ^ (b * 0x85ebca6bu);
  z ^= z >> 15;
  z *= 0x2c1b3c6du;
  return z ^ z >> 12;
}
LSHMEM_DEVICE uint8_t pattern(uint32_t tag, uint32_t i) { return (uint8_t)(mix(tag, i) >> 7); }

// size is that of an instance's message in a round: small ones of all remainders, and some as large as can be.
LSHMEM_DEVICE uint32_t size_of(const plan &p, uint32_t instance, uint32_t round) {
  uint32_t r = mix(instance, round);
  return (r & 7) == 0 ? (r >> 8) % (p.most + 1) : (r >> 8) % (p.most < 80 ? p.most + 1 : 80);
}

// failed keeps the first status that is not LSHMEM_OK, and says whether this one is.
LSHMEM_DEVICE bool failed(outcome *out, int status, uint32_t step, uint32_t instance, uint32_t round) {
  if (status == LSHMEM_OK) return false;
  if (lshmem::compare_swap<lshmem::scope::gpu>(&out->status, LSHMEM_OK, status) == LSHMEM_OK) {
    out->step = step;
    out->instance = instance;
    out->round = round;
  }
  return true;
}

// The calls of each scope.
template <class Group> struct calls;
#define LITMUS_CALLS(group, suffix)                                                                                      \
  template <> struct calls<lshmem::group> {                                                                              \
    static LSHMEM_DEVICE int put(const lshmem_t &sh, void *d, const void *s, size_t n, int pe) {                         \
      return lshmem_putmem_nbi##suffix(sh, d, s, n, pe);                                                                 \
    }                                                                                                                    \
    static LSHMEM_DEVICE int fence(const lshmem_t &sh, int pe) { return lshmem_fence##suffix(sh, pe); }                  \
    static LSHMEM_DEVICE int quiet(const lshmem_t &sh) { return lshmem_quiet##suffix(sh); }                              \
    static LSHMEM_DEVICE int signal(const lshmem_t &sh, void *d, const void *s, size_t n, uint64_t *sig, uint64_t v,     \
                                    bool nbi, int pe) {                                                                  \
      return nbi ? lshmem_putmem_signal_nbi##suffix(sh, d, s, n, sig, v, LSHMEM_SIGNAL_SET, pe)                          \
                 : lshmem_putmem_signal##suffix(sh, d, s, n, sig, v, LSHMEM_SIGNAL_SET, pe);                             \
    }                                                                                                                    \
  };
LITMUS_CALLS(thread_group, )
LITMUS_CALLS(warp_group, _warp)
LITMUS_CALLS(block_group, _block)
#undef LITMUS_CALLS

// stress keeps the memories busy until all testing blocks are done.
LSHMEM_DEVICE void stress(const lshmem_t &sh, char *heap, const plan &p, outcome *out) {
  int to = (int)((sh.pe + 1) % sh.pes);
  const uint64_t piece = 4096;
  for (uint32_t k = 0;; k++) {
    lshmem::sync_block();
    if (lshmem::load_relaxed<lshmem::scope::gpu>(&out->done) >= p.blocks) break;
    uint64_t at = mix(lshmem::block_index(), k) % (p.stress_bytes / piece) * piece;
    if (k & 1) lshmem_putmem_nbi_block(sh, heap + p.stress + at, heap + p.stress + at, piece, to);
    else lshmem_getmem_nbi_block(sh, heap + p.stress + at, heap + p.stress + at, piece, to);
    if ((k & 15) == 15) lshmem_quiet_block(sh);
  }
  lshmem_quiet_block(sh);
}

template <class Group, int Form>
LSHMEM_DEVICE void exchange(const lshmem_t &sh, char *heap, const plan &p, outcome *out, uint32_t instance) {
  int to = (int)((sh.pe + 1) % sh.pes), from = (int)((sh.pe + sh.pes - 1) % sh.pes);
  auto flag = (uint64_t *)(heap + p.flags + (uint64_t)instance * p.spacing), ack = (uint64_t *)(heap + p.acks + (uint64_t)instance * p.spacing);
  char *dst = heap + p.data + (uint64_t)instance * p.stride, *src = heap + p.source + (uint64_t)instance * p.stride;
  bool end = false;
  for (uint32_t k = 1; k <= p.rounds; k++) {
    auto bad_status = [&](int status, uint32_t step) { return failed(out, status, step, instance, k); };
    uint32_t n = size_of(p, instance, k), shift = mix(k, instance) & 15, tag = k * 31 + instance;
    if (Form == words_fence_word) n &= ~7u, shift &= 8;
    for (uint32_t i = Group::index(); i < n; i += Group::size()) src[shift + i] = (char)pattern(tag, i);
    Group::sync();
    if (Form == words_fence_word) {
      for (uint32_t i = Group::index() * 8; i < n && !end; i += Group::size() * 8)
        end = bad_status(lshmem_p<uint64_t>(sh, (uint64_t *)(dst + shift + i), *(const uint64_t *)(src + shift + i), to), 1);
    } else if (Form == put_signal || Form == put_signal_nbi) {
      end = bad_status(calls<Group>::signal(sh, dst + shift, src + shift, n, flag, k, Form == put_signal_nbi, to), 1);
    } else {
      end = bad_status(calls<Group>::put(sh, dst + shift, src + shift, n / 2, to), 1);
      if (bad_status(calls<Group>::put(sh, dst + shift + n / 2, src + shift + n / 2, n - n / 2, to), 1)) end = true;
    }
    if (Form == put_quiet_word) {
      if (bad_status(calls<Group>::quiet(sh), 2)) end = true;
    } else if (Form == words_fence_word || Form == put_fence_word) {
      if (bad_status(calls<Group>::fence(sh, to), 2)) end = true;
    }
    if (Group::index() == 0 && !end) {
      if (Form != put_signal && Form != put_signal_nbi) end = bad_status(lshmem_p<uint64_t>(sh, flag, k, to), 3);
      if (!end) end = bad_status(lshmem_signal_wait_until(sh, flag, LSHMEM_CMP_GE, k), 4);
    }
    if (Group::any(end)) break; // also orders the wait of the first before the reads of all
    uint32_t bad = 0;
    for (uint32_t i = Group::index(); i < n; i += Group::size()) {
      uint8_t have = (uint8_t)dst[shift + i], want = pattern(tag, i);
      if (have == want) continue;
      bad++;
      if (lshmem::compare_swap<lshmem::scope::gpu>(&out->first, 0, 1) == 0) {
        out->round = k;
        out->instance = instance;
        out->at = i;
        out->bytes = n;
        out->have = have;
        out->want = want;
      }
    }
    if (bad) lshmem::reduce_add<lshmem::scope::gpu>(&out->bad, 1);
    Group::sync();
    if (Group::index() == 0) {
      lshmem::fence<lshmem::scope::sys>();
      end = bad_status(lshmem_p<uint64_t>(sh, ack, k, from), 5);
      if (!end) end = bad_status(lshmem_wait_until<uint64_t>(sh, ack, LSHMEM_CMP_GE, k), 6);
      if (!end && (Form == put_signal_nbi || Form == put_fence_word)) end = bad_status(lshmem_quiet(sh), 7); // the source is free
      if (!end) lshmem::reduce_add<lshmem::scope::gpu>(&out->runs, 1);
    }
    if (Group::any(end)) break;
  }
}

template <class Group, int Form> LSHMEM_DEVICE void litmus(const lshmem_t &sh, char *heap, const plan &p, outcome *out) {
  if (lshmem::block_index() >= p.blocks) {
    stress(sh, heap, p, out);
    return;
  }
  uint32_t instance = lshmem::block_index() * (lshmem::block_threads() / Group::size()) + lshmem::thread_index() / Group::size();
  exchange<Group, Form>(sh, heap, p, out, instance);
  lshmem::sync_block();
  if (lshmem::thread_index() == 0) lshmem::reduce_add<lshmem::scope::gpu>(&out->done, 1);
}

// Every thread of every PE takes numbers from one counter of PE 0 and marks each in a bitmap: none may come twice.
LSHMEM_DEVICE void numbers(const lshmem_t &sh, char *heap, const plan &p, outcome *out) {
  if (lshmem::block_index() >= p.blocks) {
    stress(sh, heap, p, out);
    return;
  }
  auto counter = (uint64_t *)(heap + p.flags), map = (uint64_t *)(heap + p.data);
  uint64_t each = (uint64_t)p.blocks * lshmem::block_threads() * p.rounds;
  for (uint32_t k = 0; k < p.rounds; k++) {
    uint64_t v = lshmem_atomic_fetch_add<uint64_t>(sh, counter, 1, 0);
    bool bad = v >= each * sh.pes;
    if (!bad) {
      int owner = (int)(v % sh.pes);
      uint64_t i = v / sh.pes, bit = UINT64_C(1) << (i & 63);
      bad = lshmem_atomic_fetch_or<uint64_t>(sh, map + i / 64, bit, owner) & bit;
    }
    if (bad) lshmem::reduce_add<lshmem::scope::gpu>(&out->bad, 1);
    lshmem::reduce_add<lshmem::scope::gpu>(&out->runs, 1);
  }
  lshmem::sync_block();
  if (lshmem::thread_index() == 0) lshmem::reduce_add<lshmem::scope::gpu>(&out->done, 1);
}

} // namespace

#define LITMUS_KERNEL(name, group, what)                                                                    \
  extern "C" LSHMEM_GLOBAL void name(const lshmem_t sh, char *heap, const plan p, outcome *out) {           \
    litmus<lshmem::group, what>(sh, heap, p, out);                                                          \
  }
LITMUS_KERNEL(message_passing_thread, thread_group, words_fence_word)
LITMUS_KERNEL(message_passing_warp, warp_group, words_fence_word)
LITMUS_KERNEL(message_passing_block, block_group, words_fence_word)
LITMUS_KERNEL(put_fence_put_thread, thread_group, put_fence_word)
LITMUS_KERNEL(put_fence_put_warp, warp_group, put_fence_word)
LITMUS_KERNEL(put_fence_put_block, block_group, put_fence_word)
LITMUS_KERNEL(put_signal_thread, thread_group, put_signal)
LITMUS_KERNEL(put_signal_warp, warp_group, put_signal)
LITMUS_KERNEL(put_signal_block, block_group, put_signal)
LITMUS_KERNEL(put_signal_nbi_thread, thread_group, put_signal_nbi)
LITMUS_KERNEL(put_signal_nbi_warp, warp_group, put_signal_nbi)
LITMUS_KERNEL(put_signal_nbi_block, block_group, put_signal_nbi)
LITMUS_KERNEL(nbi_quiet_thread, thread_group, put_quiet_word)
LITMUS_KERNEL(nbi_quiet_warp, warp_group, put_quiet_word)
LITMUS_KERNEL(nbi_quiet_block, block_group, put_quiet_word)
#undef LITMUS_KERNEL
extern "C" LSHMEM_GLOBAL void fetch_add_numbers(const lshmem_t sh, char *heap, const plan p, outcome *out) {
  numbers(sh, heap, p, out);
}

// --- Host ---

namespace {

void cuda(cudaError_t e, const char *what) {
  if (e == cudaSuccess) return;
  fprintf(stderr, "litmus: %s: %s\n", what, cudaGetErrorString(e));
  exit(1);
}
void shmem(int status, const char *what) {
  if (status == LSHMEM_OK) return;
  fprintf(stderr, "litmus: %s: %s: %s\n", what, lshmem_strerror(status), lshmem_last_error());
  exit(1);
}

typedef void kernel(const lshmem_t, char *, const plan, outcome *);
struct test {
  const char *name;
  kernel *run;
  uint32_t threads, most; // of a block; bytes of a message
  uint32_t weight;        // rounds are divided by it
};
#define LITMUS_SCOPES(name, most) \
  {#name "_thread", name##_thread, 64, most < 256 ? most : 256, 1}, {#name "_warp", name##_warp, 128, most, 1}, {#name "_block", name##_block, 256, 4 * most, 1}
const test tests[] = {
    LITMUS_SCOPES(message_passing, 512), LITMUS_SCOPES(put_fence_put, 1024), LITMUS_SCOPES(put_signal, 1024),
    LITMUS_SCOPES(put_signal_nbi, 1024), LITMUS_SCOPES(nbi_quiet, 1024),     {"fetch_add_numbers", fetch_add_numbers, 128, 0, 8},
};
#undef LITMUS_SCOPES

} // namespace

int main(int argc, char **argv) {
  uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], nullptr, 0) : 20000;
  const char *only = argc > 2 ? argv[2] : "";
  if (rounds == 0) {
    fprintf(stderr, "usage: litmus [ROUNDS] [TEST]\n");
    return 2;
  }
  lshmem_pe_t pe;
  shmem(lshmem_init_env(&pe), "init");
  int me, pes, device, sms;
  shmem(lshmem_my_pe(pe, &me), "my_pe");
  shmem(lshmem_n_pes(pe, &pes), "n_pes");
  shmem(lshmem_device(pe, &device), "device");
  cuda(cudaSetDevice(device), "set device");
  cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "attribute");

  // A third of the GPU makes the stress. All blocks run at a time: one on each multiprocessor at most.
  uint32_t blocks = sms > 3 ? (uint32_t)sms / 3 * 2 : 1, stressors = sms > 3 ? (uint32_t)sms / 3 : 1;
  if (blocks > 64) blocks = 64;
  const uint64_t instances = (uint64_t)blocks * 64;
  plan p{};
  p.flags = 0;
  p.acks = p.flags + instances * 128;
  p.data = p.acks + instances * 128;
  const uint64_t room = instances * 4352; // 4 KiB, and the shift of messages; more for blocks
  p.source = p.data + room;
  p.stress = p.source + room;
  p.stress_bytes = 16u << 20;
  const uint64_t bytes = p.stress + p.stress_bytes;
  void *heap;
  shmem(lshmem_malloc(pe, bytes, &heap), "malloc");
  lshmem_t state;
  shmem(lshmem_get_state(pe, &state), "get_state");
  outcome *out;
  cuda(cudaMalloc((void **)&out, sizeof *out), "malloc");
  bool wrong = false;
  for (const test &t : tests) {
    if (!strstr(t.name, only)) continue;
    for (uint32_t spacing = 8; spacing <= 128; spacing *= 16) {
      p.blocks = blocks;
      p.most = t.most;
      p.spacing = spacing;
      p.stride = t.most + 32 <= 512 ? 304 : t.most + 32 <= 1088 ? 1104 : 4176;
      p.rounds = rounds / t.weight ? rounds / t.weight : 1;
      if (t.run == (kernel *)fetch_add_numbers) {
        uint64_t most = room * 8 / ((uint64_t)blocks * t.threads); // bits of the map
        if (p.rounds > most) p.rounds = (uint32_t)most;
      }
      cuda(cudaMemset(heap, 0, p.stress), "memset");
      cuda(cudaMemset(out, 0, sizeof *out), "memset");
      cuda(cudaDeviceSynchronize(), "memset");
      shmem(lshmem_barrier(pe, LSHMEM_TEAM_WORLD), "barrier");
      char *base = (char *)heap;
      void *args[] = {&state, &base, &p, &out};
      auto began = std::chrono::steady_clock::now();
      cuda(cudaLaunchKernel((const void *)t.run, dim3(blocks + stressors), dim3(t.threads), args, 0, nullptr), t.name);
      cuda(cudaDeviceSynchronize(), t.name);
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      outcome o;
      cuda(cudaMemcpy(&o, out, sizeof o, cudaMemcpyDeviceToHost), "copy");
      printf("{\"test\": \"%s\", \"pe\": %d, \"pes\": %d, \"spacing\": %u, \"runs\": %llu, \"bad\": %llu, \"status\": %d, "
             "\"seconds\": %.3f",
             t.name, me, pes, spacing, o.runs, o.bad, o.status, seconds);
      if (o.status != LSHMEM_OK) printf(", \"step\": %u, \"instance\": %u, \"round\": %u", o.step, o.instance, o.round);
      else if (o.first)
        printf(", \"first\": {\"round\": %u, \"instance\": %u, \"bytes\": %llu, \"at\": %u, \"have\": %u, \"want\": %u}", o.round,
               o.instance, o.bytes, o.at, o.have, o.want);
      printf("}\n");
      fflush(stdout);
      if (o.bad || o.status != LSHMEM_OK) wrong = true;
      shmem(lshmem_barrier(pe, LSHMEM_TEAM_WORLD), "barrier");
    }
  }
  cuda(cudaFree(out), "free");
  shmem(lshmem_free(pe, heap), "free");
  shmem(lshmem_finalize(pe), "finalize");
  return wrong ? 1 : 0;
}
