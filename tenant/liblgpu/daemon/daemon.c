// SPDX-License-Identifier: Apache-2.0

#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/futex.h"
#include "daemon/parts.h"

// Times in ns.
#define PATIENCE (10 * LGPU_NANOS)      // for a daemon that is not there when the program starts
#define BACKOFF_FIRST (LGPU_NANOS / 100) // between two looks for it
#define BACKOFF_LAST LGPU_NANOS
#define ANSWER LGPU_NANOS // to Need
#define LOOK (LGPU_NANOS / 2) // the longest that the thread that hears the daemon waits
#define QUIET 2               // waits without a message after which nothing has been said for a second

static void pause_for(int64_t nanos)
{
	struct timespec t = {nanos / LGPU_NANOS, nanos % LGPU_NANOS};
	nanosleep(&t, NULL);
}

static void timeout(int fd, int64_t nanos)
{
	struct timeval t = {nanos / LGPU_NANOS, nanos % LGPU_NANOS / 1000};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t); // connect, too: a daemon that hangs accepts nobody
}

int lgpu_link_dial(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof address.sun_path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(address.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	timeout(fd, PATIENCE);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return lgpu_raise(fd);
}

// interrupted reports whether a call is to be made again. The program's signals
// come at any time, and a call with a timeout is not restarted after them.
static bool interrupted(ssize_t result, int64_t began)
{
	return result < 0 && errno == EINTR && lgpu_now() - began < PATIENCE;
}

union control {
	struct cmsghdr header;
	char room[CMSG_SPACE(2 * sizeof(int))];
};

// send_with sends m, with the descriptor file unless that is -1, or the kernel refuses
// descriptors: a daemon that has all it wants lets it do so. False: why it could not be
// sent is in errno.
static bool send_with(int fd, const struct lgpu_message *m, int file, int flags, int64_t began)
{
	struct iovec out = {(void *)(uintptr_t)m, sizeof *m};
	union control control;
	struct msghdr message = {.msg_iov = &out, .msg_iovlen = 1};
	if (file >= 0) {
		memset(&control, 0, sizeof control);
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof file);
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), &file, sizeof file);
	}
	ssize_t n;
	do
		n = sendmsg(fd, &message, flags | MSG_NOSIGNAL);
	while (interrupted(n, began));
	if (n < 0 && errno == EPERM && file >= 0) {
		message.msg_control = NULL;
		message.msg_controllen = 0;
		n = sendmsg(fd, &message, flags | MSG_NOSIGNAL);
	}
	return n == sizeof *m;
}

// send_hello sends m as a Hello, with the descriptor usage unless that is -1.
static bool send_hello(int fd, struct lgpu_message m, int usage, int64_t began)
{
	m.kind = (uint16_t)LGPU_LINK_HELLO;
	m.version = (uint16_t)LGPU_LINK_VERSION;
	return send_with(fd, &m, usage, 0, began);
}

// take_descriptors stores the descriptors that came with a message; -1 for those that did not come.
static void take_descriptors(struct msghdr *message, int *first, int *second)
{
	int fds[2], count = 0;
	struct cmsghdr *c = CMSG_FIRSTHDR(message);
	if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof fds[0]);
		memcpy(fds, CMSG_DATA(c), sizeof fds[0] * (size_t)count);
	}
	*first = count > 0 ? fds[0] : -1;
	*second = count > 1 ? fds[1] : -1;
}

