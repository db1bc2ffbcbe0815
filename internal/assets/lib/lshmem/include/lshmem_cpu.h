// Device code as CPU code: a grid is a set of operating system threads, a warp a group of 32 of them that meet where
// the code synchronizes. It exists so that the protocol runs under sanitizers and debuggers, on real threads in any
// order that the scheduler and the memory of the machine allow. It is not meant to be fast.
//
//	lshmem::cpu::launch(blocks, threads, [&] { kernel(...); });
//
// runs kernel on blocks*threads threads and returns when all have ended. Device functions may also be called without
// launch: the caller is then a block of one thread.
//
// Threads of a warp do not run in step here, and no mask of "active" lanes exists. Code that has brought lanes together
// may say so with cpu::converged, to test what the library does for full warps.
#ifndef LSHMEM_CPU_H
#define LSHMEM_CPU_H

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace lshmem {
namespace cpu {

// alias<T> is a T that may lie over memory of any other type.
template <class T> struct alias_of { typedef T __attribute__((may_alias)) type; };
template <class T> using alias = typename alias_of<T>::type;

// What a thread knows of data that were written, by itself or by threads that it has met, and of its fences: whether a
// fence of its own covers them. Meetings are numbered; writes have the number of the meeting in which their thread told
// of them.
class knowledge {
public:
  void write() { fresh = true; }
  void fence() {
    fenced = met;
    fresh = false;
  }
  // Nothing that the thread knows of was written after its last fence, or told to it after that.
  bool covered() const { return !fresh && fenced >= wrote; }

  // At a meeting: what the thread tells, and what it is told: the newest write of all, by the number of its meeting.
  static constexpr int64_t now = INT64_MAX;
  int64_t newest() const { return fresh ? now : wrote; }
  void learn(int64_t newest_of_all, int64_t meeting) {
    met = meeting;
    fresh = false;
    wrote = newest_of_all == now ? meeting : newest_of_all;
  }

private:
  bool fresh = false;                     // written since the last fence and not told to anybody
  int64_t wrote = 0, met = 0, fenced = -1; // numbers of meetings
};
// Relaxed: meetings of different blocks must not order anything between them.
inline std::atomic<int64_t> meetings{0};
inline int64_t next_meeting() { return meetings.fetch_add(1, std::memory_order_relaxed) + 1; }

// A meeting of several threads, each of which brings a value and takes those of all. One after another.
class meeting {
public:
  // Waits until all of expected, a set of members' bits, have come; copies their values unless all is null.
  void exchange(uint32_t expected, uint32_t member, uint64_t v, uint64_t *all, knowledge *of_writes) {
    std::unique_lock<std::mutex> lock(mu);
    while (leaving != 0) changed.wait(lock);
    values[member] = v;
    if (arrived == 0) newest = 0;
    if (of_writes->newest() > newest) newest = of_writes->newest();
    arrived |= 1u << member;
    if (arrived == expected) {
      number = next_meeting();
      leaving = expected;
      changed.notify_all();
    } else {
      while (!(leaving >> member & 1)) changed.wait(lock);
    }
    if (all)
      for (uint32_t i = 0; i < 32; i++) all[i] = values[i];
    of_writes->learn(newest, number);
    leaving &= ~(1u << member);
    if (leaving == 0) {
      arrived = 0;
      changed.notify_all();
    }
  }

private:
  std::mutex mu;
  std::condition_variable changed;
  uint32_t arrived = 0, leaving = 0;
  uint64_t values[32] = {};
  int64_t newest = 0, number = 0;
};

// What the threads of a block share. Meetings of a warp's lanes have disjoint masks at any time: each has the meeting
// of its lowest lane.
class block_state {
public:
  block_state(uint32_t threads) : lanes(((size_t)threads + 31) / 32 * 32), threads(threads) {}

  meeting &lanes_of(uint32_t thread, uint32_t mask) { return lanes[(thread & ~31u) + (uint32_t)__builtin_ctz(mask)]; }

  // Waits for all threads of the block and returns how many of them said true, and the value of thread 0.
  uint32_t count(bool p, bool leader, uint32_t v, uint32_t *of_leader, knowledge *of_writes) {
    std::unique_lock<std::mutex> lock(mu);
    uint64_t round = rounds;
    yes += p;
    if (leader) value = v;
    if (of_writes->newest() > newest) newest = of_writes->newest();
    if (++arrived == threads) {
      last_newest = newest;
      newest = 0;
      number = next_meeting();
      last_yes = yes;
      last_value = value;
      yes = arrived = 0;
      rounds++;
      changed.notify_all();
    } else {
      while (rounds == round) changed.wait(lock);
    }
    // The next round cannot end before this thread has joined it.
    if (of_leader) *of_leader = last_value;
    of_writes->learn(last_newest, number);
    return last_yes;
  }

private:
  std::vector<meeting> lanes;
  std::mutex mu;
  std::condition_variable changed;
  uint32_t threads, arrived = 0, yes = 0, last_yes = 0, value = 0, last_value = 0;
  uint64_t rounds = 0;
  int64_t newest = 0, last_newest = 0, number = 0;
};

// Where the calling thread is in its grid.
struct thread_state {
  uint32_t thread = 0, threads = 1, block = 0, blocks = 1;
  knowledge writes;
  uint32_t together = 0;
  block_state *shared = nullptr;
};
inline thread_local thread_state self;

// converged says, while it lives, that the lanes of mask are together: all of them make one.
class converged {
public:
  explicit converged(uint32_t mask) { self.together = mask; }
  ~converged() { self.together = 0; }
  converged(const converged &) = delete;
  converged &operator=(const converged &) = delete;
};

inline void exchange(uint32_t mask, uint64_t v, uint64_t *all) {
  if (self.shared) {
    self.shared->lanes_of(self.thread, mask).exchange(mask, self.thread & 31, v, all, &self.writes);
  } else if (all) {
    for (int i = 0; i < 32; i++) all[i] = v;
  }
}
inline uint32_t count_block(bool p) { return self.shared ? self.shared->count(p, false, 0, nullptr, &self.writes) : p; }
inline uint32_t block_value(uint32_t v) {
  if (self.shared) self.shared->count(false, self.thread == 0, v, &v, &self.writes);
  return v;
}

// stumble, if set, is called before every atomic operation: a test lets other threads run there, which on few CPUs
// would hardly ever happen just there. To be set before threads start.
inline void (*stumble)() = nullptr;

inline uint64_t nanos() {
  return (uint64_t)std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline void sleep_nanos(uint32_t n) { std::this_thread::sleep_for(std::chrono::nanoseconds(n)); }
inline void yield() { std::this_thread::yield(); }

// launch runs kernel() on every thread of a grid and waits for its end.
template <class Kernel> void launch(uint32_t blocks, uint32_t threads, Kernel kernel) {
  std::vector<block_state *> shared;
  std::vector<std::thread> all;
  for (uint32_t b = 0; b < blocks; b++) shared.push_back(new block_state(threads));
  for (uint32_t b = 0; b < blocks; b++) {
    for (uint32_t t = 0; t < threads; t++) {
      all.emplace_back([=, &kernel] {
        self = thread_state();
        self.thread = t;
        self.threads = threads;
        self.block = b;
        self.blocks = blocks;
        self.shared = shared[b];
        kernel();
      });
    }
  }
  for (auto &t : all) t.join();
  for (auto *s : shared) delete s;
}

} // namespace cpu
} // namespace lshmem

#endif
