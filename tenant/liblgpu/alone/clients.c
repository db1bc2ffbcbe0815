// SPDX-License-Identifier: Apache-2.0

// The clients of a region without a daemon: how a process becomes one, and what happens
// when one is dead.
#include "alone/alone.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alone/hami.h"
#include "base/futex.h"
#include "process/counter.h"

// How old the list of the living may be where it only informs.
#define RECLAIM_PERIOD INT64_C(50000000)

// ---- processes

struct identity {
	uint32_t pid;
	uint64_t start, namespace;
	char comm[16];
};

// identify reads /proc. False: no such process, or it has ended and waits for
// its parent.
static bool identify(const char *pid, struct identity *id)
{
	char path[64], text[512];
	snprintf(path, sizeof path, "/proc/%s/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = 0;
	// The name may hold anything, brackets and spaces included.
	char *open_bracket = strchr(text, '('), *p = strrchr(text, ')');
	if (open_bracket == NULL || p == NULL || p[1] != ' ')
		return false;
	*p = 0;
	memset(id->comm, 0, sizeof id->comm);
	memcpy(id->comm, open_bracket + 1, strnlen(open_bracket + 1, sizeof id->comm - 1));
	p += 2;
	if (*p == 'Z' || *p == 'X')
		return false;
	for (int field = 3; field < 22; field++) {
		p = strchr(p, ' ');
		if (p == NULL)
			return false;
		p++;
	}
	const char *end;
	return lgpu_number(p, &id->start, &end);
}

static uint64_t namespace_of_self(void)
{
	char link[64];
	const char *end;
	uint64_t inode = 0;
	ssize_t n = readlink("/proc/self/ns/pid", link, sizeof link - 1);
	if (n > 5) {
		link[n] = 0; // "pid:[4026531836]"
		if (!lgpu_number(link + 5, &inode, &end))
			inode = 0;
	}
	return inode;
}

// gone reports whether a client whose lease is free is dead: a
// program that closes all its descriptors loses the lease and lives on. A
// process of another PID namespace is not in our /proc; its lease must do.
static bool gone(const struct lgpu_client *c, uint64_t own_namespace, const struct identity *self)
{
	if (c->namespace != own_namespace || own_namespace == 0)
		return true;
	if (c->pid == self->pid && c->start == self->start)
		return true; // ourselves, before execve
	char pid[16];
	struct identity found;
	snprintf(pid, sizeof pid, "%u", c->pid);
	return !identify(pid, &found) || found.start != c->start;
}

static bool self_identity(struct identity *id)
{
	memset(id, 0, sizeof *id);
	bool known = identify("self", id);
	id->pid = (uint32_t)getpid();
	id->namespace = namespace_of_self();
	return known;
}

// ---- dead clients

// settle gives back what a dead client holds. The caller has its lease.
static void settle(struct lgpu_state *state, uint32_t index)
{
	struct lgpu_counter_at host = lgpu_counter_host(state->usage);
	lgpu_counter_settle(&host, index);
	for (uint32_t i = 0; i < state->limits->devices; i++) {
		struct lgpu_counter_at device = lgpu_counter_device(state->usage, i);
		lgpu_counter_settle(&device, index);
	}
	if (state->hami != NULL)
		lgpu_hami_free(state, index);
	LGPU_FAULT_POINT("freed");
	__atomic_store_n(&state->usage->client[index].state, (uint32_t)LGPU_CLIENT_FREE, __ATOMIC_RELEASE);
}

void lgpu_reclaim(struct lgpu_state *state)
{
	struct lgpu_process *p = lgpu_process;
	if (state->linked)
		return; // the daemon does
	int fd = lgpu_region_fd(state);
	if (fd < 0)
		return;
	struct identity self;
	self_identity(&self);
	lgpu_lock(&p->reclaim);
	for (uint32_t i = 0; i < LGPU_MAX_CLIENTS; i++) {
		struct lgpu_client *c = &state->usage->client[i];
		if (i == state->client || __atomic_load_n(&c->state, __ATOMIC_ACQUIRE) != LGPU_CLIENT_LIVE)
			continue;
		// A process that only looks may have a second copy of this library that
		// is a client; a process's own leases are no obstacle to it.
		if (state->client == LGPU_MAX_CLIENTS && c->pid == self.pid)
			continue;
		if (!lgpu_lease(fd, i))
			continue;
		if (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE) == LGPU_CLIENT_LIVE && gone(c, self.namespace, &self))
			settle(state, i);
		lgpu_lease_drop(fd, i);
	}
	lgpu_unlock(&p->reclaim);
}

