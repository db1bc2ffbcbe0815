// SPDX-License-Identifier: Apache-2.0

// gate.h: where launches wait until they may run. Every way to launch passes here.
//
// Each device has a gate. If there is a daemon (daemon/daemon.h), the daemon opens
// and closes the gates. While a process is alone on a device and has no cap, the
// gate is free, and a launch costs one load. If there is no daemon, a process may
// launch while it has the device's turn (alone/turn.h) and its lgpu has credit
// (alone/credit.h).
//
// After a run of launches an untimed event is recorded (flight.h), so that a watcher
// thread knows when the device has drained. While anything is in flight, time is
// charged to the lgpu. A launch may pass only while the work in flight will keep the
// device busy for less than about 1 ms, so that a device is soon free after its gate
// closes. An overrun is a debt.
#ifndef LGPU_GATE_H
#define LGPU_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lgpu_cuda.h"

struct lgpu_state;
struct lgpu_gate;
struct lgpu_gate_context;

// lgpu_gated is false while the gates of all devices are free: then a launch costs
// this one load.
extern bool lgpu_gated;

// lgpu_gate_init makes the gates: with a daemon those of all devices, otherwise
// those of the devices with a cap. It is called once, after the driver's cuInit has
// succeeded. False: there is no memory, and nothing is gated.
bool lgpu_gate_init(const struct lgpu_state *state);

// A launch on its way through the gate.
struct lgpu_run;
struct lgpu_pass {
	struct lgpu_gate *gate; // NULL: not gated
	struct lgpu_run *run;   // of launches, that it is part of
	uint32_t place;         // in the run
	bool first;             // nothing else was in flight
	bool refused;           // the lgpu has no compute: do not launch
	bool seals;             // it is the last of its run
	bool follows;           // afterwards it is to look at what is done
	bool sampled;           // the time that it takes in here is measured:
	int64_t took, clock;    // so far, and by a look at the clock, ns
};

// The answer to a launch that was refused.
#define LGPU_GATE_REFUSAL CUDA_ERROR_NOT_PERMITTED

// lgpu_gate_enter waits until work may be launched into stream. work and size say
// what is launched, so that its duration can be learned: the same function with
// the same number of blocks, or the same graph, is expected to take as long as last
// time. A launch into a stream that is being captured does not run, and passes.
struct lgpu_pass lgpu_gate_enter(CUstream stream, const void *work, uint64_t size);

// lgpu_gate_leave ends what enter began; result is the driver's answer.
void lgpu_gate_leave(struct lgpu_pass *pass, CUresult result);

// lgpu_gate_look notes completed work at once. It is called when the program has
// just waited for the device: the charge is then exact, while the watcher, which
// looks now and then, would round it up.
void lgpu_gate_look(void);

// lgpu_gate_told acts on what the daemon says about a gate.
struct lgpu_message;
void lgpu_gate_told(const struct lgpu_message *m);

// lgpu_gate_alone is called when the daemon is gone: this process opens its gates
// itself from now on. lgpu_gate_together is called when a daemon is there again.
void lgpu_gate_alone(void);
void lgpu_gate_together(void);

// lgpu_gate_halt closes all gates, whatever the daemon says. lgpu_gate_halted says whether that is done: no launch is under
// way, all work has ended, and the watchers are outside the driver. lgpu_gate_proceed opens them again as the daemon lets
// them; fresh: another daemon, or the same of which nothing is left to know.
void lgpu_gate_halt(void);
bool lgpu_gate_halted(void);
void lgpu_gate_proceed(bool fresh);

// lgpu_gate_stream_gone is called before a stream is destroyed: after it has returned,
// nobody asks for it.
void lgpu_gate_stream_gone(CUstream stream);

// lgpu_gate_capture_begins is called before a stream is captured: after it has
// returned, no context is synchronised and no stream asked for, and each launch has
// its event, recorded by who launches. lgpu_gate_capture_ended is called when the
// capture has ended, or could not begin.
void lgpu_gate_capture_begins(void);
void lgpu_gate_capture_ended(void);
// lgpu_gate_captures reports whether any stream may be captured now.
bool lgpu_gate_captures(void);

// lgpu_gate_context_made notes a context, so that its work can be waited for
// even if none of it has passed the gate.
void lgpu_gate_context_made(CUcontext context);

// lgpu_gate_context_gone forgets a context that is about to be destroyed.
void lgpu_gate_context_gone(CUcontext context);

// lgpu_gate_each_context calls f in each context that is known: it is current, does not end meanwhile, and nothing is
// captured in it. Of each, f has a word of its own, 0 until it writes another, which ends with the context.
void lgpu_gate_each_context(void (*f)(size_t *own));

#endif
