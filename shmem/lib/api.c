//go:build cgo

// The functions of lshmem.h. Each is a call of its Go half, which is in the files of the same groups; pointers go as
// numbers, but those that a result is written through. Kept in C so that the header's types, const and all, are what is
// compiled.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"

#define A(p) ((uint64_t)(uintptr_t)(p))

// What the calling thread's last failing function said. Go functions run on the thread that called them. It is memory
// by a key rather than a _Thread_local array: Go's runtime makes the library's thread-local block a static one, of
// which a process that loads libraries later has very little.
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t last_error;

static void make_key(void) { pthread_key_create(&last_error, free); }

void shmem_set_error(const char *text) {
	pthread_once(&once, make_key);
	char *copy = strdup(text);
	free(pthread_getspecific(last_error));
	pthread_setspecific(last_error, copy);
}

const char *lshmem_last_error(void) {
	pthread_once(&once, make_key);
	const char *text = pthread_getspecific(last_error);
	return text ? text : "";
}

const char *lshmem_strerror(int code) {
	switch (code) {
	case LSHMEM_OK: return "no error";
	case LSHMEM_ERR_TIMEOUT: return "a wait passed its timeout";
	case LSHMEM_ERR_PEER: return "a PE died";
	case LSHMEM_ERR_QUEUE: return "a work request completed in error";
	case LSHMEM_ERR_ARGUMENT: return "a PE, address or argument that cannot be";
	case LSHMEM_ERR_MEMORY: return "out of memory";
	case LSHMEM_ERR_SYSTEM: return "the driver, the kernel or the network refused";
	case LSHMEM_ERR_VERSION: return "device code and library were built with different layouts";
	case LSHMEM_ERR_STATE: return "not possible now";
	case LSHMEM_ERR_SUPPORT: return "this machine or build cannot do it";
	}
	return "unknown error code";
}

int lshmem_version(int *major, int *minor, uint64_t *state_version) {
	if (major) *major = LSHMEM_MAJOR;
	if (minor) *minor = LSHMEM_MINOR;
	if (state_version) *state_version = LSHMEM_STATE_VERSION;
	return LSHMEM_OK;
}

const char *lshmem_version_name(void) { return shmemVersionName(); }

// ---- Begin and end ----

// Go cannot call through a function pointer.
int shmem_call_allgather(const lshmem_callbacks *c, void *send, void *receive, size_t bytes) {
	return c->allgather(c->context, send, receive, bytes);
}
int shmem_call_alltoall(const lshmem_callbacks *c, void *send, void *receive, size_t bytes) {
	return c->alltoall(c->context, send, receive, bytes);
}
int shmem_call_barrier(const lshmem_callbacks *c) { return c->barrier(c->context); }
void shmem_call_abort(const lshmem_callbacks *c, int code, char *why) { c->abort(c->context, code, why); }

int lshmem_config_init(lshmem_config *config) {
	if (!config) return shmemArgument((char *)"lshmem_config_init: NULL");
	memset(config, 0, sizeof *config);
	config->size = sizeof *config;
	config->pe = -1;
	config->device = -1;
	return LSHMEM_OK;
}
int lshmem_get_uniqueid(lshmem_uniqueid *out) { return shmemUniqueID(out); }
int lshmem_init(const lshmem_config *config, lshmem_pe_t *out) { return shmemInit((lshmem_config *)config, out); }
int lshmem_init_env(lshmem_pe_t *out) { return shmemInit(NULL, out); }
int lshmem_finalize(lshmem_pe_t pe) { return shmemFinalize(pe); }
int lshmem_global_exit(lshmem_pe_t pe, int code) { return shmemGlobalExit(pe, code); }
int lshmem_status(lshmem_pe_t pe) { return shmemStatus(pe); }
int lshmem_my_pe(lshmem_pe_t pe, int *out) { return shmemMyPE(pe, out); }
int lshmem_n_pes(lshmem_pe_t pe, int *out) { return shmemPEs(pe, out); }
int lshmem_device(lshmem_pe_t pe, int *out) { return shmemDevice(pe, out); }
int lshmem_get_state(lshmem_pe_t pe, struct lshmem_state *out) { return shmemState(pe, out); }
int lshmem_state_address(lshmem_pe_t pe, void **out) { return shmemStateAddress(pe, (uint64_t *)(void *)out); }
int lshmem_info(lshmem_pe_t pe, char *text, size_t bytes, size_t *needed) { return shmemInfo(pe, text, bytes, needed); }

// ---- Symmetric memory ----

