// Every function of lshmem.h, called by each PE of a job, in host or device memory. Ends with status 0 if all did what
// it says.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lshmem.h"

static int rank, size;

#define OK(call)                                                                                                            \
	do {                                                                                                                \
		int status_ = (call);                                                                                       \
		if (status_ != LSHMEM_OK)                                                                                   \
			fail(__LINE__, #call, lshmem_last_error());                                                         \
	} while (0)
#define REFUSED(want, call)                                                                                                 \
	do {                                                                                                                \
		int status_ = (call);                                                                                       \
		if (status_ != (want) || !*lshmem_last_error() || !*lshmem_strerror(status_))                               \
			fail(__LINE__, #call, lshmem_strerror(status_));                                                    \
	} while (0)
#define CHECK(condition)                                                                                                    \
	do {                                                                                                                \
		if (!(condition))                                                                                           \
			fail(__LINE__, #condition, "is not so");                                                            \
	} while (0)

static void fail(int line, const char *what, const char *why) {
	fprintf(stderr, "PE %d: line %d: %s: %s\n", rank, line, what, why);
	fflush(stderr);
	_exit(1);
}

static uint64_t word(lshmem_pe_t pe, const void *p, int target) {
	uint64_t v = 0;
	OK(lshmem_g(pe, &v, p, 8, target));
	return v;
}

static void set(lshmem_pe_t pe, void *p, uint64_t v) { OK(lshmem_p(pe, p, &v, 8, rank)); }

// What a CUDA program has from its runtime: a current context, and to wait for a stream.
static void use_device(lshmem_pe_t pe) {
	int device;
	void *context;
	OK(lshmem_device(pe, &device));
	if (device < 0)
		return;
	int (*retain)(void **, int) = (int (*)(void **, int))dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxRetain");
	int (*use)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cuCtxSetCurrent");
	CHECK(retain && use && retain(&context, device) == 0 && use(context) == 0);
}
static void settle(lshmem_stream_t stream) {
	int (*wait)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cuStreamSynchronize");
	CHECK(!wait || wait(stream) == 0);
}

static void memory(lshmem_pe_t pe) {
	void *a, *b, *c, *q;
	uint64_t backed, used, reserved, more, all;
	OK(lshmem_heap_bytes(pe, &backed, &used, &reserved));
	OK(lshmem_heap_bytes(pe, NULL, NULL, NULL));
	CHECK(used <= backed && backed <= reserved);
	OK(lshmem_malloc(pe, 0, &a));
	CHECK(!a);
	OK(lshmem_free(pe, NULL));
	OK(lshmem_align(pe, 1 << 16, 100, &a));
	CHECK((uintptr_t)a % (1 << 16) == 0);
	OK(lshmem_calloc(pe, 100, 8, &b));
	CHECK(word(pe, (char *)b + 792, rank) == 0);
	// More than there is: the heap grows, and shrinks again.
	OK(lshmem_malloc(pe, 40 << 20, &c));
	OK(lshmem_heap_bytes(pe, &more, &all, NULL));
	CHECK(more >= backed + (30 << 20) && all >= used + (40 << 20));
	OK(lshmem_ptr(pe, c, rank, &q));
	CHECK(q == c);
	OK(lshmem_ptr(pe, c, (rank + 1) % size, &q));
	CHECK(q != NULL);
	OK(lshmem_free(pe, c));
	OK(lshmem_heap_bytes(pe, &more, NULL, NULL));
	CHECK(more < backed + (30 << 20));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_ptr(pe, a, size, &q));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_free(pe, (char *)a + 64));
	// They are collective: each PE asks for something else, and all are told.
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_malloc(pe, size > 1 ? 4096 + 4096 * (size_t)rank : SIZE_MAX, &c));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_calloc(pe, SIZE_MAX, SIZE_MAX, &c));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_malloc(pe, 64, NULL));
	OK(lshmem_free(pe, b));
	OK(lshmem_free(pe, a));

	static uint64_t local[8192];
	OK(lshmem_buffer_register(pe, local, sizeof local));
	OK(lshmem_buffer_unregister(pe, local));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_buffer_unregister(pe, local));
	OK(lshmem_buffer_unregister_all(pe));
	int status = lshmem_buffer_register_symmetric(pe, local, sizeof local, &a); // plain memory cannot be
	CHECK(status == LSHMEM_ERR_ARGUMENT || status == LSHMEM_ERR_SUPPORT || status == LSHMEM_ERR_SYSTEM);
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_buffer_unregister_symmetric(pe, local));
}