bool lgpu_link_hello(int fd, struct lgpu_message m, int usage, struct lgpu_welcome *w, char *why, size_t room)
{
	int64_t began = lgpu_now();
	w->limits = w->usage = -1;
	if (!send_hello(fd, m, usage, began)) {
		snprintf(why, room, "%s", strerror(errno));
		return false;
	}
	union control control;
	char text[LGPU_LINK_MAX_TEXT + 1];
	struct iovec in[2] = {{&w->message, sizeof w->message}, {text, sizeof text - 1}};
	struct msghdr message = {.msg_iov = in, .msg_iovlen = 2, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t n;
	do
		n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	while (interrupted(n, began));
	if (n < (ssize_t)sizeof w->message) {
		snprintf(why, room, "%s", n == 0 ? "it hung up" : n < 0 ? strerror(errno) : "it answered in another language");
		return false;
	}
	take_descriptors(&message, &w->limits, &w->usage);
	if (w->message.kind == LGPU_LINK_WELCOME && w->message.version == LGPU_LINK_VERSION && w->limits >= 0)
		return true;
	text[n - (ssize_t)sizeof w->message] = 0;
	const char *said = text[0] != 0 ? text : strerror((int)w->message.value);
	snprintf(why, room, "%s", w->message.kind == LGPU_LINK_REFUSE ? said : "it is of another version");
	if (w->limits >= 0)
		close(w->limits);
	if (w->usage >= 0)
		close(w->usage);
	return false;
}

void lgpu_link_established(struct lgpu_process *p, int fd)
{
	struct lgpu_connection *l = &p->daemon;
	lgpu_link_guard_forks();
	timeout(fd, LOOK); // see listen_to
	lgpu_lock(&l->lock);
	l->fd = fd;
	l->up = lgpu_file_of(fd, &l->socket);
	l->needs = __atomic_load_n(&l->answered, __ATOMIC_RELAXED);
	lgpu_unlock(&l->lock);
}

struct lgpu_limits *lgpu_link_limits(int fd, const char *path)
{
	struct stat st;
	if (syscall(SYS_fstat, fd, &st) != 0 || st.st_size < (off_t)LGPU_LIMITS_BYTES)
		return NULL;
	void *fresh = mmap(NULL, LGPU_LIMITS_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (fresh == MAP_FAILED)
		return NULL;
	if (lgpu_region_valid(fresh, path))
		return fresh;
	munmap(fresh, LGPU_LIMITS_BYTES);
	return NULL;
}

static bool map_limits(struct lgpu_state *s, int fd)
{
	struct lgpu_limits *fresh = lgpu_link_limits(fd, s->path);
	if (fresh == NULL)
		return false;
	if (s->limits == NULL) {
		s->limits = fresh;
		return true;
	}
	// They replace the old ones in one step: a reader sees one or the other, and
	// never waits.
	return mremap(fresh, LGPU_LIMITS_BYTES, LGPU_LIMITS_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(uintptr_t)s->limits) !=
	       MAP_FAILED;
}

static bool map_usage(struct lgpu_process *p, int fd)
{
	struct lgpu_state *s = &p->state;
	struct stat st;
	if (syscall(SYS_fstat, fd, &st) != 0 || st.st_size < (off_t)sizeof *s->usage)
		return false;
	struct lgpu_usage *usage = lgpu_usage_map(fd, 0);
	if (usage == NULL)
		return false;
	s->usage = usage;
	s->fd = lgpu_raise(fd);
	return lgpu_file_of(s->fd, &p->daemon.usage);
}

// meet connects and introduces this process. The daemon may be about to start.
static int meet(const char *path, uint32_t flags, struct lgpu_welcome *w)
{
	char why[LGPU_LINK_MAX_TEXT + 1];
	int fd = -1;
	for (int64_t start = lgpu_now(), wait = BACKOFF_FIRST;; wait *= wait < BACKOFF_LAST / 4 ? 2 : 1) {
		fd = lgpu_link_dial(path);
		if (fd >= 0 || (errno != ENOENT && errno != ECONNREFUSED && errno != EINTR) || lgpu_now() - start > PATIENCE)
			break;
		pause_for(wait);
	}
	if (fd < 0) {
		lgpu_log(LGPU_LOG_ERROR, "the lgpu daemon at %s: %s; there is no GPU for this process", path, strerror(errno));
		return -1;
	}
	if (!lgpu_link_hello(fd, (struct lgpu_message){.flags = flags}, -1, w, why, sizeof why)) {
		lgpu_log(LGPU_LOG_ERROR, "the lgpu daemon at %s: %s; there is no GPU for this process", path, why);
		close(fd);
		return -1;
	}
	return fd;
}

bool lgpu_daemon_map(struct lgpu_process *p, bool client)
{
	struct lgpu_state *s = &p->state;
	struct lgpu_welcome w;
	const char *path = lgpu_setting("LGPU_SOCKET");
	s->path = path != NULL ? strdup(path) : NULL; // NULL: another thread has unset it just now
	if (s->path == NULL)
		return false;
	int fd = meet(s->path, client ? 0 : LGPU_LINK_FLAG_VIEW, &w);
	if (fd < 0)
		return false;
	bool mapped = map_limits(s, w.limits);
	close(w.limits);
	mapped = mapped && w.usage >= 0 && map_usage(p, w.usage);
	if (!mapped || (client && w.message.client >= LGPU_MAX_CLIENTS)) {
		lgpu_log(LGPU_LOG_ERROR, "the lgpu daemon at %s gave no region of this version; there is no GPU for this process", s->path);
		close(fd);
		return false;
	}
	s->linked = true;
	s->filter = true;
	s->client = client ? w.message.client : (uint32_t)LGPU_MAX_CLIENTS;
	p->daemon.id = w.message.id;
	if (client)
		lgpu_link_established(p, fd);
	else
		close(fd);
	return true;
}

bool lgpu_daemon_join(struct lgpu_process *p)
{
	struct lgpu_state *s = &p->state;
	struct lgpu_welcome w;
	if (s->client < LGPU_MAX_CLIENTS)
		return true;
	int fd = meet(s->path, 0, &w);
	if (fd < 0)
		return false;
	close(w.limits);
	if (w.usage >= 0)
		close(w.usage);
	if (w.message.client >= LGPU_MAX_CLIENTS || w.message.id != p->daemon.id) {
		lgpu_log(LGPU_LOG_ERROR, "the lgpu of this process has been replaced by a new one; there is no GPU for this process");
		close(fd);
		return false;
	}
	s->client = w.message.client;
	lgpu_link_established(p, fd);
	return true;
}

// send_message says something, with the descriptor file unless that is -1, and stores which Need it is if it is one.
static bool send_message(struct lgpu_connection *l, const struct lgpu_message *m, int file, uint32_t *need)
{
	lgpu_lock(&l->lock);
	bool sent = l->up && lgpu_file_is(l->fd, &l->socket);
	if (sent && !send_with(l->fd, m, file, MSG_DONTWAIT, lgpu_now())) {
		// It is gone, or has not listened for long: begin anew.
		shutdown(l->fd, SHUT_RDWR);
		sent = false;
	}
	if (sent && need != NULL)
		*need = ++l->needs;
	lgpu_unlock(&l->lock);
	return sent;
}

bool lgpu_daemon_send(const struct lgpu_message *m)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	return send_message(&p->daemon, m, -1, NULL);
}

bool lgpu_daemon_send_file(const struct lgpu_message *m, int file)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	return send_message(&p->daemon, m, file, NULL);
}

