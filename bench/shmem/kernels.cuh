// The kernels of the rows, for any back end of layer.h. Data are words that say where they came from and in which run, so that a
// word that was not moved, or moved twice, is seen.
#ifndef BENCH_KERNELS_CUH
#define BENCH_KERNELS_CUH

#include "layer.h"

BENCH_DEVICE uint32_t bench_word(uint64_t i, uint32_t seed) {
  uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)(i >> 32) + seed * 40503u;
  x ^= x >> 15;
  return x * 2246822519u;
}
// Small whole numbers: their sums are exact in any order.
BENCH_DEVICE float bench_float(uint64_t i, uint32_t pe, uint32_t seed) { return (float)((i * 7 + pe * 13 + seed) & 1023); }

BENCH_KERNEL bench_fill(uint32_t *p, uint64_t words, uint32_t seed) {
  uint64_t step = (uint64_t)bench_blocks() * bench_threads();
  for (uint64_t i = (uint64_t)bench_block() * bench_threads() + bench_thread(); i < words; i += step) p[i] = bench_word(i, seed);
}

// Words from on, which another PE filled as its words at source.
BENCH_KERNEL bench_check(const uint32_t *p, uint64_t words, uint64_t source, uint32_t seed, uint64_t *errors) {
  uint64_t step = (uint64_t)bench_blocks() * bench_threads(), bad = 0;
  for (uint64_t i = (uint64_t)bench_block() * bench_threads() + bench_thread(); i < words; i += step)
    bad += p[i] != bench_word(source + i, seed);
  if (bad) bench_count(errors, bad);
}

BENCH_KERNEL bench_fill_float(float *p, uint64_t n, uint32_t pe, uint32_t seed) {
  uint64_t step = (uint64_t)bench_blocks() * bench_threads();
  for (uint64_t i = (uint64_t)bench_block() * bench_threads() + bench_thread(); i < n; i += step) p[i] = bench_float(i, pe, seed);
}

BENCH_KERNEL bench_check_sum(const float *p, uint64_t n, uint32_t pes, uint32_t seed, uint64_t *errors) {
  uint64_t step = (uint64_t)bench_blocks() * bench_threads(), bad = 0;
  for (uint64_t i = (uint64_t)bench_block() * bench_threads() + bench_thread(); i < n; i += step) {
    float sum = 0;
    for (uint32_t pe = 0; pe < pes; pe++) sum += bench_float(i, pe, seed);
    bad += p[i] != sum;
  }
  if (bad) bench_count(errors, bad);
}

// Every word is value.
BENCH_KERNEL bench_check_equal(const uint64_t *p, uint64_t n, uint64_t value, uint64_t *errors) {
  uint64_t step = (uint64_t)bench_blocks() * bench_threads(), bad = 0;
  for (uint64_t i = (uint64_t)bench_block() * bench_threads() + bench_thread(); i < n; i += step) bad += p[i] != value;
  if (bad) bench_count(errors, bad);
}

// The part of a message of bytes that a CTA moves: whole 16-byte pieces, but for the last.
BENCH_DEVICE uint64_t bench_slice(uint64_t bytes, uint64_t *offset) {
  uint64_t per = ((bytes + bench_blocks() - 1) / bench_blocks() + 15) & ~15ull;
  *offset = per * bench_block();
  if (*offset >= bytes) return 0;
  return bytes - *offset < per ? bytes - *offset : per;
}

// messages messages one after the other through a window of a whole number of them, each split over all CTAs; one quiet.
BENCH_KERNEL bench_puts(bench_state s, char *d, const char *p, uint64_t bytes, uint64_t window, uint32_t messages, int pe) {
  uint64_t offset, n = bench_slice(bytes, &offset), at = 0;
  for (uint32_t m = 0; m < messages; m++) {
    if (n) bench_put_block(s, d + at + offset, p + at + offset, n, pe);
    at = at + 2 * bytes <= window ? at + bytes : 0;
  }
  bench_quiet(s);
}

