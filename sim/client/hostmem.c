// SPDX-License-Identifier: Apache-2.0

// Host memory that the hardware reads and writes by itself: pinned, registered and managed. Each is a memory file
// mapped on both sides at addresses of their own choice; the hardware knows it by its address here.
//
// Registering a shared mapping of one memory file, which this process has open for reading and writing, gives the
// hardware that file. The pages stay where they are, as the real driver pins them, and whoever else has the file
// mapped shares them with the devices too. The file must be sealed against shrinking, so that nobody can take it from
// under the hardware.
//
// Any other range, a shared one too, gets pages of a new memory file in place of its own, at the same address and
// with the same content; while that happens no other thread may write to them, and who had the old pages mapped sees
// no change of the new ones. After a fork the child shares these pages instead of having a copy.
#define _GNU_SOURCE
#define LGPU_CUDA_PLAIN
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "simc.h"
#include "hand_gen.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif

// IN_PLACE is registered with its own pages, REGISTERED with new ones.
enum kind { PINNED, REGISTERED, IN_PLACE, MANAGED };

struct range {
	enum kind kind;
	char *base;    // page-aligned
	size_t size;   // whole pages
	void *address; // as the program gave or got it
	CUcontext ctx;
	int fd;          // of its file while the process is checkpointed; else -1
	uint64_t offset; // of its pages there
	struct range *next;
};

enum { MANAGED_ALIGNMENT = 2 << 20, STACK_MARGIN = 64 << 10 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static CUresult add(enum kind kind, void *base, size_t size, void *address)
{
	struct range *r = malloc(sizeof *r);

	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*r = (struct range){kind, base, size, address, simc_current(), -1, 0, NULL};
	pthread_mutex_lock(&lock);
	r->next = ranges;
	ranges = r;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

// Takes the range of a kind that starts at address out of the list.
static struct range *take(enum kind kind, const void *address)
{
	struct range **at, *r;

	pthread_mutex_lock(&lock);
	for (at = &ranges; (r = *at) != NULL && !(r->kind == kind && r->address == address); at = &r->next)
		;
	if (r)
		*at = r->next;
	pthread_mutex_unlock(&lock);
	return r;
}

// A memory file of the given size that can never shrink again.
static int memory_file(size_t size)
{
	int fd = (int)syscall(SYS_memfd_create, "lgpu-sim-host", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)size) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

// Gives a range with new pages private ones again, with the same content.
static void make_private(char *base, size_t size)
{
	char *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED)
		return; // the pages stay shared with nobody: only a fork could tell
	memcpy(copy, base, size);
	if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, base) == MAP_FAILED)
		munmap(copy, size);
}

static void give_back(enum kind kind, char *base, size_t size)
{
	if (kind == REGISTERED)
		make_private(base, size);
	else if (kind != IN_PLACE)
		munmap(base, size);
}

static void release(struct range *r)
{
	give_back(r->kind, r->base, r->size);
	free(r);
}

// Takes a range from the hardware, then from the list. Of threads that free the same the hardware lets one pass, and
// who is refused finds it gone.
static CUresult unmap(enum kind kind, const void *address, const char *base, int registered)
{
	struct range *r;
	CUresult res = simc_rpc_MemHostUnmap((uintptr_t)base, registered);

	if (res == CUDA_SUCCESS && (r = take(kind, address)) != NULL)
		release(r);
	return res;
}

void simc_forget_context_memory(CUcontext ctx)
{
	struct range **at, *r, *gone = NULL;

	pthread_mutex_lock(&lock);
	for (at = &ranges; (r = *at) != NULL;) {
		if (r->ctx == ctx) {
			*at = r->next;
			r->next = gone;
			gone = r;
		} else {
			at = &r->next;
		}
	}
	pthread_mutex_unlock(&lock);
	// The hardware may have freed some of it with the context: what it answers says nothing new.
	while ((r = gone) != NULL) {
		gone = r->next;
		if (r->kind == MANAGED)
			simc_rpc_MemFree((CUdeviceptr)(uintptr_t)r->base);
		else
			simc_rpc_MemHostUnmap((uintptr_t)r->base, r->kind != PINNED);
		release(r);
	}
}

