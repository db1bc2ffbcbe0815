// SPDX-License-Identifier: Apache-2.0

// HAMi mode: the limits are in HAMi's environment, and HAMi's monitor can read the file
// of the region. The file begins with HAMi's region v1.2; our own region follows.
// Nothing that is read from HAMi's part is relied on: the limits come from the
// environment at each start, and the amounts from our part.
#include "alone/hami.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/futex.h"

#define HAMI_MAGIC 19920718
#define HAMI_PROCS 1024
#define HAMI_BYTES 2008953 // of the file: the structure and one byte more
#define DEFAULT_CACHE "/tmp/cudevshr.cache"
#define INITIAL_PID_NAMESPACE UINT64_C(4026531836)

struct hami_used {
	uint64_t context, module, data, offset, total, spare[3];
};

struct hami_util {
	uint64_t dec, enc, sm, spare[3];
};

struct hami_proc {
	int32_t pid, hostpid;
	struct hami_used used[16];
	uint64_t monitorused[16];
	struct hami_util util[16];
	int32_t status, pad;
	uint64_t seqlock, spare[2];
};
_Static_assert(sizeof(struct hami_proc) == 1960, "process");
_Static_assert(offsetof(struct hami_proc, used) == 8, "used");
_Static_assert(offsetof(struct hami_proc, monitorused) == 1032, "monitorused");
_Static_assert(offsetof(struct hami_proc, util) == 1160, "util");
_Static_assert(offsetof(struct hami_proc, status) == 1928, "status");
_Static_assert(offsetof(struct hami_proc, seqlock) == 1936, "seqlock");

struct lgpu_hami {
	int32_t initialized;
	uint32_t major, minor;
	int32_t sm_init;
	uint64_t owner_pid;
	uint64_t sem[4];
	uint64_t device_num;
	char uuids[16][96];
	uint64_t limit[16];
	uint64_t sm_limit[16];
	struct hami_proc procs[HAMI_PROCS];
	int32_t proc_num, utilization_switch, recent_kernel, priority;
	uint64_t last_kernel_time;
	uint64_t postinit[4];
};
_Static_assert(sizeof(struct lgpu_hami) == 2008952, "region");
_Static_assert(offsetof(struct lgpu_hami, owner_pid) == 16, "owner_pid");
_Static_assert(offsetof(struct lgpu_hami, sem) == 24, "sem");
_Static_assert(offsetof(struct lgpu_hami, device_num) == 56, "device_num");
_Static_assert(offsetof(struct lgpu_hami, uuids) == 64, "uuids");
_Static_assert(offsetof(struct lgpu_hami, limit) == 1600, "limit");
_Static_assert(offsetof(struct lgpu_hami, sm_limit) == 1728, "sm_limit");
_Static_assert(offsetof(struct lgpu_hami, procs) == 1856, "procs");
_Static_assert(offsetof(struct lgpu_hami, proc_num) == 2008896, "proc_num");
_Static_assert(offsetof(struct lgpu_hami, recent_kernel) == 2008904, "recent_kernel");
_Static_assert(offsetof(struct lgpu_hami, last_kernel_time) == 2008912, "last_kernel_time");
_Static_assert(HAMI_PROCS >= LGPU_MAX_CLIENTS, "a client has the same index in HAMi's table");

// ---- the environment

// size_of reads a limit as HAMi writes it: a C integer literal and perhaps g, m
// or k. False: it is none, or does not fit 64 bits.
static bool size_of(const char *text, uint64_t *value)
{
	const char *end;
	if (!lgpu_number(text, value, &end))
		return false;
	int shift = (*end | 0x20) == 'g' ? 30 : (*end | 0x20) == 'm' ? 20 : (*end | 0x20) == 'k' ? 10 : 0;
	if (shift != 0)
		end++;
	if (*end != 0 || *value > UINT64_MAX >> shift)
		return false;
	*value <<= shift;
	return true;
}

// limit_of reads the limit called name, that of device i before that of all.
// False: it says something that is not understood. Absent and empty leave
// *value as it is.
static bool limit_of(const char *name, uint32_t i, uint64_t *value)
{
	char own[64];
	snprintf(own, sizeof own, "%s_%u", name, i);
	const char *text = getenv(own);
	if (text == NULL) {
		text = getenv(name);
		snprintf(own, sizeof own, "%s", name);
	}
	if (text == NULL || text[0] == 0 || size_of(text, value))
		return true;
	lgpu_log(LGPU_LOG_ERROR, "%s=%s is not a limit; there is no GPU for this process", own, text);
	return false;
}

