// SPDX-License-Identifier: Apache-2.0

// The restore thread of a process: what locks, checkpoints, restores and unlocks the process that it is in. The image of
// the process lies in memory of its own, so that it outlives the hardware process, and a dump of the program carries it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control.h"
#include "gate.h"
#include "simc.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

enum { REASON = 256 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct simc_control *control; // NULL where there is no restore thread
static int control_fd = -1;
static void *image; // of the process while it is checkpointed
static size_t image_size;

static void set_state(CUprocessState state)
{
	__atomic_store_n(&control->state, (uint32_t)state, __ATOMIC_SEQ_CST);
}

// Whether who asked has died: it holds the page as long as it lives, and the next who has the page says so.
static int orphaned(void)
{
	if (__atomic_load_n(&control->orphan, __ATOMIC_SEQ_CST) == __atomic_load_n(&control->request, __ATOMIC_SEQ_CST))
		return 1;
	if (flock(control_fd, LOCK_EX | LOCK_NB) != 0)
		return 0;
	flock(control_fd, LOCK_UN);
	return 1;
}

// Whether a lock is to be given up.
static int give_up(void)
{
	uint64_t deadline = control->deadline;

	return (deadline && simc_now() >= deadline) || orphaned();
}

// Lets a process go on that can do nothing more with its hardware than be told so.
static void fail(void)
{
	set_state(CU_PROCESS_STATE_FAILED);
	simc_await_service();
	simc_resume_service();
	simc_open_gate();
}

// Waits for what the process has under way. Its hardware looks at no page: it is asked in short turns.
static CUresult drain(void)
{
	CUresult r;

	do
		r = simc_rpc_CheckpointDrain(SIMC_LOOK / 1000000u, (unsigned)simc_serves());
	while (r == CUDA_ERROR_NOT_READY && !give_up());
	return r;
}

static CUresult lock(void)
{
	CUresult r;

	if (control->state != CU_PROCESS_STATE_RUNNING)
		return CUDA_ERROR_ILLEGAL_STATE;
	simc_find_management();
	if (give_up() || simc_close_gate(give_up) != 0)
		return CUDA_ERROR_NOT_READY;
	r = drain();
	if (r == CUDA_SUCCESS) {
		simc_await_service();
		if (!orphaned()) {
			set_state(CU_PROCESS_STATE_LOCKED);
			return r;
		}
		simc_resume_service();
		r = CUDA_ERROR_NOT_READY;
	}
	if (r == CUDA_ERROR_NOT_READY)
		simc_open_gate();
	else
		fail();
	return r;
}

static CUresult unlock(void)
{
	if (control->state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	set_state(CU_PROCESS_STATE_RUNNING);
	simc_resume_service();
	simc_open_gate();
	return CUDA_SUCCESS;
}

static void drop_image(void)
{
	if (image)
		munmap(image, image_size);
	image = NULL;
	image_size = 0;
}

// What of its memory the image does not take goes back.
static void shrink(size_t used)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), keep = (used + page - 1) & ~(page - 1);

	if (image_size > keep)
		munmap((char *)image + keep, image_size - keep);
	image_size = used;
}

