// The process: which lgpu it belongs to, and its slot there.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"
#include "exports.h"
#include "freed.h"
#include "futex.h"
#include "accounts.h"
#include "memory.h"
#include "pools.h"
#include "region_file.h"
#include "hami.h"
#include "library.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

// How old the list of the living may be where it only informs.
#define RECLAIM_PERIOD INT64_C(50000000)

struct lgpu_process *lgpu_process;

// process returns the page of this process. A forked child finds it empty,
// which is all that is needed for the child to begin unattached; where the
// kernel cannot wipe (before Linux 4.14) the pid tells.
static struct lgpu_process *process(void)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	if (p == NULL) {
		void *page = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED)
			return NULL;
		madvise(page, sizeof *p, MADV_WIPEONFORK);
		if (__atomic_compare_exchange_n(&lgpu_process, &p, page, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			p = page;
		else
			munmap(page, sizeof *p);
	}
	int32_t pid = (int32_t)getpid(), seen = 0;
	if (!__atomic_compare_exchange_n(&p->pid, &seen, pid, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) && seen != pid) {
		memset(p, 0, sizeof *p);
		p->pid = pid;
	}
	return p;
}

bool lgpu_configured(void)
{
	const char *region = getenv("LGPU_REGION");
	return lgpu_daemon_configured() || (region != NULL && region[0] != 0) || lgpu_hami_configured();
}

// ---- leases

static int record_lock(int fd, int command, short type, uint32_t index, struct flock *l)
{
	*l = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(LGPU_CLIENT_LOCK_OFFSET + index), .l_len = 1};
	return fcntl(fd, command, l);
}

bool lgpu_lease(int fd, uint32_t index)
{
	struct flock l;
	return record_lock(fd, F_SETLK, F_WRLCK, index, &l) == 0;
}

void lgpu_lease_drop(int fd, uint32_t index)
{
	struct flock l;
	record_lock(fd, F_SETLK, F_UNLCK, index, &l);
}

bool lgpu_lease_dead(int fd, uint32_t index)
{
	struct flock l;
	return record_lock(fd, F_GETLK, F_WRLCK, index, &l) == 0 && l.l_type == F_UNLCK;
}

// ---- who is who

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

// gone reports whether the client of a slot whose lease is free is dead: a
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

// settle gives back what the dead client of a slot holds. The caller has the
// slot's lease.
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
		// Who only looks may share its process with a copy of this library that
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

// ---- the region's file

static bool same_file(int fd, const struct lgpu_process *p)
{
	struct stat st;
	return syscall(SYS_fstat, fd, &st) == 0 && st.st_dev == p->dev && st.st_ino == p->ino;
}

int lgpu_open_high(const char *path, int flags)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | flags, 0666);
	// To close a descriptor of a file gives up all leases that the process has
	// there. Where another copy of this library may have one, the first stays.
	if (fd < 0 || lgpu_second_copy())
		return fd;
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 512);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

int lgpu_region_fd(struct lgpu_state *state)
{
	struct lgpu_process *p = lgpu_process;
	int fd = __atomic_load_n(&state->fd, __ATOMIC_ACQUIRE);
	if (fd >= 0 && same_file(fd, p))
		return fd;
	lgpu_lock(&p->lock);
	fd = state->fd;
	if (fd < 0 || !same_file(fd, p)) {
		fd = lgpu_open_high(state->path, 0);
		if (fd >= 0 && !same_file(fd, p)) {
			close(fd);
			fd = -1;
		}
		if (fd >= 0 && state->client < LGPU_MAX_CLIENTS)
			lgpu_lease(fd, state->client);
		__atomic_store_n(&state->fd, fd, __ATOMIC_RELEASE);
	}
	lgpu_unlock(&p->lock);
	return fd;
}

bool lgpu_region_valid(const struct lgpu_limits *l, const char *where)
{
	const char *wrong = l->magic != LGPU_MAGIC ? "is not a region" :
			    l->version != LGPU_VERSION ? "has a layout that this build does not know" :
			    l->devices == 0 || l->devices > LGPU_MAX_DEVICES ? "has an impossible number of devices" : NULL;
	for (uint32_t i = 0; wrong == NULL && i < l->devices; i++)
		if (l->device[i].compute > LGPU_FULL_COMPUTE)
			wrong = "has an impossible compute share";
	if (wrong != NULL)
		lgpu_log(LGPU_LOG_ERROR, "region %s %s; there is no GPU for this process", where, wrong);
	return wrong == NULL;
}

bool lgpu_region_map(struct lgpu_process *p, const char *path, off_t base, bool own_limits)
{
	struct lgpu_state *s = &p->state;
	struct stat st;
	const size_t usage_bytes = (sizeof *s->usage + 4095) & ~(size_t)4095;
	int fd = lgpu_open_high(path, 0);
	if (fd < 0 || syscall(SYS_fstat, fd, &st) != 0) {
		lgpu_log(LGPU_LOG_ERROR, "region %s: %s; there is no GPU for this process", path, strerror(errno));
		goto fail;
	}
	if (!S_ISREG(st.st_mode) || st.st_size < base + (off_t)(LGPU_LIMITS_BYTES + sizeof *s->usage)) {
		lgpu_log(LGPU_LOG_ERROR, "region %s is truncated; there is no GPU for this process", path);
		goto fail;
	}
	void *limits = mmap(NULL, LGPU_LIMITS_BYTES, own_limits ? PROT_READ | PROT_WRITE : PROT_READ,
			    own_limits ? MAP_PRIVATE : MAP_SHARED, fd, base);
	void *usage = mmap(NULL, usage_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, base + (off_t)LGPU_LIMITS_BYTES);
	if (limits == MAP_FAILED || usage == MAP_FAILED) {
		lgpu_log(LGPU_LOG_ERROR, "region %s: map: %s; there is no GPU for this process", path, strerror(errno));
		goto unmap;
	}
	if (!lgpu_region_valid(limits, path))
		goto unmap;
	s->limits = limits;
	s->usage = usage;
	s->client = LGPU_MAX_CLIENTS;
	s->fd = fd;
	p->dev = st.st_dev;
	p->ino = st.st_ino;
	return true;
unmap:
	if (limits != MAP_FAILED)
		munmap(limits, LGPU_LIMITS_BYTES);
	if (usage != MAP_FAILED)
		munmap(usage, usage_bytes);
fail:
	if (fd >= 0)
		close(fd);
	return false;
}