void lgpu_reclaim_sometimes(struct lgpu_state *state)
{
	struct lgpu_process *p = lgpu_process;
	int64_t now = lgpu_now(), next = __atomic_load_n(&p->next_reclaim, __ATOMIC_RELAXED);
	if (now >= next && __atomic_compare_exchange_n(&p->next_reclaim, &next, now + RECLAIM_PERIOD, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		lgpu_reclaim(state);
}

// ---- becoming a client

// become tries to make this process client i. A dead one is settled first.
static bool become(struct lgpu_state *s, uint32_t i, const struct identity *self)
{
	struct lgpu_client *c = &s->usage->client[i];
	if (!lgpu_lease(s->fd, i))
		return false;
	if (__atomic_load_n(&c->state, __ATOMIC_ACQUIRE) != LGPU_CLIENT_FREE) {
		if (!gone(c, self->namespace, self)) {
			lgpu_lease_drop(s->fd, i);
			return false;
		}
		settle(s, i);
	}
	LGPU_FAULT_POINT("claimed");
	c->pid = self->pid;
	c->start = self->start;
	c->namespace = self->namespace;
	memcpy(c->comm, self->comm, sizeof c->comm);
	memset(c->exported, 0, sizeof c->exported);
	memset(c->released, 0, sizeof c->released);
	LGPU_FAULT_POINT("named");
	__atomic_store_n(&c->state, (uint32_t)LGPU_CLIENT_LIVE, __ATOMIC_RELEASE);
	LGPU_FAULT_POINT("live");
	return true;
}

// forget_former settles what this process held before execve, for others take
// it for alive. It was the first client that was free then, near the first of
// all.
static void forget_former(struct lgpu_state *s, uint32_t first, uint32_t count, const struct identity *self)
{
	for (uint32_t k = 0; k < count; k++) {
		uint32_t i = (first + k) % LGPU_MAX_CLIENTS;
		const struct lgpu_client *c = &s->usage->client[i];
		if (i != s->client && c->pid == self->pid && __atomic_load_n(&c->state, __ATOMIC_ACQUIRE) == LGPU_CLIENT_LIVE &&
		    c->namespace == self->namespace && c->start == self->start && lgpu_lease(s->fd, i)) {
			settle(s, i);
			lgpu_lease_drop(s->fd, i);
		}
	}
}

// Processes that start at once begin at different indexes, so that they do not
// queue for the same record locks; HAMi's readers want low ones.
bool lgpu_alone_claim(struct lgpu_state *s)
{
	struct identity self;
	self_identity(&self);
	uint32_t first = s->hami != NULL ? 0 : self.pid * UINT32_C(2654435761) >> 22;
	for (uint32_t k = 0; k < LGPU_MAX_CLIENTS; k++) {
		uint32_t i = (first + k) % LGPU_MAX_CLIENTS;
		if (!become(s, i, &self))
			continue;
		s->client = i;
		forget_former(s, first, k + 16, &self);
		if (s->hami != NULL)
			lgpu_hami_claim(s, self.pid, self.namespace);
		return true;
	}
	lgpu_log(LGPU_LOG_ERROR, "region %s: it has %d clients already, the most there can be; there is no GPU for this process", s->path,
		 (int)LGPU_MAX_CLIENTS);
	return false;
}
