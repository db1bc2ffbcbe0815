// SPDX-License-Identifier: Apache-2.0

// cuCheckpointProcess*: any process asks the restore thread of another one, or its own. Who asks need not have called
// cuInit, and needs no hardware: that of a checkpointed process may be gone.
#define _GNU_SOURCE
#define LGPU_CUDA_PLAIN
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control.h"
#include "simc.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif

enum { GRACE_SECONDS = 2 };

#define NANOSECONDS 1000000000ull

// A process that is asked something.
struct target {
	int pid, fd, pidfd;
	struct simc_control *control;
};

// Whether pid is a process, and not a thread or nothing.
static int is_process(int pid)
{
	char path[64], *line = NULL;
	size_t room = 0;
	int group = -1;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/status", pid);
	if (pid <= 0 || !(f = fopen(path, "re")))
		return 0;
	while (group < 0 && getline(&line, &room, f) > 0)
		if (strncmp(line, "Tgid:", 5) == 0)
			group = atoi(line + 5);
	free(line);
	fclose(f);
	return group == pid;
}

// Whether fd is a control page: of the right size for good, so that nobody can take it from under us.
static int is_control(int fd)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &st) == 0 && st.st_size == SIMC_CONTROL_SIZE;
}

// Opens the control page among a process's descriptors; -1 where there is none.
static int find_control(DIR *fds)
{
	static const char want[] = "/memfd:" SIMC_CONTROL_NAME " (deleted)";
	struct dirent *e;
	char name[sizeof want + 1];
	int fd;

	while ((e = readdir(fds)) != NULL) {
		ssize_t n = readlinkat(dirfd(fds), e->d_name, name, sizeof name);

		if (n != sizeof want - 1 || memcmp(name, want, sizeof want - 1) != 0)
			continue;
		fd = openat(dirfd(fds), e->d_name, O_RDWR | O_CLOEXEC);
		if (fd >= 0 && is_control(fd))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

static void release(struct target *t)
{
	if (t->control)
		munmap(t->control, SIMC_CONTROL_SIZE);
	if (t->fd >= 0)
		close(t->fd);
	if (t->pidfd >= 0)
		close(t->pidfd);
}

static CUresult find(int pid, struct target *t)
{
	char path[64];
	DIR *fds;
	void *page;

	*t = (struct target){pid, -1, -1, NULL};
	if (!is_process(pid))
		return CUDA_ERROR_INVALID_VALUE;
	t->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	snprintf(path, sizeof path, "/proc/%d/fd", pid);
	if (!(fds = opendir(path)))
		return errno == EACCES || errno == EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
	t->fd = find_control(fds);
	closedir(fds);
	if (t->fd < 0)
		return CUDA_ERROR_NOT_INITIALIZED;
	page = mmap(NULL, SIMC_CONTROL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, 0);
	if (page == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	t->control = page;
	if (t->control->magic != SIMC_CONTROL_MAGIC || t->control->version != SIMC_CONTROL_VERSION)
		return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
	return CUDA_SUCCESS;
}

static int has_ended(const struct target *t)
{
	struct pollfd p = {t->pidfd, POLLIN, 0};

	return t->pidfd >= 0 && poll(&p, 1, 0) > 0;
}

// Waits until what was asked last has been answered. Nothing tells of both the answer and the end of the process, so the
// end is looked for now and then.
static CUresult await(const struct target *t, uint64_t deadline)
{
	struct simc_control *c = t->control;
	uint32_t request = __atomic_load_n(&c->request, __ATOMIC_SEQ_CST), done;

	while ((done = __atomic_load_n(&c->done, __ATOMIC_SEQ_CST)) != request) {
		if (has_ended(t))
			return CUDA_ERROR_INVALID_VALUE;
		if (deadline && simc_now() >= deadline)
			return CUDA_ERROR_NOT_READY;
		simc_sleep(&c->done, done, simc_now() + SIMC_LOOK);
	}
	return CUDA_SUCCESS;
}

// Until when a lock with a deadline is waited for: the process has a moment to say that it was in vain.
static uint64_t patience(uint64_t deadline)
{
	return deadline ? deadline + GRACE_SECONDS * NANOSECONDS : 0;
}

// Says on which devices to restore: those of who asks.
static void write_devices(struct simc_control *c, const CUcheckpointRestoreArgs *args)
{
	const char *path = getenv("LGPU_SIM");

	c->count = args ? args->gpuPairsCount : 0;
	if (c->count)
		memcpy(c->pairs, args->gpuPairs, c->count * sizeof *args->gpuPairs);
	snprintf(c->socket, sizeof c->socket, "%s", path ? path : "");
}

// Asks a process whose control page is ours alone.
static CUresult ask_locked(struct target *t, enum simc_ask what, uint64_t deadline, const CUcheckpointRestoreArgs *args)
{
	struct simc_control *c = t->control;
	CUresult r;

	// Whose request is not answered, and who does not have the page, has died.
	__atomic_store_n(&c->orphan, __atomic_load_n(&c->request, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
	r = await(t, patience(deadline));
	if (r != CUDA_SUCCESS)
		return r;
	c->ask = what;
	c->deadline = deadline;
	write_devices(c, args);
	__atomic_add_fetch(&c->request, 1, __ATOMIC_SEQ_CST);
	simc_wake(&c->request);
	r = await(t, patience(deadline));
	return r == CUDA_SUCCESS ? (CUresult)c->result : r;
}

// Has the control page for ourselves. Another who asks keeps it for as long as that takes, and the process itself may
// mean harm: whether it lives and the time are looked at now and then.
static CUresult own_page(const struct target *t, uint64_t deadline)
{
	uint32_t nobody = 0;

	while (flock(t->fd, LOCK_EX | LOCK_NB) != 0) {
		if (errno != EINTR && errno != EWOULDBLOCK)
			return CUDA_ERROR_OPERATING_SYSTEM;
		if (has_ended(t))
			return CUDA_ERROR_INVALID_VALUE;
		if (deadline && simc_now() >= patience(deadline))
			return CUDA_ERROR_NOT_READY;
		simc_sleep(&nobody, 0, simc_now() + SIMC_LOOK / 10);
	}
	return CUDA_SUCCESS;
}

static CUresult ask(int pid, enum simc_ask what, uint64_t deadline, const CUcheckpointRestoreArgs *args)
{
	struct target t;
	CUresult r = find(pid, &t);

	if (r == CUDA_SUCCESS)
		r = own_page(&t, deadline);
	if (r == CUDA_SUCCESS)
		r = ask_locked(&t, what, deadline, args);
	release(&t);
	return r;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct target t;
	CUresult r;

	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	r = find(pid, &t);
	if (r == CUDA_SUCCESS)
		*state = (CUprocessState)__atomic_load_n(&t.control->state, __ATOMIC_SEQ_CST);
	release(&t);
	return r;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct target t;
	CUresult r;

	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	r = find(pid, &t);
	if (r == CUDA_SUCCESS)
		*tid = __atomic_load_n(&t.control->thread, __ATOMIC_SEQ_CST);
	release(&t);
	return r;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	uint64_t deadline = 0;

	if (args && args->timeoutMs)
		deadline = simc_now() + args->timeoutMs * (NANOSECONDS / 1000);
	return ask(pid, SIMC_LOCK, deadline, NULL);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	(void)args;
	return ask(pid, SIMC_CHECKPOINT, 0, NULL);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	if (args && args->gpuPairsCount && (!args->gpuPairs || args->gpuPairsCount > SIMC_MOST_PAIRS))
		return CUDA_ERROR_INVALID_VALUE;
	return ask(pid, SIMC_RESTORE, 0, args);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	(void)args;
	return ask(pid, SIMC_UNLOCK, 0, NULL);
}
