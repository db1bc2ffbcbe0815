/* lshmem: symmetric memory between GPUs, the host's side (liblshmem.so). Device code includes lshmem.cuh.
 *
 *	lshmem_pe_t pe;
 *	if (lshmem_init_env(&pe) != LSHMEM_OK)            // one process for each GPU, started by lgpu run --pes N
 *		die(lshmem_last_error());
 *	int device;
 *	lshmem_device(pe, &device);
 *	cudaSetDevice(device);                            // the PE has chosen one; CUDA's own calls would go to device 0
 *	void *p;
 *	lshmem_malloc(pe, 1 << 20, &p);                   // all PEs, the same size: the same offset in every heap
 *	lshmem_t state;
 *	lshmem_get_state(pe, &state);
 *	kernel<<<...>>>(state, p);                        // puts, gets, atomics and signals from inside the kernel
 *	lshmem_barrier_on_stream(pe, LSHMEM_TEAM_WORLD, stream);
 *	lshmem_free(pe, p);
 *	lshmem_finalize(pe);
 *
 * Results. Every function returns LSHMEM_OK or LSHMEM_ERR_*, except those that return text. Other results come
 * through pointers and are written only on success. lshmem_strerror explains a code, lshmem_last_error says what
 * happened.
 *
 * Instances. A process can have several: each lshmem_init gives a new handle, and no handle is given twice. Memory
 * and teams belong to one instance; other instances do not know them.
 *
 * Threads. Any thread may call every function. All PEs must make the collective calls (marked "collective") of an
 * instance in the same order; if several threads of a PE make them, the program must keep the order.
 *
 * Contexts. An instance belongs to the CUDA context that was current when it was made, or else to the primary
 * context of its device. Functions make that context current while they run, and restore the thread's own. Streams
 * must be of it.
 *
 * Streams are a CUstream or cudaStream_t; NULL is the legacy default stream. Functions whose name ends in _on_stream
 * queue work on the device and return; memory that they are given by pointer must stay valid until the work is done.
 * They can be captured into graphs. A PE without a GPU has no streams: its calls do the work at once.
 *
 * Symmetric addresses. dst and src are addresses at this PE, also where a call is about another PE's memory: that is
 * at the same offset of the other PE's heap.
 */
#ifndef LSHMEM_H
#define LSHMEM_H

#include "lshmem_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The API's version. A library with the same major and a larger minor number has everything that is declared here. */
#define LSHMEM_MAJOR 1
#define LSHMEM_MINOR 0

typedef int64_t lshmem_pe_t;    /* an instance: this process's PE of a job. 0 is never one */
typedef void *lshmem_stream_t;  /* CUstream, cudaStream_t */
typedef int32_t lshmem_team_t;  /* LSHMEM_TEAM_* or one that was made */
typedef struct lshmem_state lshmem_t;

/* ---- Text and versions ---- */

/* What a code means, in a few words; never NULL. */
const char *lshmem_strerror(int code);
/* The text of the calling thread's last error: act, object and cause; "" if there was none. Valid until the thread's
 * next error. */
const char *lshmem_last_error(void);
/* The version of the library's API, and of the layout of lshmem_t, to be compared with LSHMEM_STATE_VERSION. Each
 * pointer may be NULL. */
int lshmem_version(int *major, int *minor, uint64_t *state_version);
/* The release's name, such as "lshmem 1.0 (v0.4-12-gabcdef)". */
const char *lshmem_version_name(void);

/* ---- Begin and end ---- */

/* What processes need to find each other. One process makes it, and the program carries it to the others. It has a
 * secret. */
typedef struct lshmem_uniqueid {
	uint8_t bytes[128];
} lshmem_uniqueid;

/* How a program's own runtime (MPI, torch.distributed) carries messages. Threads of the library call these
 * functions, one call at a time. Each returns 0, or any other number if it fails. If a call does not return in time,
 * the job is lost, and lshmem_finalize does not wait for that call. After lshmem_finalize no call begins, except one
 * that was about to begin when the job was lost. */
