// SPDX-License-Identifier: Apache-2.0

// NVML as the tenant sees it: its devices, its limits, its processes.
//
// Other readings (utilisation, clocks, power, temperature) are the device's,
// unscaled. Calls that change the whole device are refused (tenant/abi/nvml.tsv).
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "alone/alone.h"
#include "memory/memory.h"
#include "view/view.h"

#define HANDLES 64
#define ROOM 1024 // processes on one device

// The view of this process, or NULL when it is unlimited.
static struct lgpu_state *view(void)
{
	return lgpu_attach_view() == LGPU_ATTACHED ? lgpu_viewed() : NULL;
}

// Handles are asked about often; which device one means does not change.
static struct {
	nvmlDevice_t handle;
	int index;
} handles[HANDLES];

static int index_of(const struct lgpu_state *s, nvmlDevice_t device)
{
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	uint8_t uuid[16];
	for (int i = 0; i < HANDLES && __atomic_load_n(&handles[i].handle, __ATOMIC_ACQUIRE) != NULL; i++)
		if (handles[i].handle == device)
			return handles[i].index;
	if (LGPU_REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NVML_SUCCESS || !lgpu_uuid_parse(text, uuid))
		return -1;
	int index = lgpu_uuid_index(s->limits, uuid);
	// If the table is in use, go without: a child forked while it was
	// must not wait for ever.
	static bool in_use;
	if (__atomic_exchange_n(&in_use, true, __ATOMIC_ACQUIRE))
		return index;
	for (int i = 0; i < HANDLES; i++) {
		if (handles[i].handle == device)
			break;
		if (handles[i].handle == NULL) {
			handles[i].index = index;
			__atomic_store_n(&handles[i].handle, device, __ATOMIC_RELEASE);
			break;
		}
	}
	__atomic_store_n(&in_use, false, __ATOMIC_RELEASE);
	return index;
}

// ---- begin

// A process whose lgpu cannot be used has no GPU.
static bool broken(void) { return lgpu_attach_view() == LGPU_BROKEN; }

LGPU_EXPORT nvmlReturn_t nvmlInit(void) { return broken() ? NVML_ERROR_DRIVER_NOT_LOADED : LGPU_REAL(nvmlInit)(); }
LGPU_EXPORT nvmlReturn_t nvmlInit_v2(void) { return broken() ? NVML_ERROR_DRIVER_NOT_LOADED : LGPU_REAL(nvmlInit_v2)(); }
LGPU_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	return broken() ? NVML_ERROR_DRIVER_NOT_LOADED : LGPU_REAL(nvmlInitWithFlags)(flags);
}

// ---- which devices

static nvmlReturn_t count(unsigned int *deviceCount, nvmlReturn_t r)
{
	const struct lgpu_state *s = view();
	if (s != NULL && r == NVML_SUCCESS && deviceCount != NULL && *deviceCount > s->limits->devices)
		*deviceCount = s->limits->devices;
	return r;
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
	return count(deviceCount, LGPU_REAL(nvmlDeviceGetCount)(deviceCount));
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	return count(deviceCount, LGPU_REAL(nvmlDeviceGetCount_v2)(deviceCount));
}

static nvmlReturn_t by_index(unsigned int index, nvmlDevice_t *device, nvmlReturn_t (*driver)(unsigned int, nvmlDevice_t *))
{
	const struct lgpu_state *s = view();
	char text[LGPU_UUID_TEXT];
	if (s == NULL || device == NULL)
		return driver(index, device);
	if (index >= s->limits->devices)
		return NVML_ERROR_INVALID_ARGUMENT;
	lgpu_uuid_text(&s->limits->device[index], text);
	return LGPU_REAL(nvmlDeviceGetHandleByUUID)(text, device);
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return by_index(index, device, LGPU_REAL(nvmlDeviceGetHandleByIndex));
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	return by_index(index, device, LGPU_REAL(nvmlDeviceGetHandleByIndex_v2));
}

