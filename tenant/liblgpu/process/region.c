// SPDX-License-Identifier: Apache-2.0

// The file of a region: mapped, kept open, and locked byte by byte.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/futex.h"
#include "process/process.h"

// ---- leases

static int record_lock(int fd, int command, short type, uint32_t index, struct flock *l)
{
	*l = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(LGPU_CLIENT_LOCK_OFFSET + index), .l_len = 1};
	return fcntl(fd, command, l);
}

bool lgpu_lease(int fd, uint32_t index)
{
	struct flock l;
	return record_lock(fd, F_SETLK, F_WRLCK, index, &l) == 0;
}

void lgpu_lease_drop(int fd, uint32_t index)
{
	struct flock l;
	record_lock(fd, F_SETLK, F_UNLCK, index, &l);
}

bool lgpu_lease_dead(int fd, uint32_t index)
{
	struct flock l;
	return record_lock(fd, F_GETLK, F_WRLCK, index, &l) == 0 && l.l_type == F_UNLCK;
}

// ---- descriptors

bool lgpu_file_of(int fd, struct lgpu_file *file)
{
	struct stat st;
	if (syscall(SYS_fstat, fd, &st) != 0) // fstat itself is too new a symbol
		return false;
	*file = (struct lgpu_file){st.st_dev, st.st_ino};
	return true;
}

bool lgpu_file_is(int fd, const struct lgpu_file *file)
{
	struct lgpu_file now;
	return lgpu_file_of(fd, &now) && now.dev == file->dev && now.ino == file->ino;
}

int lgpu_raise(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 512);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

int lgpu_open_high(const char *path, int flags)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | flags, 0666);
	// To close a descriptor of a file gives up all leases that the process has
	// there. Where another copy of this library may have one, the first stays.
	return fd < 0 || lgpu_second_copy() ? fd : lgpu_raise(fd);
}

int lgpu_region_fd(struct lgpu_state *state)
{
	struct lgpu_process *p = lgpu_process;
	int fd = __atomic_load_n(&state->fd, __ATOMIC_ACQUIRE);
	if (fd >= 0 && lgpu_file_is(fd, &p->region))
		return fd;
	lgpu_lock(&p->lock);
	fd = state->fd;
	if (fd < 0 || !lgpu_file_is(fd, &p->region)) {
		fd = lgpu_open_high(state->path, 0);
		if (fd >= 0 && !lgpu_file_is(fd, &p->region)) {
			close(fd);
			fd = -1;
		}
		if (fd >= 0 && state->client < LGPU_MAX_CLIENTS)
			lgpu_lease(fd, state->client);
		__atomic_store_n(&state->fd, fd, __ATOMIC_RELEASE);
	}
	lgpu_unlock(&p->lock);
	return fd;
}

// ---- mapping

bool lgpu_region_valid(const struct lgpu_limits *l, const char *where)
{
	const char *wrong = l->magic != LGPU_MAGIC ? "is not a region" :
			    l->version != LGPU_VERSION ? "has a layout that this build does not know" :
			    l->devices == 0 || l->devices > LGPU_MAX_DEVICES ? "has an impossible number of devices" : NULL;
	for (uint32_t i = 0; wrong == NULL && i < l->devices; i++)
		if (l->device[i].compute > LGPU_FULL_COMPUTE)
			wrong = "has an impossible compute share";
	if (wrong != NULL)
		lgpu_log(LGPU_LOG_ERROR, "region %s %s; there is no GPU for this process", where, wrong);
	return wrong == NULL;
}

static const size_t usage_bytes = (sizeof(struct lgpu_usage) + 4095) & ~(size_t)4095;

struct lgpu_usage *lgpu_usage_map(int fd, off_t base)
{
	void *usage = mmap(NULL, usage_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, base);
	return usage != MAP_FAILED ? usage : NULL;
}

// copy returns private pages with the bytes at from, or NULL.
static void *copy(const void *from, size_t bytes, int protection)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return NULL;
	memcpy(pages, from, bytes);
	if (mprotect(pages, bytes, protection) == 0)
		return pages;
	munmap(pages, bytes);
	return NULL;
}

bool lgpu_region_keep(const struct lgpu_state *s)
{
	struct lgpu_limits *limits = copy(s->limits, LGPU_LIMITS_BYTES, PROT_READ);
	struct lgpu_usage *usage = copy(s->usage, usage_bytes, PROT_READ | PROT_WRITE);
	if (limits != NULL && usage != NULL)
		lgpu_region_replace(s, limits, usage);
	else
		lgpu_region_unmap(limits, usage);
	return limits != NULL && usage != NULL;
}

// Readers see one mapping or the other, and never wait. Moving a mapping over another of its size needs no memory of which
// the kernel could have too little.
void lgpu_region_replace(const struct lgpu_state *s, struct lgpu_limits *limits, struct lgpu_usage *usage)
{
	mremap(limits, LGPU_LIMITS_BYTES, LGPU_LIMITS_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(uintptr_t)s->limits);
	mremap(usage, usage_bytes, usage_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, s->usage);
}

void lgpu_region_unmap(struct lgpu_limits *limits, struct lgpu_usage *usage)
{
	if (limits != NULL)
		munmap(limits, LGPU_LIMITS_BYTES);
	if (usage != NULL)
		munmap(usage, usage_bytes);
}

bool lgpu_region_map(struct lgpu_process *p, const char *path, off_t base, bool own_limits)
{
	struct lgpu_state *s = &p->state;
	struct stat st;
	int fd = lgpu_open_high(path, 0);
	if (fd < 0 || syscall(SYS_fstat, fd, &st) != 0) {
		lgpu_log(LGPU_LOG_ERROR, "region %s: %s; there is no GPU for this process", path, strerror(errno));
		goto fail;
	}
	if (!S_ISREG(st.st_mode) || st.st_size < base + (off_t)(LGPU_LIMITS_BYTES + sizeof *s->usage)) {
		lgpu_log(LGPU_LOG_ERROR, "region %s is truncated; there is no GPU for this process", path);
		goto fail;
	}
	void *limits = mmap(NULL, LGPU_LIMITS_BYTES, own_limits ? PROT_READ | PROT_WRITE : PROT_READ,
			    own_limits ? MAP_PRIVATE : MAP_SHARED, fd, base);
	struct lgpu_usage *usage = lgpu_usage_map(fd, base + (off_t)LGPU_LIMITS_BYTES);
	if (limits == MAP_FAILED || usage == NULL) {
		lgpu_log(LGPU_LOG_ERROR, "region %s: map: %s; there is no GPU for this process", path, strerror(errno));
		goto unmap;
	}
	if (!lgpu_region_valid(limits, path))
		goto unmap;
	s->limits = limits;
	s->usage = usage;
	s->client = LGPU_MAX_CLIENTS;
	s->fd = fd;
	p->region = (struct lgpu_file){st.st_dev, st.st_ino};
	return true;
unmap:
	if (limits != MAP_FAILED)
		munmap(limits, LGPU_LIMITS_BYTES);
	if (usage != NULL)
		munmap(usage, usage_bytes);
fail:
	if (fd >= 0)
		close(fd);
	return false;
}