// set_limits sets the limits of l's devices from the environment. False: it
// says something that is not understood, and what has been said.
static bool set_limits(struct lgpu_limits *l)
{
	const char *policy = getenv("GPU_CORE_UTILIZATION_POLICY");
	bool capped = policy == NULL || (strcmp(policy, "disable") != 0 && strcmp(policy, "DISABLE") != 0);
	if (lgpu_true(getenv("CUDA_OVERSUBSCRIBE"))) {
		static bool said;
		if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
			lgpu_log(LGPU_LOG_ERROR, "CUDA_OVERSUBSCRIBE does nothing without a daemon: memory limits are hard; lgpu run --overcommit starts "
				"programs whose memory can leave the device");
	}
	for (uint32_t i = 0; i < l->devices; i++) {
		uint64_t memory = 0, percent = 0;
		if (!limit_of("CUDA_DEVICE_MEMORY_LIMIT", i, &memory) || !limit_of("CUDA_DEVICE_SM_LIMIT", i, &percent))
			return false;
		l->device[i].memory = memory != 0 ? memory : LGPU_NO_LIMIT;
		l->device[i].compute = capped && percent > 0 && percent < 100 ? (uint32_t)percent * 100 : (uint32_t)LGPU_FULL_COMPUTE;
	}
	return true;
}

// ---- the file

// devices asks NVML for the devices: unlike CUDA's, its list does not depend
// on CUDA_VISIBLE_DEVICES.
static bool devices(struct lgpu_limits *l)
{
	unsigned int count = 0;
	if (LGPU_REAL(nvmlInit_v2)() != NVML_SUCCESS || LGPU_REAL(nvmlDeviceGetCount_v2)(&count) != NVML_SUCCESS)
		return false;
	for (unsigned int i = 0; i < count && l->devices < LGPU_MAX_DEVICES; i++) {
		nvmlDevice_t device;
		char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
		nvmlMemory_t memory;
		struct lgpu_device_limits *d = &l->device[l->devices];
		if (LGPU_REAL(nvmlDeviceGetHandleByIndex_v2)(i, &device) != NVML_SUCCESS ||
		    LGPU_REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NVML_SUCCESS || !lgpu_uuid_parse(text, d->uuid))
			continue;
		if (LGPU_REAL(nvmlDeviceGetMemoryInfo)(device, &memory) == NVML_SUCCESS)
			d->physical = memory.total;
		l->devices++;
	}
	return l->devices != 0;
}

static void fill(struct lgpu_hami *h, const struct lgpu_limits *l)
{
	h->device_num = l->devices;
	for (uint32_t i = 0; i < l->devices; i++) {
		lgpu_uuid_text(&l->device[i], h->uuids[i]);
		h->limit[i] = l->device[i].memory != LGPU_NO_LIMIT ? l->device[i].memory : 0;
		h->sm_limit[i] = l->device[i].compute / 100;
	}
}

static bool write_at(int fd, const void *data, size_t size, off_t offset)
{
	return pwrite(fd, data, size, offset) == (ssize_t)size;
}

// create makes the file whole under another name and links it into place, so
// that nobody sees half of it. Losing the race to another process is success.
static bool create(const char *path, const struct lgpu_limits *l)
{
	char temporary[1100];
	struct lgpu_hami *h = calloc(1, sizeof *h);
	if (h == NULL || snprintf(temporary, sizeof temporary, "%s.%d.new", path, (int)getpid()) >= (int)sizeof temporary) {
		free(h);
		return false;
	}
	h->major = 1;
	h->minor = 2;
	h->owner_pid = (uint64_t)getpid();
	h->sem[0] = h->postinit[0] = 1; // a free semaphore, should a reader of old wait for it
	h->utilization_switch = 1;
	h->recent_kernel = 2;
	h->priority = 1;
	h->sm_init = 1;
	h->initialized = HAMI_MAGIC;
	fill(h, l);
	unlink(temporary);
	int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	bool made = fd >= 0 && fchmod(fd, 0666) == 0 && write_at(fd, h, sizeof *h, 0) &&
		    write_at(fd, l, sizeof *l, LGPU_HAMI_BASE) &&
		    ftruncate(fd, (off_t)(LGPU_HAMI_BASE + LGPU_LIMITS_BYTES + sizeof(struct lgpu_usage))) == 0 &&
		    (link(temporary, path) == 0 || errno == EEXIST);
	int error = errno;
	if (fd >= 0) {
		close(fd);
		unlink(temporary);
	}
	free(h);
	if (!made)
		lgpu_log(LGPU_LOG_ERROR, "make %s: %s; there is no GPU for this process", path, strerror(error));
	return made;
}

