// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "channel.h"
#include "connection.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "rpc_gen.h"

enum {
	MAX_RECORD = 64 << 10,
	MAX_INLINE = 32 << 10, // of one array or string: the rest of a record has room for all else of any call
	SPINS = 300,           // looks at the ring before asking for the doorbell
};

#define OP_REPLY 0xffff0000u
#define OP_FETCH 0xffff0001u
#define OP_STORE 0xffff0002u
#define OP_INVOKE 0xffff0003u
#define OP_DONE 0xffff0004u
#define OP_PAD 0xffff0005u
#define OP_PRINT 0xffff0006u
#define INVOKE_HOST_FUNCTION 1u
#define INVOKE_PARK 3u
#define FLAG_PER_THREAD 1u
#define FLAG_FILE 2u
#define REMOTE (1ull << 63)

int simc_state = SIMC_FRESH;

static pthread_mutex_t connect_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; // channels; taken after connect_lock
static struct simc_channel *channels;
static struct simc_channel *service, *management;
static uint64_t next_thread = 1;
static pthread_key_t thread_key;
static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static int service_started;
static pthread_mutex_t park_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t park_change = PTHREAD_COND_INITIALIZER;
static enum { AT_WORK, PARKING, WAITING } service_is; // by park_lock
static SIMC_THREAD struct simc_channel *mine;
static SIMC_THREAD int pending_fd = -1; // to go with the thread's next call

SIMC_THREAD struct simc_tls simc_tls;

static uint64_t *word64(struct simc_channel *ch, size_t off)
{
	return (uint64_t *)(void *)(ch->mem + off);
}

static uint32_t *word32(struct simc_channel *ch, size_t off)
{
	return (uint32_t *)(void *)(ch->mem + off);
}