static CUresult host_alloc(void **pp, size_t bytesize, unsigned flags)
{
	size_t page = page_size(), size;
	char *base;
	CUresult r;
	int fd;

	if (!pp || !bytesize || bytesize > SIZE_MAX / 2)
		return CUDA_ERROR_INVALID_VALUE;
	size = (bytesize + page - 1) & ~(page - 1);
	if ((fd = memory_file(size)) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	simc_send_fd(fd);
	r = simc_rpc_MemHostMap((uintptr_t)base, bytesize, 0, flags, 0);
	close(fd);
	if (r == CUDA_SUCCESS && (r = add(PINNED, base, size, base)) != CUDA_SUCCESS)
		simc_rpc_MemHostUnmap((uintptr_t)base, 0);
	if (r != CUDA_SUCCESS) {
		munmap(base, size);
		return r;
	}
	*pp = base;
	return CUDA_SUCCESS;
}

CUresult simc_cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
	if (Flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
		return CUDA_ERROR_INVALID_VALUE;
	return host_alloc(pp, bytesize, Flags);
}

CUresult simc_cuMemAllocHost_v2(void **pp, size_t bytesize)
{
	return host_alloc(pp, bytesize, CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult simc_cuMemFreeHost(void *p)
{
	return p ? unmap(PINNED, p, p, 0) : CUDA_ERROR_INVALID_VALUE;
}

// Puts a memory file in the place of the pages of [base, base + size), with their content.
static int make_shared(char *base, size_t size, int fd)
{
	char *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (copy == MAP_FAILED)
		return -1;
	// write() and not memcpy: a range with a hole is an error then, not a fault.
	for (size_t done = 0; done < size;) {
		ssize_t n = pwrite(fd, base + done, size - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			munmap(copy, size);
			return -1;
		}
		done += (size_t)n;
	}
	if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, base) == MAP_FAILED) {
		munmap(copy, size);
		return -1;
	}
	return 0;
}

// A line of /proc/thread-self/maps.
struct mapping {
	uint64_t from, to;
	uint64_t offset, ino;
	dev_t dev;
	int shared; // with all who have the file, for reading and writing
};

static int parse_mapping(const char *line, struct mapping *m)
{
	unsigned high, low;
	char mode[5];

	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &m->from, &m->to, mode, &m->offset, &high, &low,
		   &m->ino) != 7)
		return -1;
	m->dev = makedev(high, low);
	m->shared = mode[0] == 'r' && mode[1] == 'w' && mode[3] == 's';
	return 0;
}

// Finds the part of a file that is mapped, piece by piece and in order, at [from, to). -1 if there is no such file.
static int find_part(uint64_t from, uint64_t to, struct mapping *part)
{
	FILE *f = fopen("/proc/thread-self/maps", "re");
	struct mapping m;
	char *line = NULL;
	size_t room = 0;
	uint64_t at = from;

	if (!f)
		return -1;
	while (at < to && getline(&line, &room, f) > 0 && parse_mapping(line, &m) == 0) {
		if (m.to <= at)
			continue;
		if (m.from > at || !m.shared)
			break;
		m.offset += at - m.from;
		if (at == from)
			*part = m;
		else if (m.dev != part->dev || m.ino != part->ino || m.offset != part->offset + (at - from))
			break;
		at = m.to;
	}
	free(line);
	fclose(f);
	return at < to ? -1 : 0;
}

// Whether fd is the file of the part, and one that the hardware takes: it can map that, and cannot lose it again.
static int is_file_of(const struct mapping *part, size_t size, int fd)
{
	uint64_t page = page_size();
	struct stat st;
	struct statfs fs;
	int seals;

	if (fstat(fd, &st) != 0 || st.st_dev != part->dev || st.st_ino != part->ino)
		return 0;
	// A memory file of huge pages can run out of them.
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR || fstatfs(fd, &fs) != 0 || fs.f_type == HUGETLBFS_MAGIC)
		return 0;
	seals = fcntl(fd, F_GET_SEALS);
	return seals >= 0 && (seals & (F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)) == F_SEAL_SHRINK &&
	       part->offset + size <= (((uint64_t)st.st_size + page - 1) & ~(page - 1));
}

// A new descriptor of the memory file that a range shows, and where in it the range begins; -1 if it is to be copied.
static int own_file(const char *base, size_t size, uint64_t *offset)
{
	struct mapping part;
	struct dirent *e;
	int fd = -1;
	DIR *d;

	if (find_part((uintptr_t)base, (uintptr_t)base + size, &part) != 0 || !(d = opendir("/proc/thread-self/fd")))
		return -1;
	while (fd < 0 && (e = readdir(d)) != NULL) {
		if (e->d_name[0] == '.' || !is_file_of(&part, size, atoi(e->d_name)))
			continue;
		// Another thread may have closed it by now, and its number may be another file's: what counts is the
		// copy.
		fd = fcntl(atoi(e->d_name), F_DUPFD_CLOEXEC, 0);
		if (fd >= 0 && !is_file_of(&part, size, fd)) {
			close(fd);
			fd = -1;
		}
	}
	closedir(d);
	*offset = part.offset;
	return fd;
}