// hidden answers for a handle found by name: another's device is not there.
static nvmlReturn_t hidden(nvmlDevice_t *device, nvmlReturn_t r)
{
	const struct lgpu_state *s = r == NVML_SUCCESS && device != NULL ? view() : NULL;
	if (s == NULL || index_of(s, *device) >= 0)
		return r;
	*device = NULL;
	return NVML_ERROR_NOT_FOUND;
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
	return hidden(device, LGPU_REAL(nvmlDeviceGetHandleByPciBusId)(pciBusId, device));
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
	return hidden(device, LGPU_REAL(nvmlDeviceGetHandleByPciBusId_v2)(pciBusId, device));
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	return hidden(device, LGPU_REAL(nvmlDeviceGetHandleBySerial)(serial, device));
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	return hidden(device, LGPU_REAL(nvmlDeviceGetHandleByUUID)(uuid, device));
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	return hidden(device, LGPU_REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device));
}

// An instance is found by its number on its parent, whose other instances are other lgpus'.
LGPU_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
	return hidden(migDevice, LGPU_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, index, migDevice));
}

// devices answers a call that lists devices: of the n that the driver has said, with those of the lgpu, as many as there
// is room for, or with their number if there is no room at all. It returns their number.
static unsigned int devices(const struct lgpu_state *s, const nvmlDevice_t *all, unsigned int n, unsigned int *count,
			    nvmlDevice_t *out)
{
	unsigned int room = out != NULL ? *count : 0, own = 0;
	for (unsigned int i = 0; i < n && i < HANDLES; i++)
		if (index_of(s, all[i]) >= 0 && own++ < room)
			out[own - 1] = all[i];
	*count = room != 0 && own > room ? room : own;
	return own;
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int *count,
							  nvmlDevice_t *deviceArray)
{
	const struct lgpu_state *s = count != NULL ? view() : NULL;
	if (s == NULL)
		return LGPU_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, count, deviceArray);
	nvmlDevice_t all[HANDLES];
	unsigned int n = HANDLES;
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, &n, all);
	if (r == NVML_SUCCESS)
		devices(s, all, n, count, deviceArray);
	return r;
}

LGPU_EXPORT nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpuNumber, unsigned int *count, nvmlDevice_t *deviceArray)
{
	const struct lgpu_state *s = count != NULL ? view() : NULL;
	if (s == NULL)
		return LGPU_REAL(nvmlSystemGetTopologyGpuSet)(cpuNumber, count, deviceArray);
	nvmlDevice_t all[HANDLES];
	unsigned int n = HANDLES;
	nvmlReturn_t r = LGPU_REAL(nvmlSystemGetTopologyGpuSet)(cpuNumber, &n, all);
	if (r == NVML_SUCCESS)
		devices(s, all, n, count, deviceArray);
	return r;
}

// Here a list that is too short is an error, with the number that are needed.
LGPU_EXPORT nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned int *deviceCount, nvmlDevice_t *deviceArray)
{
	const struct lgpu_state *s = deviceCount != NULL ? view() : NULL;
	if (s == NULL)
		return LGPU_REAL(nvmlUnitGetDevices)(unit, deviceCount, deviceArray);
	nvmlDevice_t all[HANDLES];
	unsigned int n = HANDLES, room = *deviceCount;
	nvmlReturn_t r = LGPU_REAL(nvmlUnitGetDevices)(unit, &n, all);
	if (r != NVML_SUCCESS)
		return r;
	unsigned int own = devices(s, all, n, deviceCount, deviceArray);
	*deviceCount = own;
	return own > room || (own != 0 && deviceArray == NULL) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetIndex)(device, index);
	const struct lgpu_state *s = r == NVML_SUCCESS && index != NULL ? view() : NULL;
	int i = s != NULL ? index_of(s, device) : -1;
	if (i >= 0)
		*index = (unsigned int)i;
	return r;
}

// ---- memory

// limited returns the view and the index of a device with a memory limit.
static const struct lgpu_state *limited(nvmlDevice_t device, int *index)
{
	struct lgpu_state *s = view();
	*index = s != NULL ? index_of(s, device) : -1;
	if (*index < 0 || s->limits->device[*index].memory == LGPU_NO_LIMIT)
		return NULL;
	lgpu_reclaim_sometimes(s);
	return s;
}

