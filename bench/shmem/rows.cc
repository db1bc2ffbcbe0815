// One PE of the benchmark: starts its back end, then does the rows that its driver (bench/shmem.py) asks for, a line each,
// and answers with a line of JSON. All PEs of a job get the same lines. Everything a row moves is checked.
//
//	BENCH_PE BENCH_PES      this PE and how many there are
//	BENCH_DEVICE            the CUDA ordinal
//	BENCH_SHARED            a file of 64 KiB of zeros, the same for all PEs of the job and for no other
//	BENCH_MODULE            a PTX or cubin file with the kernels; without it they are in this program (nvcc)
//	BENCH_INIT_ONLY         start, say how long that took, end
//
// Nothing here synchronizes with the whole device, since a back end may have a kernel that never ends.
#if __has_include(<cuda.h>)
#include <cuda.h>
#else
#define _Alignas alignas // the header is C
#include "lgpu_cuda.h"
#endif
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

#ifdef BENCH_RUNTIME
#include <cuda_runtime.h>

#include "kernels.cuh"
#else
#if defined(BENCH_LSHMEM)
#include "lshmem.h"
typedef struct lshmem_state bench_state;
#elif defined(BENCH_RAW)
struct bench_state {
  uint64_t base;
  uint64_t peer[16];
};
#endif
#endif
#ifdef BENCH_LSHMEM
#include "lshmem.h"
#endif
#ifdef BENCH_NCCL
#include <nccl.h>
#endif

static int pe, pes;

[[noreturn]] static void die(const char *what, const std::string &why) {
  printf("{\"pe\": %d, \"fatal\": \"%s\", \"why\": \"", pe, what);
  for (char c : why)
    if (c == '"' || c == '\\' || (unsigned char)c < 32)
      putchar(' ');
    else
      putchar(c);
  puts("\"}");
  fflush(stdout);
  _exit(3);
}

static void cu(CUresult r, const char *what) {
  if (r == CUDA_SUCCESS) return;
  const char *name = nullptr;
  cuGetErrorName(r, &name);
  die(what, name ? name : "unknown CUDA error " + std::to_string((int)r));
}
#define CU(call) cu(call, #call)

static double now() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

// What PEs share beside their back end: to meet outside of it, and to tell each other addresses.
struct shared {
  uint32_t arrived, generation;
  uint8_t id[256];
  uint8_t nccl[128];
  uint8_t ipc[16][64];
};
static struct shared *common;

static void meet() {
  uint32_t g = __atomic_load_n(&common->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&common->arrived, 1, __ATOMIC_ACQ_REL) == (uint32_t)pes) {
    __atomic_store_n(&common->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&common->generation, g + 1, __ATOMIC_RELEASE);
    return;
  }
  double until = now() + 60e6;
  for (int spins = 0; __atomic_load_n(&common->generation, __ATOMIC_ACQUIRE) == g; spins++) {
    if (spins > 1000) sched_yield();
    if (now() > until) die("meet", "another PE did not come within 60 s");
  }
}

#include "backend.h"

// ---- Launching ----

#ifdef BENCH_RUNTIME
#define KERNEL(name) ((const void *)name)
static void launch_args(const void *kernel, unsigned grid, unsigned block, void **args) {
  cudaError_t r = cudaLaunchKernel(kernel, dim3(grid), dim3(block), args, 0, (cudaStream_t)stream);
  if (r != cudaSuccess) die("launch", cudaGetErrorName(r));
}
#else
static CUmodule module;
#define KERNEL(name) function(#name)
static CUfunction function(const char *name) {
  CUfunction f;
  cu(cuModuleGetFunction(&f, module, name), name);
  return f;
}
static void launch_args(CUfunction kernel, unsigned grid, unsigned block, void **args) {
  CU(cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, 0, stream, args, nullptr));
}
#endif
template <class K, class... A> static void launch(K kernel, unsigned grid, unsigned block, A... a) {
  void *args[] = {&a...};
  launch_args(kernel, grid, block, args);
}