CUresult simc_cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
	uintptr_t page = page_size(), from = (uintptr_t)p, here = (uintptr_t)__builtin_frame_address(0);
	enum kind kind = IN_PLACE;
	struct range *o, *mine;
	uint64_t offset;
	size_t size;
	char *base;
	CUresult r;
	int fd;

	if (!p || !bytesize || from + bytesize < from || from + bytesize > UINTPTR_MAX - page || (Flags & ~0xfu))
		return CUDA_ERROR_INVALID_VALUE;
	if (Flags & CU_MEMHOSTREGISTER_IOMEMORY)
		return CUDA_ERROR_NOT_SUPPORTED;
	base = (char *)(from & ~(page - 1));
	size = ((from + bytesize + page - 1) & ~(page - 1)) - (uintptr_t)base;
	// The pages of the stack in use change while they are copied.
	if (here + STACK_MARGIN > (uintptr_t)base && here - STACK_MARGIN < (uintptr_t)base + size)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&lock);
	for (o = ranges; o && (o->base >= base + size || base >= o->base + o->size); o = o->next)
		;
	pthread_mutex_unlock(&lock);
	if (o)
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if ((fd = own_file(base, size, &offset)) < 0) {
		kind = REGISTERED;
		offset = 0;
		if ((fd = memory_file(size)) < 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (make_shared(base, size, fd) != 0) {
			close(fd);
			return CUDA_ERROR_INVALID_VALUE;
		}
	}
	if (add(kind, base, size, p) != CUDA_SUCCESS) {
		give_back(kind, base, size);
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	// The hardware maps whole pages; what the program registered starts and ends within them.
	simc_send_fd(fd);
	r = simc_rpc_MemHostMap((uintptr_t)base, size, offset, Flags, 1);
	close(fd);
	if (r != CUDA_SUCCESS && (mine = take(kind, p)) != NULL)
		release(mine);
	return r;
}

CUresult simc_cuMemHostUnregister(void *p)
{
	struct range *r;
	enum kind kind;
	char *base;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	for (r = ranges; r && !((r->kind == REGISTERED || r->kind == IN_PLACE) && r->address == p); r = r->next)
		;
	if (r) {
		kind = r->kind;
		base = r->base;
	}
	pthread_mutex_unlock(&lock);
	return r ? unmap(kind, p, base, 1) : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult simc_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
	size_t page = page_size(), size, room;
	char *reserved, *base;
	CUresult r;
	int fd;

	if (!dptr || !bytesize || bytesize > SIZE_MAX / 2)
		return CUDA_ERROR_INVALID_VALUE;
	size = (bytesize + page - 1) & ~(page - 1);
	room = size + MANAGED_ALIGNMENT;
	reserved = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (reserved == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	base = (char *)(((uintptr_t)reserved + MANAGED_ALIGNMENT - 1) & ~(uintptr_t)(MANAGED_ALIGNMENT - 1));
	if (base > reserved)
		munmap(reserved, (size_t)(base - reserved));
	munmap(base + size, (size_t)(reserved + room - (base + size)));
	r = simc_rpc_MemAllocManaged((uintptr_t)base, bytesize, flags);
	fd = simc_take_fd();
	if (r != CUDA_SUCCESS) {
		munmap(base, size);
		if (fd >= 0)
			close(fd);
		return r;
	}
	if (fd < 0)
		r = CUDA_ERROR_OPERATING_SYSTEM;
	else if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
		 add(MANAGED, base, size, base) != CUDA_SUCCESS)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r != CUDA_SUCCESS) {
		simc_rpc_MemFree((CUdeviceptr)(uintptr_t)base);
		munmap(base, size);
	}
	if (fd >= 0)
		close(fd);
	if (r == CUDA_SUCCESS)
		*dptr = (CUdeviceptr)(uintptr_t)base;
	return r;
}

CUresult simc_cuMemFree_v2(CUdeviceptr dptr)
{
	struct range *r;
	CUresult res = simc_rpc_MemFree(dptr);

	if (res == CUDA_SUCCESS && (r = take(MANAGED, (void *)(uintptr_t)dptr)) != NULL)
		release(r);
	return res;
}

CUresult simc_take_pages(void)
{
	CUresult r = CUDA_SUCCESS;
	struct range *o;

	pthread_mutex_lock(&lock);
	for (o = ranges; o && r == CUDA_SUCCESS; o = o->next) {
		unsigned long long offset;

		r = simc_rpc_CheckpointTakePages((uintptr_t)o->base, &offset);
		if (r == CUDA_SUCCESS) {
			o->fd = simc_take_fd();
			o->offset = offset;
			r = o->fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult simc_give_pages(void)
{
	CUresult r = CUDA_SUCCESS;
	struct range *o;

	pthread_mutex_lock(&lock);
	for (o = ranges; o && r == CUDA_SUCCESS; o = o->next) {
		simc_send_fd(o->fd);
		r = simc_rpc_CheckpointGivePages((uintptr_t)o->base, o->size, o->offset);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

void simc_drop_pages(void)
{
	struct range *o;

	pthread_mutex_lock(&lock);
	for (o = ranges; o; o = o->next) {
		if (o->fd >= 0)
			close(o->fd);
		o->fd = -1;
	}
	pthread_mutex_unlock(&lock);
}
