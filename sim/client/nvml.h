// SPDX-License-Identifier: Apache-2.0

// What the parts of the software GPU's libnvidia-ml.so.1 share.
#ifndef LGPUSIM_NVML_H
#define LGPUSIM_NVML_H

#define LGPU_NVML_PLAIN
#include <lgpu_nvml.h>

#include "channel.h"
#include "rpc_gen.h"

enum { SIMC_MAX_DEVICES = 128 }; // 16 GPUs, each with seven MIG instances

// A device handle points at one of these, of which there is one a device.
struct nvmlDevice_st {
	unsigned index;  // in the list of the hardware: GPUs, each followed by its MIG instances
	unsigned number; // among the GPUs, or of an instance: among those of its GPU
};

// The index of a handle in the list of the hardware; an error when the library is not initialised or the handle is none.
nvmlReturn_t simc_nvml_index(nvmlDevice_t device, unsigned *index);
// The device behind a handle, asked for afresh.
nvmlReturn_t simc_nvml_device(nvmlDevice_t device, lgpusim_device *d);
// The same of a GPU; NVML_ERROR_NOT_SUPPORTED for a MIG instance.
nvmlReturn_t simc_nvml_gpu(nvmlDevice_t device, lgpusim_device *d);
// The handle of the device with an index in the list of the hardware, or NULL.
nvmlDevice_t simc_nvml_handle(unsigned index);
// Whether the library is initialised.
nvmlReturn_t simc_nvml_ready(void);
// The answer of a symbol that has none.
int simc_nvml_unsupported(const char *name);
// A driver's result as NVML's.
nvmlReturn_t simc_nvml_result(CUresult r);

// Exported, of lgpu's own: what libcuda.so.1 calls when the process is checkpointed or has been restored (management.c).
void lgpusimMoveManagement(const char *path);

#endif
