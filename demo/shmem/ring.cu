// Every PE sends its numbers to the next one and adds those of the one before to its own, all inside one kernel.
#include "lshmem.cuh"

extern "C" LSHMEM_GLOBAL void ring(const lshmem_t sh, uint32_t *inbox, uint64_t *arrived, const uint32_t *mine, uint32_t *sum,
                                   uint32_t n) {
  int next = (lshmem_my_pe(sh) + 1) % lshmem_n_pes(sh);
  // The data, and then the signal: nobody sees it before them.
  lshmem_putmem_signal_block(sh, inbox, mine, n * sizeof *mine, arrived, 1, LSHMEM_SIGNAL_SET, next);
  lshmem_signal_wait_until(sh, arrived, LSHMEM_CMP_EQ, 1);
  for (uint32_t i = lshmem::thread_index(); i < n; i += lshmem::block_threads()) sum[i] = mine[i] + inbox[i];
}