typedef struct lshmem_callbacks {
	size_t size; /* sizeof(lshmem_callbacks) */
	void *context; /* kept by the program until lshmem_finalize, and until all calls have returned */
	/* Gather bytes bytes of every PE, in order of PE, into receive (pes * bytes). */
	int (*allgather)(void *context, const void *send, void *receive, size_t bytes);
	int (*barrier)(void *context);
	/* May be NULL: then allgather is used instead. The i-th bytes bytes of send go to PE i. */
	int (*alltoall)(void *context, const void *send, void *receive, size_t bytes);
	/* May be NULL. This PE has failed with that code, for that reason; the runtime should end the job. */
	void (*abort)(void *context, int code, const char *why);
} lshmem_callbacks;

typedef struct lshmem_config {
	size_t size; /* sizeof(lshmem_config): set by lshmem_config_init */
	int pe;      /* this PE's number, -1: from the environment (LSHMEM_PE) */
	int pes;     /* how many there are, 0: from the environment (LSHMEM_PES) */
	/* At most one of the two; with neither, LSHMEM_BOOTSTRAP says how. */
	const lshmem_uniqueid *uniqueid;
	const lshmem_callbacks *callbacks;
	/* CUDA ordinal; -1: that of the thread's current context, else the PE's number on its host modulo devices. */
	int device;
	/* Settings as "LSHMEM_HEAP_MAX=8GiB", ended by a NULL. They override variables of the environment with the same
	 * names. May be NULL. lgpu shmem info lists all settings. */
	const char *const *settings;
} lshmem_config;

/* Set *config so that lshmem_init takes everything from the environment. */
int lshmem_config_init(lshmem_config *config);
/* Make a unique id, for one job. All PEs of the job connect to this process, also if it becomes no PE itself: it
 * must live as long as the job, which is lost for all PEs if it ends before. An id that nobody uses is valid for ten
 * minutes. */
int lshmem_get_uniqueid(lshmem_uniqueid *out);
/* Become a PE. Collective. config may be NULL: all from the environment. */
int lshmem_init(const lshmem_config *config, lshmem_pe_t *out);
int lshmem_init_env(lshmem_pe_t *out);
/* Leave the job: wait for the others (no longer than the timeout), then free all memory. Collective. */
int lshmem_finalize(lshmem_pe_t pe);
/* End the whole job: every other PE's calls and waits fail with LSHMEM_ERR_PEER. Does not end this process. */
int lshmem_global_exit(lshmem_pe_t pe, int code);
/* LSHMEM_OK, or the first error of this PE, on the host or on the device; lshmem_last_error says more. */
int lshmem_status(lshmem_pe_t pe);

int lshmem_my_pe(lshmem_pe_t pe, int *out);
int lshmem_n_pes(lshmem_pe_t pe, int *out);
/* The CUDA ordinal of the instance's device. */
int lshmem_device(lshmem_pe_t pe, int *out);
/* The state that kernels get as an argument. Valid until lshmem_finalize, also when the heap grows. */
int lshmem_get_state(lshmem_pe_t pe, struct lshmem_state *out);
/* The address of a copy of the state that kernels can read, for languages that pass addresses and no structs. */
int lshmem_state_address(lshmem_pe_t pe, void **out);
/* The instance as JSON: PEs, transports by PE, heap, teams, settings. It is an object with the fields of Info in
 * shmem/pe.go; times are in nanoseconds. At most bytes bytes, with the final 0, are written to text. *needed, if
 * needed is not NULL, is how many there are. LSHMEM_ERR_ARGUMENT if they do not fit. */
int lshmem_info(lshmem_pe_t pe, char *text, size_t bytes, size_t *needed);

/* ---- Symmetric memory ---- */

/* Allocate symmetric memory. Collective, with the same size at all PEs; returns when all PEs have the memory. 0
 * bytes give NULL. malloc's alignment is 256 bytes; align's is a power of two up to the chunk size. If one PE has
 * too little memory, all get LSHMEM_ERR_MEMORY. */
int lshmem_malloc(lshmem_pe_t pe, size_t bytes, void **out);
int lshmem_calloc(lshmem_pe_t pe, size_t count, size_t bytes, void **out);
int lshmem_align(lshmem_pe_t pe, size_t alignment, size_t bytes, void **out);
/* Free symmetric memory. Collective. Chunks in which nothing is allocated any more go back to the device. For NULL
 * it does nothing. */
int lshmem_free(lshmem_pe_t pe, void *p);
/* *out = the address at which this PE's GPU loads and stores target's memory at p, or NULL if only the network
 * reaches it. */
