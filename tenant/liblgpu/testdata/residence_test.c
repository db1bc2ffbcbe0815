// SPDX-License-Identifier: Apache-2.0

// residence_test NAME: one test of the residence lock, with a driver and a gate that are here. Prints nothing.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "driver/driver.h"
#include "gate/gate.h"
#include "residence/parts.h"
#include "check.h"

#define LONG (60 * LGPU_NANOS)
#define THREADS 4

// ---- what the lock needs

static uint32_t captures, synchronised, held, holding, spoilt, asked;

void lgpu_log(int level, const char *format, ...) { (void)level, (void)format; }
const char *lgpu_procaddress_strict(void) { return NULL; }
bool lgpu_gate_captures(void) { return __atomic_load_n(&captures, __ATOMIC_SEQ_CST) != 0; }

void *lgpu_pages(size_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return NULL;
	madvise(pages, bytes, MADV_WIPEONFORK);
	return pages;
}

bool lgpu_thread_start(void *(*fn)(void *), void *arg)
{
	pthread_t thread;
	return pthread_create(&thread, NULL, fn, arg) == 0 && pthread_detach(thread) == 0;
}

static CUresult push(CUcontext context) { return (void)context, CUDA_SUCCESS; }
static CUresult pop(CUcontext *context) { return *context = NULL, CUDA_SUCCESS; }

// A kernel does not end while held is set.
static CUresult synchronise(void)
{
	if (lgpu_gate_captures())
		__atomic_store_n(&spoilt, 1, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&synchronised, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&held, __ATOMIC_SEQ_CST) != 0) {
		__atomic_store_n(&holding, 1, __ATOMIC_SEQ_CST);
		sched_yield();
	}
	__atomic_store_n(&holding, 0, __ATOMIC_SEQ_CST);
	return CUDA_SUCCESS;
}

void *lgpu_reals[LGPU_SYM_COUNT] = {
	[LGPU_SYM_cuCtxPushCurrent_v2] = (void *)push,
	[LGPU_SYM_cuCtxPopCurrent_v2] = (void *)pop,
	[LGPU_SYM_cuCtxSynchronize] = (void *)synchronise,
};
void *lgpu_real_resolve(unsigned number) { return (void)number, abort(), NULL; }

static int told[2] = {-1, -1}; // a pipe that says that a touch waits
static void wanted(void)
{
	__atomic_fetch_add(&asked, 1, __ATOMIC_SEQ_CST);
	if (told[1] >= 0 && write(told[1], "w", 1) != 1)
		abort();
}
static uint32_t forks;
static void forked(void) { forks++; }
const struct lgpu_residence_handlers lgpu_residence_handlers = {.wanted = wanted, .forked = forked};

#define AWAIT(condition)                          \
	do {                                      \
		while (!(condition))              \
			sched_yield();            \
	} while (0)
#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_SEQ_CST)
#define STORE(word, value) __atomic_store_n(&(word), value, __ATOMIC_SEQ_CST)

static CUcontext context(uintptr_t n) { return (CUcontext)(0x1000 * n); }

static void *run_shut(void *result)
{
	*(enum lgpu_shut *)result = lgpu_residence_shut(LONG);
	return NULL;
}

// ---- touches and shuttings

static uint64_t memory[2]; // on the device: who is inside finds both alike
static uint32_t stop, torn, touches;

static void touch(bool nested)
{
	lgpu_touch_begin();
	uint64_t first = memory[0];
	if (nested)
		touch(false);
	if (memory[1] != first)
		STORE(torn, 1);
	lgpu_touch_end();
	__atomic_fetch_add(&touches, 1, __ATOMIC_RELAXED);
}

static void interrupted(int signal)
{
	(void)signal;
	int before = errno;
	touch(false);
	errno = before;
}

static void *short_life(void *arg)
{
	for (int i = 0; i < 100; i++)
		touch(true);
	return arg;
}

static void *lives(void *arg)
{
	while (LOAD(stop) == 0) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, short_life, NULL) != 0)
			abort();
		touch(true);
		pthread_join(thread, NULL);
	}
	return arg;
}

static struct {
	uint64_t word;
} __attribute__((aligned(64))) far[8]; // that the processor of a touch does not have, so that what it stores waits

