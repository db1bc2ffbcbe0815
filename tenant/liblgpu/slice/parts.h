// SPDX-License-Identifier: Apache-2.0

// parts.h: channel groups, for the files of this module.
#ifndef LGPU_SLICE_PARTS_H
#define LGPU_SLICE_PARTS_H

#include "process/process.h"
#include "slice/slice.h"

// Channel groups that are remembered; a context has one for compute.
#define LGPU_SLICE_GROUPS 1024
// The driver's own slice, in µs, where it could not be read before it was changed.
#define LGPU_SLICE_DEFAULT 2048

struct lgpu_slice_group;

// What a driver answers about a group.
enum lgpu_slice_answer {
	LGPU_SLICE_DONE,
	LGPU_SLICE_REFUSED,
	LGPU_SLICE_GONE, // there is no such group any more
};

// A way to read and to set the slice of a group, in µs.
struct lgpu_slice_driver {
	enum lgpu_slice_answer (*get)(const struct lgpu_slice_group *g, uint64_t *micros);
	enum lgpu_slice_answer (*set)(const struct lgpu_slice_group *g, uint64_t micros);
};
extern const struct lgpu_slice_driver lgpu_slice_rm, lgpu_slice_sim;

struct lgpu_slice_group {
	uint64_t serial; // unlike that of any other group; 0: the entry is free
	const struct lgpu_slice_driver *driver;
	// Which group it is: for the software GPU the context, for the resource manager
	// the open file and the handles of the client, the device and the group.
	CUcontext context;
	int fd;
	uint32_t client, parent, handle;

	int device;     // index in the limits; -1: not known yet
	int32_t thread; // that made it
	int64_t made;   // when, ns
	bool settled;   // its context is complete: the driver will not set its slice any more
	// Since the slice was set, else zero:
	bool set;
	bool refused;  // the last attempt was
	uint64_t own;  // the driver's own slice, µs
	uint64_t seen; // in force after it was set last, µs; 0: unknown
};

// All of this process. The kernel wipes it in a forked child, whose groups are not
// those of its parent.
struct lgpu_slices {
	bool ready;
	bool asked;    // of any device
	uint32_t lock; // guards what follows; held while the driver is asked
	int64_t looked;
	struct lgpu_slice_device {
		bool contexts;  // there was one
		uint64_t asked; // by the daemon, µs; 0: the driver's own
		uint64_t value; // that was last said
		uint32_t flags;
	} device[LGPU_MAX_DEVICES];

	uint32_t making; // contexts; atomic
	uint32_t table;  // guards what follows; held for no system call
	bool learned;   // there was a group
	bool missed;    // there was no room for one
	uint32_t used;  // entries that may be in use: all before this one
	uint64_t serial;
	struct lgpu_slice_group group[LGPU_SLICE_GROUPS];
};
extern struct lgpu_slices *lgpu_slices;

// lgpu_slices_ready returns them, or NULL: nothing is noticed in this process.
static inline struct lgpu_slices *lgpu_slices_ready(void)
{
	struct lgpu_slices *all = __atomic_load_n(&lgpu_slices, __ATOMIC_ACQUIRE);
	return all != NULL && __atomic_load_n(&all->ready, __ATOMIC_ACQUIRE) ? all : NULL;
}

// ---- groups.c

// lgpu_groups_add remembers a group, unless it is known. Its device may be told from
// that of others of the same parent.
void lgpu_groups_add(struct lgpu_slices *all, const struct lgpu_slice_group *g);
// lgpu_groups_free forgets what ends with an object of the resource manager: a
// group, the device above it, or the client. lgpu_groups_ended forgets those of a
// context.
void lgpu_groups_free(struct lgpu_slices *all, uint32_t client, uint32_t object);
void lgpu_groups_ended(struct lgpu_slices *all, CUcontext context);
// lgpu_groups_settle settles the groups that thread has made, as those of a device;
// lgpu_groups_settle_old those that are older than a moment, unless a context is being
// made. True: there were any.
bool lgpu_groups_settle(struct lgpu_slices *all, int32_t thread, int device);
bool lgpu_groups_settle_old(struct lgpu_slices *all, int64_t before);
// lgpu_groups_next copies the settled group of a device at *i or after it, and
// stores where it is. False: there is none.
bool lgpu_groups_next(struct lgpu_slices *all, int device, uint32_t *i, struct lgpu_slice_group *copy);
// lgpu_groups_keep writes a copy back, or forgets its group, if that is still there.
void lgpu_groups_keep(struct lgpu_slices *all, uint32_t i, const struct lgpu_slice_group *copy);
void lgpu_groups_forget(struct lgpu_slices *all, uint32_t i, const struct lgpu_slice_group *copy);

// ---- rm.c

// lgpu_rm_hook has the driver's library call our ioctl, if it does not.
void lgpu_rm_hook(void);

// ---- sim.c

// lgpu_sim_find reports whether the driver is the software GPU's, and finds its
// functions.
bool lgpu_sim_find(void);
// lgpu_sim_there is what lgpu_sim_find has said.
bool lgpu_sim_there(void);

// ---- redirect.c

// lgpu_driver_symbol returns the address of a symbol that the driver's library
// defines besides those of CUDA, or NULL.
void *lgpu_driver_symbol(const char *name);
// lgpu_driver_redirect has the driver's library call function where it calls name,
// unless it calls ours already. False: it does not call it, or it cannot be changed.
bool lgpu_driver_redirect(const char *name, void *ours, void *function);

#endif