void lgpu_daemon_cut(void)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	struct lgpu_connection *l = &p->daemon;
	lgpu_lock(&l->lock);
	if (l->up && lgpu_file_is(l->fd, &l->socket))
		shutdown(l->fd, SHUT_RDWR); // the thread that listens does the rest
	lgpu_unlock(&l->lock);
	lgpu_log(LGPU_LOG_INFO, "the lgpu daemon at %s hangs; the limits it gave last hold", p->state.path);
}

void lgpu_link_heard(struct lgpu_connection *l, const struct lgpu_message *m, int file)
{
	if (m->kind == LGPU_LINK_STORE) {
		lgpu_daemon_handlers.store(m, file);
		return;
	}
	if (file >= 0)
		close(file);
	switch (m->kind) {
	case LGPU_LINK_MEMORY:
		__atomic_fetch_add(&l->answered, 1, __ATOMIC_RELEASE);
		lgpu_futex_wake(&l->answered, INT32_MAX);
		break;
	case LGPU_LINK_GONE:
		if (m->device < LGPU_MAX_DEVICES)
			lgpu_daemon_handlers.gone(&lgpu_process->state, (int)m->device, m->value);
		break;
	case LGPU_LINK_KEEP:
		lgpu_daemon_handlers.keep(m);
		break;
	case LGPU_LINK_SLICE:
		lgpu_daemon_handlers.slice(m);
		break;
	case LGPU_LINK_HALT:
		lgpu_park_halt(l, m);
		break;
	case LGPU_LINK_PARK:
		lgpu_park(lgpu_process);
		break;
	case LGPU_LINK_FREE:
	case LGPU_LINK_OPEN:
	case LGPU_LINK_CLOSE:
	case LGPU_LINK_SEEP:
		lgpu_daemon_handlers.gate(m);
		break;
	default:
		lgpu_log(LGPU_LOG_WARN, "the lgpu daemon sent message %u, which this library does not know", m->kind);
	}
}