static void shown(const struct lgpu_state *s, int index, unsigned long long *total, unsigned long long *free, unsigned long long *used)
{
	uint64_t limit = __atomic_load_n(&s->limits->device[index].memory, __ATOMIC_RELAXED), taken = lgpu_used(s, index);
	*total = limit < *total ? limit : *total;
	*used = taken < *total ? taken : *total;
	*free = *total - *used < *free ? *total - *used : *free;
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	int index;
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
	const struct lgpu_state *s = r == NVML_SUCCESS && memory != NULL ? limited(device, &index) : NULL;
	if (s != NULL)
		shown(s, index, &memory->total, &memory->free, &memory->used);
	return r;
}

// The driver checks the version. What it has reserved for itself is not the lgpu's.
LGPU_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	int index;
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
	const struct lgpu_state *s = r == NVML_SUCCESS && memory != NULL ? limited(device, &index) : NULL;
	if (s != NULL) {
		shown(s, index, &memory->total, &memory->free, &memory->used);
		memory->reserved = 0;
	}
	return r;
}

// ---- processes

// live reports whether client i lives: the daemon's word for it, or
// the lease. Our own process's lease is invisible to us, and may be held by a
// second copy of this library.
static bool live(const struct lgpu_state *s, uint32_t i)
{
	const struct lgpu_client *c = &s->usage->client[i];
	return __atomic_load_n(&c->state, __ATOMIC_ACQUIRE) == LGPU_CLIENT_LIVE &&
	       (s->linked || c->pid == (uint32_t)getpid() || !lgpu_lease_dead(s->fd, i));
}

static bool ours(const struct lgpu_state *s, unsigned int pid)
{
	for (uint32_t i = 0; i < LGPU_MAX_CLIENTS; i++)
		if (s->usage->client[i].pid == pid && live(s, i))
			return true;
	return false;
}

// The processes of the lgpu that hold memory of a device, with what they hold.
// The list is the region's: NVML's has others' too, and in a PID namespace may
// not know ours.
static unsigned int list(const struct lgpu_state *s, int index, nvmlProcessInfo_v1_t *infos)
{
	unsigned int n = 0;
	for (uint32_t i = 0; i < LGPU_MAX_CLIENTS && n < ROOM; i++) {
		if (__atomic_load_n(&s->usage->client[i].state, __ATOMIC_ACQUIRE) != LGPU_CLIENT_LIVE)
			continue;
		uint64_t held = lgpu_held(s, i, index);
		if (held != 0 && live(s, i))
			infos[n++] = (nvmlProcessInfo_v1_t){s->usage->client[i].pid, held};
	}
	return n;
}

// processes answers the calls that list processes; stride tells apart the
// versions of the entry, whose first two fields are the same.
static nvmlReturn_t processes(const struct lgpu_state *s, int index, unsigned int *count, void *infos, size_t stride)
{
	nvmlProcessInfo_v1_t found[ROOM];
	unsigned int n = list(s, index, found), room = *count;
	*count = n;
	if (n > room || (n > 0 && infos == NULL))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++) {
		char *entry = (char *)infos + i * stride;
		memset(entry, 0xff, stride); // instance ids: not applicable
		memcpy(entry, &found[i], sizeof found[i]);
	}
	return NVML_SUCCESS;
}

// none is what is said of processes on a device that is not the lgpu's, whose handle the program may have as the parent of
// an instance, or from before it was in an lgpu: there are none. r is what the driver says without room for any.
static nvmlReturn_t none(nvmlReturn_t r, unsigned int *count)
{
	if (r != NVML_SUCCESS && r != NVML_ERROR_INSUFFICIENT_SIZE)
		return r;
	*count = 0;
	return NVML_SUCCESS;
}

#define COMPUTE_PROCESSES(name, type)                                                                   \
	LGPU_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, type *infos)        \
	{                                                                                               \
		const struct lgpu_state *s = infoCount != NULL ? view() : NULL;                         \
		int index = s != NULL ? index_of(s, device) : -1;                                       \
		if (s == NULL)                                                                          \
			return LGPU_REAL(name)(device, infoCount, infos);                               \
		return index < 0 ? none(LGPU_REAL(name)(device, &(unsigned int){0}, NULL), infoCount)   \
				 : processes(s, index, infoCount, infos, sizeof(type));                 \
	}

COMPUTE_PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
COMPUTE_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
COMPUTE_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)

