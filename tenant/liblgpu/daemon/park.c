// SPDX-License-Identifier: Apache-2.0

// A process that leaves its devices: halted, nothing of it is under way; parked, nothing leads out of it either, so that it
// can be written to a disk; and how it comes back, perhaps as another process.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/futex.h"
#include "daemon/parts.h"

#define LOOK 1                      // ms between two looks whether all is halted
#define STAY (LGPU_NANOS / 100)     // ns between two looks whether the socket has changed
#define UNASKED LGPU_NANOS          // ns after which a parked process asks although it has not
#define AGAIN (LGPU_NANOS / 5)      // ns between two tries to charge what it holds
#define ANSWER LGPU_NANOS           // ns for the answer to a Need

static void answer(const struct lgpu_connection *l, uint64_t value, uint64_t why)
{
	lgpu_daemon_send(&(struct lgpu_message){
		.kind = (uint16_t)LGPU_LINK_HALTED,
		.flags = why != 0 ? (uint32_t)LGPU_LINK_FLAG_REFUSED : 0,
		.serial = l->halt,
		.value = value,
		.extra = why,
	});
}

static void proceed(struct lgpu_connection *l)
{
	if (l->halted)
		lgpu_daemon_handlers.proceed(l->fresh);
	l->halted = l->fresh = false;
	l->until = 0;
}

void lgpu_park_halt(struct lgpu_connection *l, const struct lgpu_message *m)
{
	l->halt = m->serial;
	if (m->value == 0) {
		proceed(l);
		answer(l, 0, 0);
		return;
	}
	int64_t now = lgpu_now();
	l->until = m->value < (uint64_t)(INT64_MAX - now) ? now + (int64_t)m->value : INT64_MAX;
	l->halted = true;
	lgpu_daemon_handlers.halt();
}

bool lgpu_park_waits(struct lgpu_connection *l)
{
	if (l->until == 0)
		return false;
	if (lgpu_daemon_handlers.halted()) {
		LGPU_FAULT_POINT("halted");
		l->until = 0;
		answer(l, 1, 0);
		return false;
	}
	if (lgpu_now() >= l->until) {
		proceed(l);
		answer(l, 0, LGPU_LINK_WHY_BUSY);
		return false;
	}
	struct pollfd in = {l->fd, POLLIN, 0};
	return poll(&in, 1, LOOK) <= 0;
}

void lgpu_park_ended(struct lgpu_connection *l) { proceed(l); }

void lgpu_park(struct lgpu_process *p)
{
	struct lgpu_connection *l = &p->daemon;
	struct lgpu_message m = {.kind = (uint16_t)LGPU_LINK_PARKED};
	m.extra = !l->halted || l->until != 0 ? LGPU_LINK_WHY_BUSY : 0;
	if (m.extra == 0 && !lgpu_daemon_handlers.parking(true))
		m.extra = LGPU_LINK_WHY_STORE;
	if (m.extra == 0) {
		LGPU_FAULT_POINT("parking");
		if (!lgpu_region_keep(&p->state)) {
			lgpu_daemon_handlers.parking(false);
			m.extra = LGPU_LINK_WHY_STORE;
		}
	}
	if (m.extra != 0) {
		m.flags = (uint32_t)LGPU_LINK_FLAG_REFUSED;
		lgpu_daemon_send(&m);
		return;
	}
	lgpu_daemon_send(&m);
	lgpu_lock(&l->lock);
	if (lgpu_file_is(p->state.fd, &l->usage))
		close(p->state.fd);
	p->state.fd = -1;
	if (l->up && lgpu_file_is(l->fd, &l->socket))
		close(l->fd);
	l->up = false;
	l->parked = true;
	lgpu_unlock(&l->lock);
	LGPU_FAULT_POINT("parked");
}

// What is looked at of a socket: the daemon changes the time to call who is parked, and another daemon's is another file.
struct mark {
	struct lgpu_file file;
	struct timespec changed;
};

static struct mark mark_of(const char *path)
{
	struct stat st;
	struct mark m = {.file = {0}};
	if (syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0)
		m = (struct mark){{st.st_dev, st.st_ino}, st.st_mtim};
	return m;
}

static bool same(const struct mark *a, const struct mark *b) { return memcmp(a, b, sizeof *a) == 0; }

// ask has the daemon grant bytes of index, and waits for its answer while it acts on what else comes. False: it has hung up.
static bool ask(struct lgpu_connection *l, int fd, int index, uint64_t bytes)
{
	struct lgpu_message m = {
		.kind = (uint16_t)LGPU_LINK_NEED,
		.device = index == LGPU_HOST ? 0 : (uint32_t)index,
		.flags = index == LGPU_HOST ? (uint32_t)LGPU_LINK_FLAG_HOST : 0,
		.value = bytes,
	};
	if (send(fd, &m, sizeof m, MSG_NOSIGNAL) != sizeof m)
		return false;
	for (int64_t now = lgpu_now(), end = now + ANSWER; now < end; now = lgpu_now()) {
		int file;
		ssize_t n = lgpu_link_receive(fd, &m, &file);
		if (n == sizeof m && m.kind == LGPU_LINK_MEMORY) {
			if (file >= 0)
				close(file);
			return true;
		}
		if (n == sizeof m)
			lgpu_link_heard(l, &m, file);
		else if (n >= 0 || (errno != EINTR && errno != EAGAIN))
			return false;
	}
	return true;
}

