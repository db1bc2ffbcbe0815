// SPDX-License-Identifier: Apache-2.0

// Structures of the protocol that are not the driver's: the C side of sim/wire/types.go.
#ifndef LGPUSIM_PROTO_H
#define LGPUSIM_PROTO_H

#include <stdint.h>

#include <lgpu_cuda.h>

typedef struct lgpusim_launch {
	CUfunction function;
	unsigned int grid[3], block[3];
	unsigned int sharedMemBytes;
	unsigned int cooperative;
} lgpusim_launch;

typedef struct lgpusim_kernel_node {
	CUfunction func;
	CUkernel kern;
	CUcontext ctx;
	unsigned int grid[3], block[3];
	unsigned int sharedMemBytes;
	unsigned int pad;
} lgpusim_kernel_node;

typedef struct lgpusim_param {
	unsigned int offset, size;
} lgpusim_param;

typedef struct lgpusim_device {
	char name[96];
	CUuuid uuid;
	unsigned int pciDomain, pciBus, pciDevice, pciDeviceId;
	unsigned int computeUnits, coresPerUnit;
	unsigned int ccMajor, ccMinor;
	unsigned int clockMHz, memClockMHz;
	uint64_t memoryTotal, memoryUsed, memoryReserved;
	unsigned int utilizationGpu, utilizationMemory;
	unsigned int powerMilliwatts, powerLimitMilliwatts;
	unsigned int temperatureC;
	unsigned int computeMode;
	uint64_t energyMillijoules;
	unsigned int instances, parent, number, gpuInstance, slices;
	unsigned int pad;
} lgpusim_device;

typedef struct lgpusim_process {
	unsigned int pid;
	unsigned int utilizationGpu, utilizationMemory;
	unsigned int pad;
	uint64_t memoryUsed;
	uint64_t sampleTime;
} lgpusim_process;

typedef struct lgpusim_turn {
	unsigned int pid;
	unsigned int unfinished;
	uint64_t start, end;
} lgpusim_turn;

#endif
