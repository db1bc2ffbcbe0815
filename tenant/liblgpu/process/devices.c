// SPDX-License-Identifier: Apache-2.0

// Devices: the driver's, NVML's and the limits' names for one.
#include <stdio.h>
#include <string.h>

#include "process/process.h"

void lgpu_uuid_text(const struct lgpu_device_limits *device, char text[LGPU_UUID_TEXT])
{
	char *p = text + sprintf(text, device->instance != 0 ? "MIG-" : "GPU-");
	for (int i = 0; i < 16; i++)
		p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", device->uuid[i]);
}

// digit_value reads a hexadecimal digit; 16 for anything else.
static unsigned digit_value(char c)
{
	return c >= '0' && c <= '9' ? (unsigned)(c - '0') : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (unsigned)((c | 0x20) - 'a') + 10 : 16;
}

bool lgpu_uuid_parse(const char *text, uint8_t uuid[16])
{
	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return false;
	text += 4;
	for (int i = 0; i < 16; i++) {
		if (*text == '-')
			text++;
		unsigned high = digit_value(text[0]), low = high < 16 ? digit_value(text[1]) : 16;
		if (low > 15)
			return false;
		uuid[i] = (uint8_t)(high << 4 | low);
		text += 2;
	}
	return *text == 0;
}

int lgpu_uuid_index(const struct lgpu_limits *limits, const uint8_t uuid[16])
{
	for (uint32_t i = 0; i < limits->devices; i++)
		if (memcmp(limits->device[i].uuid, uuid, 16) == 0)
			return (int)i;
	return -1;
}

// find_index returns -2 while the driver cannot tell, as before cuInit.
static int find_index(const struct lgpu_state *s, CUdevice device)
{
	CUuuid uuid;
	// The older form answers with the whole device where the newer names a part of it.
	int index = -2;
	if (LGPU_REAL(cuDeviceGetUuid)(&uuid, device) == CUDA_SUCCESS)
		index = lgpu_uuid_index(s->limits, (const uint8_t *)uuid.bytes);
	if (index < 0 && LGPU_REAL(cuDeviceGetUuid_v2)(&uuid, device) == CUDA_SUCCESS)
		index = lgpu_uuid_index(s->limits, (const uint8_t *)uuid.bytes);
	return index;
}

int lgpu_limits_index(CUdevice device)
{
	struct lgpu_process *p = lgpu_process;
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || device < 0 || (size_t)device >= sizeof p->device)
		return -1;
	int known = __atomic_load_n(&p->device[device], __ATOMIC_RELAXED);
	if (known == 0) {
		int index = find_index(s, device);
		if (index == -2)
			return -1;
		known = index >= 0 ? index + 1 : -1;
		__atomic_store_n(&p->device[device], (signed char)known, __ATOMIC_RELAXED);
	}
	return known > 0 ? known - 1 : -1;
}

int lgpu_current(CUcontext *context)
{
	CUdevice device;
	*context = NULL;
	if (LGPU_REAL(cuCtxGetCurrent)(context) != CUDA_SUCCESS || *context == NULL ||
	    LGPU_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return -1;
	return lgpu_limits_index(device);
}