static CUevent event_start, event_stop;
static void settle() { CU(cuStreamSynchronize(stream)); }
static double elapsed_us() {
  float ms;
  CU(cuEventSynchronize(event_stop));
  CU(cuEventElapsedTime(&ms, event_start, event_stop));
  return (double)ms * 1e3;
}

// ---- Rows ----

static struct {
  size_t window = (size_t)256 << 20; // of data buffers
  unsigned sms = 132, fill_threads = 1024;
} size;
static char *source, *target;    // symmetric, size.window each
constexpr uint64_t flag_words = 16, flag_apart = 528; // signals, and how many words lie from one to the next
static uint64_t *words, *flags;  // symmetric: a word for each thread of a full grid; signals
static uint64_t *result;         // pinned host memory: times; and errors
static CUdeviceptr device_result;
static uint64_t flag_next = 1;
static uint32_t seed = 1;

static const int result_words = 8, error_at = 7;

static void clear_result() {
  settle();
  memset(result, 0, result_words * 8);
  CU(cuMemsetD8Async(device_result, 0, result_words * 8, stream));
}
static void read_result() {
  CU(cuMemcpyDtoHAsync(result, device_result, result_words * 8, stream));
  settle();
}
static uint64_t *at_result(int i) { return (uint64_t *)(device_result + (size_t)i * 8); }

static void fill(void *p, uint64_t bytes, uint32_t with) {
  launch(KERNEL(bench_fill), size.sms, size.fill_threads, (uint32_t *)p, bytes / 4, with);
}
static void check(void *p, uint64_t bytes, uint64_t from_word, uint32_t with) {
  launch(KERNEL(bench_check), size.sms, size.fill_threads, (const uint32_t *)p, bytes / 4, from_word, with, at_result(error_at));
}

struct answer {
  double us = -1;           // of the whole timed part
  double second = -1;       // another time, by row
  uint64_t errors = 0;
  std::string more;
  bool skipped = false;
};

typedef std::vector<std::pair<std::string, double>> parameters;
static double get(const parameters &p, const char *name, double otherwise) {
  for (auto &x : p)
    if (x.first == name) return x.second;
  return otherwise;
}

// Bandwidth: PE 0 to PE 1, or with all=1 every PE to its next at once.
static answer row_move(bool put, const parameters &p) {
  answer a;
  uint64_t bytes = (uint64_t)get(p, "bytes", 1 << 20), total = (uint64_t)get(p, "total", 4e9);
  unsigned ctas = (unsigned)get(p, "ctas", 132), threads = (unsigned)get(p, "threads", 1024);
  bool all = get(p, "all", 0) != 0 || pes == 1;
  uint64_t window = size.window / bytes * bytes;
  if (window == 0) die("row", "the message is larger than the window");
  uint32_t messages = (uint32_t)((total + bytes - 1) / bytes);
  uint64_t touched = (uint64_t)messages * bytes < window ? (uint64_t)messages * bytes : window;
  int to = all ? (pe + 1) % pes : 1, from = all ? (pe + pes - 1) % pes : 0;
  bool works = all || pe == 0, receives = put ? all || pe == 1 : works;
  if (!put) from = to;
  fill(source, window, seed + (uint32_t)pe * 1000003u);
  fill(target, window, ~seed);
  clear_result();
  settle();
  meet();
  if (works) {
    CU(cuEventRecord(event_start, stream));
    if (put)
      launch(KERNEL(bench_puts), ctas, threads, state, target, (const char *)source, bytes, window, messages, to);
    else
      launch(KERNEL(bench_gets), ctas, threads, state, target, (const char *)source, bytes, window, messages, to);
    CU(cuEventRecord(event_stop, stream));
    a.us = elapsed_us();
    a.second = (double)messages * (double)bytes;
  }
  settle();
  meet();
  if (receives) check(target, touched, 0, seed + (uint32_t)from * 1000003u);
  read_result();
  a.errors = result[error_at];
  return a;
}

static answer row_pingpong(const parameters &p) {
  answer a;
  uint32_t rounds = (uint32_t)get(p, "rounds", 10000);
  if (pes < 2) die("row", "ping-pong needs two PEs");
  clear_result();
  meet();
  // Over all flags: how far from its SM a word lies in the second-level cache is worth 0.1 µs.
  a.us = 0;
  a.second = 0;
  for (uint64_t i = 0; i < flag_words; i++) {
    uint64_t *flag = flags + i * flag_apart;
    if (pe < 2) {
      launch(KERNEL(bench_pingpong), 1, 1, state, flag, flag_next, rounds, 1 - pe, (int)(pe == 0), at_result(0));
      read_result();
      uint64_t last;
      CU(cuMemcpyDtoH(&last, (CUdeviceptr)flag, 8));
      a.errors += last != flag_next + rounds - 1;
      a.us += (double)result[0] / 1e3;
      a.second += 2.0 * (rounds - rounds / 10);
    }
    meet();
  }
  flag_next += rounds;
  return a;
}

static answer row_adds(const parameters &p) {
  answer a;
  unsigned ctas = (unsigned)get(p, "ctas", 132), threads = (unsigned)get(p, "threads", 1024);
  uint32_t reps = (uint32_t)get(p, "reps", 256);
  bool all = pes == 1;
  uint64_t n = (uint64_t)ctas * threads;
  if (n > (uint64_t)size.sms * size.fill_threads) die("row", "more threads than words");
  CU(cuMemsetD8Async((CUdeviceptr)words, 0, n * 8, stream));
  clear_result();
  settle();
  meet();
  if (pe == 0) {
    CU(cuEventRecord(event_start, stream));
    launch(KERNEL(bench_adds), ctas, threads, state, words, reps, all ? 0 : 1);
    CU(cuEventRecord(event_stop, stream));
    a.us = elapsed_us();
    a.second = (double)n * reps;
  }
  settle();
  meet();
  if (pe == (all ? 0 : 1))
    launch(KERNEL(bench_check_equal), size.sms, size.fill_threads, (const uint64_t *)words, n, (uint64_t)reps, at_result(error_at));
  read_result();
  a.errors = result[error_at];
  return a;
}

static answer row_fetch_adds(const parameters &p) {
  answer a;
  uint32_t reps = (uint32_t)get(p, "reps", 2000);
  CU(cuMemsetD8Async((CUdeviceptr)words, 0, 8, stream));
  clear_result();
  settle();
  meet();
  if (pe == 0) launch(KERNEL(bench_fetch_adds), 1, 1, state, words, reps, pes > 1 ? 1 : 0, at_result(0), at_result(error_at));
  read_result();
  meet();
  a.errors = result[error_at];
  if (pe == 0) {
    a.us = (double)result[0] / 1e3;
    a.second = reps - 1;
  }
  if (pe == (pes > 1 ? 1 : 0)) {
    uint64_t last;
    CU(cuMemcpyDtoH(&last, (CUdeviceptr)words, 8));
    a.errors += last != reps;
  }
  return a;
}

static answer row_put_latency(const parameters &p) {
  answer a;
  uint32_t reps = (uint32_t)get(p, "reps", 2000);
  CU(cuMemsetD8Async((CUdeviceptr)words, 0xff, 8, stream));
  clear_result();
  settle();
  meet();
  if (pe == 0) launch(KERNEL(bench_put_latency), 1, 1, state, words, reps, pes > 1 ? 1 : 0, at_result(0));
  read_result();
  meet();
  if (pe == 0) {
    a.us = (double)result[0] / 1e3;
    a.second = reps;
    a.more = ", \"quiet_us\": " + std::to_string((double)result[1] / 1e3 / reps);
  }
  if (pe == (pes > 1 ? 1 : 0)) {
    uint64_t last;
    CU(cuMemcpyDtoH(&last, (CUdeviceptr)words, 8));
    a.errors = last != reps;
  }
  return a;
}

