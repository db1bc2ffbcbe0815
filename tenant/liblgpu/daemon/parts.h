// SPDX-License-Identifier: Apache-2.0

// parts.h: the connection to the daemon, for the files of this module. All but lgpu_link_dial and lgpu_link_hello is of the
// thread that listens, once it runs.
#ifndef LGPU_DAEMON_PARTS_H
#define LGPU_DAEMON_PARTS_H

#include <sys/types.h>

#include "daemon/daemon.h"

// ---- daemon.c

// What a Welcome brings. Descriptors that did not come are -1.
struct lgpu_welcome {
	struct lgpu_message message;
	int limits, usage;
};

// lgpu_link_dial connects to the socket at path, or returns -1 and says why in errno.
int lgpu_link_dial(const char *path);
// lgpu_link_hello introduces this process, with the descriptor usage unless that is -1, and stores the answer. False: there
// is no answer, or it is a refusal; which is in why.
bool lgpu_link_hello(int fd, struct lgpu_message m, int usage, struct lgpu_welcome *w, char *why, size_t room);
// lgpu_link_established makes fd the connection.
void lgpu_link_established(struct lgpu_process *p, int fd);
// lgpu_link_receive waits for a message, and the descriptor that may come with it.
ssize_t lgpu_link_receive(int fd, struct lgpu_message *m, int *file);
// lgpu_link_heard acts on one message, and takes the descriptor that came with it, unless that is -1.
void lgpu_link_heard(struct lgpu_connection *l, const struct lgpu_message *m, int file);
// lgpu_link_limits maps the limits of a region, or returns NULL.
struct lgpu_limits *lgpu_link_limits(int fd, const char *path);

// ---- fork.c

// lgpu_link_guard_forks has forked children close what they have of the connection and of usage, from now on.
void lgpu_link_guard_forks(void);

// ---- park.c

// lgpu_park_halt begins what a Halt asks.
void lgpu_park_halt(struct lgpu_connection *l, const struct lgpu_message *m);
// lgpu_park_waits answers a Halt, if one is to be answered and can be. True: it still is to be, and nothing has come for a
// moment.
bool lgpu_park_waits(struct lgpu_connection *l);
// lgpu_park_ended has a halted process go on, whose connection has ended.
void lgpu_park_ended(struct lgpu_connection *l);
// lgpu_park gives up all that leads out of the process. lgpu_park_stay waits until it has come back.
void lgpu_park(struct lgpu_process *p);
void lgpu_park_stay(struct lgpu_process *p);

#endif
