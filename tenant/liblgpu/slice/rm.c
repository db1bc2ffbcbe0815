// SPDX-License-Identifier: Apache-2.0

// The slices of channel groups of NVIDIA's resource manager, the part of the driver
// that is in the kernel.
//
// The driver's library makes a channel group for each context by an ioctl on
// /dev/nvidiactl. A handle of it is good only on the open file that made it, so the
// ioctl is where the group must be noticed: we have an ioctl of our own, which every
// call in the process comes through if we are preloaded. Otherwise the driver's
// library alone is made to call it. Whatever it sees, it passes on unchanged; all
// that it does is to note groups that were made, and to forget those that end.
//
// Numbers and layouts are those of NVIDIA's open-gpu-kernel-modules:
// nv-ioctl-numbers.h, nvos.h, alloc_channel.h, ctrla06c.h, nvstatuscodes.h.
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/futex.h"
#include "slice/parts.h"

#define CONTROL_MAJOR 195 // of /dev/nvidiactl
#define CONTROL_MINOR 255

// NVOS00_PARAMETERS
struct rm_free {
	uint32_t client, parent, object, status;
};

// NVOS21_PARAMETERS, and NVOS64_PARAMETERS, which has more at its end.
struct rm_alloc {
	uint32_t client, parent, object, class;
	uint64_t parameters;
	uint32_t size, status;
};
struct rm_alloc_rights {
	uint32_t client, parent, object, class;
	uint64_t parameters, rights;
	uint32_t size, flags, status, pad;
};

// NVOS54_PARAMETERS
struct rm_control {
	uint32_t client, object, command, flags;
	uint64_t parameters;
	uint32_t size, status;
};

#define RM_TYPE 'F'
#define RM_FREE _IOWR(RM_TYPE, 0x29, struct rm_free)
#define RM_CONTROL _IOWR(RM_TYPE, 0x2a, struct rm_control)
#define RM_ALLOC _IOWR(RM_TYPE, 0x2b, struct rm_alloc)
#define RM_ALLOC_RIGHTS _IOWR(RM_TYPE, 0x2b, struct rm_alloc_rights)
_Static_assert(RM_FREE == 0xc0104629 && RM_CONTROL == 0xc020462a && RM_ALLOC == 0xc020462b && RM_ALLOC_RIGHTS == 0xc030462b,
	       "the driver's requests");

#define CLASS_GROUP 0xa06c // KEPLER_CHANNEL_GROUP_A
#define ENGINE_COMPUTE 1   // NV2080_ENGINE_TYPE_GRAPHICS, which computes too; others copy
#define SET_TIMESLICE 0xa06c0103
#define GET_TIMESLICE 0xa06c0104

// NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, as far as it matters.
struct rm_group {
	uint32_t errors, ecc_errors, address_space, engine;
};

// What the resource manager says of a handle that is none.
#define INVALID_CLIENT 0x23
#define INVALID_OBJECT_HANDLE 0x33
#define OBJECT_NOT_FOUND 0x57

// ---- whose ioctl is the next

typedef int (*ioctl_function)(int fd, unsigned long request, ...);

static int plain(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *);
	va_end(args);
	return (int)syscall(SYS_ioctl, fd, request, arg);
}

struct search {
	bool behind; // only in objects that were loaded after ours
	bool passed;
	ioctl_function found;
};

static int search_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct search *s = arg;
	if (lgpu_elf_holds(object, &lgpu_symbols))
		s->passed = true;
	else if (s->passed || !s->behind)
		s->found = (ioctl_function)lgpu_elf_find(object, "ioctl");
	return s->found != NULL;
}

// next_of returns what *cache has, and finds that first. Objects are visited in the
// order in which their symbols are looked up. Not by dlsym, which would change what
// the program hears from dlerror.
static ioctl_function next_of(ioctl_function *cache, bool behind)
{
	ioctl_function f = __atomic_load_n(cache, __ATOMIC_RELAXED);
	if (__builtin_expect(f != NULL, 1))
		return f;
	struct search s = {.behind = behind};
	dl_iterate_phdr(search_visit, &s);
	if (s.found == NULL)
		s.found = (ioctl_function)lgpu_libc("ioctl");
	if (s.found == NULL)
		s.found = plain;
	__atomic_store_n(cache, s.found, __ATOMIC_RELAXED);
	return s.found;
}

static ioctl_function behind, first;

// next_ioctl is what the caller of our ioctl would have called without us; its
// library would have found the first one of all.
static ioctl_function next_ioctl(void) { return next_of(&behind, true); }
static ioctl_function first_ioctl(void) { return next_of(&first, false); }

// ---- what is noticed

// is_control reports whether a descriptor is of the resource manager. A program may
// close one of the driver's, and be given its number for another file.
static bool is_control(int fd)
{
	struct stat st;
	return syscall(SYS_fstat, fd, &st) == 0 && S_ISCHR(st.st_mode) && major(st.st_rdev) == CONTROL_MAJOR &&
	       minor(st.st_rdev) == CONTROL_MINOR;
}

static void note(struct lgpu_slices *all, int fd, const struct rm_alloc *a, uint32_t size, uint32_t status)
{
	if (status != 0 || a->class != CLASS_GROUP || !is_control(fd) || a->parameters == 0)
		return;
	const struct rm_group *group = (const void *)(uintptr_t)a->parameters;
	// A size of 0 stands for that of the whole structure.
	if ((size != 0 && size < sizeof *group) || group->engine != ENGINE_COMPUTE)
		return;
	lgpu_groups_add(all, &(struct lgpu_slice_group){
		.driver = &lgpu_slice_rm,
		.fd = fd,
		.client = a->client,
		.parent = a->parent,
		.handle = a->object,
		.device = -1,
		.thread = (int32_t)syscall(SYS_gettid),
		.made = lgpu_now(),
	});
}

// observed makes an ioctl of the resource manager's type. Where it is no such file
// after all, nothing is read beyond what the request's size covers.
static int observed(ioctl_function next, int fd, uint32_t request, unsigned long whole, void *arg)
{
	struct lgpu_slices *all = lgpu_slices_ready();
	if (all == NULL)
		return next(fd, whole, arg);
	int error = errno;
	// Forgotten before it is gone: the next group may have its handle.
	if (request == RM_FREE && __atomic_load_n(&all->used, __ATOMIC_RELAXED) != 0 && is_control(fd)) {
		const struct rm_free *f = arg;
		lgpu_groups_free(all, f->client, f->object);
	}
	errno = error;
	int result = next(fd, whole, arg);
	if (result != 0)
		return result;
	error = errno;
	if (request == RM_ALLOC)
		note(all, fd, arg, ((const struct rm_alloc *)arg)->size, ((const struct rm_alloc *)arg)->status);
	else if (request == RM_ALLOC_RIGHTS)
		note(all, fd, arg, ((const struct rm_alloc_rights *)arg)->size, ((const struct rm_alloc_rights *)arg)->status);
	errno = error;
	return result;
}

// The kernel has requests of 32 bits, and libc takes more.
static inline bool of_rm(unsigned long request) { return (request & 0xff00) == RM_TYPE << 8; }

LGPU_EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *); // whatever it is, and if there is none, as in libc
	va_end(args);
	if (__builtin_expect(!of_rm(request), 1))
		return next_ioctl()(fd, request, arg);
	return observed(next_ioctl(), fd, (uint32_t)request, request, arg);
}

// redirected is what a driver's library calls that would not have found our ioctl.
static int redirected(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *);
	va_end(args);
	if (!of_rm(request))
		return first_ioctl()(fd, request, arg);
	return observed(first_ioctl(), fd, (uint32_t)request, request, arg);
}

void lgpu_rm_hook(void)
{
	next_ioctl();
	first_ioctl();
	if (!lgpu_driver_redirect("ioctl", (void *)ioctl, (void *)redirected))
		lgpu_log(LGPU_LOG_INFO, "the driver's library calls no ioctl: the time slices of contexts stay as they are");
}

// ---- a group's slice

static enum lgpu_slice_answer control(const struct lgpu_slice_group *g, uint32_t command, uint64_t *micros)
{
	struct rm_control c = {
		.client = g->client,
		.object = g->handle,
		.command = command,
		.parameters = (uint64_t)(uintptr_t)micros,
		.size = sizeof *micros,
	};
	if (!is_control(g->fd))
		return LGPU_SLICE_GONE;
	if (first_ioctl()(g->fd, RM_CONTROL, &c) != 0)
		return LGPU_SLICE_REFUSED;
	switch (c.status) {
	case 0: return LGPU_SLICE_DONE;
	case INVALID_CLIENT:
	case INVALID_OBJECT_HANDLE:
	case OBJECT_NOT_FOUND: return LGPU_SLICE_GONE;
	default: return LGPU_SLICE_REFUSED;
	}
}

static enum lgpu_slice_answer get(const struct lgpu_slice_group *g, uint64_t *micros) { return control(g, GET_TIMESLICE, micros); }
static enum lgpu_slice_answer set(const struct lgpu_slice_group *g, uint64_t micros) { return control(g, SET_TIMESLICE, &micros); }

const struct lgpu_slice_driver lgpu_slice_rm = {get, set};
