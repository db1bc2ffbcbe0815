// As much of the CUDA runtime's interface as lshmem_compat.h uses, so that clang compiles both sides of a unit of CUDA
// code where there is no CUDA. A symbol's memory on the device is the variable that stands for it on the host.
#ifndef __CUDA_RUNTIME_H__
#define __CUDA_RUNTIME_H__
#define __CUDA_RUNTIME_API_H__

#include <stddef.h>
#include <string.h>

#define __constant__ __attribute__((constant))

typedef struct CUstream_st *cudaStream_t;
enum cudaError_t { cudaSuccess };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
struct dim3 {
  unsigned x, y, z;
};

inline int stub_device = -1; // the current one
inline cudaError_t cudaSetDevice(int device) {
  stub_device = device;
  return cudaSuccess;
}
template <class T> cudaError_t cudaMemcpyToSymbol(const T &symbol, const void *from, size_t n) {
  memcpy((void *)&symbol, from, n);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *);
cudaError_t cudaDeviceGetAttribute(int *, cudaDeviceAttr, int);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
cudaError_t cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);

#endif
