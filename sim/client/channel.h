// SPDX-License-Identifier: Apache-2.0

// The client's end of the protocol described in sim/wire/wire.go: channels to the hardware process and the encoding of
// one call. Every function here is private to the libraries (the linker script hides it).
#ifndef LGPUSIM_CHANNEL_H
#define LGPUSIM_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include <lgpu_cuda.h>

#include "proto.h"

struct simc_channel;

// What is a thread's own is at a fixed distance from its thread pointer, and small, for every loader has little room of that
// kind. The other kind the loader allocates when a thread first uses it: in a namespace of dlmopen by the malloc of the
// program's own libc, which takes no lock as long as it knows of one thread, and it does not know of this library's.
#define SIMC_THREAD __thread __attribute__((tls_model("initial-exec")))

// What belongs to the calling thread: the stack of current contexts, and how default streams are meant.
struct simc_tls {
	int per_thread;  // inside a _ptsz or _ptds call
	int own;         // a thread of the library: no gate holds it
	unsigned passes; // calls that it is in, one inside the other (gate.h)
	unsigned depth;
	int ending; // the thread ends
	CUcontext *stack;
};

extern SIMC_THREAD struct simc_tls simc_tls;

static inline CUcontext simc_current(void)
{
	return simc_tls.depth ? simc_tls.stack[simc_tls.depth - 1] : NULL;
}

// One call being made: begun, filled, exchanged, read, ended.
struct simc_call {
	struct simc_channel *ch;
	unsigned char *start; // of the record being written
	unsigned char *at;    // where the next parameter goes
	uint32_t op;
	const unsigned char *in;  // where the next result is
	const unsigned char *end; // of the reply
	int replied;              // the hardware answered, with whatever result
};

// What a process is to the hardware.
enum simc_state { SIMC_FRESH, SIMC_READY, SIMC_DEAD, SIMC_FORKED, SIMC_ENDED };

extern int simc_state; // enum simc_state, read and written atomically

// Connects the process (cuInit). May be called again.
CUresult simc_connect(void);
// The process ends: from now on calls are answered as a driver does that has been deinitialized.
void simc_deinitialize(void);
// Why calls are refused while the process is not ready.
CUresult simc_not_ready(void);
// Starts the thread that runs host functions, once.
CUresult simc_start_service(void);
// The number that the hardware knows this process by.
int simc_pid(void);
// Whether there is a thread that runs host functions.
int simc_serves(void);

// For the restore thread, while no other is in a call (checkpoint.c): waits until the service thread, which the hardware
// has told to park, touches its channel no more;
void simc_await_service(void);
// gives up all connections, and returns when the hardware has freed what the process had;
void simc_disconnect(void);
// connects again: to the hardware at path, or where that is empty to the one that the environment names;
CUresult simc_reconnect(const char *path);
// tells the hardware of threads that have ended while there was no connection;
void simc_end_threads(void);
// and lets the service thread go on.
void simc_resume_service(void);

// Begins a call on the calling thread's channel, or on the process's management channel.
CUresult simc_begin(struct simc_call *k, uint32_t op);
CUresult simc_begin_nvml(struct simc_call *k, uint32_t op);
void simc_put(struct simc_call *k, uint64_t v);
void simc_put_raw(struct simc_call *k, const void *p, size_t n);
void simc_put_text(struct simc_call *k, const char *s);
void simc_put_array(struct simc_call *k, const void *p, size_t n, size_t elem);
// Sends the record, serves the hardware's requests for this program's memory, and returns the call's result.
CUresult simc_exchange(struct simc_call *k);
uint64_t simc_get(struct simc_call *k);
void simc_get_raw(struct simc_call *k, void *p, size_t n);
void simc_get_float(struct simc_call *k, float *p);
// Reads at most room elements into p; nothing when p is NULL.
void simc_get_array(struct simc_call *k, void *p, size_t room, size_t elem);
void simc_end(struct simc_call *k);

// Gives the management channel up until the next call, unless a call is being made. With a path the next is to the
// hardware there, or with an empty one to that of the environment.
void simc_move_management(const char *path);

// Writes pieces of text that kernels have printed, n bytes, to the standard output.
void simc_print(const unsigned char *pieces, size_t n);

// The descriptor to send with the calling thread's next call; it stays the caller's.
void simc_send_fd(int fd);
// The descriptor that came with the calling thread's last reply, and the caller owns it then; -1 if none, or if this
// process had no room for it.
int simc_take_fd(void);

#endif