// keep returns a copy of text that lives as long as the process: the
// environment may change under a pointer into it.
static const char *keep(const char *text, int length)
{
	char *copy = malloc((size_t)length + 1);
	if (copy != NULL) {
		memcpy(copy, text, (size_t)length);
		copy[length] = 0;
	}
	return copy;
}

static bool view(struct lgpu_process *p, bool client)
{
	struct lgpu_state *s = &p->state;
	if (lgpu_daemon_configured())
		return lgpu_daemon_map(p, client);
	const char *path = getenv("LGPU_REGION");
	if (path == NULL || path[0] == 0)
		return lgpu_hami_map(p);
	const char *slash = strrchr(path, '/');
	s->path = keep(path, (int)strlen(path));
	s->turns = slash == NULL ? keep(".", 1) : keep(path, slash == path ? 1 : (int)(slash - path));
	s->filter = true;
	return s->path != NULL && s->turns != NULL && lgpu_region_map(p, s->path, 0, false);
}

// take_slot tries to make slot i this process's. A dead client's is settled
// first.
static bool take_slot(struct lgpu_state *s, uint32_t i, const struct identity *self)
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
	memset(c->left, 0, sizeof c->left);
	LGPU_FAULT_POINT("named");
	__atomic_store_n(&c->state, (uint32_t)LGPU_CLIENT_LIVE, __ATOMIC_RELEASE);
	LGPU_FAULT_POINT("live");
	return true;
}

// forget_former settles what this process held before execve, for others take
// it for alive. It had the first slot that was free then, near the first of
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

// claim takes a client slot. Processes that start at once begin at different
// slots, so that they do not queue for the same record locks; HAMi's readers
// want low ones.
static bool claim(struct lgpu_state *s)
{
	struct identity self;
	self_identity(&self);
	uint32_t first = s->hami != NULL ? 0 : self.pid * UINT32_C(2654435761) >> 22;
	for (uint32_t k = 0; k < LGPU_MAX_CLIENTS; k++) {
		uint32_t i = (first + k) % LGPU_MAX_CLIENTS;
		if (!take_slot(s, i, &self))
			continue;
		s->client = i;
		forget_former(s, first, k + 16, &self);
		if (s->hami != NULL)
			lgpu_hami_claim(s, self.pid, self.namespace);
		return true;
	}
	lgpu_log(LGPU_LOG_ERROR, "region %s: all %d client slots are taken; there is no GPU for this process", s->path,
		 (int)LGPU_MAX_CLIENTS);
	return false;
}

// forget_parent empties what a forked child has copies of: it holds nothing.
// The first process to attach finds all that empty.
static void forget_parent(void)
{
	static bool attached_before;
	if (!attached_before) {
		attached_before = true;
		return;
	}
	lgpu_accounts_reset();
	lgpu_pools_reset();
	lgpu_overhead_reset();
	lgpu_graphs_reset();
	lgpu_contexts_reset();
	lgpu_libraries_reset();
	lgpu_freed_reset();
	lgpu_exports_reset();
	lgpu_handles_reset();
}

static enum lgpu_attachment attach(bool client)
{
	struct lgpu_process *p = process();
	if (p == NULL)
		return LGPU_BROKEN;
	if (__atomic_load_n(client ? &p->attached : &p->viewed, __ATOMIC_ACQUIRE) != NULL)
		return LGPU_ATTACHED;
	// To attach in HAMi mode is to ask NVML, and NVML's library calls its own
	// exported functions by way of ours. Those calls are not the program's.
	int32_t thread = (int32_t)syscall(SYS_gettid);
	if (__atomic_load_n(&p->attacher, __ATOMIC_RELAXED) == thread)
		return LGPU_UNLIMITED;
	lgpu_lock(&p->lock);
	__atomic_store_n(&p->attacher, thread, __ATOMIC_RELAXED);
	enum lgpu_attachment result = LGPU_ATTACHED;
	if (p->unlimited || (p->viewed == NULL && !p->broken && !lgpu_configured())) {
		p->unlimited = true;
		result = LGPU_UNLIMITED;
	} else if (p->broken || (p->viewed == NULL && !view(p, client))) {
		p->broken = true;
		result = LGPU_BROKEN;
	} else {
		__atomic_store_n(&p->viewed, &p->state, __ATOMIC_RELEASE);
		if (client && p->attached == NULL) {
			forget_parent();
			if (p->state.linked ? lgpu_daemon_join(p) : claim(&p->state)) {
				__atomic_store_n(&p->attached, &p->state, __ATOMIC_RELEASE);
			} else {
				p->broken = true;
				result = LGPU_BROKEN;
			}
		}
	}
	__atomic_store_n(&p->attacher, 0, __ATOMIC_RELAXED);
	lgpu_unlock(&p->lock);
	return result;
}

enum lgpu_attachment lgpu_attach(void) { return attach(true); }
enum lgpu_attachment lgpu_attach_view(void) { return attach(false); }
