// lshmem's device side: kernels of one process (a PE) read, write and synchronize the symmetric memory of all.
//
//	LSHMEM_GLOBAL void ring(const lshmem_t sh, uint64_t *flag, float *out, const float *in, size_t n) {
//	  int next = (lshmem_my_pe(sh) + 1) % lshmem_n_pes(sh);
//	  lshmem_putmem_signal_block(sh, out, in, n * sizeof *in, flag, 1, LSHMEM_SIGNAL_SET, next);
//	  lshmem_signal_wait_until(sh, flag, LSHMEM_CMP_EQ, 1);
//	}
//
// Header only: no -rdc, no device library, no global variable. The host passes the state of its PE (lshmem.h) as a
// kernel argument by value; with nvcc, `const __grid_constant__ lshmem_t sh` keeps it out of local memory in every
// case.
//
// # What all functions have in common
//
// Addresses of remote objects are symmetric addresses: the caller's own address of the object in the heap. A PE is a
// number below lshmem_n_pes; the own PE is one like any other. Copies check that they stay in the heap; single values,
// signals and atomic operations on mapped memory do not, since the check would be in the path of every signal.
//
// Each PE is reached in one of two ways, which behave alike. If its memory is mapped here (NVLink, PCIe, same GPU), by
// loads, stores and atomic instructions: lshmem_rma.cuh. Else by work requests that the GPU writes into a send queue of
// a NIC: lshmem_queue.cuh, where the protocol is explained.
//
// Scopes: a plain name is called by one thread; with _warp by all threads of a warp, with _block by all of a block,
// together and with equal arguments. Threads of one warp may call plain forms together or apart. A _warp or _block call
// begins with a synchronization of the group, so that it sends what any member wrote before it, and ends with one, so
// that any member may go on from there. Not so the _nbi forms: where they copy by loads and stores, each member goes
// its own way. Synchronize the group before one if other members wrote the source, and complete it by lshmem_quiet of
// the same scope.
//
// Completion: put, put_signal and iput return when their source may be overwritten, get and iget when the destination
// holds the data. The _nbi forms may return before. lshmem_quiet completes everything, also at the target, before
// anything that comes after it, loads too. lshmem_fence orders, for each PE, what was written before it before what is
// written after it. Both act for the calling thread, warp or block, and for what others have handed it through a
// synchronization.
//
// Errors: functions that return int return LSHMEM_OK (0) or LSHMEM_ERR_*. The first error of a PE is also kept in its
// Control, where the host sees it. Nothing waits longer than the state's timeout, nor after the host has given up
// (Control.abort).
//
// Waiting: a wait polls with acquire order at system scope; data that were put before the signal can be read after it.
#ifndef LSHMEM_CUH
#define LSHMEM_CUH

#include "lshmem_mlx5.h"
#include "lshmem_platform.h"
#include "lshmem_state.h"

typedef struct lshmem_state lshmem_t;

// Declares f(name), f(name_warp) and f(name_block): the scopes of a function.
#define LSHMEM_EACH_SCOPE(f, name) \
  f(name, lshmem::thread_group)    \
  f(name##_warp, lshmem::warp_group) \
  f(name##_block, lshmem::block_group)

// --- Who and where ---

LSHMEM_DEVICE int lshmem_my_pe(const lshmem_t &sh);
LSHMEM_DEVICE int lshmem_n_pes(const lshmem_t &sh);
// LSHMEM_ERR_VERSION if the library that made the state is of another version than this header. The network path checks
// it.
LSHMEM_DEVICE int lshmem_check_version(const lshmem_t &sh);
// Where p of that PE is mapped here, null if it is not.
LSHMEM_DEVICE void *lshmem_ptr(const lshmem_t &sh, const void *p, int pe);

// --- Single values ---

// Writes v to dst of pe. T has 1, 2, 4 or 8 bytes. Single-copy atomic, so it may be waited for. May complete later.
template <class T> LSHMEM_DEVICE int lshmem_p(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe);
// Reads src of pe; 0 after an error, which Control holds.
template <class T> LSHMEM_DEVICE T lshmem_g(const lshmem_t &sh, const T *src, int pe);

// --- Copies ---
//
// lshmem_putmem{,_nbi}{,_warp,_block}(sh, dst, src, bytes, pe)   and getmem
// lshmem_put{,_nbi}{,_warp,_block}(sh, dst, src, n, pe)          and get, of n elements
// lshmem_iput{,_warp,_block}(sh, dst, src, dst_stride, src_stride, n, pe) and iget, strides in elements
//
// Without anything to copy they do nothing, whatever the addresses.
#define LSHMEM_COPY(name, group)                                                                                         \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe);
LSHMEM_EACH_SCOPE(LSHMEM_COPY, putmem)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, putmem_nbi)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, getmem)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, getmem_nbi)
#undef LSHMEM_COPY
#define LSHMEM_COPY(name, group)                                                                                         \
  template <class T> LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, T *dst, const lshmem::value<T> *src, size_t n, int pe);