int lshmem_ptr(lshmem_pe_t pe, const void *p, int target, void **out);
/* How many bytes of memory the heap has, how many of them are allocated, and how many it can have at most. Each
 * pointer may be NULL. */
int lshmem_heap_bytes(lshmem_pe_t pe, uint64_t *backed, uint64_t *used, uint64_t *reserved);

/* Make memory outside of the heap usable as the local source or destination of network transfers. Not collective. */
int lshmem_buffer_register(lshmem_pe_t pe, void *p, size_t bytes);
int lshmem_buffer_unregister(lshmem_pe_t pe, void *p);
int lshmem_buffer_unregister_all(lshmem_pe_t pe);
/* Make memory of the program part of the heap: *out is its symmetric address, a second mapping of the same memory.
 * It must be a whole allocation of device memory made by cuMemCreate with POSIX file descriptors, mapped at once;
 * other memory, also that of cuMemAlloc, is LSHMEM_ERR_SUPPORT. bytes must be a multiple of 2 MiB. The memory must
 * stay until it is unregistered. Collective. */
int lshmem_buffer_register_symmetric(lshmem_pe_t pe, void *p, size_t bytes, void **out);
int lshmem_buffer_unregister_symmetric(lshmem_pe_t pe, void *p);

/* ---- One-sided transfers ---- */

/* Copy bytes bytes to dst in target's memory (put), or from src in it (get). The pointer to target's memory is
 * symmetric. put returns when src may be reused and dst has been written, get when dst has been written. The
 * on-stream forms take effect in the order of the stream. */
int lshmem_put(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, int target);
int lshmem_get(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, int target);
int lshmem_put_on_stream(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, int target, lshmem_stream_t stream);
int lshmem_get_on_stream(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, int target, lshmem_stream_t stream);
/* Elements of one type with strides of dst_stride and src_stride elements. */
int lshmem_iput(lshmem_pe_t pe, int type, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t count,
	int target);
int lshmem_iget(lshmem_pe_t pe, int type, void *dst, const void *src, ptrdiff_t dst_stride, ptrdiff_t src_stride, size_t count,
	int target);
/* One element of 1, 2, 4 or 8 bytes, whose value is in host memory here. */
int lshmem_p(lshmem_pe_t pe, void *dst, const void *value, size_t bytes, int target);
int lshmem_g(lshmem_pe_t pe, void *value, const void *src, size_t bytes, int target);

/* An atomic operation LSHMEM_AMO_* on target's word at dst. type is LSHMEM_INT32, UINT32, INT64 or UINT64; FLOAT32
 * and FLOAT64 can be set and swapped. operand and compare (only for LSHMEM_AMO_COMPARE_SWAP) are a word's bits.
 * *fetched, if fetched is not NULL, is the old value: a fetch is an ADD of 0, a swap is a SET. */
int lshmem_atomic(lshmem_pe_t pe, int op, int type, void *dst, uint64_t operand, uint64_t compare, uint64_t *fetched, int target);
/* The same in the order of a stream. fetched, if not NULL, is memory of the device that gets the old value. */
int lshmem_atomic_on_stream(lshmem_pe_t pe, int op, int type, void *dst, uint64_t operand, uint64_t compare, void *fetched,
	int target, lshmem_stream_t stream);

/* ---- Signals, order, waits ---- */

/* put, then op LSHMEM_SIGNAL_SET or _ADD with value on target's word at signal. Target sees the signal no earlier
 * than the data. */
int lshmem_put_signal(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value, int op,
	int target);
int lshmem_put_signal_on_stream(lshmem_pe_t pe, void *dst, const void *src, size_t bytes, uint64_t *signal, uint64_t value, int op,
	int target, lshmem_stream_t stream);
int lshmem_signal_op(lshmem_pe_t pe, uint64_t *signal, uint64_t value, int op, int target);
int lshmem_signal_op_on_stream(lshmem_pe_t pe, uint64_t *signal, uint64_t value, int op, int target, lshmem_stream_t stream);
int lshmem_signal_fetch(lshmem_pe_t pe, const uint64_t *signal, uint64_t *out);
/* Wait until this PE's word compares to value as LSHMEM_CMP_* says. */
int lshmem_signal_wait_until(lshmem_pe_t pe, const uint64_t *signal, int compare, uint64_t value);
int lshmem_signal_wait_until_on_stream(lshmem_pe_t pe, const uint64_t *signal, int compare, uint64_t value, lshmem_stream_t stream);
/* The same for a word of type LSHMEM_INT32, UINT32, INT64 or UINT64. value is its bits. */
int lshmem_wait_until(lshmem_pe_t pe, int type, const void *p, int compare, uint64_t value);
int lshmem_wait_until_on_stream(lshmem_pe_t pe, int type, const void *p, int compare, uint64_t value, lshmem_stream_t stream);

