/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that the hardware reads and writes by itself: pinned, registered and managed. Each is a memory file mapped
 * on both sides at addresses of their own choice; the hardware knows it by its address here.
 *
 * Registering replaces a range's pages by pages of a memory file, at the same address and with the same content; while
 * that happens no other thread may write to them. After a fork the child shares these pages instead of having a copy.
 */
#define _GNU_SOURCE
#define LGPU_CUDA_PLAIN
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "simc.h"
#include "hand_gen.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

enum kind { PINNED, REGISTERED, MANAGED };

struct range {
	enum kind kind;
	char *base;    /* page-aligned */
	size_t size;   /* whole pages */
	void *address; /* as the program gave or got it */
	CUcontext ctx;
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
	*r = (struct range){kind, base, size, address, simc_current(), NULL};
	pthread_mutex_lock(&lock);
	r->next = ranges;
	ranges = r;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* Takes the range of a kind that starts at address out of the list. */
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

static void put_back(struct range *r)
{
	pthread_mutex_lock(&lock);
	r->next = ranges;
	ranges = r;
	pthread_mutex_unlock(&lock);
}

/* A memory file of the given size that can never shrink again. */
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

/* Gives a registered range private pages again, with the same content. */
static void make_private(struct range *r)
{
	char *copy = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED)
		return; /* the pages stay shared with nobody: only a fork could tell */
	memcpy(copy, r->base, r->size);
	if (mremap(copy, r->size, r->size, MREMAP_MAYMOVE | MREMAP_FIXED, r->base) == MAP_FAILED)
		munmap(copy, r->size);
}

static void release(struct range *r)
{
	if (r->kind == REGISTERED)
		make_private(r);
	else
		munmap(r->base, r->size);
	free(r);
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
	while ((r = gone) != NULL) {
		gone = r->next;
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
	r = simc_rpc_MemHostMap((uintptr_t)base, bytesize, flags, 0);
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
	struct range *r = p ? take(PINNED, p) : NULL;
	CUresult res;

	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	if ((res = simc_rpc_MemHostUnmap((uintptr_t)p, 0)) != CUDA_SUCCESS) {
		put_back(r);
		return res;
	}
	release(r);
	return CUDA_SUCCESS;
}

/* Puts a memory file in the place of the pages of [base, base + size), with their content. */
static int make_shared(char *base, size_t size, int fd)
{
	char *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (copy == MAP_FAILED)
		return -1;
	/* write() and not memcpy: a range with a hole is an error then, not a fault. */
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

CUresult simc_cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
	uintptr_t page = page_size(), from = (uintptr_t)p, here = (uintptr_t)__builtin_frame_address(0);
	struct range *o, *mine;
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
	/* The pages of the stack in use change while they are copied. */
	if (here + STACK_MARGIN > (uintptr_t)base && here - STACK_MARGIN < (uintptr_t)base + size)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&lock);
	for (o = ranges; o && (o->base >= base + size || base >= o->base + o->size); o = o->next)
		;
	pthread_mutex_unlock(&lock);
	if (o)
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if ((fd = memory_file(size)) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (make_shared(base, size, fd) != 0) {
		close(fd);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (add(REGISTERED, base, size, p) != CUDA_SUCCESS) {
		struct range undo = {REGISTERED, base, size, p, NULL, NULL};

		make_private(&undo);
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* The hardware maps whole pages; what the program registered starts and ends within them. */
	simc_send_fd(fd);
	r = simc_rpc_MemHostMap((uintptr_t)base, size, Flags, 1);
	close(fd);
	if (r != CUDA_SUCCESS && (mine = take(REGISTERED, p)) != NULL)
		release(mine);
	return r;
}

CUresult simc_cuMemHostUnregister(void *p)
{
	struct range *r = p ? take(REGISTERED, p) : NULL;
	CUresult res;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	if (!r)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	if ((res = simc_rpc_MemHostUnmap((uintptr_t)r->base, 1)) != CUDA_SUCCESS) {
		put_back(r);
		return res;
	}
	release(r);
	return CUDA_SUCCESS;
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
	if (fd < 0 || mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    add(MANAGED, base, size, base) != CUDA_SUCCESS) {
		simc_rpc_MemFree((CUdeviceptr)(uintptr_t)base);
		munmap(base, size);
		r = CUDA_ERROR_OUT_OF_MEMORY;
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
