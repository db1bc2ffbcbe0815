// A main.cpp whose PEs have GPUs, with a unit of CUDA code (unit.cu): that one's state is of the PE's device.
#include "lshmem_compat.h"

int cuda_unit(int me, int n);

int main() {
  nvshmem_init();
  int line = cuda_unit(nvshmem_my_pe(), nvshmem_n_pes());
  nvshmem_barrier_all();
  nvshmem_finalize();
  if (line) fprintf(stderr, "line %d of unit.cu\n", line);
  return line != 0;
}