static void transfers(lshmem_pe_t pe, lshmem_stream_t stream) {
	int next = (rank + 1) % size, previous = (rank + size - 1) % size;
	uint64_t *s, *d, local[64];
	OK(lshmem_calloc(pe, 64, 8, (void **)&s));
	OK(lshmem_calloc(pe, 64, 8, (void **)&d));
	for (int i = 0; i < 64; i++)
		local[i] = (uint64_t)(1000 * rank + i);
	OK(lshmem_put(pe, s, local, sizeof local, rank));
	OK(lshmem_put(pe, d, s, 256, next));
	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	memset(local, 0, sizeof local);
	OK(lshmem_get(pe, local, d, sizeof local, rank));
	CHECK(local[31] == (uint64_t)(1000 * previous + 31) && local[32] == 0);
	OK(lshmem_get(pe, local, s, sizeof local, next));
	CHECK(local[63] == (uint64_t)(1000 * next + 63));
	OK(lshmem_sync(pe, LSHMEM_TEAM_WORLD));

	OK(lshmem_put_on_stream(pe, d, s, 512, next, stream));
	OK(lshmem_quiet_on_stream(pe, stream));
	OK(lshmem_barrier_on_stream(pe, LSHMEM_TEAM_WORLD, stream));
	OK(lshmem_get_on_stream(pe, d, s, 8, next, stream));
	OK(lshmem_sync_on_stream(pe, LSHMEM_TEAM_WORLD, stream));
	settle(stream);
	CHECK(word(pe, d, rank) == (uint64_t)(1000 * next) && word(pe, d + 63, rank) == (uint64_t)(1000 * previous + 63));

	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	OK(lshmem_iput(pe, LSHMEM_UINT64, d, s, 2, 3, 10, next));
	OK(lshmem_fence(pe));
	OK(lshmem_quiet(pe));
	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	CHECK(word(pe, d + 18, rank) == (uint64_t)(1000 * previous + 27));
	OK(lshmem_iget(pe, LSHMEM_UINT64, d, s, 1, 5, 8, next));
	CHECK(word(pe, d + 7, rank) == (uint64_t)(1000 * next + 35));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_iput(pe, 99, d, s, 1, 1, 1, next));

	uint16_t small = 0x1234, back = 0;
	OK(lshmem_p(pe, (char *)s + 2, &small, 2, rank));
	OK(lshmem_g(pe, &back, (char *)s + 2, 2, rank));
	CHECK(back == 0x1234);
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_p(pe, s, &small, 3, rank));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_put(pe, d, s, 8, -1));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_put(pe, local, s, 8, next)); // not symmetric

	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	uint64_t old = 0;
	set(pe, d, 5);
	OK(lshmem_atomic(pe, LSHMEM_AMO_ADD, LSHMEM_UINT64, d, 3, 0, &old, rank));
	CHECK(old == 5);
	OK(lshmem_atomic(pe, LSHMEM_AMO_ADD, LSHMEM_INT32, d, (uint64_t)-4, 0, NULL, rank));
	CHECK(word(pe, d, rank) == 4);
	OK(lshmem_atomic(pe, LSHMEM_AMO_COMPARE_SWAP, LSHMEM_UINT64, d, 9, 4, &old, rank));
	CHECK(old == 4 && word(pe, d, rank) == 9);
	OK(lshmem_atomic(pe, LSHMEM_AMO_SET, LSHMEM_UINT64, d, 12, 0, &old, rank));
	OK(lshmem_atomic(pe, LSHMEM_AMO_OR, LSHMEM_UINT64, d, 3, 0, NULL, rank));
	OK(lshmem_atomic(pe, LSHMEM_AMO_AND, LSHMEM_UINT64, d, 7, 0, NULL, rank));
	OK(lshmem_atomic(pe, LSHMEM_AMO_XOR, LSHMEM_UINT64, d, 1, 0, &old, rank));
	CHECK(old == 7 && word(pe, d, rank) == 6);
	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	OK(lshmem_atomic_on_stream(pe, LSHMEM_AMO_ADD, LSHMEM_UINT64, d, 100, 0, NULL, next, stream));
	OK(lshmem_barrier_on_stream(pe, LSHMEM_TEAM_WORLD, stream));
	settle(stream);
	CHECK(word(pe, d, rank) == 106);
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_atomic(pe, 17, LSHMEM_UINT64, d, 1, 0, NULL, rank));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_atomic(pe, LSHMEM_AMO_ADD, LSHMEM_INT8, d, 1, 0, NULL, rank));

	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	set(pe, s + 40, 0);
	set(pe, s + 41, 0);
	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	OK(lshmem_put_signal(pe, d, s + 8, 16, s + 40, 7, LSHMEM_SIGNAL_SET, next));
	OK(lshmem_signal_wait_until(pe, s + 40, LSHMEM_CMP_EQ, 7));
	CHECK(word(pe, d + 1, rank) == (uint64_t)(1000 * previous + 9));
	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	OK(lshmem_put_signal_on_stream(pe, d, s + 10, 16, s + 40, 2, LSHMEM_SIGNAL_ADD, next, stream));
	OK(lshmem_signal_wait_until_on_stream(pe, s + 40, LSHMEM_CMP_GE, 9, stream));
	OK(lshmem_signal_op_on_stream(pe, s + 41, 5, LSHMEM_SIGNAL_SET, next, stream));
	OK(lshmem_wait_until_on_stream(pe, LSHMEM_INT64, s + 41, LSHMEM_CMP_NE, 0, stream));
	OK(lshmem_wait_until(pe, LSHMEM_INT32, s + 41, LSHMEM_CMP_GT, 4));
	settle(stream);
	OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
	OK(lshmem_signal_op(pe, s + 41, 1, LSHMEM_SIGNAL_ADD, next));
	OK(lshmem_signal_wait_until(pe, s + 41, LSHMEM_CMP_EQ, 6));
	OK(lshmem_signal_fetch(pe, s + 41, &old));
	CHECK(old == 6);
	OK(lshmem_barrier_on_stream(pe, LSHMEM_TEAM_WORLD, stream));
	settle(stream);
	CHECK(word(pe, d + 1, rank) == (uint64_t)(1000 * previous + 11));
	OK(lshmem_free(pe, d));
	OK(lshmem_free(pe, s));
}