/* quiet waits until all that this PE has begun is done. fence orders: to each PE, what this PE began before the call
 * is done before what it begins after the call. */
int lshmem_quiet(lshmem_pe_t pe);
int lshmem_quiet_on_stream(lshmem_pe_t pe, lshmem_stream_t stream);
int lshmem_fence(lshmem_pe_t pe);

/* ---- Teams ---- */

/* Make a team of some members of a parent. Collective over the parent: all its members call it, and those that are
 * not in the new team get LSHMEM_TEAM_INVALID in *out. If one of them has LSHMEM_MAX_TEAMS teams already, all get
 * the error and none gets a team. */
int lshmem_team_split_strided(lshmem_pe_t pe, lshmem_team_t parent, int start, int stride, int size, lshmem_team_t *out);
/* Rows (x) of xrange PEs and columns (y) of a parent seen as a matrix. */
int lshmem_team_split_2d(lshmem_pe_t pe, lshmem_team_t parent, int xrange, lshmem_team_t *x, lshmem_team_t *y);
/* Make a team of any PEs, by their numbers in the world, in the given order. All members call it with the same list.
 * Others may call it, and get LSHMEM_TEAM_INVALID at once. */
int lshmem_team_create(lshmem_pe_t pe, const int *members, int count, lshmem_team_t *out);
int lshmem_team_destroy(lshmem_pe_t pe, lshmem_team_t team);
/* This PE's index in the team, -1 if it is not a member; and how many members the team has. */
int lshmem_team_my_pe(lshmem_pe_t pe, lshmem_team_t team, int *out);
int lshmem_team_n_pes(lshmem_pe_t pe, lshmem_team_t team, int *out);
/* The index in the team to of the PE that has the index in the team from; -1 if it is not a member of to. */
int lshmem_team_translate_pe(lshmem_pe_t pe, lshmem_team_t from, int index, lshmem_team_t to, int *out);

/* ---- Collective operations: all members of the team, with the same arguments ---- */

/* barrier waits until all members have called it and all that they had begun is done; sync, until all have called
 * it. */
int lshmem_barrier(lshmem_pe_t pe, lshmem_team_t team);
int lshmem_sync(lshmem_pe_t pe, lshmem_team_t team);
int lshmem_barrier_on_stream(lshmem_pe_t pe, lshmem_team_t team, lshmem_stream_t stream);
int lshmem_sync_on_stream(lshmem_pe_t pe, lshmem_team_t team, lshmem_stream_t stream);
/* dst and src are symmetric and do not overlap, but may be equal for reduce and broadcast. type is
 * LSHMEM_INT8..FLOAT64, op LSHMEM_SUM..XOR (the bitwise ones for integers). count is in elements:
 *   broadcast      count, from the member root's src to every member's dst, its own included
 *   fcollect       count of each member to every member: dst has count * members
 *   alltoall       count from each to each: both have count * members
 *   reduce         count, to every member
 *   reducescatter  count to each member: src has count * members */
int lshmem_broadcast(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count, int root);
int lshmem_fcollect(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count);
int lshmem_alltoall(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count);
int lshmem_reduce(lshmem_pe_t pe, lshmem_team_t team, int type, int op, void *dst, const void *src, size_t count);
int lshmem_reducescatter(lshmem_pe_t pe, lshmem_team_t team, int type, int op, void *dst, const void *src, size_t count);
int lshmem_broadcast_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count, int root,
	lshmem_stream_t stream);
int lshmem_fcollect_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count,
	lshmem_stream_t stream);
int lshmem_alltoall_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, void *dst, const void *src, size_t count,
	lshmem_stream_t stream);
int lshmem_reduce_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, int op, void *dst, const void *src, size_t count,
	lshmem_stream_t stream);
int lshmem_reducescatter_on_stream(lshmem_pe_t pe, lshmem_team_t team, int type, int op, void *dst, const void *src, size_t count,
	lshmem_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif
