// SPDX-License-Identifier: Apache-2.0

// Legacy IPC (cuIpcGetMemHandle) of memory that can leave the device. The driver has handles of 64 bytes for memory of
// cuMemAlloc, and none for what is mapped; so ours name a socket of the process and a secret. Who knows the secret, and is
// the same user, gets a descriptor of the physical memory there and maps it. From the first such handle on the memory
// stays on the device.
//
// The socket is abstract, with a name that cannot be guessed. A thread of its own answers: it takes one question at a
// time, waits for none longer than QUESTION, and never waits for the residence lock.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "arena/parts.h"
#include "base/futex.h"
#include "residence/residence.h"

#define NAME 16
#define SECRET 32
#define QUESTION 1 // s, for a question to come
#define ANSWER 5   // s, for an answer

static const char magic[8] = "lgpuipc2";

// What a program has as a CUipcMemHandle.
struct ticket {
	char magic[8];
	unsigned char name[NAME]; // of the socket
	unsigned char secret[SECRET];
	unsigned char rest[8]; // 0
};
_Static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "a ticket is a handle");

// The answer to a secret, which comes with a descriptor for each piece.
struct answer {
	uint64_t mapped, piece, offset, bytes; // of physical memory and its pieces, of the allocation in it
	uint64_t pieces;
};

// Descriptors, as they travel.
union descriptors {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(LGPU_PIECES * sizeof(int))];
};

// An allocation that has a handle.
struct shared {
	struct shared *next;
	struct lgpu_block *block;
	uint64_t id, offset, bytes;
	unsigned char secret[SECRET];
};

// Memory of another process that is mapped here.
struct opened {
	struct opened *next;
	uint64_t base, mapped, offset, bytes, id;
	uint32_t uses;
	CUcontext context;
	CUdevice ordinal; // of the memory
	uint64_t piece;
	uint32_t pieces;
	CUmemGenericAllocationHandle handle[LGPU_PIECES];
	unsigned char secret[SECRET];
};

// All of it is guarded by lgpu_arena_lock.
static struct shared *shared;
static struct opened *opened;
static unsigned char name[NAME];
static int server; // its descriptor + 1; 0: there is none

void lgpu_arena_shares_forget(void)
{
	if (server != 0)
		close(server - 1); // the parent's
	server = 0;
	shared = NULL;
	opened = NULL;
}

static bool randomise(unsigned char *bytes, size_t count)
{
	return syscall(SYS_getrandom, bytes, count, 0) == (long)count;
}

static socklen_t address_of(struct sockaddr_un *a, const unsigned char *of)
{
	static const char digits[] = "0123456789abcdef", prefix[] = "lgpu-memory-";
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	size_t n = 1; // the name begins with a zero: it is no file
	memcpy(a->sun_path + n, prefix, sizeof prefix - 1);
	n += sizeof prefix - 1;
	for (int i = 0; i < NAME; i++) {
		a->sun_path[n++] = digits[of[i] >> 4];
		a->sun_path[n++] = digits[of[i] & 15];
	}
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

// own reports whether the other end of a connection is of the same user.
static bool own(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof peer;
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

static void patience(int fd, int seconds)
{
	struct timeval t = {seconds, 0};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

// same compares in a time that says nothing of where two secrets differ.
static bool same(const unsigned char *a, const unsigned char *b)
{
	unsigned char differ = 0;
	for (int i = 0; i < SECRET; i++)
		differ |= (unsigned char)(a[i] ^ b[i]);
	return differ == 0;
}

// ---- giving

static void close_all(const int *fds, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		close(fds[i]);
}

// export makes descriptors of what a secret names. False: it cannot. The driver is called with the lock, so that the memory
// is not freed meanwhile; it does not move any more.
static bool export(const unsigned char *secret, struct answer *a, int *fds)
{
	uint32_t made = 0;
	lgpu_lock(&lgpu_arena_lock);
	const struct shared *one = shared;
	while (one != NULL && !same(one->secret, secret))
		one = one->next;
	struct lgpu_block *b = one != NULL ? one->block : NULL;
	while (b != NULL && made < b->pieces &&
	       LGPU_REAL(cuMemExportToShareableHandle)(&fds[made], lgpu_piece(b, made)->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
						       0) == CUDA_SUCCESS)
		made++;
	bool all = b != NULL && made == b->pieces;
	if (all)
		*a = (struct answer){b->bytes, b->piece, one->offset, one->bytes, made};
	lgpu_unlock(&lgpu_arena_lock);
	if (!all)
		close_all(fds, made);
	return all;
}

static void answer(int connection)
{
	unsigned char secret[SECRET];
	int fds[LGPU_PIECES];
	struct answer a;
	patience(connection, QUESTION);
	if (!own(connection) || recv(connection, secret, sizeof secret, 0) != SECRET || !export(secret, &a, fds))
		return;
	union descriptors control = {.bytes = {0}};
	size_t bytes = a.pieces * sizeof *fds;
	struct iovec part = {&a, sizeof a};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_SPACE(bytes)};
	control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&control.header), fds, bytes);
	sendmsg(connection, &m, MSG_NOSIGNAL);
	close_all(fds, a.pieces);
}

