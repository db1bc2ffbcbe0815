// SPDX-License-Identifier: Apache-2.0

// A stand-in for NVIDIA's resource manager, to be preloaded behind liblgpu.so. It
// plays /dev/nvidiactl: opening it makes a file that it answers the ioctls of, and
// fstat, made by syscall() as liblgpu.so does, shows the device's number. What it
// knows of clients, channel groups and their time slices ends with the process.
//
// STANDIN=refuse: no slice can be set. STANDIN=ignore: it can, without effect.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "testdata/rm_standin.h"

#define FILES 64
#define OBJECTS 8192
#define NEW_SLICE 1024 // of a group that nobody has set: the driver's library sets it itself

struct object {
	ino_t file; // 0: free
	uint32_t client, parent, handle, class, engine;
	uint64_t slice;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ino_t files[FILES];
static struct object objects[OBJECTS];
static uint32_t handles = 0x5c000000;

static long real_syscall(long n, long a, long b, long c, long d, long e, long f)
{
	static long (*next)(long, ...);
	if (next == NULL)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return next(n, a, b, c, d, e, f);
}

// file_of is the open file of a descriptor, if it is ours.
static ino_t file_of(int fd)
{
	struct stat st;
	int error = errno;
	ino_t found = 0;
	if (real_syscall(SYS_fstat, fd, (long)&st, 0, 0, 0, 0) == 0)
		for (int i = 0; i < FILES; i++)
			found = files[i] == st.st_ino && S_ISREG(st.st_mode) ? st.st_ino : found;
	errno = error;
	return found;
}

int open(const char *path, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	int mode = va_arg(args, int);
	va_end(args);
	if (strcmp(path, "/dev/nvidiactl") != 0)
		return (int)real_syscall(SYS_openat, -100, (long)path, flags, mode, 0, 0);
	struct stat st;
	int fd = memfd_create("nvidiactl", MFD_CLOEXEC);
	if (fd < 0 || real_syscall(SYS_fstat, fd, (long)&st, 0, 0, 0, 0) != 0)
		abort();
	for (int i = 0; i < FILES; i++)
		if (files[i] == 0) {
			files[i] = st.st_ino;
			return fd;
		}
	abort();
}

long syscall(long n, ...)
{
	va_list args;
	va_start(args, n);
	long a[6];
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	long r = real_syscall(n, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (n == SYS_fstat && r == 0 && file_of((int)a[0]) != 0) {
		struct stat *st = (struct stat *)a[1];
		st->st_mode = S_IFCHR | 0666;
		st->st_rdev = makedev(195, 255);
	}
	return r;
}

// ---- objects; with lock

static struct object *find(ino_t file, uint32_t client, uint32_t handle)
{
	for (int i = 0; i < OBJECTS; i++)
		if (objects[i].file == file && objects[i].client == client && objects[i].handle == handle)
			return &objects[i];
	return NULL;
}

static uint32_t make(ino_t file, uint32_t client, uint32_t parent, uint32_t *handle, uint32_t class, uint64_t parameters)
{
	if (*handle == 0)
		*handle = ++handles;
	if (class == STANDIN_CLIENT)
		client = parent = *handle;
	else if (find(file, client, client) == NULL)
		return STANDIN_INVALID_CLIENT;
	else if (find(file, client, parent) == NULL)
		return STANDIN_NOT_FOUND;
	for (int i = 0; i < OBJECTS; i++) {
		if (objects[i].file != 0)
			continue;
		uint32_t engine = class == STANDIN_GROUP ? ((const uint32_t *)(uintptr_t)parameters)[3] : 0;
		objects[i] = (struct object){file, client, parent, *handle, class, engine, NEW_SLICE};
		return 0;
	}
	return STANDIN_NO_MEMORY;
}

static void end(ino_t file, uint32_t client, uint32_t handle)
{
	for (int i = 0; i < OBJECTS; i++)
		if (objects[i].file == file && objects[i].client == client && objects[i].parent == handle && objects[i].handle != handle)
			end(file, client, objects[i].handle);
	struct object *o = find(file, client, handle);
	if (o != NULL)
		o->file = 0;
}

static uint32_t command(ino_t file, const struct standin_control *c)
{
	const char *mode = getenv("STANDIN");
	uint64_t *micros = (uint64_t *)(uintptr_t)c->parameters;
	if (find(file, c->client, c->client) == NULL)
		return STANDIN_INVALID_CLIENT;
	struct object *o = find(file, c->client, c->object);
	if (o == NULL || o->class != STANDIN_GROUP)
		return STANDIN_NOT_FOUND;
	if (c->size != sizeof *micros)
		return STANDIN_INVALID_ARGUMENT;
	// The driver's library sets its own slice in any case.
	bool own = *micros == STANDIN_OWN_SLICE;
	if (c->command == STANDIN_GET)
		*micros = o->slice;
	else if (c->command != STANDIN_SET)
		return STANDIN_NOT_SUPPORTED;
	else if (mode != NULL && strcmp(mode, "refuse") == 0 && !own)
		return STANDIN_NOT_SUPPORTED;
	else if (mode == NULL || strcmp(mode, "ignore") != 0 || own)
		o->slice = *micros;
	return 0;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *);
	va_end(args);
	ino_t file = file_of(fd);
	if (file == 0)
		return (int)real_syscall(SYS_ioctl, fd, (long)request, (long)arg, 0, 0, 0);
	pthread_mutex_lock(&lock);
	int result = 0;
	struct standin_alloc *a = arg;
	struct standin_alloc_rights *r = arg;
	struct standin_free *f = arg;
	struct standin_control *c = arg;
	switch (request) {
	case STANDIN_ALLOC: a->status = make(file, a->client, a->parent, &a->object, a->class, a->parameters); break;
	case STANDIN_ALLOC_RIGHTS: r->status = make(file, r->client, r->parent, &r->object, r->class, r->parameters); break;
	case STANDIN_CONTROL: c->status = command(file, c); break;
	case STANDIN_FREE:
		f->status = find(file, f->client, f->object) != NULL ? 0 : STANDIN_NOT_FOUND;
		end(file, f->client, f->object);
		break;
	default:
		errno = EINVAL;
		result = -1;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

// ---- for the test program: what no program can hide

int standin_slices(bool compute, uint64_t *slices, int room)
{
	int n = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < OBJECTS && n < room; i++)
		if (objects[i].file != 0 && objects[i].class == STANDIN_GROUP && (objects[i].engine == STANDIN_COMPUTE) == compute)
			slices[n++] = objects[i].slice;
	pthread_mutex_unlock(&lock);
	return n;
}

void standin_set(int group, uint64_t micros)
{
	int n = 0;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < OBJECTS; i++)
		if (objects[i].file != 0 && objects[i].class == STANDIN_GROUP && objects[i].engine == STANDIN_COMPUTE && n++ == group)
			objects[i].slice = micros;
	pthread_mutex_unlock(&lock);
}