static void *dense(void *arg)
{
	for (uint64_t n = 1; LOAD(stop) == 0; n++) {
		for (int i = 0; i < 8; i++)
			__atomic_store_n(&far[i].word, n, __ATOMIC_RELAXED);
		lgpu_touch_begin();
		for (int i = 0; i < 20; i++)
			if (__atomic_load_n(&memory[0], __ATOMIC_RELAXED) != __atomic_load_n(&memory[1], __ATOMIC_RELAXED))
				STORE(torn, 1);
		lgpu_touch_end();
		__atomic_store_n(&touches, n, __ATOMIC_RELAXED);
	}
	return arg;
}

// One thread does nothing but touch, and another nothing but shut: who begins as the lock is shut is seen.
static int tight(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, dense, NULL) == 0);
	for (uint64_t i = 1; i <= 15000; i++) {
		uint32_t before = __atomic_load_n(&touches, __ATOMIC_RELAXED);
		AWAIT(__atomic_load_n(&touches, __ATOMIC_RELAXED) != before);
		for (uint64_t k = 0; k < 8 + i % 8; k++)
			__atomic_store_n(&far[k % 8].word, 0, __ATOMIC_RELAXED);
		CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE);
		__atomic_store_n(&memory[0], i, __ATOMIC_RELAXED);
		for (int spin = 0; spin < 300; spin++)
			__atomic_signal_fence(__ATOMIC_SEQ_CST);
		__atomic_store_n(&memory[1], i, __ATOMIC_RELAXED);
		lgpu_residence_open();
	}
	STORE(stop, 1);
	pthread_join(thread, NULL);
	CHECK(torn == 0);
	return 0;
}

// Threads that come and go touch, nest and are interrupted, while memory moves thousands of times.
static int hammer(void)
{
	pthread_t threads[THREADS];
	sigset_t alarm, before;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	signal(SIGALRM, interrupted);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, lives, NULL) == 0);
	pthread_sigmask(SIG_BLOCK, &alarm, &before); // of the mover
	struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 2000; i++) {
		CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE && lgpu_residence_is_shut());
		memory[0]++;
		sched_yield();
		memory[1]++;
		uint32_t before = __atomic_load_n(&touches, __ATOMIC_RELAXED);
		lgpu_residence_open();
		AWAIT(__atomic_load_n(&touches, __ATOMIC_RELAXED) != before);
	}
	STORE(stop, 1);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	setitimer(ITIMER_REAL, &never, NULL);
	CHECK(torn == 0 && memory[0] == 2000);
	return 0;
}

static sem_t came, go;
static void *visit(void *arg)
{
	lgpu_touch_begin();
	sem_post(&came);
	sem_wait(&go);
	if (arg == NULL)
		lgpu_touch_end();
	return NULL; // or it ends inside
}

// As many threads as there are find a place, and those that have ended leave theirs to others.
static int crowd(void)
{
	enum { MANY = 3 * LGPU_PLACES };
	pthread_t threads[MANY];
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < MANY; i++)
			CHECK(pthread_create(&threads[i], NULL, visit, NULL) == 0);
		for (int i = 0; i < MANY; i++)
			sem_wait(&came);
		CHECK(lgpu_residence_shut(0) == LGPU_SHUT_BUSY && !lgpu_residence_is_shut());
		for (int i = 0; i < MANY; i++)
			sem_post(&go);
		CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE);
		lgpu_residence_open();
		for (int i = 0; i < MANY; i++)
			pthread_join(threads[i], NULL);
	}
	int blocks = 0;
	for (const struct lgpu_places *some = &lgpu_residence->places; some != NULL; some = some->next)
		blocks++;
	CHECK(blocks >= 3 && blocks <= 5);
	return 0;
}

static void *one_touch(void *arg)
{
	lgpu_touch_begin();
	lgpu_touch_end();
	return arg;
}

static void *await_open(void *arg)
{
	lgpu_touch_await();
	return arg;
}

// A touch inside a touch goes on though a shutting has begun; others wait, and memory is asked for once.
static int nest(void)
{
	pthread_t shutter, waiting[3];
	enum lgpu_shut result;
	lgpu_touch_begin();
	CHECK(pthread_create(&shutter, NULL, run_shut, &result) == 0);
	AWAIT(lgpu_residence_is_shut());
	lgpu_touch_begin();
	CHECK(lgpu_touch_try());
	lgpu_touch_end();
	lgpu_touch_end();
	lgpu_touch_await();
	CHECK(LOAD(asked) == 0);
	lgpu_touch_end();
	pthread_join(shutter, NULL);
	CHECK(result == LGPU_SHUT_DONE && lgpu_residence_is_shut() && !lgpu_touch_try());
	CHECK(lgpu_residence_shut(0) == LGPU_SHUT_DONE);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&waiting[i], NULL, i == 0 ? await_open : one_touch, NULL) == 0);
	AWAIT(LOAD(asked) == 1);
	lgpu_residence_open();
	for (int i = 0; i < 3; i++)
		pthread_join(waiting[i], NULL);
	CHECK(LOAD(asked) == 1 && lgpu_touch_try());
	lgpu_touch_end();
	lgpu_touch_end(); // of a touch from before this process was managed
	CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE);
	CHECK(pthread_create(&waiting[0], NULL, one_touch, NULL) == 0);
	AWAIT(LOAD(asked) == 2);
	lgpu_residence_open();
	pthread_join(waiting[0], NULL);
	return 0;
}

