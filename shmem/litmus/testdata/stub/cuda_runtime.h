// As much of the CUDA runtime's interface as gpu/litmus.cu uses. With LITMUS_MODULE it is implemented over the
// driver's, and kernels are those of the same name in the PTX file LITMUS_MODULE of the environment: the program then
// runs on the software GPU. Without, nothing implements it, and both sides of the program can be compiled where there
// is no CUDA.
#ifndef CUDA_RUNTIME_STUB_H
#define CUDA_RUNTIME_STUB_H

#include <stddef.h>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyDeviceToHost = 2 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

#ifdef LITMUS_MODULE

#include <stdlib.h>
#include <string.h>

#define _Alignas alignas // the header is C
#include "lgpu_cuda.h"

typedef CUstream cudaStream_t;
static CUresult litmus_result;
static cudaError_t litmus_done(CUresult r) {
  if (r != CUDA_SUCCESS) litmus_result = r;
  return (cudaError_t)r;
}
static const char *cudaGetErrorString(cudaError_t) {
  const char *name = nullptr;
  return cuGetErrorName(litmus_result, &name) == CUDA_SUCCESS ? name : "unknown";
}
static cudaError_t cudaSetDevice(int n) {
  CUdevice device;
  CUcontext context;
  CUresult r = cuInit(0);
  if (r == CUDA_SUCCESS) r = cuDeviceGet(&device, n);
  if (r == CUDA_SUCCESS) r = cuDevicePrimaryCtxRetain(&context, device);
  return litmus_done(r == CUDA_SUCCESS ? cuCtxSetCurrent(context) : r);
}
static cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int device) {
  return litmus_done(cuDeviceGetAttribute(v, (CUdevice_attribute)a, device));
}
static cudaError_t cudaMalloc(void **p, size_t n) { return litmus_done(cuMemAlloc((CUdeviceptr *)p, n)); }
static cudaError_t cudaFree(void *p) { return litmus_done(cuMemFree((CUdeviceptr)p)); }
static cudaError_t cudaMemset(void *p, int v, size_t n) { return litmus_done(cuMemsetD8((CUdeviceptr)p, (unsigned char)v, n)); }
static cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind) {
  return litmus_done(cuMemcpyDtoH(to, (CUdeviceptr)from, n));
}
static cudaError_t cudaDeviceSynchronize() { return litmus_done(cuCtxSynchronize()); }
// The kernel's name stands for it.
static cudaError_t litmus_launch(const char *name, dim3 grid, dim3 block, void **args) {
  static CUmodule module;
  CUfunction f;
  CUresult r = module ? CUDA_SUCCESS : cuModuleLoad(&module, getenv("LITMUS_MODULE"));
  if (r == CUDA_SUCCESS) r = cuModuleGetFunction(&f, module, name);
  if (r == CUDA_SUCCESS) r = cuLaunchKernel(f, grid.x, grid.y, grid.z, block.x, block.y, block.z, 0, nullptr, args, nullptr);
  return litmus_done(r);
}
#define cudaLaunchKernel(f, grid, block, args, shared, stream) litmus_launch(t.name, grid, block, args)

#else

typedef struct stream_of_stub *cudaStream_t;
const char *cudaGetErrorString(cudaError_t);
cudaError_t cudaSetDevice(int);
cudaError_t cudaDeviceGetAttribute(int *, cudaDeviceAttr, int);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMemset(void *, int, size_t);
cudaError_t cudaMemcpy(void *, const void *, size_t, cudaMemcpyKind);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);

#endif
#endif