static void *serve(void *arg)
{
	int fd = (int)(intptr_t)arg;
	for (;;) {
		int connection = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (connection >= 0) {
			answer(connection);
			close(connection);
		} else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) {
			return NULL; // the program has closed it
		} else if (errno != EINTR && errno != ECONNABORTED) {
			nanosleep(&(struct timespec){0, 10000000}, NULL); // there are no descriptors now
		}
	}
}

// listening makes the socket and its thread. The caller has the lock.
static bool listening(void)
{
	struct sockaddr_un address;
	if (server != 0)
		return true;
	int fd = randomise(name, NAME) ? socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
	if (fd < 0)
		return false;
	fd = lgpu_raise(fd);
	if (bind(fd, (struct sockaddr *)&address, address_of(&address, name)) != 0 || listen(fd, 128) != 0 ||
	    !lgpu_thread_start(serve, (void *)(intptr_t)fd)) {
		close(fd);
		return false;
	}
	server = fd + 1;
	return true;
}

// share finds or makes the note of an allocation. The caller has the lock.
static struct shared *share(struct lgpu_block *b, const struct lgpu_arena_place *place)
{
	struct shared *one = shared;
	while (one != NULL && one->id != place->id)
		one = one->next;
	if (one != NULL || (one = calloc(1, sizeof *one)) == NULL)
		return one;
	if (!randomise(one->secret, SECRET)) {
		free(one);
		return NULL;
	}
	one->block = b;
	one->id = place->id;
	one->offset = place->base - b->base;
	one->bytes = place->bytes;
	one->next = shared;
	shared = one;
	return one;
}

CUresult lgpu_arena_share(const struct lgpu_arena_place *place, CUipcMemHandle *handle)
{
	struct ticket t = {.rest = {0}};
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	lgpu_touch_begin();
	lgpu_lock(&lgpu_arena_lock);
	struct lgpu_block *b = lgpu_range_find(place->base);
	const struct shared *one = b != NULL && b->state == LGPU_BLOCK_LIVE && listening() ? share(b, place) : NULL;
	if (one != NULL) {
		lgpu_block_fix(b);
		memcpy(t.magic, magic, sizeof magic);
		memcpy(t.name, name, NAME);
		memcpy(t.secret, one->secret, SECRET);
		memcpy(handle, &t, sizeof t);
		r = CUDA_SUCCESS;
	}
	lgpu_unlock(&lgpu_arena_lock);
	lgpu_touch_end();
	return r;
}

void lgpu_arena_unshare(uint64_t id)
{
	for (struct shared **link = &shared, *one; (one = *link) != NULL; link = &one->next)
		if (one->id == id) {
			*link = one->next;
			free(one);
			return;
		}
}

void lgpu_arena_unshare_all(const struct lgpu_owner *o)
{
	for (struct shared **link = &shared, *one; (one = *link) != NULL;) {
		if (one->block->owner != o) {
			link = &one->next;
			continue;
		}
		*link = one->next;
		free(one);
	}
}

// ---- taking

// plausible reports whether an answer can be true: it is another process's.
static bool plausible(const struct answer *a)
{
	return a->mapped != 0 && a->mapped % LGPU_PAGE == 0 && a->offset < a->mapped && a->bytes <= a->mapped - a->offset &&
	       a->bytes != 0 && a->piece != 0 && a->piece % LGPU_PAGE == 0 && a->pieces <= LGPU_PIECES && a->pieces == (a->mapped - 1) / a->piece + 1;
}

