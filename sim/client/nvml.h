// SPDX-License-Identifier: Apache-2.0

// What the parts of the software GPU's libnvidia-ml.so.1 share.
#ifndef LGPUSIM_NVML_H
#define LGPUSIM_NVML_H

#define LGPU_NVML_PLAIN
#include <lgpu_nvml.h>

#include "channel.h"
#include "rpc_gen.h"

enum { SIMC_MAX_DEVICES = 64 };

// A device handle points at one of these, of which there is one a device.
struct nvmlDevice_st {
	unsigned index;
};

// The index of a handle; an error when the library is not initialised or the handle is none.
nvmlReturn_t simc_nvml_index(nvmlDevice_t device, unsigned *index);
// The device behind a handle, asked for afresh.
nvmlReturn_t simc_nvml_device(nvmlDevice_t device, lgpusim_device *d);
// Whether the library is initialised.
nvmlReturn_t simc_nvml_ready(void);
// The answer of a symbol that has none.
int simc_nvml_unsupported(const char *name);
// A driver's result as NVML's.
nvmlReturn_t simc_nvml_result(CUresult r);

// Exported, of lgpu's own: what libcuda.so.1 calls when the process is checkpointed or has been restored (management.c).
void lgpusimMoveManagement(const char *path);

#endif
