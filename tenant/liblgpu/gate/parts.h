// SPDX-License-Identifier: Apache-2.0

// parts.h: the gate of a device, for the files of this module.
//
// While the daemon decides when a gate opens, the gate is linked. Otherwise it is
// unlinked, and this process decides, by its credit and by turns with others. A gate
// changes from one to the other when the daemon ends, and when it is back. Launches
// and what is in flight are the same in both cases.
#ifndef LGPU_GATE_PARTS_H
#define LGPU_GATE_PARTS_H

#include "alone/turn.h"
#include "base/futex.h"
#include "daemon/beat.h"
#include "gate/flight.h"
#include "gate/gate.h"
#include "process/process.h"

// Of a process. On a GPU each takes some 100 MB at least.
#define LGPU_GATE_CONTEXTS 1024

// How long an idle gate stays open while others wait, ns; shorter pauses are charged.
#define LGPU_GATE_LINGER ((int64_t)LGPU_LINK_LINGER)
// How long it takes from the message that a grant ends to the first kernel of the
// next one, ns.
#define LGPU_GATE_LEAD INT64_C(600000)

// With a daemon (linked.c).
struct lgpu_grant {
	bool attached;          // the daemon has been told of this gate
	bool asked;             // the daemon has been told that launches wait
	bool granted;           // there is a grant, and the daemon waits for its Closed
	bool wanted;            // others wait for the device
	bool patient;           // the gate stays open for longer without work
	uint32_t seeps;         // launches that may pass although the gate is closed
	uint64_t serial, ended; // of the newest grant, and of the newest that has ended
	uint64_t target;        // the grant ends when usage->busy reaches it
	struct lgpu_beat beat;  // of the daemon, since it was told that launches wait
};

// Without one (unlinked.c).
struct lgpu_hold {
	bool holding;   // the turn is ours
	bool shared;    // other processes of the lgpu want the turn too
	int64_t taken;  // when the turn became ours
	int64_t waited; // for how long we had waited then
	struct lgpu_queue queue;
};

#define LGPU_PREPARE_STREAMS 16

// What is launched behind the closed gate, and waits in its stream until the gate opens (prepare.c).
struct lgpu_prepared {
	int64_t ahead;   // so much work may be, ns: as much as was in flight when the gate closed, and a little in any case
	uint32_t value;  // of the contexts' words with which it goes on
	uint32_t streams;
	CUstream stream[LGPU_PREPARE_STREAMS]; // that wait for it
};

struct lgpu_gate {
	uint32_t collect; // lock: of the thread that asks the driver what is done; taken before lock
	uint32_t lock;    // guards everything below
	uint32_t wake; // event count: launchers sleep here
	uint32_t kick; // event count: a parked watcher sleeps here
	bool watched;  // the watcher thread runs
	bool parked;
	bool dozing; // parked for so short a time that a launch does not wake it
	bool open;   // launches may pass
	bool free;   // launches do not wait and leave no record
	bool linked; // the daemon decides
	bool flush;  // work may be in flight that has left no record
	bool halted; // closed, whatever the daemon says (halt.c)
	bool freed;  // halted: what free is to be afterwards
	bool away;   // halted: the watcher is outside the driver, and stays there
	bool hasty;  // a launch has passed the closed gate, and nothing has completed since
	uint32_t waiters;
	uint32_t looks;
	uint32_t passed;   // launches that have joined a run since own was last asked for
	uint32_t entered, seen; // launches, now and when the watcher looked last
	bool sample;       // the next launch is to be measured; atomic
	int64_t toll;      // what a launch that joins a run takes in here, ns; atomic
	int64_t taken;     // what else took the launching threads in here since own was last asked for, ns; atomic
	int64_t owed;      // of both, what has not been taken off the charge yet
	uint32_t index;   // in the limits
	int64_t patience; // a launch passes the closed gate when nothing has completed for so long
	int64_t charged;  // busy time is charged up to here
	int64_t idle;     // since when nothing is in flight
	int64_t cost;     // what a look takes: next to nothing, unless the driver is far away
	const struct lgpu_device_limits *limits;
	struct lgpu_device_usage *usage;
	struct lgpu_grant grant;
	struct lgpu_hold hold;
	struct lgpu_prepared prepared;
	struct lgpu_flight flight;
};

// All gates of this process. The kernel wipes them in a forked child, which cannot
// use the driver it inherited.
struct lgpu_gates {
	bool ready;
	uint32_t captures;
	struct lgpu_gate *recent; // of the last launch that asked for its stream's context
	uint32_t contexts_lock;
	uint32_t contexts; // so many of context, from the first, are or were in use; atomic
	struct lgpu_gate *device[LGPU_MAX_DEVICES]; // by index in Limits; NULL: not gated
	struct lgpu_gate_context context[LGPU_GATE_CONTEXTS];
};
extern struct lgpu_gates *lgpu_gates;

// lgpu_gates_ready returns them, or NULL: there are none, or they are those of the
// process that it was forked from.
static inline struct lgpu_gates *lgpu_gates_ready(void)
{
	struct lgpu_gates *all = __atomic_load_n(&lgpu_gates, __ATOMIC_ACQUIRE);
	return all != NULL && all->ready ? all : NULL;
}

// lgpu_gate_contexts is how many contexts are to be looked at.
static inline uint32_t lgpu_gate_contexts(void) { return __atomic_load_n(&lgpu_gates->contexts, __ATOMIC_ACQUIRE); }

// lgpu_gate_capturing reports whether any stream may be captured now.
static inline bool lgpu_gate_capturing(void) { return __atomic_load_n(&lgpu_gates->captures, __ATOMIC_SEQ_CST) != 0; }

