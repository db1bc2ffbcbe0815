// core.h: what the parts of liblgpu.so share.
//
// The library stands between a program and NVIDIA's two driver libraries. It
// does nothing when it is loaded: everything begins with the first call.
#ifndef LGPU_CORE_H
#define LGPU_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lgpu_cuda.h"
#include "lgpu_nvml.h"

#include "counter.h"
#include "daemon.h"
#include "region.h"
#include "symbols.h"
#include "symbols_gen.h"

// A function that stands in for the driver's.
#define LGPU_EXPORT __attribute__((visibility("default")))

// Log levels; LGPU_LOG names the highest that is printed on stderr.
enum lgpu_log_level { LGPU_LOG_ERROR = 1, LGPU_LOG_WARN, LGPU_LOG_INFO, LGPU_LOG_DEBUG };
void lgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

// lgpu_number reads a C integer literal (decimal, 0x, leading 0 for octal) and
// stores where it ended. False: there is none, or it needs more than 64 bits.
bool lgpu_number(const char *text, uint64_t *value, const char **end);

// ---- the driver's libraries (real.c)

// lgpu_symbol_find returns the number of the symbol called name, or -1.
int lgpu_symbol_find(const char *name);

// A slot holds the driver's function once it is known. Those of passed symbols
// begin with a forwarder that finds it; those of hooked ones with NULL.
extern void *lgpu_slots[LGPU_SYM_COUNT];
void *lgpu_slot_resolve(unsigned number);

static inline void *lgpu_slot(unsigned number)
{
	void *f = __atomic_load_n(&lgpu_slots[number], __ATOMIC_RELAXED);
	return f != NULL ? f : lgpu_slot_resolve(number);
}

// LGPU_REAL(cuMemFree_v2)(p) calls the driver's function. A function that the
// driver lacks returns an error.
#define LGPU_REAL(name) ((__typeof__(&name))lgpu_slot(LGPU_SYM_##name))

// lgpu_real_find returns the driver's address of a symbol, or NULL. With
// load, the library is loaded if need be.
void *lgpu_real_find(unsigned number, bool load);
// lgpu_real_adopt makes an already loaded library the driver's, if none is yet.
void lgpu_real_adopt(enum lgpu_library library, const char *path);
// lgpu_is_driver reports whether path is that of the driver's library.
bool lgpu_is_driver(enum lgpu_library library, const char *path);

// lgpu_second_copy reports whether we have the place of libnvidia-ml.so.1: a
// process that uses CUDA as well has a copy of us for each.
bool lgpu_second_copy(void);

// lgpu_libc finds a function of libc, libdl or libpthread. What moved between
// those libraries, or got a newer version, cannot be linked to by a library
// that must run with every glibc since 2.17.
void *lgpu_libc(const char *name);
// lgpu_elf_find returns the address of a function that the loaded object with
// these program headers defines, or NULL.
struct dl_phdr_info;
void *lgpu_elf_find(const struct dl_phdr_info *object, const char *name);

// lgpu_thread_start runs fn(arg) in a new detached thread in which all signals
// are blocked: the program's handlers never run there.
bool lgpu_thread_start(void *(*fn)(void *), void *arg);

// ---- the process and its lgpu (state.c)

// A process's share of a counter: held is the amount that it has taken. Of that
// pending is for calls under way, which the driver may have granted or not.
struct lgpu_account {
	uint32_t lock;
	uint32_t pad;
	int64_t held;
	uint64_t pending;
};

struct lgpu_state {
	const struct lgpu_limits *limits; // read-only
	struct lgpu_usage *usage;
	uint32_t client; // index of this process's slot; LGPU_MAX_CLIENTS: none
	int fd;          // the region's file, or that of usage alone; use lgpu_region_fd
	bool filter;     // the lgpu names its devices: hide all others
	bool linked;     // to a daemon, which knows who lives and who has the device
	const char *path;  // of the region, or of the daemon's socket
	const char *turns; // folder of the turn pages; NULL: linked
	struct lgpu_hami *hami;
	struct lgpu_account host;
	struct lgpu_account device[LGPU_MAX_DEVICES];
};

// Whether and how this process is limited.
enum lgpu_attachment {
	LGPU_UNLIMITED, // no lgpu in the environment: stand aside
	LGPU_ATTACHED,
	LGPU_BROKEN, // there is one, but it cannot be used: no GPU for this process
};