// tell says what the lgpu has no room for.
static bool tell(const struct lgpu_state *s, int fd, int index, uint64_t bytes)
{
	if (index == LGPU_HOST)
		lgpu_log(LGPU_LOG_WARN, "parked: the lgpu at %s has no room for %llu bytes of host memory of this process; it waits", s->path,
			 (unsigned long long)bytes);
	else
		lgpu_log(LGPU_LOG_WARN, "parked: the lgpu at %s has no room for %llu bytes of this process on device %d; it waits", s->path,
			 (unsigned long long)bytes, index);
	struct lgpu_message m = {
		.kind = (uint16_t)LGPU_LINK_HALTED,
		.device = index == LGPU_HOST ? 0 : (uint32_t)index,
		.flags = (uint32_t)(LGPU_LINK_FLAG_REFUSED | (index == LGPU_HOST ? LGPU_LINK_FLAG_HOST : 0)),
		.value = bytes,
		.extra = LGPU_LINK_WHY_MEMORY,
	};
	return send(fd, &m, sizeof m, MSG_NOSIGNAL) == sizeof m;
}

// settle charges all that this process holds in another region, and takes that from then on. False: the daemon has hung up.
static bool settle(struct lgpu_process *p, int fd, uint32_t client, struct lgpu_limits *limits, struct lgpu_usage *usage)
{
	struct lgpu_state *s = &p->state;
	bool told = false;
	int index;
	uint64_t bytes;
	for (;;) {
		if (lgpu_daemon_handlers.charge(s, limits, usage, client, &index, &bytes))
			return true;
		if (!ask(&p->daemon, fd, index, bytes))
			return false;
		if (lgpu_daemon_handlers.charge(s, limits, usage, client, &index, &bytes))
			return true;
		if (!told && !tell(s, fd, index, bytes))
			return false;
		told = true;
		nanosleep(&(struct timespec){0, AGAIN}, NULL);
	}
}

// rejoin comes back to the daemon, if it lets this process.
static bool rejoin(struct lgpu_process *p)
{
	struct lgpu_connection *l = &p->daemon;
	struct lgpu_state *s = &p->state;
	char why[LGPU_LINK_MAX_TEXT + 1];
	struct lgpu_welcome w;
	int fd = lgpu_link_dial(s->path);
	if (fd < 0)
		return false;
	LGPU_FAULT_POINT("rejoin");
	struct lgpu_message m = {.flags = LGPU_LINK_FLAG_REJOIN, .client = s->client, .id = l->id};
	if (!lgpu_link_hello(fd, m, -1, &w, why, sizeof why)) {
		lgpu_log(LGPU_LOG_DEBUG, "parked: the lgpu daemon at %s: %s", s->path, why);
		close(fd);
		return false;
	}
	struct lgpu_limits *limits = lgpu_link_limits(w.limits, s->path);
	struct lgpu_usage *usage = w.usage >= 0 ? lgpu_usage_map(w.usage, 0) : NULL;
	close(w.limits);
	bool fits = limits != NULL && usage != NULL && limits->devices == s->limits->devices && w.message.client < LGPU_MAX_CLIENTS;
	if (!fits)
		lgpu_log(LGPU_LOG_ERROR, "parked: the daemon at %s gave no region with %u devices; this process waits for one", s->path,
			 s->limits->devices);
	if (!fits || !settle(p, fd, w.message.client, limits, usage)) {
		lgpu_region_unmap(limits, usage);
		if (w.usage >= 0)
			close(w.usage);
		close(fd);
		return false;
	}
	LGPU_FAULT_POINT("rejoined");
	s->fd = lgpu_raise(w.usage);
	lgpu_file_of(s->fd, &l->usage);
	l->id = w.message.id;
	l->parked = false;
	l->fresh = true;
	lgpu_link_established(p, fd);
	lgpu_daemon_handlers.parking(false);
	lgpu_daemon_handlers.back();
	l->halt = 0;
	answer(l, 1, 0);
	return true;
}

void lgpu_park_stay(struct lgpu_process *p)
{
	struct mark seen = mark_of(p->state.path), now;
	for (int64_t asked = lgpu_now();;) {
		nanosleep(&(struct timespec){0, STAY}, NULL);
		now = mark_of(p->state.path);
		if (same(&now, &seen) && lgpu_now() - asked < UNASKED)
			continue;
		seen = now;
		if (rejoin(p))
			return;
		asked = lgpu_now();
	}
}
