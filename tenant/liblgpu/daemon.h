// daemon.h: the connection to the daemon (tenant/protocol/protocol.go has the language).
//
// The daemon gives this process its place in an lgpu and tells its gates when
// to open. Without it, while it restarts, the process goes on within the limits
// it was last given, and looks for it.
#ifndef LGPU_DAEMON_H
#define LGPU_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "link_gen.h"

struct lgpu_process;
struct lgpu_state;

// The state of the connection. It lives in struct lgpu_process, which a forked
// child finds empty.
struct lgpu_daemon {
	uint32_t lock;     // guards fd, dev, ino, up and needs
	uint32_t needs;    // how many Needs were said of which the answer is due or was heard
	uint32_t answered; // event count: answers to Need
	bool up;
	bool listening; // the thread that hears the daemon runs
	int fd;
	uint64_t dev, ino; // of the socket: a program may close it and use its number
	uint64_t usage_dev, usage_ino;
	uint64_t id; // of the lgpu
};

// lgpu_daemon_configured reports whether the environment names a daemon.
bool lgpu_daemon_configured(void);

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

// lgpu_daemon_cut ends the connection to a daemon that hangs: this process goes
// by its own credit until the daemon answers again, or another.
void lgpu_daemon_cut(void);

// lgpu_daemon_need asks for bytes more than is granted of a device's memory, or
// of host memory (LGPU_HOST), and waits for the answer, for at most a second.
// False: there is none. What was granted is in the limits.
bool lgpu_daemon_need(int index, uint64_t bytes);

#endif