BENCH_KERNEL bench_gets(bench_state s, char *d, const char *p, uint64_t bytes, uint64_t window, uint32_t messages, int pe) {
  uint64_t offset, n = bench_slice(bytes, &offset), at = 0;
  for (uint32_t m = 0; m < messages; m++) {
    if (n) bench_get_block(s, d + at + offset, p + at + offset, n, pe);
    at = at + 2 * bytes <= window ? at + bytes : 0;
  }
  bench_quiet(s);
}

// One thread on each side: rounds of "I say i, you say i". The first tenth warms up. time: nanoseconds of the rest.
BENCH_KERNEL bench_pingpong(bench_state s, uint64_t *mine, uint64_t first, uint32_t rounds, int pe, int begins, uint64_t *time) {
  uint64_t start = 0;
  for (uint32_t i = 0; i < rounds; i++) {
    if (i == rounds / 10) start = bench_nanos();
    if (begins) bench_signal(s, mine, first + i, pe);
    bench_wait(s, mine, first + i);
    if (!begins) bench_signal(s, mine, first + i, pe);
  }
  *time = bench_nanos() - start;
}

// Every thread adds 1 to a word of its own, reps times, and wants no answer.
BENCH_KERNEL bench_adds(bench_state s, uint64_t *words, uint32_t reps, int pe) {
  uint64_t *w = words + (uint64_t)bench_block() * bench_threads() + bench_thread();
  for (uint32_t i = 0; i < reps; i++) bench_add(s, w, 1, pe);
  bench_quiet(s);
}

// One thread; errors counts answers that are not the next number.
BENCH_KERNEL bench_fetch_adds(bench_state s, uint64_t *word, uint32_t reps, int pe, uint64_t *time, uint64_t *errors) {
  uint64_t bad = bench_fetch_add(s, word, 1, pe) != 0;
  uint64_t start = bench_nanos();
  for (uint32_t i = 1; i < reps; i++) bad += bench_fetch_add(s, word, 1, pe) != i;
  *time = bench_nanos() - start;
  if (bad) bench_count(errors, bad);
}

// One thread: 8 bytes out, and wait until they are there. time[0] of that, time[1] of as many quiets with nothing to wait for.
BENCH_KERNEL bench_put_latency(bench_state s, uint64_t *word, uint32_t reps, int pe, uint64_t *time) {
  bench_p(s, word, 0, pe);
  bench_quiet(s);
  uint64_t start = bench_nanos();
  for (uint32_t i = 1; i <= reps; i++) {
    bench_p(s, word, i, pe);
    bench_quiet(s);
  }
  uint64_t middle = bench_nanos();
  for (uint32_t i = 0; i < reps; i++) bench_quiet(s);
  time[0] = middle - start;
  time[1] = bench_nanos() - middle;
}

// Messages of bytes bytes, each thread its own place, reps times over: thread scope up to 64 bytes, warp scope above.
BENCH_KERNEL bench_messages(bench_state s, char *d, const char *p, uint32_t bytes, uint32_t reps, int pe) {
  uint64_t t = (uint64_t)bench_block() * bench_threads() + bench_thread();
  for (uint32_t i = 0; i < reps; i++) {
    if (bytes <= 64)
      bench_put(s, d + t * bytes, p + t * bytes, bytes, pe);
    else
      bench_put_warp(s, d + t / 32 * bytes, p + t / 32 * bytes, bytes, pe);
  }
  bench_quiet(s);
}

#ifdef BENCH_TEAM
// A block of each PE does one operation with the others', reps times. time: nanoseconds of the last nine tenths.
BENCH_KERNEL bench_team(int what, char *d, const char *p, uint64_t bytes, uint32_t reps, uint64_t *signal, uint64_t first, int pe,
                        uint64_t *time) {
  uint64_t start = 0;
  for (uint32_t i = 0; i < reps; i++) {
    if (i == reps / 10) start = bench_nanos();
    bench_together(what, d, p, bytes, signal, first + i, pe);
  }
  if (bench_thread() == 0) *time = bench_nanos() - start;
}
#endif

#endif