// A thread that ends inside keeps nobody out for good.
static int dead(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, visit, "and stay") == 0);
	sem_wait(&came);
	CHECK(lgpu_residence_shut(0) == LGPU_SHUT_BUSY);
	sem_post(&go);
	CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE);
	lgpu_residence_open();
	pthread_join(thread, NULL);
	return 0;
}

static void *after_main(void *arg)
{
	(void)arg;
	_exit(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE ? 0 : 1);
}

// So it is with the main thread, whose number lives on.
static int leader(void)
{
	pthread_t thread;
	lgpu_touch_begin();
	CHECK(pthread_create(&thread, NULL, after_main, NULL) == 0);
	pthread_exit(NULL);
}

// ---- processes

static int ended(pid_t child)
{
	int status = -1;
	return waitpid(child, &status, 0) == child ? status : -1;
}

// A forked child has an open lock and nobody inside, wherever the parent was.
static int forks_in(void)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, visit, NULL) == 0);
	sem_wait(&came);
	lgpu_touch_begin();
	pid_t child = fork();
	if (child == 0) {
		lgpu_touch_end();
		lgpu_touch_begin();
		bool out = lgpu_residence_shut(0) == LGPU_SHUT_BUSY;
		lgpu_touch_end();
		_exit(out && lgpu_residence_shut(0) == LGPU_SHUT_DONE ? 0 : 1);
	}
	CHECK(ended(child) == 0);
	lgpu_touch_end();
	sem_post(&go);
	CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE);
	pthread_join(thread, NULL);
	child = fork();
	if (child == 0) {
		lgpu_touch_begin();
		lgpu_touch_end();
		lgpu_residence_reset();
		touch(true);
		_exit(forks == 1 && !lgpu_residence_is_shut() ? 0 : 1);
	}
	CHECK(ended(child) == 0 && lgpu_residence_is_shut() && forks == 0);
	lgpu_residence_open();
	return 0;
}

// A process that waits at the lock dies of a signal; one with a handler goes on waiting.
static int kills(void)
{
	char c;
	for (int i = 0; i < 2; i++) {
		int number = i == 0 ? SIGTERM : SIGKILL;
		CHECK(pipe(told) == 0);
		pid_t child = fork();
		if (child == 0) {
			signal(SIGTERM, SIG_DFL);
			if (lgpu_residence_shut(LONG) != LGPU_SHUT_DONE)
				_exit(2);
			lgpu_touch_begin();
			_exit(3); // it has not waited
		}
		CHECK(read(told[0], &c, 1) == 1);
		kill(child, number);
		int status = ended(child);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == number);
		close(told[0]);
		close(told[1]);
	}
	told[1] = -1;
	return 0;
}

// ---- captures and contexts

static void *captured_often(void *arg)
{
	while (LOAD(stop) == 0) {
		lgpu_touch_begin();
		__atomic_fetch_add(&captures, 1, __ATOMIC_SEQ_CST);
		lgpu_residence_capture_begins();
		lgpu_touch_end();
		touch(true);
		sched_yield();
		touch(true);
		__atomic_fetch_sub(&captures, 1, __ATOMIC_SEQ_CST);
		lgpu_residence_capture_ended();
		for (int i = 0; i < 20; i++)
			touch(false);
	}
	return arg;
}

static int capture(void)
{
	pthread_t shutter, threads[2];
	enum lgpu_shut result;
	for (uintptr_t i = 1; i < 40; i++)
		CHECK(lgpu_residence_context_made(context(i)) && lgpu_residence_context_made(context(1)));
	STORE(captures, 1);
	CHECK(lgpu_residence_shut(0) == LGPU_SHUT_CAPTURE && !lgpu_residence_is_shut() && synchronised == 0);
	// A capture under way is waited for with the lock open.
	uint32_t number = LOAD(lgpu_residence->number);
	CHECK(pthread_create(&shutter, NULL, run_shut, &result) == 0);
	AWAIT(LOAD(lgpu_residence->number) != number);
	for (int i = 0; i < 100; i++)
		touch(true);
	CHECK(LOAD(asked) == 0);
	STORE(captures, 0);
	lgpu_residence_capture_ended();
	pthread_join(shutter, NULL);
	CHECK(result == LGPU_SHUT_DONE && synchronised == 39);
	lgpu_residence_open();
	// One that begins while the lock is being shut is seen, and has it opened again.
	lgpu_touch_begin();
	CHECK(pthread_create(&shutter, NULL, run_shut, &result) == 0);
	AWAIT(lgpu_residence_is_shut());
	STORE(captures, 1);
	lgpu_touch_end();
	AWAIT(!lgpu_residence_is_shut());
	touch(true);
	STORE(captures, 0);
	lgpu_residence_capture_ended();
	pthread_join(shutter, NULL);
	CHECK(result == LGPU_SHUT_DONE && spoilt == 0);
	lgpu_residence_open();
	// No context is ever synchronised during one.
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, captured_often, NULL) == 0);
	for (int i = 0; i < 50; i++) {
		CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE && captures == 0);
		memory[0]++;
		memory[1]++;
		lgpu_residence_open();
	}
	STORE(stop, 1);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(spoilt == 0 && torn == 0);
	return 0;
}

static void *destroy(void *arg)
{
	lgpu_touch_begin();
	lgpu_residence_context_gone(arg);
	STORE(stop, 1);
	lgpu_touch_end();
	return NULL;
}

// A kernel that does not end gives the lock back in time; and a later shutting waits for what was launched since.
static int busy(void)
{
	pthread_t destroyer;
	CHECK(lgpu_residence_context_made(context(1)) && lgpu_residence_context_made(context(2)));
	STORE(held, 1);
	// On a busy host the lock may be given back before the thread that waits for contexts has begun: then once more.
	for (int i = 0; i < 3 || LOAD(holding) == 0; i++) {
		CHECK(lgpu_residence_shut(LGPU_NANOS / 50) == LGPU_SHUT_BUSY && !lgpu_residence_is_shut());
		touch(true);
	}
	lgpu_touch_begin();
	STORE(captures, 1);
	lgpu_residence_capture_begins(); // it has begun long enough ago, or is waited for so long
	lgpu_touch_end();
	STORE(captures, 0);
	lgpu_residence_capture_ended();
	CHECK(LOAD(synchronised) == 1); // of the first context; nothing else began
	STORE(held, 0);
	AWAIT(LOAD(holding) == 0);
	CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE && LOAD(synchronised) == 3 && spoilt == 0);
	lgpu_residence_open();
	// A context that is still waited for is not destroyed under the one who waits.
	STORE(held, 1);
	do
		CHECK(lgpu_residence_shut(LGPU_NANOS / 50) == LGPU_SHUT_BUSY);
	while (LOAD(holding) == 0);
	CHECK(pthread_create(&destroyer, NULL, destroy, context(1)) == 0);
	for (size_t count = 2; count != 1; sched_yield()) {
		lgpu_lock(&lgpu_residence->drain.lock);
		count = lgpu_residence->drain.count;
		lgpu_unlock(&lgpu_residence->drain.lock);
	}
	CHECK(LOAD(stop) == 0);
	STORE(held, 0);
	pthread_join(destroyer, NULL);
	uint32_t before = LOAD(synchronised);
	CHECK(lgpu_residence_shut(LONG) == LGPU_SHUT_DONE && LOAD(synchronised) == before + 1);
	lgpu_residence_open();
	return 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} tests[] = {{"hammer", hammer}, {"tight", tight}, {"crowd", crowd}, {"nest", nest}, {"dead", dead}, {"leader", leader},
		     {"fork", forks_in}, {"kill", kills}, {"capture", capture}, {"busy", busy}};
	sem_init(&came, 0, 0);
	sem_init(&go, 0, 0);
	CHECK(argc == 2);
	touch(true); // nothing is managed yet
	CHECK(lgpu_residence == NULL && !lgpu_residence_is_shut());
	CHECK(lgpu_residence_manage() && lgpu_residence_manage());
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (strcmp(tests[i].name, argv[1]) == 0)
			return tests[i].run();
	return 2;
}
