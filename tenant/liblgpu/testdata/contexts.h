// SPDX-License-Identifier: Apache-2.0

// contexts.h: a context on each of some devices, for programs that move memory.
#ifndef CONTEXTS_H
#define CONTEXTS_H

#include "lgpu_cuda.h"

#define DEVICES 4

static CUcontext contexts[DEVICES];
static int devices;

// init makes them, and the first one current.
static CUresult init(int n)
{
	CUresult r = cuInit(0);
	for (devices = 0; devices < n && r == CUDA_SUCCESS; devices++) {
		CUdevice d;
		r = cuDeviceGet(&d, devices);
		r = r == CUDA_SUCCESS ? cuDevicePrimaryCtxRetain(&contexts[devices], d) : r;
	}
	return r == CUDA_SUCCESS ? cuCtxSetCurrent(contexts[0]) : r;
}

#endif
