// SPDX-License-Identifier: Apache-2.0

// How a process asks another to lock, checkpoint, restore or unlock itself: a page of memory of the one that is asked,
// which the other finds among its descriptors (/proc/PID/fd), so that the kernel says who may: who may trace the process.
// Who asks holds flock(2) on it. The restore thread answers (checkpoint.c).
#ifndef LGPUSIM_CONTROL_H
#define LGPUSIM_CONTROL_H

#include <stdint.h>

#include <lgpu_cuda.h>

#define SIMC_CONTROL_NAME "lgpu-sim-checkpoint"

enum {
	SIMC_CONTROL_MAGIC = 0x6b63676c, // "lgck"
	SIMC_CONTROL_VERSION = 1,
	SIMC_CONTROL_SIZE = 8192,
	SIMC_MOST_PAIRS = 64,
	SIMC_SOCKET_LENGTH = 108,
};

enum simc_ask { SIMC_LOCK = 1, SIMC_CHECKPOINT, SIMC_RESTORE, SIMC_UNLOCK };

struct simc_control {
	uint32_t magic, version;
	uint32_t state;   // CUprocessState
	int32_t thread;   // the restore thread
	uint32_t request; // how often something was asked; a futex
	uint32_t done;    // how often that was answered; a futex
	uint32_t orphan;  // the request that nobody waits for any more, as the next who asked has found
	uint32_t ask;     // enum simc_ask, and what it takes:
	uint32_t count;   // of pairs
	uint64_t deadline; // of a lock, by simc_now; 0: none
	int32_t result;   // CUresult
	char socket[SIMC_SOCKET_LENGTH]; // of the hardware to restore on; empty: the process's own
	CUcheckpointGpuPair pairs[SIMC_MOST_PAIRS];
};

#endif