static void teams(lshmem_pe_t pe, lshmem_stream_t stream) {
	enum { N = 24 };
	lshmem_team_t even, x, y, backwards;
	int n, me, other, *members = malloc(sizeof *members * (size_t)size);
	uint32_t *s, *d, local[N * 8] = {0};
	OK(lshmem_malloc(pe, sizeof *s * N * (size_t)size, (void **)&s));
	OK(lshmem_malloc(pe, sizeof *d * N * (size_t)size, (void **)&d));
	OK(lshmem_team_n_pes(pe, LSHMEM_TEAM_WORLD, &n));
	OK(lshmem_team_my_pe(pe, LSHMEM_TEAM_WORLD, &me));
	CHECK(n == size && me == rank);
	OK(lshmem_team_n_pes(pe, LSHMEM_TEAM_NODE, &n));
	CHECK(n == size);
	OK(lshmem_team_split_strided(pe, LSHMEM_TEAM_WORLD, 0, 2, (size + 1) / 2, &even));
	CHECK((even == LSHMEM_TEAM_INVALID) == (rank % 2 == 1));
	OK(lshmem_team_my_pe(pe, even, &me));
	CHECK(me == (rank % 2 ? -1 : rank / 2));
	if (even != LSHMEM_TEAM_INVALID) {
		OK(lshmem_team_translate_pe(pe, even, me, LSHMEM_TEAM_WORLD, &other));
		CHECK(other == rank);
		OK(lshmem_barrier(pe, even));
		OK(lshmem_team_destroy(pe, even));
	}
	OK(lshmem_team_split_2d(pe, LSHMEM_TEAM_WORLD, 2, &x, &y));
	OK(lshmem_team_my_pe(pe, x, &me));
	OK(lshmem_team_my_pe(pe, y, &other));
	CHECK(me == rank % 2 && other == rank / 2);
	for (int i = 0; i < size; i++)
		members[i] = size - 1 - i;
	OK(lshmem_team_create(pe, members, size, &backwards));
	OK(lshmem_team_my_pe(pe, backwards, &me));
	CHECK(me == size - 1 - rank);
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_team_create(pe, NULL, 2, &even));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_team_n_pes(pe, 63, &n));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_team_translate_pe(pe, backwards, size, LSHMEM_TEAM_WORLD, &n));

	// Blocking and on a stream; on the team in the other order.
	for (int blocking = 0; blocking < 2; blocking++) {
		for (int i = 0; i < N * size; i++)
			local[i] = (uint32_t)(100 * rank + i);
		OK(lshmem_put(pe, s, local, sizeof *s * N * (size_t)size, rank));
		OK(blocking ? lshmem_alltoall(pe, backwards, LSHMEM_UINT32, d, s, N)
			    : lshmem_alltoall_on_stream(pe, backwards, LSHMEM_UINT32, d, s, N, stream));
		settle(stream);
		OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
		OK(lshmem_get(pe, local, d, sizeof *s * N * (size_t)size, rank));
		for (int i = 0; i < size; i++) // member i is PE size-1-i
			CHECK(local[i * N + 3] == (uint32_t)(100 * (size - 1 - i) + (size - 1 - rank) * N + 3));
		OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
		OK(blocking ? lshmem_fcollect(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, d, s, N)
			    : lshmem_fcollect_on_stream(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, d, s, N, stream));
		settle(stream);
		OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
		OK(lshmem_get(pe, local, d, sizeof *s * N * (size_t)size, rank));
		for (int i = 0; i < size; i++)
			CHECK(local[i * N + 5] == (uint32_t)(100 * i + 5));
		OK(blocking ? lshmem_broadcast(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, d, s, N, size - 1)
			    : lshmem_broadcast_on_stream(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, d, s, N, size - 1, stream));
		settle(stream);
		OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
		OK(lshmem_get(pe, local, d, sizeof *s * N, rank));
		CHECK(local[7] == (uint32_t)(100 * (size - 1) + 7));
		OK(blocking ? lshmem_reduce(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, LSHMEM_MAX, d, s, N)
			    : lshmem_reduce_on_stream(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, LSHMEM_MAX, d, s, N, stream));
		settle(stream);
		OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
		OK(lshmem_get(pe, local, d, sizeof *s * N, rank));
		CHECK(local[9] == (uint32_t)(100 * (size - 1) + 9));
		OK(blocking ? lshmem_reducescatter(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, LSHMEM_SUM, d, s, N)
			    : lshmem_reducescatter_on_stream(pe, LSHMEM_TEAM_WORLD, LSHMEM_UINT32, LSHMEM_SUM, d, s, N, stream));
		settle(stream);
		OK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD));
		OK(lshmem_get(pe, local, d, sizeof *s * N, rank));
		uint32_t want = 0;
		for (int i = 0; i < size; i++)
			want += (uint32_t)(100 * i + rank * N + 2);
		CHECK(local[2] == want);
	}
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_reduce(pe, LSHMEM_TEAM_WORLD, LSHMEM_FLOAT32, LSHMEM_XOR, d, s, N));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_alltoall(pe, LSHMEM_TEAM_WORLD, -3, d, s, N));
	OK(lshmem_team_destroy(pe, backwards));
	OK(lshmem_team_destroy(pe, y));
	OK(lshmem_team_destroy(pe, x));
	OK(lshmem_free(pe, d));
	OK(lshmem_free(pe, s));
	free(members);
}