static answer row_messages(const parameters &p) {
  answer a;
  unsigned ctas = (unsigned)get(p, "ctas", 32), threads = (unsigned)get(p, "threads", 256);
  uint32_t reps = (uint32_t)get(p, "reps", 16), bytes = (uint32_t)get(p, "bytes", 8);
  uint64_t places = (uint64_t)ctas * threads / (bytes <= 64 ? 1 : 32);
  if (places * bytes > size.window || bytes % 8) die("row", "the messages do not fit");
  fill(source, places * bytes, seed + (uint32_t)pe * 1000003u);
  fill(target, places * bytes, ~seed);
  clear_result();
  settle();
  meet();
  int to = pes > 1 ? 1 : 0;
  if (pe == 0) {
    CU(cuEventRecord(event_start, stream));
    launch(KERNEL(bench_messages), ctas, threads, state, target, (const char *)source, bytes, reps, to);
    CU(cuEventRecord(event_stop, stream));
    a.us = elapsed_us();
    a.second = (double)places * reps;
  }
  settle();
  meet();
  if (pe == to) check(target, places * bytes, 0, seed);
  read_result();
  a.errors = result[error_at];
  return a;
}

static answer row_barrier(const parameters &p) {
  answer a;
  int reps = (int)get(p, "reps", 200);
  clear_result();
  if (!barrier()) {
    a.skipped = true;
    return a;
  }
  settle();
  meet();
  CU(cuEventRecord(event_start, stream));
  for (int i = 0; i < reps; i++) barrier();
  CU(cuEventRecord(event_stop, stream));
  a.us = elapsed_us();
  a.second = reps;
  meet();
  return a;
}

static answer row_alltoall(const parameters &p) {
  answer a;
  uint64_t bytes = (uint64_t)get(p, "bytes", 1 << 20);
  int reps = (int)get(p, "reps", 20);
  uint64_t part = bytes / 4 / (uint64_t)pes; // words to each PE
  if (part == 0) part = 1;
  fill(source, part * 4 * pes, seed + (uint32_t)pe * 1000003u);
  fill(target, part * 4 * pes, ~seed);
  clear_result();
  settle();
  meet();
  if (!alltoall(target, source, part)) {
    a.skipped = true;
    return a;
  }
  settle();
  // The timed calls must do the work again.
  fill(target, part * 4 * pes, ~seed);
  settle();
  meet();
  CU(cuEventRecord(event_start, stream));
  for (int i = 0; i < reps; i++) alltoall(target, source, part);
  CU(cuEventRecord(event_stop, stream));
  a.us = elapsed_us();
  a.second = reps;
  for (int from = 0; from < pes; from++)
    check(target + (uint64_t)from * part * 4, part * 4, (uint64_t)pe * part, seed + (uint32_t)from * 1000003u);
  read_result();
  a.errors = result[error_at];
  meet();
  return a;
}

static answer row_sum(const parameters &p) {
  answer a;
  uint64_t n = (uint64_t)get(p, "floats", 1024);
  int reps = (int)get(p, "reps", 10);
  if (n * 4 > size.window) die("row", "the vector is larger than the window");
  launch(KERNEL(bench_fill_float), size.sms, size.fill_threads, (float *)source, n, (uint32_t)pe, seed);
  fill(target, n * 4, ~seed);
  clear_result();
  settle();
  meet();
  if (!sum((float *)target, (const float *)source, n)) {
    a.skipped = true;
    return a;
  }
  settle();
  fill(target, n * 4, ~seed);
  settle();
  meet();
  CU(cuEventRecord(event_start, stream));
  for (int i = 0; i < reps; i++) sum((float *)target, (const float *)source, n);
  CU(cuEventRecord(event_stop, stream));
  a.us = elapsed_us();
  a.second = reps;
  launch(KERNEL(bench_check_sum), size.sms, size.fill_threads, (const float *)target, n, (uint32_t)pes, seed, at_result(error_at));
  read_result();
  a.errors = result[error_at];
  meet();
  return a;
}

// Allocates and frees; us is the allocation, second the free. The bytes are what the device then has less.
static answer row_grow(const parameters &p) {
  answer a;
  uint64_t bytes = (uint64_t)get(p, "bytes", (double)((uint64_t)512 << 20));
#ifdef BENCH_RAW
  (void)bytes;
  a.skipped = true;
#else
  size_t before, with, after, total;
  settle();
  meet();
  CU(cuMemGetInfo(&before, &total));
  meet();
  double t0 = now();
  char *x = (char *)allocate(bytes);
  double t1 = now();
  meet();
  CU(cuMemGetInfo(&with, &total));
  clear_result();
  fill(x, bytes, seed);
  check(x, bytes, 0, seed);
  read_result();
  a.errors = result[error_at];
  meet();
  double t2 = now();
  release(x);
  double t3 = now();
  meet();
  CU(cuMemGetInfo(&after, &total));
  a.us = t1 - t0;
  a.second = t3 - t2;
  a.more = ", \"grown\": " + std::to_string((long long)before - (long long)with) + ", \"kept\": " +
           std::to_string((long long)before - (long long)after);
  meet();
#endif
  return a;
}

#ifdef BENCH_TEAM
// An operation of one block of each PE, by its number in layer.h.
static answer row_team(const parameters &p) {
  answer a;
  int what = (int)get(p, "what", 0);
  unsigned threads = (unsigned)get(p, "threads", 1024);
  uint64_t bytes = (uint64_t)get(p, "bytes", 8);
  uint32_t reps = (uint32_t)get(p, "reps", 100);
  if (what < 0 || what >= bench_operations || bytes % 4 || bytes * pes > size.window || reps < 10) die("row", "not an operation that fits");
  uint64_t all = what == bench_alltoall ? bytes * pes : bytes;
  if (what == bench_sum)
    launch(KERNEL(bench_fill_float), size.sms, size.fill_threads, (float *)source, all / 4, (uint32_t)pe, seed);
  else
    fill(source, all, seed + (uint32_t)pe * 1000003u);
  fill(target, bytes * pes, ~seed);
  clear_result();
  settle();
  meet();
  launch(KERNEL(bench_team), 1, threads, what, target, (const char *)source, bytes, reps, flags, flag_next, (pe + 1) % pes, at_result(0));
  flag_next += reps;
  settle();
  meet();
  if (what == bench_sum)
    launch(KERNEL(bench_check_sum), size.sms, size.fill_threads, (const float *)target, bytes / 4, (uint32_t)pes, seed, at_result(error_at));
  for (int from = 0; from < pes && (what == bench_fcollect || what == bench_alltoall); from++)
    check(target + from * bytes, bytes, what == bench_alltoall ? (uint64_t)pe * bytes / 4 : 0, seed + (uint32_t)from * 1000003u);
  if (what == bench_broadcast) check(target, bytes, 0, seed);
  if (what == bench_put_signal) check(target, bytes, 0, seed + (uint32_t)((pe + pes - 1) % pes) * 1000003u);
  read_result();
  meet();
  a.errors = result[error_at];
  a.us = (double)result[0] / 1e3;
  a.second = reps - reps / 10;
  return a;
}
#endif

static void answer_line(const char *row, const answer &a) {
  std::string t = trouble();
  printf("{\"pe\": %d, \"row\": \"%s\"", pe, row);
  if (a.skipped) printf(", \"skipped\": true");
  if (a.us >= 0) printf(", \"us\": %.3f, \"per\": %.0f", a.us, a.second);
  printf(", \"errors\": %llu%s", (unsigned long long)a.errors, a.more.c_str());
  if (!t.empty()) {
    printf(", \"trouble\": \"");
    for (char c : t) putchar(c == '"' || c == '\\' || (unsigned char)c < 32 ? ' ' : c);
    putchar('"');
  }
  puts("}");
  fflush(stdout);
}