LSHMEM_EACH_SCOPE(LSHMEM_COPY, put)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, put_nbi)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, get)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, get_nbi)
#undef LSHMEM_COPY
#define LSHMEM_COPY(name, group)                                                                                         \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, T *dst, const lshmem::value<T> *src, ptrdiff_t dst_stride,         \
                                  ptrdiff_t src_stride, size_t n, int pe);
LSHMEM_EACH_SCOPE(LSHMEM_COPY, iput)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, iget)
#undef LSHMEM_COPY

// The block's put and get by the bulk copy engine, through shared memory of the caller's: lshmem_bulk.cuh.
LSHMEM_DEVICE int lshmem_putmem_bulk_block(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe, void *shared,
                                           uint32_t shared_bytes);
LSHMEM_DEVICE int lshmem_getmem_bulk_block(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe, void *shared,
                                           uint32_t shared_bytes);

// --- Data and signal ---
//
// lshmem_putmem_signal{,_nbi}{,_warp,_block}(sh, dst, src, bytes, sig, v, op, pe)
// lshmem_put_signal{,_nbi}{,_warp,_block}(sh, dst, src, n, sig, v, op, pe)
// Copies, then sets (LSHMEM_SIGNAL_SET) or adds (LSHMEM_SIGNAL_ADD) v at sig of the same PE, which never happens before
// the data are there. Without bytes it only signals.
#define LSHMEM_COPY(name, group)                                                                                         \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, void *dst, const void *src, size_t bytes, uint64_t *sig,           \
                                  uint64_t v, int op, int pe);
LSHMEM_EACH_SCOPE(LSHMEM_COPY, putmem_signal)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, putmem_signal_nbi)
#undef LSHMEM_COPY
#define LSHMEM_COPY(name, group)                                                                                         \
  template <class T>                                                                                                     \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, T *dst, const lshmem::value<T> *src, size_t n, uint64_t *sig,      \
                                  uint64_t v, int op, int pe);
LSHMEM_EACH_SCOPE(LSHMEM_COPY, put_signal)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, put_signal_nbi)
#undef LSHMEM_COPY

// Sets or adds at sig of pe, without order to anything else: put lshmem_fence before it where that is wanted.
LSHMEM_DEVICE int lshmem_signal_op(const lshmem_t &sh, uint64_t *sig, uint64_t v, int op, int pe);
// The value of the own sig, with acquire order.
LSHMEM_DEVICE uint64_t lshmem_signal_fetch(const lshmem_t &sh, const uint64_t *sig);
LSHMEM_DEVICE int lshmem_signal_wait_until(const lshmem_t &sh, uint64_t *sig, int cmp, uint64_t v);