static void *other_thread(void *pe) {
	int n;
	CHECK(!*lshmem_last_error()); // it is each thread's own
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_n_pes(-5, &n));
	OK(lshmem_n_pes(*(lshmem_pe_t *)pe, &n));
	return NULL;
}

static void instance(lshmem_pe_t pe) {
	struct lshmem_state state;
	char text[16], *json;
	size_t needed;
	int n, major, minor;
	uint64_t version;
	void *address;
	OK(lshmem_version(&major, &minor, &version));
	CHECK(major == LSHMEM_MAJOR && minor >= LSHMEM_MINOR && version == LSHMEM_STATE_VERSION);
	CHECK(strncmp(lshmem_version_name(), "lshmem 1.", 9) == 0);
	OK(lshmem_get_state(pe, &state));
	CHECK(state.version == LSHMEM_STATE_VERSION && state.pe == (uint32_t)rank && state.pes == (uint32_t)size);
	OK(lshmem_state_address(pe, &address));
	CHECK(address != NULL);
	OK(lshmem_device(pe, &n));
	OK(lshmem_status(pe));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_info(pe, text, sizeof text, &needed));
	json = malloc(needed + 1000);
	OK(lshmem_info(pe, json, needed + 1000, NULL));
	CHECK(strstr(json, "\"p2p\"") && !strstr(json, "a-token"));
	free(json);
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_my_pe(0, &n));
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_get_state(pe, NULL));
	CHECK(strlen(lshmem_strerror(12345)) > 0);
	pthread_t t;
	if (pthread_create(&t, NULL, other_thread, &pe) != 0 || pthread_join(t, NULL) != 0)
		fail(__LINE__, "pthread", "refused");
}

