// device.h: how the benchmarks of memory begin.
#pragma once

// use_first_device makes the first device's primary context current.
static inline CUresult use_first_device(CUdevice *device, CUcontext *context)
{
	CUresult r = cuInit(0);
	if (r == CUDA_SUCCESS)
		r = cuDeviceGet(device, 0);
	if (r == CUDA_SUCCESS)
		r = cuDevicePrimaryCtxRetain(context, *device);
	if (r == CUDA_SUCCESS)
		r = cuCtxSetCurrent(*context);
	return r;
}
