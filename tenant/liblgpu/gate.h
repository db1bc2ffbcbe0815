// gate.h: who may launch now. Every launch path passes here.
//
// With a daemon (daemon.h) the daemon opens and closes the gate of each device;
// where this process is alone on a device without a cap, the gate is free and
// launches pay one load. Without one, a process may launch while it has the
// device's turn (turn.h) and its lgpu has credit (credit.h).
//
// Behind each launch an untimed event is recorded, so that a watcher thread
// knows when the device has drained; while anything is in flight, time is
// charged to the lgpu. Work is let in only while what is already in flight will
// keep the device busy for less than about 1 ms, so that a gate that closes is
// soon a device that is free. What still overruns is a debt.
#ifndef LGPU_GATE_H
#define LGPU_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lgpu_cuda.h"

struct lgpu_state;
struct lgpu_gate;
struct lgpu_gate_context;

// lgpu_gated is whether the gate of any device of this process is not free. A
// launch costs this one load where it is not.
extern bool lgpu_gated;

// lgpu_gate_init prepares the gates: of all devices with a daemon, otherwise of
// those that have a cap. Called once, after the driver's cuInit succeeded.
// False: no memory, and nothing is gated.
bool lgpu_gate_init(const struct lgpu_state *state);

// A launch on its way through the gate.
struct lgpu_pass {
	struct lgpu_gate *gate; // NULL: not gated
	struct lgpu_gate_context *context;
	CUstream stream;
	CUevent event;
	uint32_t estimate;
	bool unknown; // no estimate of its duration yet
	bool refused; // the lgpu has no compute: do not launch
};

// The answer to a launch that was refused.
#define LGPU_GATE_REFUSAL CUDA_ERROR_NOT_PERMITTED

// lgpu_gate_enter blocks until work may be launched into stream. work and size
// name the work, so that its duration can be learned: the same function with
// as many blocks, or the same graph, is expected to take as long as last time.
// Launches into a capturing stream do not execute and are let through.
struct lgpu_pass lgpu_gate_enter(CUstream stream, const void *work, uint64_t size);

// lgpu_gate_leave ends what enter began; result is the driver's answer.
void lgpu_gate_leave(struct lgpu_pass *pass, CUresult result);

// lgpu_gate_look notes completed work at once. Called when the program has
// just learned of a completion, which makes the charge exact where the
// watcher's polling would round it up.
void lgpu_gate_look(void);

// lgpu_gate_told acts on what the daemon says about a gate.
struct lgpu_message;
void lgpu_gate_told(const struct lgpu_message *m);

// lgpu_gate_alone makes the gates do without the daemon, which is gone;
// lgpu_gate_together puts them back under it.
void lgpu_gate_alone(void);
void lgpu_gate_together(void);

// lgpu_gate_capture_begins is called before a stream is captured: from its
// return on no context is waited for. lgpu_gate_capture_ended is called when the
// capture has ended, or did not begin.
void lgpu_gate_capture_begins(void);
void lgpu_gate_capture_ended(void);
// lgpu_gate_captures reports whether any stream may be being captured.
bool lgpu_gate_captures(void);

// lgpu_gate_context_made notes a context, so that its work can be waited for
// even if none of it has passed the gate.
void lgpu_gate_context_made(CUcontext context);

// lgpu_gate_context_gone forgets a context that is about to be destroyed.
void lgpu_gate_context_gone(CUcontext context);

#endif
