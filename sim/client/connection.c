// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc_gen.h"

enum { MAGIC = 0x7570676c };

struct hello {
	uint32_t magic, kind;
	uint64_t protocol;
	unsigned char token[16];
	uint64_t thread;
};

struct welcome {
	uint32_t magic;
	int32_t status;
	uint64_t protocol;
	unsigned char token[16];
	uint64_t pid;
};

int simc_hardware_pid;

static unsigned char token[16]; // of the process, by its first connection
static char other_path[sizeof((struct sockaddr_un *)0)->sun_path]; // of the hardware, where it is not the environment's

ssize_t simc_receive(int sock, void *p, size_t n, int *fd)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {p, n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct cmsghdr *c;
	ssize_t got;

	do
		got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got <= 0)
		return got;
	if ((m.msg_flags & MSG_CTRUNC) && *fd < 0)
		*fd = SIMC_LOST;
	for (c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(sizeof(int))) {
			if (*fd >= 0)
				close(*fd);
			memcpy(fd, CMSG_DATA(c), sizeof *fd);
		}
	}
	return got;
}

int simc_send_with_fd(int sock, const void *p, size_t n, int fd)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {(void *)(uintptr_t)p, n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	ssize_t put;

	memset(&control, 0, sizeof control);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	do
		put = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (put < 0 && errno == EINTR);
	return put == (ssize_t)n ? 0 : -1;
}

static int dial(void)
{
	const char *path = other_path[0] ? other_path : getenv("LGPU_SIM");
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int sock;

	if (!path || !*path || strlen(path) >= sizeof addr.sun_path)
		return -1;
	strcpy(addr.sun_path, path);
	sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -1;
	while (connect(sock, (struct sockaddr *)&addr, sizeof addr) != 0) {
		if (errno != EINTR) {
			close(sock);
			return -1;
		}
	}
	return sock;
}

// What is to be said when no connection could be made: hardware that is not there, or no descriptor for its socket.
static CUresult dial_error(int error)
{
	return error == EMFILE || error == ENFILE ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

CUresult simc_attach(struct simc_channel *ch, uint32_t kind)
{
	struct hello hi = {.magic = MAGIC, .kind = kind, .protocol = SIMC_PROTOCOL, .thread = ch->thread};
	struct welcome w;
	unsigned char *mem;
	size_t have = 0;
	int fd = -1, sock = dial();
	CUresult r = CUDA_ERROR_DEVICE_UNAVAILABLE;

	if (sock < 0)
		return dial_error(errno);
	memcpy(hi.token, token, sizeof token);
	if (send(sock, &hi, sizeof hi, MSG_NOSIGNAL) != (ssize_t)sizeof hi)
		goto fail;
	while (have < sizeof w) {
		ssize_t got = simc_receive(sock, (char *)&w + have, sizeof w - have, &fd);

		if (got <= 0)
			goto fail;
		have += (size_t)got;
	}
	if (w.magic != MAGIC || w.protocol != SIMC_PROTOCOL) {
		r = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
		goto fail;
	}
	if (w.status != CUDA_SUCCESS) {
		r = (CUresult)w.status;
		goto fail;
	}
	if (fd == SIMC_LOST) {
		r = CUDA_ERROR_OPERATING_SYSTEM;
		goto fail;
	}
	mem = mmap(NULL, CHANNEL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mem == MAP_FAILED) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
		goto fail;
	}
	close(fd);
	madvise(mem, CHANNEL_SIZE, MADV_DONTFORK);
	if (kind == KIND_SERVICE) {
		memcpy(token, w.token, sizeof token);
		simc_hardware_pid = (int)w.pid;
	}
	ch->sock = sock;
	ch->mem = mem;
	ch->tail = ch->head = 0;
	return CUDA_SUCCESS;
fail:
	if (fd >= 0)
		close(fd);
	close(sock);
	return r;
}

void simc_detach(struct simc_channel *ch)
{
	if (!ch->mem)
		return;
	close(ch->sock);
	if (ch->got_fd >= 0)
		close(ch->got_fd);
	munmap(ch->mem, CHANNEL_SIZE);
	ch->sock = ch->send_fd = ch->got_fd = -1;
	ch->mem = NULL;
}

void simc_turn_to(const char *path)
{
	memset(token, 0, sizeof token);
	snprintf(other_path, sizeof other_path, "%s", path);
}