int lshmem_malloc(lshmem_pe_t pe, size_t bytes, void **out) { return shmemMalloc(pe, bytes, (uint64_t *)(void *)out); }
int lshmem_calloc(lshmem_pe_t pe, size_t count, size_t bytes, void **out) { return shmemCalloc(pe, count, bytes, (uint64_t *)(void *)out); }
int lshmem_align(lshmem_pe_t pe, size_t alignment, size_t bytes, void **out) { return shmemAlign(pe, alignment, bytes, (uint64_t *)(void *)out); }
int lshmem_free(lshmem_pe_t pe, void *p) { return shmemFree(pe, A(p)); }
int lshmem_ptr(lshmem_pe_t pe, const void *p, int target, void **out) { return shmemPtr(pe, A(p), target, (uint64_t *)(void *)out); }
int lshmem_heap_bytes(lshmem_pe_t pe, uint64_t *backed, uint64_t *used, uint64_t *reserved) {
	return shmemHeapBytes(pe, backed, used, reserved);
}
int lshmem_buffer_register(lshmem_pe_t pe, void *p, size_t bytes) { return shmemRegister(pe, A(p), bytes); }
int lshmem_buffer_unregister(lshmem_pe_t pe, void *p) { return shmemUnregister(pe, A(p)); }
int lshmem_buffer_unregister_all(lshmem_pe_t pe) { return shmemUnregisterAll(pe); }
int lshmem_buffer_register_symmetric(lshmem_pe_t pe, void *p, size_t bytes, void **out) {
	return shmemRegisterSymmetric(pe, A(p), bytes, (uint64_t *)(void *)out);
}
int lshmem_buffer_unregister_symmetric(lshmem_pe_t pe, void *p) { return shmemUnregisterSymmetric(pe, A(p)); }

// ---- One-sided transfers ----

int lshmem_put(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, int target) {
	return shmemPut(pe, A(dst), A(src), bytes, target);
}
int lshmem_get(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, int target) {
	return shmemGet(pe, A(dst), A(src), bytes, target);
}
int lshmem_put_on_stream(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, int target, lshmem_stream_t stream) {
	return shmemPutOnStream(pe, A(dst), A(src), bytes, target, A(stream));
}
int lshmem_get_on_stream(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, int target, lshmem_stream_t stream) {
	return shmemGetOnStream(pe, A(dst), A(src), bytes, target, A(stream));
}
int lshmem_iput(lshmem_pe_t pe, int type, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t count,
	int target) {
	return shmemIPut(pe, type, A(dst), A(src), dst_stride, src_stride, count, target);
}
int lshmem_iget(lshmem_pe_t pe, int type, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t count,
	int target) {
	return shmemIGet(pe, type, A(dst), A(src), dst_stride, src_stride, count, target);
}
int lshmem_p(lshmem_pe_t pe, void *dst, const void *value, size_t bytes, int target) {
	return shmemP(pe, A(dst), (void *)value, bytes, target);
}
int lshmem_g(lshmem_pe_t pe, void *value, const void *src, size_t bytes, int target) {
	return shmemG(pe, value, A(src), bytes, target);
}
int lshmem_atomic(lshmem_pe_t pe, int op, int type, void *dst, uint64_t operand, uint64_t compare, uint64_t *fetched, int target) {
	return shmemAtomic(pe, op, type, A(dst), operand, compare, fetched, target);
}

int lshmem_atomic_on_stream(lshmem_pe_t pe, int op, int type, void *dst, uint64_t operand, uint64_t compare, void *fetched, int target,
	lshmem_stream_t stream) {
	return shmemAtomicOnStream(pe, op, type, A(dst), operand, compare, A(fetched), target, A(stream));
}

// ---- Signals, order, waits ----

int lshmem_put_signal(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value, int op, int target) {
	return shmemPutSignal(pe, A(dst), A(src), bytes, A(signal), value, op, target);
}
int lshmem_put_signal_on_stream(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value, int op,
	int target, lshmem_stream_t stream) {
	return shmemPutSignalOnStream(pe, A(dst), A(src), bytes, A(signal), value, op, target, A(stream));
}
int lshmem_signal_op(lshmem_pe_t pe, uint64_t *signal, uint64_t value, int op, int target) {
	return shmemSignalOp(pe, A(signal), value, op, target);
}
int lshmem_signal_op_on_stream(lshmem_pe_t pe, uint64_t *signal, uint64_t value, int op, int target, lshmem_stream_t stream) {
	return shmemSignalOpOnStream(pe, A(signal), value, op, target, A(stream));
}
int lshmem_signal_fetch(lshmem_pe_t pe, const uint64_t *signal, uint64_t *out) { return shmemSignalFetch(pe, A(signal), out); }
int lshmem_signal_wait_until(lshmem_pe_t pe, const uint64_t *signal, int compare, uint64_t value) {
	return shmemSignalWait(pe, A(signal), compare, value);
}
int lshmem_signal_wait_until_on_stream(lshmem_pe_t pe, const uint64_t *signal, int compare, uint64_t value, lshmem_stream_t stream) {
	return shmemSignalWaitOnStream(pe, A(signal), compare, value, A(stream));
}
int lshmem_wait_until(lshmem_pe_t pe, int type, const void *p, int compare, uint64_t value) {
	return shmemWaitUntil(pe, type, A(p), compare, value);
}
int lshmem_wait_until_on_stream(lshmem_pe_t pe, int type, const void *p, int compare, uint64_t value, lshmem_stream_t stream) {
	return shmemWaitUntilOnStream(pe, type, A(p), compare, value, A(stream));
}
int lshmem_quiet(lshmem_pe_t pe) { return shmemQuiet(pe); }
int lshmem_quiet_on_stream(lshmem_pe_t pe, lshmem_stream_t stream) { return shmemQuietOnStream(pe, A(stream)); }
int lshmem_fence(lshmem_pe_t pe) { return shmemFence(pe); }