// lgpu_attach maps the region of the lgpu named by the environment and takes a
// client slot in it. Later calls return what the first found.
enum lgpu_attachment lgpu_attach(void);
// lgpu_attach_view is the same without a client slot: for programs that only
// look.
enum lgpu_attachment lgpu_attach_view(void);
// lgpu_configured reports whether the environment names an lgpu.
bool lgpu_configured(void);

extern struct lgpu_process *lgpu_process;
struct lgpu_process {
	struct lgpu_state *attached; // set once a slot is held
	struct lgpu_state *viewed;   // set once the region is mapped
	struct lgpu_state state;
	uint32_t lock;    // attaching
	uint32_t reclaim; // one thread at a time looks for dead clients: record locks do not exclude threads
	uint32_t init;    // cuInit
	bool broken, unlimited, initialised;
	int32_t pid;
	int32_t attacher; // the thread that holds lock to attach
	int64_t next_reclaim;
	uint64_t dev, ino; // of the region's file
	struct lgpu_daemon daemon;
	signed char device[64];  // index in the limits + 1 of each CUdevice; -1 when it is not in the lgpu
};

// lgpu_attached returns the state of a process that has a client slot, else
// NULL: nothing is limited then, and the driver not initialised. The state
// lives in a page that a forked child finds empty.
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

// lgpu_limits_index returns the index in the limits of one of the driver's
// devices, or -1.
int lgpu_limits_index(CUdevice device);
// lgpu_uuid_index returns the index in the limits of the device with uuid, or -1.
int lgpu_uuid_index(const struct lgpu_limits *limits, const uint8_t uuid[16]);
// lgpu_uuid_text writes a UUID as the driver does, "GPU-" and 36 characters.
void lgpu_uuid_text(const uint8_t uuid[16], char text[41]);
// lgpu_current returns the index in the limits of the calling thread's current
// device, or -1, and stores its context.
int lgpu_current(CUcontext *context);

// lgpu_region_fd returns the descriptor of the region, opened again if the
// program has closed it; -1 when that fails.
int lgpu_region_fd(struct lgpu_state *state);

// lgpu_open_high opens a file for reading and writing, out of the way of
// programs that count on low descriptors or close them all up to some number.
int lgpu_open_high(const char *path, int flags);

// Leases: record locks on the byte of index, which no crash leaves behind.
// lgpu_lease takes it (false: somebody has it), lgpu_lease_drop gives it back,
// lgpu_lease_dead reports whether no other process has it.
bool lgpu_lease(int fd, uint32_t index);
void lgpu_lease_drop(int fd, uint32_t index);
bool lgpu_lease_dead(int fd, uint32_t index);

// lgpu_reclaim gives back what dead clients hold and frees their slots, where
// no daemon does.
void lgpu_reclaim(struct lgpu_state *state);
// lgpu_reclaim_sometimes does so if it was not done within the last 50 ms.
void lgpu_reclaim_sometimes(struct lgpu_state *state);

// ---- accounting (charge.c)

// lgpu_charge takes bytes of device memory, or of page-locked host memory when
// index is LGPU_HOST. False: over the limit, nothing taken.
#define LGPU_HOST (-2)
bool lgpu_charge(struct lgpu_state *state, int index, uint64_t bytes);
// lgpu_charge_ahead takes what a call may need at most, before it is made. The
// most that the lgpu has ever held does not follow it: lgpu_charge_seen notes
// that, once what was not needed is given back.
bool lgpu_charge_ahead(struct lgpu_state *state, int index, uint64_t bytes);
void lgpu_charge_seen(struct lgpu_state *state, int index);
// lgpu_uncharge gives back what lgpu_charge took.
void lgpu_uncharge(struct lgpu_state *state, int index, uint64_t bytes);
// lgpu_charge_most takes as much of bytes as the limit leaves and returns it:
// for memory that is taken already and cannot be refused.
uint64_t lgpu_charge_most(struct lgpu_state *state, int index, uint64_t bytes);
// lgpu_overhead returns what of a device this process is charged beyond what
// its calls have asked for: contexts, code and the driver's own.
uint64_t lgpu_overhead(int index);
// lgpu_used returns what all clients of the lgpu hold.
uint64_t lgpu_used(const struct lgpu_state *state, int index);
// lgpu_left returns what the limit leaves.
uint64_t lgpu_left(const struct lgpu_state *state, int index);
// lgpu_held returns what one client holds of a device.
uint64_t lgpu_held(const struct lgpu_state *state, uint32_t client, int index);

#endif