static const char *environment(const char *name) {
  const char *v = getenv(name);
  if (!v) die(name, "is not set; bench/shmem.py starts this program");
  return v;
}

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  pe = atoi(environment("BENCH_PE"));
  pes = atoi(environment("BENCH_PES"));
  if (pes < 1 || pes > 16 || pe < 0 || pe >= pes) die("BENCH_PE", "is not one of 1 to 16 PEs");
  int fd = open(environment("BENCH_SHARED"), O_RDWR);
  void *map = fd < 0 ? MAP_FAILED : mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) die("BENCH_SHARED", "cannot be mapped");
  common = (struct shared *)map;
  if (const char *v = getenv("BENCH_WINDOW")) size.window = (size_t)strtoull(v, nullptr, 10);
  if (const char *v = getenv("BENCH_THREADS")) size.fill_threads = (unsigned)atoi(v);

  CU(cuInit(0));
  CU(cuDeviceGet(&device, atoi(environment("BENCH_DEVICE"))));
#ifdef BENCH_RUNTIME
  if (cudaSetDevice((int)device) != cudaSuccess) die("cudaSetDevice", "refused");
#endif
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  int sms;
  CU(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  size.sms = (unsigned)sms;
#ifndef BENCH_RUNTIME
  CU(cuModuleLoad(&module, environment("BENCH_MODULE")));
#endif
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&event_start, CU_EVENT_DEFAULT));
  CU(cuEventCreate(&event_stop, CU_EVENT_DEFAULT));
  CU(cuMemAllocHost((void **)&result, 4096));
  CU(cuMemAlloc(&device_result, 4096));

  prepare();
  meet();
  size_t free0, free1, total;
  CU(cuMemGetInfo(&free0, &total));
  meet();
  double t0 = now();
  begin();
  double t1 = now();
  meet();
  CU(cuMemGetInfo(&free1, &total));
  begun();
  meet();
  printf("{\"pe\": %d, \"row\": \"init\", \"us\": %.0f, \"per\": 1, \"errors\": 0, \"grown\": %lld}\n", pe, t1 - t0,
         (long long)free0 - (long long)free1);
  fflush(stdout);
  if (const char *v = getenv("BENCH_INIT_ONLY"); v && *v) {
    end();
    return 0;
  }
  source = (char *)allocate(size.window);
  target = (char *)allocate(size.window);
  words = (uint64_t *)allocate((uint64_t)size.sms * size.fill_threads * 8);
  flags = (uint64_t *)allocate(flag_words * flag_apart * 8);
  CU(cuMemsetD8Async((CUdeviceptr)flags, 0, flag_words * flag_apart * 8, stream));
  settle();
  meet();

  char line[1024];
  while (fgets(line, sizeof line, stdin)) {
    parameters p;
    char *save = nullptr, *row = strtok_r(line, " \n", &save);
    if (!row) continue;
    for (char *word; (word = strtok_r(nullptr, " \n", &save));) {
      char *eq = strchr(word, '=');
      if (!eq) die("row", std::string("not NAME=NUMBER: ") + word);
      p.push_back({std::string(word, (size_t)(eq - word)), strtod(eq + 1, nullptr)});
    }
    seed = seed * 1664525u + 1013904223u;
    std::string name = row;
    if (name == "end") break;
    answer a;
    if (name == "put")
      a = row_move(true, p);
    else if (name == "get")
      a = row_move(false, p);
    else if (name == "pingpong")
      a = row_pingpong(p);
    else if (name == "adds")
      a = row_adds(p);
    else if (name == "fetch_adds")
      a = row_fetch_adds(p);
    else if (name == "put_latency")
      a = row_put_latency(p);
    else if (name == "messages")
      a = row_messages(p);
    else if (name == "barrier")
      a = row_barrier(p);
    else if (name == "alltoall")
      a = row_alltoall(p);
    else if (name == "sum")
      a = row_sum(p);
    else if (name == "grow")
      a = row_grow(p);
#ifdef BENCH_TEAM
    else if (name == "team")
      a = row_team(p);
#endif
    else
      die("row", "unknown row " + name);
    answer_line(row, a);
  }
  release(flags);
  release(words);
  release(target);
  release(source);
  end();
  return 0;
}