// Graphics contexts and those of an MPS server are not accounted apart: a
// process that has one is in the list above.
#define NO_PROCESSES(name, type)                                                                        \
	LGPU_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, type *infos)        \
	{                                                                                               \
		const struct lgpu_state *s = infoCount != NULL ? view() : NULL;                         \
		if (s == NULL)                                                                          \
			return LGPU_REAL(name)(device, infoCount, infos);                               \
		bool own = index_of(s, device) >= 0;                                                    \
		return none(own ? NVML_SUCCESS : LGPU_REAL(name)(device, &(unsigned int){0}, NULL), infoCount); \
	}

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

// keep moves the entries of the lgpu's processes to the beginning of a list of n, and returns how many they are. An entry
// has size bytes, and its process's number lies at pid.
static unsigned int keep(const struct lgpu_state *s, void *entries, unsigned int n, size_t size, size_t pid)
{
	unsigned int kept = 0;
	for (unsigned int i = 0; i < n; i++) {
		const char *entry = (const char *)entries + i * size;
		unsigned int number;
		memcpy(&number, entry + pid, sizeof number);
		if (ours(s, number))
			memmove((char *)entries + kept++ * size, entry, size);
	}
	return kept;
}

#define KEEP(s, entries, n) keep(s, entries, n, sizeof *(entries), offsetof(__typeof__(*(entries)), pid))

// The driver is asked for all processes, whatever room the program has: what is too little for those of the machine may be
// enough for the lgpu's.
LGPU_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
	const struct lgpu_state *s = plist != NULL ? view() : NULL;
	if (s == NULL)
		return LGPU_REAL(nvmlDeviceGetRunningProcessDetailList)(device, plist);
	if (plist->version != LGPU_NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH; // its entries may be larger than ours
	nvmlProcessDetail_v1_t all[ROOM];
	nvmlProcessDetailList_t list = {plist->version, plist->mode, ROOM, all};
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &list);
	if (r != NVML_SUCCESS)
		return r;
	unsigned int n = KEEP(s, all, list.numProcArrayEntries), room = plist->numProcArrayEntries;
	plist->numProcArrayEntries = n;
	if (n > room || (n != 0 && plist->procArray == NULL))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (n != 0)
		memcpy(plist->procArray, all, n * sizeof *all);
	return NVML_SUCCESS;
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
							 unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetProcessUtilization)(device, utilization, processSamplesCount, lastSeenTimeStamp);
	const struct lgpu_state *s = r == NVML_SUCCESS && utilization != NULL && processSamplesCount != NULL ? view() : NULL;
	if (s != NULL)
		*processSamplesCount = KEEP(s, utilization, *processSamplesCount);
	return r;
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, procesesUtilInfo);
	const struct lgpu_state *s = r == NVML_SUCCESS && procesesUtilInfo != NULL && procesesUtilInfo->procUtilArray != NULL ? view() : NULL;
	if (s != NULL)
		procesesUtilInfo->processSamplesCount = KEEP(s, procesesUtilInfo->procUtilArray, procesesUtilInfo->processSamplesCount);
	return r;
}

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
	const struct lgpu_state *s = view();
	return s != NULL && !ours(s, pid) ? NVML_ERROR_NOT_FOUND : LGPU_REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);
}

#define SESSIONS(name, type)                                                                            \
	LGPU_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *sessionCount, type *sessions)  \
	{                                                                                               \
		nvmlReturn_t r = LGPU_REAL(name)(device, sessionCount, sessions);                       \
		bool any = r == NVML_SUCCESS && sessionCount != NULL && sessions != NULL;               \
		const struct lgpu_state *s = any ? view() : NULL;                                       \
		if (s != NULL)                                                                          \
			*sessionCount = KEEP(s, sessions, *sessionCount);                               \
		return r;                                                                               \
	}

SESSIONS(nvmlDeviceGetEncoderSessions, nvmlEncoderSessionInfo_t)
SESSIONS(nvmlDeviceGetFBCSessions, nvmlFBCSessionInfo_t)

LGPU_EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
	nvmlReturn_t r = LGPU_REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
	const struct lgpu_state *s = r == NVML_SUCCESS && count != NULL && pids != NULL ? view() : NULL;
	if (s != NULL)
		*count = keep(s, pids, *count, sizeof *pids, 0);
	return r;
}