// ---- gate.c; callers hold the gate's lock, but for observe and record

// lgpu_gate_busy says whether anything is in flight, or on its way in.
static inline bool lgpu_gate_busy(const struct lgpu_gate *g) { return lgpu_flight_busy(&g->flight); }
// lgpu_gate_cap is the lgpu's part of the device, never nothing.
uint32_t lgpu_gate_cap(const struct lgpu_gate *g);
// lgpu_gate_wake lets the launchers that wait look again.
void lgpu_gate_wake(struct lgpu_gate *g);
// lgpu_gate_kick gets a parked watcher going.
void lgpu_gate_kick(struct lgpu_gate *g);
// lgpu_gate_set_free opens a gate for good, or puts it back. A free gate does not wait for its open runs, since launches
// of which it does not know may follow them without end.
void lgpu_gate_set_free(struct lgpu_gate *g, bool is_free);
// lgpu_gate_watch starts the watcher, once.
void lgpu_gate_watch(struct lgpu_gate *g);
// lgpu_gate_patient begins a grant or a turn with the first patience.
void lgpu_gate_patient(struct lgpu_gate *g);
// lgpu_gate_observe collects what has completed and charges the time until it asked, which it returns.
int64_t lgpu_gate_observe(struct lgpu_gate *g, enum lgpu_look how);
// lgpu_gate_record has an event recorded for the open runs of a stream, or of all.
void lgpu_gate_record(struct lgpu_gate *g, bool all, CUstream stream);

// ---- context.c

// lgpu_gate_context_of finds, or adds, what is known about a context. NULL when its
// device has no gate.
struct lgpu_gate_context *lgpu_gate_context_of(CUcontext context);
// lgpu_gate_flush waits for all work of the device's contexts, however it got there.
// Called without the gate's lock.
void lgpu_gate_flush(struct lgpu_gate *g);

// ---- halt.c; callers hold the gate's lock

// lgpu_halt_rests says whether a gate is halted and its watcher has nothing more to do.
bool lgpu_halt_rests(const struct lgpu_gate *g);
// lgpu_halt_ends opens the gate, as far as the daemon lets it.
void lgpu_halt_ends(struct lgpu_gate *g);

// ---- prepare.c; callers hold the gate's lock, but for the context's word

// lgpu_prepare_word makes a context's word, if it may be needed. The context is current, or stream is one of it.
void lgpu_prepare_word(struct lgpu_gate_context *c, CUstream stream);
// lgpu_prepare_closed says that the gate has closed because the grant is used up.
void lgpu_prepare_closed(struct lgpu_gate *g, int64_t now);
// lgpu_prepare_admits says whether a launch may be prepared behind the closed gate.
bool lgpu_prepare_admits(const struct lgpu_gate *g, const struct lgpu_gate_context *c, CUstream stream, uint32_t estimate);
// lgpu_prepare_enter counts the launch, which is made next, and has its stream wait. It releases the lock.
struct lgpu_entry lgpu_prepare_enter(struct lgpu_gate *g, struct lgpu_gate_context *c, CUstream stream, uint32_t estimate, int64_t now);
// lgpu_prepare_go lets what was prepared run.
void lgpu_prepare_go(struct lgpu_gate *g, int64_t now);
// lgpu_prepare_watch looks after what waits, and returns when to look again: the daemon may hang, what is in flight may wait
// for what is held, and the lgpu may have lost its compute.
int64_t lgpu_prepare_watch(struct lgpu_gate *g, int64_t now);
// lgpu_prepare_stream_gone is told of a stream that is destroyed.
void lgpu_prepare_stream_gone(struct lgpu_gate *g, CUstream stream);
// lgpu_prepare_context_gone is told of a context that is about to be destroyed and current, once nothing of it waits.
void lgpu_prepare_context_gone(struct lgpu_gate_context *c);

// ---- linked.c

// lgpu_linked_ask tells the daemon that launches wait.
void lgpu_linked_ask(struct lgpu_gate *g);
// lgpu_linked_doubt ends the connection to a daemon that hangs while launches wait
// for it.
void lgpu_linked_doubt(struct lgpu_gate *g, int64_t now);
// lgpu_linked_watch closes the gate when the grant is over, and says so. True: there
// is something to watch.
bool lgpu_linked_watch(struct lgpu_gate *g, int64_t now);
// lgpu_linked_left is how long the grant lasts from now on, if the device has been busy since the last charge.
int64_t lgpu_linked_left(const struct lgpu_gate *g, int64_t now);
// lgpu_linked_spent says whether what is in flight uses the grant up to within nanos.
bool lgpu_linked_spent(const struct lgpu_gate *g, int64_t now, int64_t nanos);

// ---- unlinked.c

// lgpu_unlinked_open opens a closed gate when the lgpu has a quantum of credit and
// the turn is ours. Otherwise it returns when to try again: now for as soon as the
// turn changes hands.
int64_t lgpu_unlinked_open(struct lgpu_gate *g, int64_t now);
// lgpu_unlinked_watch closes the gate when the turn is over or the credit spent, and
// opens it again. True: there is something to watch. again is when there will be
// credit, 0 where that is not waited for.
bool lgpu_unlinked_watch(struct lgpu_gate *g, int64_t now, int64_t *again);
// lgpu_unlinked_spent says whether what is in flight uses the credit up to within nanos.
bool lgpu_unlinked_spent(const struct lgpu_gate *g, int64_t now, int64_t nanos);
// lgpu_unlinked_queued says whether this process waits for the turn.
bool lgpu_unlinked_queued(const struct lgpu_gate *g);

#endif
