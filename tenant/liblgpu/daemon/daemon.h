// SPDX-License-Identifier: Apache-2.0

// daemon.h: the connection to the daemon (tenant/protocol/protocol.go has the language).
//
// The daemon makes this process a client of an lgpu and tells its gates when to
// open. While it restarts, the process goes on within the limits that it received
// last, and tries to connect again.
#ifndef LGPU_DAEMON_H
#define LGPU_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/link_gen.h"
#include "process/process.h"

// What is done where the daemon says something, or is silent. Called by the thread
// that listens to it. The functions are of higher modules; hook/wiring.c names them.
struct lgpu_daemon_handlers {
	void (*gate)(const struct lgpu_message *m); // Free, Open, Close and Seep
	void (*slice)(const struct lgpu_message *m);
	void (*gone)(struct lgpu_state *s, int device, uint64_t bytes);
	void (*keep)(const struct lgpu_message *m);
	void (*store)(const struct lgpu_message *m, int fd); // takes fd, which may be -1
	void (*lost)(void);  // there is no daemon any more
	void (*found)(void); // there is one again
	void (*idle)(struct lgpu_state *s); // nothing has been said for a second
	void (*halt)(void);       // lets nothing begin; halted says whether nothing is under way
	bool (*halted)(void);
	void (*proceed)(bool fresh); // fresh: under another daemon, or as a client that it does not know
	bool (*parking)(bool parked); // it is about to give everything up; or has it again. False: it cannot
	void (*back)(void); // it is a client again
	// The usage and limits of another region take the place of what there is, if all that this process holds can be
	// charged there as the client with an index. False: so many bytes of index cannot.
	bool (*charge)(struct lgpu_state *s, struct lgpu_limits *limits, struct lgpu_usage *usage, uint32_t client, int *index, uint64_t *bytes);
	void (*look)(void); // after every message, and at least twice a second
};
extern const struct lgpu_daemon_handlers lgpu_daemon_handlers;

// lgpu_daemon_map asks the daemon for this process's lgpu and completes the state
// of p; as one of its clients, or only to look. False: there is no GPU for this
// process, and why has been said.
bool lgpu_daemon_map(struct lgpu_process *p, bool client);

// lgpu_daemon_join makes a process that has only looked a client.
bool lgpu_daemon_join(struct lgpu_process *p);

// lgpu_daemon_listen starts the thread that hears the daemon, once.
void lgpu_daemon_listen(void);

// lgpu_daemon_send says something to the daemon. False: it is not there.
bool lgpu_daemon_send(const struct lgpu_message *m);
// lgpu_daemon_send_file does so with a descriptor, unless that is -1 or the kernel refuses descriptors.
bool lgpu_daemon_send_file(const struct lgpu_message *m, int file);

// lgpu_daemon_cut ends the connection to a daemon that hangs: this process uses its
// own credit until this daemon, or another, answers again.
void lgpu_daemon_cut(void);

// lgpu_daemon_need asks for bytes more than is granted of a device's memory, or
// of host memory (LGPU_HOST), and waits for the answer, for at most a second.
// False: there is none. What was granted is in the limits.
bool lgpu_daemon_need(int index, uint64_t bytes);

#endif