// --- Waits and tests, of own memory that others write ---
//
// T is an integer of 2, 4 or 8 bytes. Of n variables, those with a status other than 0 are left out; status may be
// null. The forms with _vector compare each with its own value. "Any" gives the index of one that holds, "some" the
// indices of all that hold at that time and their number, at least 1. Without any variable to wait for, waits return at
// once, any with index SIZE_MAX, some with count 0.
template <class T> LSHMEM_DEVICE int lshmem_wait_until(const lshmem_t &sh, T *ivar, int cmp, lshmem::value<T> v);
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_all(const lshmem_t &sh, T *ivars, size_t n, const int *status, int cmp, lshmem::value<T> v);
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_any(const lshmem_t &sh, T *ivars, size_t n, size_t *index, const int *status, int cmp,
                                        lshmem::value<T> v);
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_some(const lshmem_t &sh, T *ivars, size_t n, size_t *indices, size_t *count,
                                         const int *status, int cmp, lshmem::value<T> v);
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_all_vector(const lshmem_t &sh, T *ivars, size_t n, const int *status, int cmp,
                                               const lshmem::value<T> *values);
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_any_vector(const lshmem_t &sh, T *ivars, size_t n, size_t *index, const int *status,
                                               int cmp, const lshmem::value<T> *values);
template <class T>
LSHMEM_DEVICE int lshmem_wait_until_some_vector(const lshmem_t &sh, T *ivars, size_t n, size_t *indices, size_t *count,
                                                const int *status, int cmp, const lshmem::value<T> *values);

// Tests return 1 or 0 (any: index or SIZE_MAX; some: count) at once.
template <class T> LSHMEM_DEVICE int lshmem_test(const lshmem_t &sh, T *ivar, int cmp, lshmem::value<T> v);
template <class T>
LSHMEM_DEVICE int lshmem_test_all(const lshmem_t &sh, T *ivars, size_t n, const int *status, int cmp, lshmem::value<T> v);
template <class T>
LSHMEM_DEVICE size_t lshmem_test_any(const lshmem_t &sh, T *ivars, size_t n, const int *status, int cmp, lshmem::value<T> v);
template <class T>
LSHMEM_DEVICE size_t lshmem_test_some(const lshmem_t &sh, T *ivars, size_t n, size_t *indices, const int *status, int cmp,
                                      lshmem::value<T> v);
template <class T>
LSHMEM_DEVICE int lshmem_test_all_vector(const lshmem_t &sh, T *ivars, size_t n, const int *status, int cmp,
                                         const lshmem::value<T> *values);
template <class T>
LSHMEM_DEVICE size_t lshmem_test_any_vector(const lshmem_t &sh, T *ivars, size_t n, const int *status, int cmp,
                                            const lshmem::value<T> *values);
template <class T>
LSHMEM_DEVICE size_t lshmem_test_some_vector(const lshmem_t &sh, T *ivars, size_t n, size_t *indices, const int *status,
                                             int cmp, const lshmem::value<T> *values);

// --- Atomic operations ---
//
// T is an integer of 4 or 8 bytes; float and double for fetch, set and swap. Without order to anything else, like all
// but put_signal. Those without a result may complete later. Those with one return 0 after an error.
#define LSHMEM_AMO(name) \
  template <class T> LSHMEM_DEVICE int lshmem_atomic_##name(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe);
LSHMEM_AMO(add)
LSHMEM_AMO(set)
LSHMEM_AMO(and)
LSHMEM_AMO(or)
LSHMEM_AMO(xor)
#undef LSHMEM_AMO
template <class T> LSHMEM_DEVICE int lshmem_atomic_inc(const lshmem_t &sh, T *dst, int pe);
#define LSHMEM_AMO(name) \
  template <class T> LSHMEM_DEVICE T lshmem_atomic_##name(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe);
LSHMEM_AMO(fetch_add)
LSHMEM_AMO(fetch_and)
LSHMEM_AMO(fetch_or)
LSHMEM_AMO(fetch_xor)
LSHMEM_AMO(swap)
#undef LSHMEM_AMO
template <class T> LSHMEM_DEVICE T lshmem_atomic_fetch(const lshmem_t &sh, const T *src, int pe);
template <class T> LSHMEM_DEVICE T lshmem_atomic_fetch_inc(const lshmem_t &sh, T *dst, int pe);
template <class T>
LSHMEM_DEVICE T lshmem_atomic_compare_swap(const lshmem_t &sh, T *dst, lshmem::value<T> expected, lshmem::value<T> desired,
                                           int pe);

