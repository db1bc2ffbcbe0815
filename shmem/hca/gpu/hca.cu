// The kernel of the software HCA: one block, each warp of which serves some of the queues until its slice of time is over.
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
    const uint32_t ticket = hca::broadcast<warp_group>(load_relaxed<scope::sys>(&request->ticket));
    if (ticket != seen) {
      seen = ticket;
      fence<scope::sys>(); // keys and queues that the host changed before it asked
      warp_group::sync();
      // Whatever this warp did before it saw the ticket is over.
      if (leader) store_release<scope::sys>(&answer->tickets[warp], ticket);
    }
    if (hca::turn<warp_group>(a, warp, warps)) {
      idle = 0;
    } else if (idle < a.idle_nanos) {
      idle += 20;
    }
    if (idle) sleep_nanos(idle);
    if ((turns++ & 255) == 0 && leader) store_relaxed<scope::sys>(&answer->turns[warp], turns);
    const bool over = nanos() - begin > a.slice_nanos || load_relaxed<scope::sys>(&request->stop);
    if (any_warp(warp_group::mask(), over)) return;
  }
}