// settle_boot forgets debts of before the machine's last start: the cache file
// outlives it, the clock that horizons are told by does not.
static void settle_boot(struct lgpu_state *s)
{
	char id[64];
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, id, sizeof id) : 0;
	if (fd >= 0)
		close(fd);
	uint64_t boot = UINT64_C(14695981039346656037); // FNV-1a
	for (ssize_t i = 0; i < n; i++)
		boot = (boot ^ (unsigned char)id[i]) * UINT64_C(1099511628211);
	uint64_t seen = __atomic_load_n(&s->usage->boot, __ATOMIC_ACQUIRE);
	if (seen == boot || !__atomic_compare_exchange_n(&s->usage->boot, &seen, boot, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return;
	for (uint32_t i = 0; i < LGPU_MAX_DEVICES; i++) {
		__atomic_store_n(&s->usage->device[i].horizon, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&s->usage->device[i].charged, 0, __ATOMIC_RELAXED);
	}
}

bool lgpu_hami_map(struct lgpu_process *p)
{
	struct lgpu_state *s = &p->state;
	const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
	if (path == NULL || path[0] == 0)
		path = DEFAULT_CACHE;
	if (access(path, F_OK) != 0) {
		struct lgpu_limits fresh = {.magic = LGPU_MAGIC, .version = (uint32_t)LGPU_VERSION, .host_memory = LGPU_NO_LIMIT, .name = "hami"};
		struct timespec now;
		clock_gettime(CLOCK_REALTIME, &now);
		fresh.created_unix_nano = now.tv_sec * LGPU_NANOS + now.tv_nsec;
		if (syscall(SYS_getrandom, &fresh.id, sizeof fresh.id, 0) != sizeof fresh.id)
			fresh.id = (uint64_t)fresh.created_unix_nano ^ (uint64_t)getpid() << 32;
		if (!devices(&fresh)) {
			lgpu_log(LGPU_LOG_ERROR, "NVML names no device; there is no GPU for this process");
			return false;
		}
		if (!set_limits(&fresh) || !create(path, &fresh))
			return false;
	}
	const char *slash = strrchr(path, '/');
	char folder[1024];
	// HAMi mounts this folder into all containers of a host.
	if (access("/tmp/vgpulock", W_OK) == 0)
		snprintf(folder, sizeof folder, "/tmp/vgpulock");
	else
		snprintf(folder, sizeof folder, "%.*s", slash == NULL || slash == path ? 1 : (int)(slash - path), slash == NULL ? "." : path);
	s->path = strdup(path);
	s->turns = strdup(folder);
	if (s->path == NULL || s->turns == NULL || !lgpu_region_map(p, s->path, LGPU_HAMI_BASE, true))
		return false;
	// The copy of the limits is this process's own.
	struct lgpu_limits *l = (struct lgpu_limits *)(uintptr_t)s->limits;
	if (!set_limits(l))
		return false;
	void *h = mmap(NULL, sizeof(struct lgpu_hami), PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
	if (h == MAP_FAILED) {
		lgpu_log(LGPU_LOG_ERROR, "map %s: %s; there is no GPU for this process", path, strerror(errno));
		return false;
	}
	s->hami = h;
	s->filter = false;
	settle_boot(s);
	// The environment beats an old file.
	fill(s->hami, l);
	lgpu_hami_watched = true;
	write_at(s->fd, l, sizeof *l, LGPU_HAMI_BASE);
	return true;
}

// ---- what the monitor sees

void lgpu_hami_claim(struct lgpu_state *state, uint32_t pid, uint64_t namespace)
{
	struct lgpu_hami *h = state->hami;
	struct hami_proc *proc = &h->procs[state->client];
	memset(proc, 0, sizeof *proc);
	proc->pid = (int32_t)pid;
	proc->hostpid = namespace == INITIAL_PID_NAMESPACE ? (int32_t)pid : 0;
	__atomic_store_n(&proc->status, 1, __ATOMIC_RELEASE);
	int32_t count = __atomic_load_n(&h->proc_num, __ATOMIC_RELAXED), need = (int32_t)state->client + 1;
	while (count < need && !__atomic_compare_exchange_n(&h->proc_num, &count, need, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
}

void lgpu_hami_free(struct lgpu_state *state, uint32_t client)
{
	struct hami_proc *proc = &state->hami->procs[client];
	__atomic_store_n(&proc->status, 0, __ATOMIC_RELEASE);
	memset(proc->used, 0, sizeof proc->used);
}

void lgpu_hami_memory(struct lgpu_state *state, int index, int64_t held, uint64_t overhead)
{
	struct hami_proc *proc = &state->hami->procs[state->client];
	uint64_t total = held > 0 ? (uint64_t)held : 0, context = overhead < total ? overhead : total;
	__atomic_add_fetch(&proc->seqlock, 1, __ATOMIC_ACQ_REL);
	proc->used[index].context = context;
	proc->used[index].data = total - context;
	proc->used[index].total = total;
	__atomic_add_fetch(&proc->seqlock, 1, __ATOMIC_ACQ_REL);
}

bool lgpu_hami_watched;

void lgpu_hami_launched(void)
{
	const struct lgpu_state *state = lgpu_attached();
	struct lgpu_hami *h = state != NULL ? state->hami : NULL;
	if (h == NULL)
		return;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	// Written only when they change: the line is shared by all processes.
	if (__atomic_load_n(&h->last_kernel_time, __ATOMIC_RELAXED) != (uint64_t)now.tv_sec)
		__atomic_store_n(&h->last_kernel_time, (uint64_t)now.tv_sec, __ATOMIC_RELAXED);
	if (__atomic_load_n(&h->recent_kernel, __ATOMIC_RELAXED) != 2)
		__atomic_store_n(&h->recent_kernel, 2, __ATOMIC_RELAXED);
}