// --- Order and completion ---
//
// lshmem_fence{,_warp,_block}(sh) and (sh, pe), lshmem_quiet likewise. LSHMEM_PE_ALL as pe is all of them.
#define LSHMEM_ORDER(name, group)                \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh); \
  LSHMEM_DEVICE int lshmem_##name(const lshmem_t &sh, int pe);
LSHMEM_EACH_SCOPE(LSHMEM_ORDER, fence)
LSHMEM_EACH_SCOPE(LSHMEM_ORDER, quiet)
#undef LSHMEM_ORDER

// --- Explicit queues ---
//
// As the functions without qp_, over queue q of the PE: a number below State.queues_per_pe, LSHMEM_QP_DEFAULT (the
// caller's own: by block, warp or multiprocessor) or LSHMEM_QP_ANY (one that spreads callers more). Where memory is
// mapped there is no queue, and q is ignored. Order holds within a queue; quiet of one queue completes what was posted
// to it. Of the PE (or LSHMEM_PE_ALL) given to qp_quiet and qp_fence, LSHMEM_QP_ANY selects all queues.
#define LSHMEM_COPY(name, group)                                                                                         \
  LSHMEM_DEVICE int lshmem_qp_##name(const lshmem_t &sh, void *dst, const void *src, size_t bytes, int pe, int q);
LSHMEM_EACH_SCOPE(LSHMEM_COPY, putmem)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, putmem_nbi)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, getmem)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, getmem_nbi)
#undef LSHMEM_COPY
#define LSHMEM_COPY(name, group)                                                                                         \
  LSHMEM_DEVICE int lshmem_qp_##name(const lshmem_t &sh, void *dst, const void *src, size_t bytes, uint64_t *sig,        \
                                     uint64_t v, int op, int pe, int q);
LSHMEM_EACH_SCOPE(LSHMEM_COPY, putmem_signal)
LSHMEM_EACH_SCOPE(LSHMEM_COPY, putmem_signal_nbi)
#undef LSHMEM_COPY
template <class T> LSHMEM_DEVICE int lshmem_qp_p(const lshmem_t &sh, T *dst, lshmem::value<T> v, int pe, int q);
template <class T> LSHMEM_DEVICE T lshmem_qp_g(const lshmem_t &sh, const T *src, int pe, int q);
LSHMEM_DEVICE int lshmem_qp_signal_op(const lshmem_t &sh, uint64_t *sig, uint64_t v, int op, int pe, int q);
// Also lshmem_qp_atomic_{add,set,and,or,xor,fetch_add,fetch_and,fetch_or,fetch_xor,swap}<T>(sh, dst, v, pe, q).
LSHMEM_DEVICE int lshmem_qp_quiet(const lshmem_t &sh, int pe, int q);
LSHMEM_DEVICE int lshmem_qp_fence(const lshmem_t &sh, int pe, int q);

// --- For code built on top (collectives) ---

namespace lshmem {

// Where the heap of pe is mapped, with LSHMEM_PEER_ATOMIC in the lowest bit; 0: not mapped.
LSHMEM_DEVICE uint64_t peer_heap(const lshmem_t &sh, int pe);
// Records an error where the host sees it, unless one is there already, and returns it.
LSHMEM_DEVICE int fail(const lshmem_t &sh, int status, int pe);
// Calls ready() until it is true; LSHMEM_OK, or the error that ended the wait: timeout or abort.
template <class Ready> LSHMEM_DEVICE int wait(const lshmem_t &sh, int pe, Ready ready);
// Whether a stands in the relation cmp to b.
template <class T> LSHMEM_DEVICE bool compare(T a, int cmp, T b);
// Copies between mapped memory by all members of Group, without synchronization before or after.
template <class Group> LSHMEM_DEVICE void copy_to(void *dst, const void *src, size_t bytes);   // dst is a peer's
template <class Group> LSHMEM_DEVICE void copy_from(void *dst, const void *src, size_t bytes); // src is a peer's

} // namespace lshmem

// Barriers and collectives: lshmem_collective.cuh, which includes this file.

#include "lshmem_sync.cuh"

#include "lshmem_queue.cuh"

#include "lshmem_rma.cuh"

#include "lshmem_atomic.cuh"

#include "lshmem_bulk.cuh"

#endif