// ---- Teams ----

int lshmem_team_split_strided(lshmem_pe_t pe, lshmem_team_t parent, int start, int stride, int size, lshmem_team_t *out) {
	return shmemTeamSplitStrided(pe, parent, start, stride, size, out);
}
int lshmem_team_split_2d(lshmem_pe_t pe, lshmem_team_t parent, int xrange, lshmem_team_t *x, lshmem_team_t *y) {
	return shmemTeamSplit2D(pe, parent, xrange, x, y);
}
int lshmem_team_create(lshmem_pe_t pe, const int *members, int count, lshmem_team_t *out) {
	return shmemTeamCreate(pe, (int *)members, count, out);
}
int lshmem_team_destroy(lshmem_pe_t pe, lshmem_team_t team) { return shmemTeamDestroy(pe, team); }
int lshmem_team_my_pe(lshmem_pe_t pe, lshmem_team_t team, int *out) { return shmemTeamMyPE(pe, team, out); }
int lshmem_team_n_pes(lshmem_pe_t pe, lshmem_team_t team, int *out) { return shmemTeamPEs(pe, team, out); }
int lshmem_team_translate_pe(lshmem_pe_t pe, lshmem_team_t from, int index, lshmem_team_t to, int *out) {
	return shmemTeamTranslate(pe, from, index, to, out);
}

// ---- Collective operations ----

int lshmem_barrier(lshmem_pe_t pe, lshmem_team_t team) { return shmemBarrier(pe, team); }
int lshmem_sync(lshmem_pe_t pe, lshmem_team_t team) { return shmemSync(pe, team); }
int lshmem_barrier_on_stream(lshmem_pe_t pe, lshmem_team_t team, lshmem_stream_t stream) {
	return shmemBarrierOnStream(pe, team, A(stream));
}
int lshmem_sync_on_stream(lshmem_pe_t pe, lshmem_team_t team, lshmem_stream_t stream) {
	return shmemSyncOnStream(pe, team, A(stream));
}
// The blocking forms, and those on a stream.
int lshmem_broadcast(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count, int root) {
	return shmemBroadcast(pe, team, type, A(dst), A(src), count, root, 0, 0);
}
int lshmem_fcollect(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count) {
	return shmemFCollect(pe, team, type, A(dst), A(src), count, 0, 0);
}
int lshmem_alltoall(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count) {
	return shmemAllToAll(pe, team, type, A(dst), A(src), count, 0, 0);
}
int lshmem_reduce(lshmem_pe_t pe, lshmem_team_t team, int type, int op, void *dst, const void *src, size_t count) {
	return shmemReduce(pe, team, type, op, A(dst), A(src), count, 0, 0);
}
int lshmem_reducescatter(lshmem_pe_t pe, lshmem_team_t team, int type, int op, void *dst, const void *src, size_t count) {
	return shmemReduceScatter(pe, team, type, op, A(dst), A(src), count, 0, 0);
}
int lshmem_broadcast_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count, int root,
	lshmem_stream_t stream) {
	return shmemBroadcast(pe, team, type, A(dst), A(src), count, root, 1, A(stream));
}
int lshmem_fcollect_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count,
	lshmem_stream_t stream) {
	return shmemFCollect(pe, team, type, A(dst), A(src), count, 1, A(stream));
}
int lshmem_alltoall_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count,
	lshmem_stream_t stream) {
	return shmemAllToAll(pe, team, type, A(dst), A(src), count, 1, A(stream));
}
int lshmem_reduce_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, int op, void *dst, const void *src, size_t count,
	lshmem_stream_t stream) {
	return shmemReduce(pe, team, type, op, A(dst), A(src), count, 1, A(stream));
}
int lshmem_reducescatter_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, int op, void *dst, const void *src, size_t count,
	lshmem_stream_t stream) {
	return shmemReduceScatter(pe, team, type, op, A(dst), A(src), count, 1, A(stream));
}
