// SPDX-License-Identifier: Apache-2.0

// What a forked child has of its parent's connection. A child that is no client has no use for the descriptors, and would still
// have them when the parent has parked. It does not know their numbers, since they are in a page that it finds empty.
#include <unistd.h>

#include "daemon/parts.h"

static struct {
	int fd; // -1: there is none
	struct lgpu_file file;
} passed[2]; // the connection, and usage

// before_fork notes what the child is about to have. It takes no lock, as a signal handler may fork whose thread has that. If
// something changes meanwhile, the child finds another file there, and leaves it.
static void before_fork(void)
{
	const struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	const struct lgpu_connection *l = &p->daemon;
	passed[0].fd = __atomic_load_n(&l->up, __ATOMIC_ACQUIRE) ? l->fd : -1;
	passed[0].file = l->socket;
	passed[1].fd = p->state.linked ? p->state.fd : -1;
	passed[1].file = l->usage;
}

static void forked(void)
{
	for (int i = 0; i < 2; i++)
		if (passed[i].fd >= 0 && lgpu_file_is(passed[i].fd, &passed[i].file))
			close(passed[i].fd);
}

void lgpu_link_guard_forks(void)
{
	static bool guarded; // a forked child is, too
	if (!__atomic_exchange_n(&guarded, true, __ATOMIC_RELAXED))
		lgpu_at_fork(before_fork, forked);
}
