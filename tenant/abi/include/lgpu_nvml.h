/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NVML ABI (driver 580) as lgpu needs it: what the interposer hooks and what the software GPU answers. Calls of
 * virtual GPUs, MIG instances and other parts that lgpu only passes on are left out.
 *
 * Names without a version mean the newest form, as with the real header. Define LGPU_NVML_PLAIN before including to
 * leave every exported symbol under its own name.
 */
#ifndef LGPU_NVML_H
#define LGPU_NVML_H

#include "lgpu_nvml_types.h"

#define NVML_UUID_TYPE_ASCII 1
#define NVML_UUID_TYPE_BINARY 2
#define NVML_INIT_FLAG_NO_GPUS 1
#define NVML_INIT_FLAG_NO_ATTACH 2
#define NVML_VALUE_NOT_AVAILABLE (-1)
#define NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE 32
#define NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE 16
#define NVML_DEVICE_NAME_V2_BUFFER_SIZE 96
#define NVML_DEVICE_UUID_V2_BUFFER_SIZE 96
#define NVML_DEVICE_SERIAL_BUFFER_SIZE 30
#define NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE 80
#define NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE 80
#define NVML_NVLINK_MAX_LINKS 18

/* A versioned structure's first member: its size, and its version in the top byte. */
#define LGPU_NVML_STRUCT_VERSION(type, version) ((unsigned int)(sizeof(type) | (unsigned int)(version) << 24))

#ifdef __cplusplus
extern "C" {
#endif

#include "lgpu_nvml_calls.h"

#ifdef __cplusplus
}
#endif

#ifndef LGPU_NVML_PLAIN
#include "lgpu_nvml_names.h"
#endif

#endif