static void dead(void)
{
	int ready = SIMC_READY;

	__atomic_compare_exchange_n(&simc_state, &ready, SIMC_DEAD, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

void simc_deinitialize(void)
{
	int ready = SIMC_READY;

	__atomic_compare_exchange_n(&simc_state, &ready, SIMC_ENDED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

CUresult simc_not_ready(void)
{
	switch (__atomic_load_n(&simc_state, __ATOMIC_ACQUIRE)) {
	case SIMC_DEAD:
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	case SIMC_ENDED:
		return CUDA_ERROR_DEINITIALIZED;
	default:
		return CUDA_ERROR_NOT_INITIALIZED;
	}
}

static void free_channel(struct simc_channel *ch)
{
	simc_detach(ch);
	pthread_mutex_destroy(&ch->lock);
	free(ch);
}

// Opens a channel and puts it in the list.
static CUresult open_channel(uint32_t kind, uint64_t thread, struct simc_channel **out)
{
	struct simc_channel *ch = calloc(1, sizeof *ch);
	CUresult r;

	if (!ch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ch->sock = ch->send_fd = ch->got_fd = -1;
	ch->thread = thread;
	pthread_mutex_init(&ch->lock, NULL);
	if ((r = simc_attach(ch, kind)) != CUDA_SUCCESS) {
		free_channel(ch);
		return r;
	}
	pthread_mutex_lock(&list_lock);
	ch->next = channels;
	channels = ch;
	pthread_mutex_unlock(&list_lock);
	*out = ch;
	return CUDA_SUCCESS;
}

// A thread has ended: its channel goes.
static void thread_exit(void *arg)
{
	struct simc_channel *ch = arg, **at;

	mine = NULL;
	if (__atomic_load_n(&simc_state, __ATOMIC_SEQ_CST) == SIMC_FORKED)
		return;
	pthread_mutex_lock(&list_lock);
	if (!ch->mem) {
		ch->ended = 1; // simc_end_threads tells the hardware, when there is one
		pthread_mutex_unlock(&list_lock);
		return;
	}
	for (at = &channels; *at && *at != ch; at = &(*at)->next)
		;
	if (*at)
		*at = ch->next;
	pthread_mutex_unlock(&list_lock);
	free_channel(ch);
}

static void before_fork(void)
{
	pthread_mutex_lock(&connect_lock);
	pthread_mutex_lock(&list_lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&list_lock);
	pthread_mutex_unlock(&connect_lock);
}

// A child has no part in its parent's connections: were it to keep them, the parent's end would go unseen.
static void after_fork_child(void)
{
	struct simc_channel *ch;

	for (ch = channels; ch; ch = ch->next) {
		if (ch->sock >= 0)
			close(ch->sock);
		if (ch->got_fd >= 0)
			close(ch->got_fd);
	}
	channels = NULL;
	mine = NULL;
	management = NULL;
	if (simc_state != SIMC_FRESH)
		simc_state = SIMC_FORKED;
	pthread_mutex_unlock(&list_lock);
	pthread_mutex_unlock(&connect_lock);
}

static void process_setup(void)
{
	pthread_key_create(&thread_key, thread_exit);
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

CUresult simc_connect(void)
{
	const char *path = getenv("LGPU_SIM");
	CUresult r = CUDA_SUCCESS;

	pthread_once(&process_once, process_setup);
	pthread_mutex_lock(&connect_lock);
	switch (simc_state) {
	case SIMC_READY:
		break;
	default:
		r = simc_not_ready();
		break;
	case SIMC_FRESH:
		r = path && *path ? open_channel(KIND_SERVICE, 0, &service) : CUDA_ERROR_NO_DEVICE;
		if (r == CUDA_SUCCESS)
			__atomic_store_n(&simc_state, SIMC_READY, __ATOMIC_SEQ_CST);
		break;
	}
	pthread_mutex_unlock(&connect_lock);
	return r;
}

int simc_pid(void)
{
	return simc_hardware_pid;
}

// Blocks until the other side has published something; 0, or -1 when it is gone.
static int wait_record(struct simc_channel *ch)
{
	uint64_t *tail = word64(ch, REPLY_CTL);
	uint32_t *sleeping = word32(ch, REPLY_CTL + 128);
	char bells[64];
	int i;

	for (i = 0; i < SPINS; i++) {
		if (__atomic_load_n(tail, __ATOMIC_ACQUIRE) != ch->head)
			return 0;
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
	}
	for (;;) {
		ssize_t got;

		__atomic_store_n(sleeping, 1, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(tail, __ATOMIC_SEQ_CST) != ch->head) {
			__atomic_store_n(sleeping, 0, __ATOMIC_SEQ_CST);
			return 0;
		}
		got = simc_receive(ch->sock, bells, sizeof bells, &ch->got_fd);
		__atomic_store_n(sleeping, 0, __ATOMIC_SEQ_CST);
		if (got <= 0)
			return -1;
	}
}

// The place of the next request record: MAX_RECORD bytes in one piece.
static unsigned char *record_start(struct simc_channel *ch)
{
	size_t at = ch->tail % RING_SIZE;

	if (RING_SIZE - at < MAX_RECORD) {
		uint32_t *h = word32(ch, REQUEST_START + at);

		h[0] = (uint32_t)(RING_SIZE - at);
		h[1] = OP_PAD;
		ch->tail += RING_SIZE - at;
		at = 0;
	}
	return ch->mem + REQUEST_START + at;
}

// Publishes the record that lies between start and end.
static int publish(struct simc_channel *ch, unsigned char *start, const unsigned char *end, uint32_t op)
{
	uint32_t *h = (uint32_t *)(void *)start;

	h[0] = (uint32_t)(end - start);
	h[1] = op;
	ch->tail += h[0];
	__atomic_store_n(word64(ch, REQUEST_CTL), ch->tail, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(word32(ch, REQUEST_CTL + 128), __ATOMIC_SEQ_CST)) {
		ssize_t put;

		do
			put = send(ch->sock, "\1", 1, MSG_NOSIGNAL);
		while (put < 0 && errno == EINTR);
		if (put != 1)
			return -1;
	}
	return 0;
}

// Says that the service thread is about to wait: before it answers, so that nobody can wake it too early.
static void park(void)
{
	pthread_mutex_lock(&park_lock);
	service_is = PARKING;
	pthread_mutex_unlock(&park_lock);
}

// Waits until the service thread may go on. It has answered, and touches its channel no more.
static void wait_parked(void)
{
	pthread_mutex_lock(&park_lock);
	service_is = WAITING;
	pthread_cond_broadcast(&park_change);
	while (service_is == WAITING)
		pthread_cond_wait(&park_change, &park_lock);
	pthread_mutex_unlock(&park_lock);
}

enum reply { REPLIED = 0, PARKED = 1, GONE = -1 };

// Waits for the next record and serves those that ask for this program's memory or functions, until one is a reply, or
// asks the service thread to wait.
static enum reply next_reply(struct simc_channel *ch, const unsigned char **payload, const unsigned char **end)
{
	for (;;) {
		enum reply next = REPLIED;
		const uint64_t *arg;
		const unsigned char *at;
		unsigned char *done;
		uint32_t size, op;

		if (wait_record(ch) != 0)
			return GONE;
		at = ch->mem + REPLY_START + ch->head % RING_SIZE;
		memcpy(&size, at, 4);
		memcpy(&op, at + 4, 4);
		arg = (const uint64_t *)(const void *)(at + 8);
		switch (op) {
		case OP_REPLY:
			*payload = at + 8;
			*end = at + size;
			return REPLIED;
		case OP_PAD:
			ch->head += size;
			__atomic_store_n(word64(ch, REPLY_CTL + 64), ch->head, __ATOMIC_RELEASE);
			continue;
		case OP_FETCH:
			memcpy(ch->mem + BULK_START, (const void *)(uintptr_t)arg[0], arg[1]);
			break;
		case OP_STORE:
			memcpy((void *)(uintptr_t)arg[0], ch->mem + BULK_START, arg[1]);
			break;
		case OP_INVOKE:
			if (arg[1] == INVOKE_PARK)
				next = PARKED;
			else if (arg[1] == INVOKE_HOST_FUNCTION)
				((CUhostFn)(uintptr_t)arg[0])((void *)(uintptr_t)arg[2]);
			else
				((CUstreamCallback)(uintptr_t)arg[0])((CUstream)(uintptr_t)arg[2], (CUresult)arg[3],
								      (void *)(uintptr_t)arg[4]);
			break;
		case OP_PRINT:
			simc_print(ch->mem + BULK_START, arg[0]);
			break;
		default:
			return GONE;
		}
		ch->head += size;
		__atomic_store_n(word64(ch, REPLY_CTL + 64), ch->head, __ATOMIC_RELEASE);
		if (next == PARKED)
			park();
		done = record_start(ch);
		if (publish(ch, done, done + 8, OP_DONE) != 0)
			return GONE;
		if (next == PARKED)
			return PARKED;
	}
}

static void *serve(void *arg)
{
	const unsigned char *payload, *end;

	simc_tls.own = 1;
	// No reply ever comes here: it ends when the hardware is gone.
	while (next_reply(arg, &payload, &end) == PARKED)
		wait_parked();
	dead();
	return NULL;
}

int simc_serves(void)
{
	return service_started;
}

void simc_resume_service(void)
{
	pthread_mutex_lock(&park_lock);
	service_is = AT_WORK;
	pthread_cond_broadcast(&park_change);
	pthread_mutex_unlock(&park_lock);
}

void simc_await_service(void)
{
	pthread_mutex_lock(&park_lock);
	while (service_is == PARKING)
		pthread_cond_wait(&park_change, &park_lock);
	pthread_mutex_unlock(&park_lock);
}

void simc_disconnect(void)
{
	enum { PATIENCE_SECONDS = 20 };
	struct timeval patience = {PATIENCE_SECONDS, 0};
	struct simc_channel *ch;
	char bells[64];

	pthread_mutex_lock(&list_lock);
	for (ch = channels; ch; ch = ch->next)
		if (ch != service)
			simc_detach(ch);
	if (service->mem) {
		// The hardware closes its end when the process is freed.
		setsockopt(service->sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
		if (shutdown(service->sock, SHUT_WR) == 0)
			while (simc_receive(service->sock, bells, sizeof bells, &service->got_fd) > 0)
				;
		simc_detach(service);
	}
	pthread_mutex_unlock(&list_lock);
	// Whatever has become of the hardware, the next one is another.
	__atomic_store_n(&simc_state, SIMC_READY, __ATOMIC_SEQ_CST);
}

CUresult simc_reconnect(const char *path)
{
	CUresult r;

	pthread_mutex_lock(&list_lock);
	simc_turn_to(path);
	r = simc_attach(service, KIND_SERVICE);
	pthread_mutex_unlock(&list_lock);
	return r;
}

void simc_end_threads(void)
{
	struct simc_channel **at, *ch;

	pthread_mutex_lock(&list_lock);
	for (at = &channels; (ch = *at) != NULL;) {
		if (!ch->ended) {
			at = &ch->next;
			continue;
		}
		*at = ch->next;
		simc_attach(ch, KIND_THREAD); // its end is what the hardware has to see; a hardware that is gone has seen it
		free_channel(ch);
	}
	pthread_mutex_unlock(&list_lock);
}

CUresult simc_start_service(void)
{
	sigset_t all, old;
	pthread_t t;
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&connect_lock);
	if (!service_started && simc_state == SIMC_READY) {
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		if (pthread_create(&t, NULL, serve, service) == 0) {
			pthread_detach(t);
			service_started = 1;
		} else {
			r = CUDA_ERROR_OPERATING_SYSTEM;
		}
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	pthread_mutex_unlock(&connect_lock);
	return r;
}

static void start(struct simc_call *k, struct simc_channel *ch, uint32_t op)
{
	k->ch = ch;
	k->op = op;
	k->start = record_start(ch);
	k->at = k->start + 8;
	k->in = k->end = NULL;
	k->replied = 0;
}

CUresult simc_begin(struct simc_call *k, uint32_t op)
{
	CUresult r;
	int state = __atomic_load_n(&simc_state, __ATOMIC_ACQUIRE);

	if (state != SIMC_READY)
		return simc_not_ready();
	if (!mine || !mine->mem) {
		r = mine ? simc_attach(mine, KIND_THREAD)
			 : open_channel(KIND_THREAD, __atomic_fetch_add(&next_thread, 1, __ATOMIC_RELAXED), &mine);
		if (r != CUDA_SUCCESS) {
			if (r == CUDA_ERROR_DEVICE_UNAVAILABLE)
				dead();
			return r;
		}
		pthread_setspecific(thread_key, mine);
	}
	mine->send_fd = pending_fd;
	pending_fd = -1;
	start(k, mine, op);
	simc_put(k, (uint64_t)(uintptr_t)simc_current());
	simc_put(k, (simc_tls.per_thread ? FLAG_PER_THREAD : 0) | (mine->send_fd >= 0 ? FLAG_FILE : 0));
	return CUDA_SUCCESS;
}

CUresult simc_begin_nvml(struct simc_call *k, uint32_t op)
{
	CUresult r = CUDA_SUCCESS;

	pthread_once(&process_once, process_setup);
	pthread_mutex_lock(&connect_lock);
	if (!management)
		r = open_channel(KIND_MANAGEMENT, 0, &management);
	if (r == CUDA_SUCCESS) {
		pthread_mutex_lock(&management->lock);
		if (!management->mem && (r = simc_attach(management, KIND_MANAGEMENT)) != CUDA_SUCCESS)
			pthread_mutex_unlock(&management->lock);
	}
	pthread_mutex_unlock(&connect_lock);
	if (r != CUDA_SUCCESS)
		return r;
	start(k, management, op);
	simc_put(k, 0);
	simc_put(k, 0);
	return CUDA_SUCCESS;
}

void simc_put(struct simc_call *k, uint64_t v)
{
	memcpy(k->at, &v, 8);
	k->at += 8;
}

void simc_put_raw(struct simc_call *k, const void *p, size_t n)
{
	memcpy(k->at, p, n);
	memset(k->at + n, 0, -n & 7);
	k->at += (n + 7) & ~(size_t)7;
}

static void put_bytes(struct simc_call *k, const void *p, size_t n)
{
	if ((size_t)(k->at - k->start) + n > MAX_INLINE) {
		simc_put(k, n | REMOTE);
		simc_put(k, (uint64_t)(uintptr_t)p);
	} else {
		simc_put(k, n);
		if (n)
			simc_put_raw(k, p, n);
	}
}

void simc_put_text(struct simc_call *k, const char *s)
{
	put_bytes(k, s, strlen(s));
}

void simc_put_array(struct simc_call *k, const void *p, size_t n, size_t elem)
{
	put_bytes(k, p, p ? n * elem : 0);
}

CUresult simc_exchange(struct simc_call *k)
{
	struct simc_channel *ch = k->ch;
	uint64_t head[2];

	if (ch->send_fd >= 0) {
		int fd = ch->send_fd;

		ch->send_fd = -1;
		if (simc_send_with_fd(ch->sock, "\2", 1, fd) != 0)
			goto gone;
	}
	if (publish(ch, k->start, k->at, k->op) != 0 || next_reply(ch, &k->in, &k->end) != REPLIED)
		goto gone;
	memcpy(head, k->in, sizeof head);
	k->in += sizeof head;
	k->replied = 1;
	while ((head[1] & FLAG_FILE) && ch->got_fd == -1) {
		char bell[64];

		if (simc_receive(ch->sock, bell, sizeof bell, &ch->got_fd) <= 0)
			goto gone;
	}
	return (CUresult)head[0];
gone:
	k->replied = 0;
	dead();
	return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

uint64_t simc_get(struct simc_call *k)
{
	uint64_t v = 0;

	if (k->end - k->in >= 8) {
		memcpy(&v, k->in, 8);
		k->in += 8;
	}
	return v;
}

void simc_get_raw(struct simc_call *k, void *p, size_t n)
{
	if ((size_t)(k->end - k->in) >= n) {
		memcpy(p, k->in, n);
		k->in += (n + 7) & ~(size_t)7;
	}
}

void simc_get_float(struct simc_call *k, float *p)
{
	uint32_t bits = (uint32_t)simc_get(k);

	memcpy(p, &bits, sizeof *p);
}

void simc_get_array(struct simc_call *k, void *p, size_t room, size_t elem)
{
	uint64_t n = simc_get(k);

	if (n & REMOTE) // it has been stored at p before the reply came
		return;
	if (n > (uint64_t)(k->end - k->in))
		n = (uint64_t)(k->end - k->in);
	if (p && n)
		memcpy(p, k->in, n < room * elem ? n : room * elem);
	k->in += (n + 7) & ~(uint64_t)7;
}

void simc_end(struct simc_call *k)
{
	struct simc_channel *ch = k->ch;

	if (k->replied) {
		uint32_t size;

		memcpy(&size, ch->mem + REPLY_START + ch->head % RING_SIZE, 4);
		ch->head += size;
		__atomic_store_n(word64(ch, REPLY_CTL + 64), ch->head, __ATOMIC_RELEASE);
	}
	if (ch == management) {
		if (!k->replied)
			simc_detach(ch); // the next call tries anew
		pthread_mutex_unlock(&ch->lock);
	}
}

void simc_move_management(const char *path)
{
	// Who has a lock may have been stopped by whoever asked for this.
	if (pthread_mutex_trylock(&connect_lock) != 0)
		return;
	if (path)
		simc_turn_to(path);
	if (management && pthread_mutex_trylock(&management->lock) == 0) {
		simc_detach(management);
		pthread_mutex_unlock(&management->lock);
	}
	pthread_mutex_unlock(&connect_lock);
}

void simc_send_fd(int fd)
{
	pending_fd = fd;
}

int simc_take_fd(void)
{
	int fd = -1;

	if (mine) {
		fd = mine->got_fd;
		mine->got_fd = -1;
	}
	return fd == SIMC_LOST ? -1 : fd;
}
