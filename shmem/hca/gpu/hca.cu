// The kernel of the software HCA: one block, each warp of which serves some of the queues until its slice of time is
// over.
#include "lshmem_hca.cuh"

using namespace lshmem;

// At most LSHMEM_HCA_MAX_WARPS: what a thread may have of registers follows from it.
extern "C" LSHMEM_GLOBAL __attribute__((launch_bounds(32 * LSHMEM_HCA_MAX_WARPS))) void lshmem_hca(const struct lshmem_hca_adapter a) {
  const uint32_t warp = thread_index() / 32, warps = (block_threads() + 31) / 32;
  auto *request = hca::at<struct lshmem_hca_request>(a.request);
  auto *answer = hca::at<struct lshmem_hca_answer>(a.answer);
  const bool leader = warp_group::index() == 0;
  const uint64_t begin = nanos();
  uint32_t seen = 0, idle = 0, turns = 0;
  for (;;) {
    // The host's wishes cost a look at memory, so not every turn has one.
    if (turns++ % 8 == 0) {
      const uint64_t wish = hca::broadcast<warp_group>(load_relaxed<scope::sys>((const uint64_t *)request));
      const uint32_t ticket = (uint32_t)wish, stop = (uint32_t)(wish >> 32);
      if (ticket != seen) {
        seen = ticket;
        fence<scope::sys>(); // keys and queues that the host changed before it asked
        warp_group::sync();
        // Whatever this warp did before it saw the ticket is over.
        if (leader) store_release<scope::sys>(&answer->tickets[warp], ticket);
      }
      if (turns % 1024 == 1 && leader) store_relaxed<scope::sys>(&answer->turns[warp], turns);
      if (stop || any_warp(warp_group::mask(), nanos() - begin > a.slice_nanos)) return;
    }
    if (hca::turn<warp_group>(a, warp, warps, turns % 8 == 1)) {
      idle = 0;
    } else if (idle < a.idle_nanos) {
      idle += 20;
    }
    if (idle) sleep_nanos(idle);
  }
}
