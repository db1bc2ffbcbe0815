// SPDX-License-Identifier: Apache-2.0

// process.h: this process and its lgpu: what it may use, which client it is, and the
// region that it shares with the lgpu's other processes.
//
// liblgpu.so stands between a program and NVIDIA's two driver libraries. It does
// nothing when it is loaded: everything begins with the first call, which attaches
// the process (view/view.h).
#ifndef LGPU_PROCESS_H
#define LGPU_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "driver/driver.h"
#include "process/region_gen.h"

// A process's share of a counter: held is the amount that it has taken. Of that
// pending is for calls under way, which the driver may have granted or not.
struct lgpu_account {
	uint32_t lock;
	uint32_t pad;
	int64_t held;
	uint64_t pending;
};

// The index of page-locked host memory, beside those of devices in the limits.
#define LGPU_HOST (-2)

struct lgpu_state {
	const struct lgpu_limits *limits; // read-only
	struct lgpu_usage *usage;
	uint32_t client; // index of this process among the lgpu's clients; LGPU_MAX_CLIENTS: it is none
	int fd;          // the region's file, or that of usage alone; use lgpu_region_fd
	bool filter;     // the lgpu names its devices: hide all others
	bool linked;     // to a daemon, which knows which clients live and which one has the device
	const char *path;  // of the region, or of the daemon's socket
	const char *turns; // folder of the turn pages; NULL: linked
	struct lgpu_hami *hami; // what HAMi's monitor sees; NULL: it sees nothing
	struct lgpu_account host;
	struct lgpu_account device[LGPU_MAX_DEVICES];
};

// Which file a descriptor is of: a program may close one of ours, and be given its
// number for another file.
struct lgpu_file {
	uint64_t dev, ino;
};

// The connection to the daemon (daemon/daemon.c).
struct lgpu_connection {
	uint32_t lock;     // guards fd, socket, up and needs
	uint32_t needs;    // how many Needs were sent; their answers have come or will come
	uint32_t answered; // event count: answers to Need
	bool up;
	bool listening; // the thread that hears the daemon runs
	bool halted;    // all gates are closed, or close
	bool parked;    // there is no connection, and nothing leads out of the process; of the listening thread, as what follows
	bool fresh;     // nothing has been launched since it has rejoined
	uint64_t halt;  // Serial of the Halt that is to be answered, while until is not 0
	int64_t until;  // it is to be answered, ns
	int fd;
	struct lgpu_file socket, usage;
	uint64_t id; // of the lgpu
};

// All that is this process's own. It lives in a page that a forked child finds
// empty, and so begins unattached.
struct lgpu_process {
	struct lgpu_state *attached; // set once it is a client
	struct lgpu_state *viewed;   // set once the region is mapped
	struct lgpu_state state;
	uint32_t lock;    // attaching
	uint32_t reclaim; // one thread at a time looks for dead clients: record locks do not exclude threads
	uint32_t init;    // cuInit
	bool broken, unlimited, initialised;
	int32_t pid;
	int32_t attacher; // the thread that holds lock to attach
	int64_t next_reclaim;
	struct lgpu_file region;
	struct lgpu_connection daemon;
	signed char device[64]; // index in the limits + 1 of each CUdevice; -1 when it is not in the lgpu
};
extern struct lgpu_process *lgpu_process;

// lgpu_process_page returns this process's, and makes it if need be. NULL: there
// is no memory for it.
struct lgpu_process *lgpu_process_page(void);

// lgpu_attached returns the state of a process that is a client of its lgpu, else
// NULL: nothing is limited then, and the driver not initialised.
static inline struct lgpu_state *lgpu_attached(void)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	return p != NULL ? __atomic_load_n(&p->attached, __ATOMIC_ACQUIRE) : NULL;
}

// lgpu_viewed returns the state of a process that has mapped its region.
static inline struct lgpu_state *lgpu_viewed(void)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	return p != NULL ? __atomic_load_n(&p->viewed, __ATOMIC_ACQUIRE) : NULL;
}

// Functions, up to a NULL, that make a forked child forget its copies of what its
// parent has: the child holds nothing. They are of higher modules; hook/wiring.c
// names them.
extern void (*const lgpu_forget[])(void);

// ---- devices (devices.c)

// lgpu_limits_index returns the index in the limits of one of the driver's
// devices, or -1.
int lgpu_limits_index(CUdevice device);
// lgpu_current returns the index in the limits of the calling thread's current
// device, or -1, and stores its context.
int lgpu_current(CUcontext *context);
// lgpu_uuid_index returns the index in the limits of the device with uuid, or -1.
int lgpu_uuid_index(const struct lgpu_limits *limits, const uint8_t uuid[16]);

// lgpu_uuid_text writes a device's UUID as the driver does: "GPU-", or "MIG-" of a MIG instance, and 36 characters.
#define LGPU_UUID_TEXT 41
void lgpu_uuid_text(const struct lgpu_device_limits *device, char text[LGPU_UUID_TEXT]);
// lgpu_uuid_parse reads "GPU-" or "MIG-", and 32 hexadecimal digits with dashes.
bool lgpu_uuid_parse(const char *text, uint8_t uuid[16]);

// ---- the region (region.c)

// lgpu_region_map opens, checks and maps the region that begins at base of a
// file, and completes the state of p. With own_limits the limits are mapped as
// a writable copy. False: it cannot be used, and why has been said.
bool lgpu_region_map(struct lgpu_process *p, const char *path, off_t base, bool own_limits);

// lgpu_region_valid checks limits that came from where, which is named if they
// cannot be used.
bool lgpu_region_valid(const struct lgpu_limits *limits, const char *where);

// lgpu_usage_map maps the tenants' part of a region, which begins at base of a
// file, or returns NULL.
struct lgpu_usage *lgpu_usage_map(int fd, off_t base);

// lgpu_region_keep replaces limits and usage by private copies at the same addresses. False: there is no memory for them,
// and they are as before. lgpu_region_replace moves the mappings of a region, of as many devices, there.
bool lgpu_region_keep(const struct lgpu_state *state);
void lgpu_region_replace(const struct lgpu_state *state, struct lgpu_limits *limits, struct lgpu_usage *usage);
// lgpu_region_unmap gives up the mappings of a region, each of which may be NULL.
void lgpu_region_unmap(struct lgpu_limits *limits, struct lgpu_usage *usage);

// lgpu_region_fd returns the descriptor of the region, opened again if the
// program has closed it; -1 when that fails.
int lgpu_region_fd(struct lgpu_state *state);

// lgpu_file_of stores which file a descriptor is of; lgpu_file_is reports whether
// it is of that one.
bool lgpu_file_of(int fd, struct lgpu_file *file);
bool lgpu_file_is(int fd, const struct lgpu_file *file);

// lgpu_open_high opens a file for reading and writing, out of the way of
// programs that count on low descriptors or close them all up to some number.
// lgpu_raise moves a descriptor there.
int lgpu_open_high(const char *path, int flags);
int lgpu_raise(int fd);

// Leases: record locks on the byte of index, which no crash leaves behind.
// lgpu_lease takes it (false: somebody has it), lgpu_lease_drop gives it back,
// lgpu_lease_dead reports whether no other process has it.
bool lgpu_lease(int fd, uint32_t index);
void lgpu_lease_drop(int fd, uint32_t index);
bool lgpu_lease_dead(int fd, uint32_t index);

#endif