// Has the hardware write the image into memory that fits.
static CUresult save(void)
{
	unsigned long long size = 0, used = 0;
	char reason[REASON] = "";
	CUresult r = simc_rpc_CheckpointSave(0, 0, &size, reason, sizeof reason);

	if (r == CUDA_SUCCESS) {
		image = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (image == MAP_FAILED) {
			image = NULL;
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		image_size = size;
		madvise(image, size, MADV_DONTFORK);
		r = simc_rpc_CheckpointSave((uintptr_t)image, size, &used, reason, sizeof reason);
	}
	if (r != CUDA_SUCCESS) {
		simc_log(1, "lgpu sim: no checkpoint: %s", reason);
		return r;
	}
	if (used > size) // somebody uses the driver past the library
		return CUDA_ERROR_ILLEGAL_STATE;
	shrink(used);
	return r;
}

static CUresult checkpoint(void)
{
	CUresult r;

	if (control->state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	r = save();
	if (r == CUDA_SUCCESS)
		r = simc_take_pages();
	if (r != CUDA_SUCCESS) {
		simc_drop_pages();
		drop_image();
		if (__atomic_load_n(&simc_state, __ATOMIC_SEQ_CST) == SIMC_DEAD)
			fail();
		return r;
	}
	simc_disconnect();
	simc_tell_management(NULL);
	set_state(CU_PROCESS_STATE_CHECKPOINTED);
	return CUDA_SUCCESS;
}

static CUresult restore(void)
{
	char reason[REASON] = "", socket[SIMC_SOCKET_LENGTH];
	unsigned count = control->count;
	CUresult r;

	if (control->state != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (count > SIMC_MOST_PAIRS)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(socket, control->socket, sizeof socket);
	socket[sizeof socket - 1] = 0;
	r = simc_reconnect(socket);
	if (r == CUDA_SUCCESS)
		r = simc_give_pages();
	if (r == CUDA_SUCCESS)
		r = simc_rpc_CheckpointLoad((uintptr_t)image, image_size, control->pairs, count, reason, sizeof reason);
	if (r != CUDA_SUCCESS) {
		simc_log(1, "lgpu sim: not restored: %s", reason);
		simc_disconnect();
		return r;
	}
	simc_drop_pages();
	drop_image();
	simc_end_threads();
	simc_tell_management(socket);
	set_state(CU_PROCESS_STATE_LOCKED);
	return r;
}

static CUresult answer(void)
{
	switch (control->ask) {
	case SIMC_LOCK:
		return lock();
	case SIMC_CHECKPOINT:
		return checkpoint();
	case SIMC_RESTORE:
		return restore();
	case SIMC_UNLOCK:
		return unlock();
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static void *restore_thread(void *arg)
{
	uint32_t request, done = 0;

	(void)arg;
	simc_tls.own = 1;
	prctl(PR_SET_NAME, "lgpu-restore");
	__atomic_store_n(&control->thread, (int32_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	for (;;) {
		while ((request = __atomic_load_n(&control->request, __ATOMIC_SEQ_CST)) == done)
			simc_sleep(&control->request, done, 0);
		control->result = answer();
		done = request;
		__atomic_store_n(&control->done, done, __ATOMIC_SEQ_CST);
		simc_wake(&control->done);
	}
	return NULL;
}

// A child is another process, which has not called cuInit.
static void forked(void)
{
	simc_reset_gate();
	if (control_fd >= 0)
		close(control_fd);
	control_fd = -1;
	control = NULL;
}

static int make_control(void)
{
	struct simc_control *c;
	int fd = (int)syscall(SYS_memfd_create, SIMC_CONTROL_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	if (ftruncate(fd, SIMC_CONTROL_SIZE) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		goto fail;
	c = mmap(NULL, SIMC_CONTROL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (c == MAP_FAILED)
		goto fail;
	madvise(c, SIMC_CONTROL_SIZE, MADV_DONTFORK);
	c->version = SIMC_CONTROL_VERSION;
	c->magic = SIMC_CONTROL_MAGIC;
	control = c;
	control_fd = fd;
	return 0;
fail:
	close(fd);
	return -1;
}

static void start(void)
{
	sigset_t all, old;
	pthread_t t;
	int made;

	pthread_atfork(NULL, NULL, forked);
	if (make_control() == 0) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		made = pthread_create(&t, NULL, restore_thread, NULL) == 0;
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		if (made) {
			pthread_detach(t);
			return;
		}
	}
	simc_log(1, "lgpu sim: no restore thread: this process cannot be checkpointed");
}

void simc_start_restore(void)
{
	pthread_once(&once, start);
}
