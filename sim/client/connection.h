// SPDX-License-Identifier: Apache-2.0

// The connections of channels: a socket and the memory that both sides share (sim/wire/wire.go).
#ifndef LGPUSIM_CONNECTION_H
#define LGPUSIM_CONNECTION_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "channel.h"

enum {
	KIND_SERVICE = 1,
	KIND_THREAD = 2,
	KIND_MANAGEMENT = 3,
	RING_SIZE = 128 << 10,
	BULK_SIZE = 1 << 20,
	REQUEST_CTL = 0,
	REPLY_CTL = 0x400,
	REQUEST_START = 0x1000,
	REPLY_START = REQUEST_START + RING_SIZE,
	BULK_START = REPLY_START + RING_SIZE,
	CHANNEL_SIZE = BULK_START + BULK_SIZE,
};

// A descriptor that was sent to this process, which had no room for it.
#define SIMC_LOST (-2)

struct simc_channel {
	int sock;           // -1 while there is no connection
	unsigned char *mem; // NULL while there is none
	uint64_t thread;
	int ended;     // the thread has, without a connection to tell it by
	uint64_t tail; // of the request ring
	uint64_t head; // of the reply ring
	int send_fd;   // to go with the next call, or -1
	int got_fd;    // came over the socket, or -1, or SIMC_LOST
	struct simc_channel *next;
	pthread_mutex_t lock; // a management channel's only
};

// The process id by which the hardware knows this one.
extern int simc_hardware_pid;

// Connects a channel that has no connection.
CUresult simc_attach(struct simc_channel *ch, uint32_t kind);
// Gives a channel's connection up, if it has one.
void simc_detach(struct simc_channel *ch);
// From now on connections are those of a new process, to the hardware at path; an empty one is the environment's.
void simc_turn_to(const char *path);

// Receives up to n bytes, and a descriptor that comes along, which is SIMC_LOST at the process's limit of them. Returns what
// recvmsg does, without EINTR.
ssize_t simc_receive(int sock, void *p, size_t n, int *fd);
// Sends bytes with a descriptor. 0, or -1.
int simc_send_with_fd(int sock, const void *p, size_t n, int fd);

#endif
