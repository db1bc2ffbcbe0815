// What the tests of the device headers share: heaps of several PEs in one process.
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>

#include "lshmem.cuh"

inline std::atomic<int> failures{0};

#define CHECK(condition, ...)                                    \
  do {                                                           \
    if (!(condition) && failures++ < 20) {                       \
      fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      fprintf(stderr, __VA_ARGS__);                              \
      fputc('\n', stderr);                                       \
    }                                                            \
  } while (0)

// PEs whose heaps are mapped in each other.
struct job {
  static constexpr size_t heap_bytes = 1 << 18;
  std::vector<lshmem_t> pe;
  std::vector<lshmem_control> control;
  std::vector<char *> heap;
  std::vector<uint64_t> table;

  explicit job(int n, uint64_t timeout = 20000000000) : pe((size_t)n), control((size_t)n) {
    for (int i = 0; i < n; i++) {
      heap.push_back((char *)aligned_alloc(4096, heap_bytes));
      memset(heap.back(), 0, heap_bytes);
      table.push_back((uint64_t)heap.back() | LSHMEM_PEER_ATOMIC);
    }
    for (int i = 0; i < n; i++) {
      lshmem_t &s = pe[(size_t)i];
      memset(&s, 0, sizeof s);
      memset(&control[(size_t)i], 0, sizeof control[0]);
      s.version = LSHMEM_STATE_VERSION;
      s.pe = (uint32_t)i;
      s.pes = (uint32_t)n;
      s.heap_base = (uint64_t)heap[(size_t)i];
      s.heap_bytes = heap_bytes;
      for (int j = 0; j < n && j < (int)LSHMEM_INLINE_PEERS; j++) s.peer[j] = table[(size_t)j];
      s.peers = (uint64_t)table.data();
      s.control = (uint64_t)&control[(size_t)i];
      s.timeout_nanos = timeout;
      s.self = (uint64_t)&s;
    }
  }
  ~job() {
    for (char *h : heap) free(h);
  }
  template <class T> T *at(int i, size_t offset) { return (T *)(heap[(size_t)i] + offset); }
};

#endif