// A PE that dies is an error at the others.
static int dies(lshmem_pe_t pe) {
	uint64_t *s;
	OK(lshmem_calloc(pe, 1, 8, (void **)&s));
	if (rank == size - 1)
		_exit(0);
	CHECK(lshmem_signal_wait_until(pe, s, LSHMEM_CMP_EQ, 1) == LSHMEM_ERR_PEER);
	CHECK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD) == LSHMEM_ERR_PEER && lshmem_status(pe) == LSHMEM_ERR_PEER);
	lshmem_finalize(pe);
	return 0;
}

// One ends the job.
static int exits(lshmem_pe_t pe) {
	uint64_t *s;
	OK(lshmem_calloc(pe, 1, 8, (void **)&s));
	if (rank == 0)
		OK(lshmem_global_exit(pe, 3));
	else
		CHECK(lshmem_signal_wait_until(pe, s, LSHMEM_CMP_EQ, 1) == LSHMEM_ERR_PEER);
	CHECK(lshmem_barrier(pe, LSHMEM_TEAM_WORLD) == LSHMEM_ERR_PEER);
	lshmem_finalize(pe);
	return 0;
}

int main(int argc, char **argv) {
	lshmem_pe_t pe, second;
	lshmem_config config;
	const char *settings[] = {"LSHMEM_TIMEOUT=30s", NULL}, *wrong[] = {"LSHMEM_TIMEOUT=soon", NULL};
	int n;

	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_init_env(NULL));
	OK(lshmem_config_init(&config));
	config.settings = wrong;
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_init(&config, &pe));
	config.size--;
	REFUSED(LSHMEM_ERR_ARGUMENT, lshmem_init(&config, &pe));
	OK(lshmem_config_init(&config));
	config.settings = settings;
	OK(lshmem_init(&config, &pe));
	OK(lshmem_my_pe(pe, &rank));
	OK(lshmem_n_pes(pe, &size));
	use_device(pe);
	if (argc > 1 && strcmp(argv[1], "dies") == 0)
		return dies(pe);
	if (argc > 1 && strcmp(argv[1], "exits") == 0)
		return exits(pe);
	instance(pe);
	memory(pe);
	transfers(pe, NULL);
	teams(pe, NULL);

	// A second instance of the same processes, beside the first.
	OK(lshmem_init_env(&second));
	CHECK(second != pe);
	transfers(second, NULL);
	OK(lshmem_finalize(second));
	REFUSED(LSHMEM_ERR_STATE, lshmem_n_pes(second, &n));
	transfers(pe, NULL);
	OK(lshmem_finalize(pe));
	REFUSED(LSHMEM_ERR_STATE, lshmem_finalize(pe));
	return 0;
}