// ask gets the descriptors of what a ticket names. False: there are none.
static bool ask(const struct ticket *t, struct answer *a, int *fds)
{
	struct sockaddr_un address;
	socklen_t size = address_of(&address, t->name);
	int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connection < 0)
		return false;
	union descriptors control = {.bytes = {0}};
	struct iovec part = {a, sizeof *a};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
	patience(connection, ANSWER);
	bool answered = connect(connection, (struct sockaddr *)&address, size) == 0 && own(connection) &&
			send(connection, t->secret, SECRET, MSG_NOSIGNAL) == SECRET &&
			recvmsg(connection, &m, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof *a;
	close(connection);
	const struct cmsghdr *c = answered ? CMSG_FIRSTHDR(&m) : NULL;
	if (c == NULL || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return false;
	size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof *fds;
	memcpy(fds, CMSG_DATA(c), count * sizeof *fds);
	if (plausible(a) && a->pieces == count)
		return true;
	close_all(fds, count);
	return false;
}

// unback unmaps and releases the first pieces of what was opened.
static void unback(const struct opened *o, uint32_t mapped)
{
	for (uint32_t i = 0; i < o->pieces; i++) {
		if (i < mapped)
			LGPU_REAL(cuMemUnmap)(o->base + i * o->piece, i + 1 < o->pieces ? o->piece : o->mapped - i * o->piece);
		LGPU_REAL(cuMemRelease)(o->handle[i]);
	}
}

// place maps imported handles for the current device, and for the memory's own. If it fails, it gives all of it back.
static CUresult place(struct opened *o)
{
	CUmemAllocationProp prop;
	CUmemAccessDesc access[2];
	CUdevice here;
	CUdeviceptr base = 0;
	uint32_t mapped = 0;
	CUresult r = LGPU_REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, o->handle[0]);
	r = r == CUDA_SUCCESS ? LGPU_REAL(cuCtxGetDevice)(&here) : r;
	r = r == CUDA_SUCCESS ? LGPU_REAL(cuMemAddressReserve)(&base, o->mapped, LGPU_PAGE, 0, 0) : r;
	if (r != CUDA_SUCCESS) {
		unback(o, 0);
		return r;
	}
	o->base = base;
	o->ordinal = prop.location.id;
	access[0] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, here}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	access[1] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, o->ordinal}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	for (; mapped < o->pieces && r == CUDA_SUCCESS; mapped += r == CUDA_SUCCESS)
		r = LGPU_REAL(cuMemMap)(base + mapped * o->piece, mapped + 1 < o->pieces ? o->piece : o->mapped - mapped * o->piece, 0,
					o->handle[mapped], 0);
	r = r == CUDA_SUCCESS ? LGPU_REAL(cuMemSetAccess)(base, o->mapped, access, here == o->ordinal ? 1 : 2) : r;
	if (r == CUDA_SUCCESS)
		return r;
	unback(o, mapped);
	LGPU_REAL(cuMemAddressFree)(base, o->mapped);
	return CUDA_ERROR_MAP_FAILED;
}