// resume introduces this process to a daemon that has forgotten it.
static bool resume(struct lgpu_process *p)
{
	struct lgpu_connection *l = &p->daemon;
	struct lgpu_state *s = &p->state;
	char why[LGPU_LINK_MAX_TEXT + 1];
	struct lgpu_welcome w;
	int fd = lgpu_link_dial(s->path);
	if (fd < 0)
		return false;
	struct lgpu_message m = {.flags = LGPU_LINK_FLAG_RECONNECT, .client = s->client, .id = l->id};
	if (!lgpu_link_hello(fd, m, lgpu_file_is(s->fd, &l->usage) ? s->fd : -1, &w, why, sizeof why)) {
		lgpu_log(LGPU_LOG_INFO, "the lgpu daemon at %s: %s; the limits it gave last hold", s->path, why);
		close(fd);
		return false;
	}
	bool mapped = map_limits(s, w.limits);
	close(w.limits);
	if (w.usage >= 0)
		close(w.usage);
	if (!mapped || w.message.client != s->client || w.message.id != l->id) {
		close(fd);
		return false;
	}
	lgpu_link_established(p, fd);
	// From here on the daemon may take back what it grants.
	lgpu_daemon_send(&(struct lgpu_message){.kind = (uint16_t)LGPU_LINK_NEED});
	return true;
}

// lost ends a connection, if it is not gone already.
static void lost(struct lgpu_connection *l)
{
	lgpu_lock(&l->lock);
	if (l->up && lgpu_file_is(l->fd, &l->socket))
		close(l->fd);
	l->up = false;
	lgpu_unlock(&l->lock);
	lgpu_daemon_handlers.lost();
}

ssize_t lgpu_link_receive(int fd, struct lgpu_message *m, int *file)
{
	union control control;
	struct iovec in = {m, sizeof *m};
	struct msghdr message = {.msg_iov = &in, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	int other = *file = -1;
	if (n >= 0)
		take_descriptors(&message, file, &other);
	if (other >= 0)
		close(other);
	if (n != sizeof *m && *file >= 0)
		close(*file);
	return n;
}

static void *listen_to(void *arg)
{
	struct lgpu_process *p = arg;
	struct lgpu_connection *l = &p->daemon;
	for (;;) {
		struct lgpu_message m;
		int file;
		uint32_t waits = 0;
		// A program that closes all its descriptors closes this one too, and may
		// give its number to another file. While nothing comes, look now and then
		// whether it is still ours.
		while (!l->parked && lgpu_file_is(l->fd, &l->socket)) {
			if (lgpu_park_waits(l))
				continue;
			ssize_t n = lgpu_link_receive(l->fd, &m, &file);
			if (n == sizeof m)
				lgpu_link_heard(l, &m, file);
			else if (n >= 0 || (errno != EINTR && errno != EAGAIN))
				break;
			waits = n == sizeof m ? 0 : waits + 1;
			if (l->halted)
				continue; // nothing of this thread's may wait for the driver
			if (waits != 0 && waits % QUIET == 0)
				lgpu_daemon_handlers.idle(&p->state);
			lgpu_daemon_handlers.look();
		}
		if (l->parked) {
			lgpu_park_stay(p);
			continue;
		}
		lgpu_park_ended(l);
		lost(l);
		for (int64_t wait = BACKOFF_FIRST; !resume(p); wait = wait * 2 < BACKOFF_LAST ? wait * 2 : BACKOFF_LAST)
			pause_for(wait);
		lgpu_daemon_handlers.found();
	}
	return NULL;
}

void lgpu_daemon_listen(void)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	if (!__atomic_load_n(&p->daemon.listening, __ATOMIC_RELAXED) && !__atomic_exchange_n(&p->daemon.listening, true, __ATOMIC_RELAXED) &&
	    !lgpu_thread_start(listen_to, p))
		__atomic_store_n(&p->daemon.listening, false, __ATOMIC_RELAXED);
}

bool lgpu_daemon_need(int index, uint64_t bytes)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	uint32_t *answered = &p->daemon.answered, need;
	struct lgpu_message m = {
		.kind = (uint16_t)LGPU_LINK_NEED,
		.device = index == LGPU_HOST ? 0 : (uint32_t)index,
		.flags = index == LGPU_HOST ? (uint32_t)LGPU_LINK_FLAG_HOST : 0,
		.value = bytes,
	};
	lgpu_daemon_listen();
	if (!send_message(&p->daemon, &m, -1, &need))
		return false;
	// Threads may ask at once, and are answered in the order of asking.
	for (int64_t now = lgpu_now(), end = now + ANSWER; now < end; now = lgpu_now()) {
		uint32_t seen = __atomic_load_n(answered, __ATOMIC_ACQUIRE);
		if ((int32_t)(seen - need) >= 0)
			return true;
		lgpu_futex_wait(answered, seen, end - now);
	}
	return false;
}