static CUresult import(const struct ticket *t, struct opened *o)
{
	int fds[LGPU_PIECES];
	struct answer a;
	if (!ask(t, &a, fds))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = CUDA_SUCCESS;
	for (o->pieces = 0; o->pieces < a.pieces && r == CUDA_SUCCESS; o->pieces += r == CUDA_SUCCESS)
		r = LGPU_REAL(cuMemImportFromShareableHandle)(&o->handle[o->pieces], (void *)(intptr_t)fds[o->pieces],
							      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close_all(fds, a.pieces);
	if (r != CUDA_SUCCESS) {
		unback(o, 0);
		return CUDA_ERROR_INVALID_VALUE;
	}
	o->mapped = a.mapped;
	o->piece = a.piece;
	o->offset = a.offset;
	o->bytes = a.bytes;
	return place(o);
}

static void unplace(const struct opened *o)
{
	unback(o, o->pieces);
	LGPU_REAL(cuMemAddressFree)(o->base, o->mapped);
}

// again returns what a context has opened before, for one use more. The caller has the lock.
static struct opened *again(const struct ticket *t, CUcontext context)
{
	struct opened *o = opened;
	while (o != NULL && (o->context != context || !same(o->secret, t->secret)))
		o = o->next;
	if (o != NULL)
		o->uses++;
	return o;
}

bool lgpu_arena_is_share(const CUipcMemHandle *handle) { return memcmp(handle, magic, sizeof magic) == 0; }

CUresult lgpu_arena_open(const CUipcMemHandle *handle, unsigned int flags, CUdeviceptr *at)
{
	struct ticket t;
	CUcontext context = NULL;
	memcpy(&t, handle, sizeof t);
	CUresult r = LGPU_REAL(cuCtxGetCurrent)(&context);
	if (r != CUDA_SUCCESS || context == NULL)
		return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_CONTEXT;
	if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	lgpu_lock(&lgpu_arena_lock);
	bool mine = server != 0 && memcmp(t.name, name, NAME) == 0;
	struct opened *o = again(&t, context);
	lgpu_unlock(&lgpu_arena_lock);
	if (mine)
		return CUDA_ERROR_INVALID_CONTEXT; // as the driver does not open a process's own handles
	if (o == NULL) {
		o = calloc(1, sizeof *o);
		r = o != NULL ? LGPU_TOUCHED(import(&t, o)) : CUDA_ERROR_OUT_OF_MEMORY;
		if (r != CUDA_SUCCESS) {
			free(o);
			return r;
		}
		o->uses = 1;
		o->context = context;
		o->id = lgpu_arena_id();
		memcpy(o->secret, t.secret, SECRET);
		lgpu_lock(&lgpu_arena_lock);
		o->next = opened;
		__atomic_store_n(&opened, o, __ATOMIC_RELEASE);
		lgpu_unlock(&lgpu_arena_lock);
	}
	*at = o->base + o->offset;
	return CUDA_SUCCESS;
}

// take takes one use of what begins at an address away, or all of a context's; what nobody uses any more is returned.
static struct opened *take(CUdeviceptr at, CUcontext context, bool *ours)
{
	struct opened *ended = NULL;
	lgpu_lock(&lgpu_arena_lock);
	for (struct opened **link = &opened, *o; (o = *link) != NULL && !*ours; link = &o->next) {
		*ours = context != NULL ? o->context == context : o->base + o->offset == at;
		if (!*ours)
			continue;
		if (context == NULL && --o->uses != 0)
			break;
		*link = o->next;
		ended = o;
		break;
	}
	lgpu_unlock(&lgpu_arena_lock);
	return ended;
}

CUresult lgpu_arena_close(CUdeviceptr at, bool *ours)
{
	*ours = false;
	if (__atomic_load_n(&opened, __ATOMIC_ACQUIRE) == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	lgpu_touch_begin();
	struct opened *o = take(at, NULL, ours);
	if (o != NULL) {
		lgpu_arena_drain(o->context);
		unplace(o);
		free(o);
	}
	lgpu_touch_end();
	return *ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void lgpu_arena_shares_context_ended(CUcontext context)
{
	for (bool ours = true; ours && context != NULL && __atomic_load_n(&opened, __ATOMIC_ACQUIRE) != NULL;) {
		ours = false;
		struct opened *o = take(0, context, &ours);
		if (o != NULL)
			unplace(o);
		free(o);
	}
}

bool lgpu_arena_opened(CUdeviceptr at, struct lgpu_arena_place *p)
{
	if (__atomic_load_n(&opened, __ATOMIC_RELAXED) == NULL)
		return false;
	lgpu_lock(&lgpu_arena_lock);
	const struct opened *o = opened;
	while (o != NULL && (at < o->base || at >= o->base + o->mapped))
		o = o->next;
	if (o != NULL)
		*p = (struct lgpu_arena_place){.live = at >= o->base + o->offset && at < o->base + o->offset + o->bytes,
					       .base = o->base + o->offset, .bytes = o->bytes, .id = o->id, .mapping = o->base,
					       .mapped = o->mapped, .block = o->id, .context = o->context, .ordinal = o->ordinal};
	lgpu_unlock(&lgpu_arena_lock);
	return o != NULL;
}
