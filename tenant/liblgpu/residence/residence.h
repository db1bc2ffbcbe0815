// SPDX-License-Identifier: Apache-2.0

// residence.h: the residence lock. It is open exactly while all that this process can move
// is on its devices.
//
// Every call that can touch device memory, launch work, allocate or free is inside the
// lock while the driver's call runs: this is a touch. Whoever moves memory shuts the lock
// first. Then no touch is under way, none begins, and all contexts are idle. A program
// whose touch waits notices nothing but a pause.
//
// Locks: a touch is begun before any other lock of this library is taken, and while one
// is held no touch may begin that is not inside another. No touch waits at the gate.
#ifndef LGPU_RESIDENCE_H
#define LGPU_RESIDENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "lgpu_cuda.h"

// Memory of this process can leave its devices. Set at attach, never unset. While it is
// false a touch costs this one load.
extern bool lgpu_managed;

// lgpu_residence_manage sets it. False: this process cannot be managed, and why has been
// said. It is called before the driver is initialised.
bool lgpu_residence_manage(void);

// ---- touches

// lgpu_touch_begin waits while the lock is shut, and begins a touch. Touches nest in one
// thread; an inner one never waits. lgpu_touch_end of a touch that began before the process
// was managed does nothing.
void lgpu_touch_enter(void);
void lgpu_touch_leave(void);
static inline bool lgpu_touch_counts(void) { return __atomic_load_n(&lgpu_managed, __ATOMIC_ACQUIRE); }
static inline void lgpu_touch_begin(void)
{
	if (lgpu_touch_counts())
		lgpu_touch_enter();
}
static inline void lgpu_touch_end(void)
{
	if (lgpu_touch_counts())
		lgpu_touch_leave();
}

// lgpu_touch_try begins a touch that need not wait, or returns false. lgpu_touch_await
// waits until the lock is open, and begins none. They are for a caller that has to give
// something back before it waits.
bool lgpu_touch_try_enter(void);
void lgpu_touch_wait(void);
static inline bool lgpu_touch_try(void) { return !lgpu_touch_counts() || lgpu_touch_try_enter(); }
static inline void lgpu_touch_await(void)
{
	if (lgpu_touch_counts())
		lgpu_touch_wait();
}

// LGPU_TOUCHED(call) makes a call inside a touch, and has its value.
#define LGPU_TOUCHED(call)                                                                                         \
	({                                                                                                         \
		bool counts_ = lgpu_touch_counts();                                                                \
		if (counts_)                                                                                       \
			lgpu_touch_enter();                                                                        \
		__typeof__(call) touched_ = (call);                                                                \
		if (counts_)                                                                                       \
			lgpu_touch_leave();                                                                        \
		touched_;                                                                                          \
	})

// ---- shutting, by one thread

enum lgpu_shut {
	LGPU_SHUT_DONE,    // shut: nobody is inside, and all contexts are idle
	LGPU_SHUT_BUSY,    // open: a call or a kernel has not ended in time
	LGPU_SHUT_CAPTURE, // open: a stream is being captured, and that has not ended in time
};

// lgpu_residence_shut shuts the lock, for at most so long as it says. A capture that is
// under way is waited for with the lock open. A later call may succeed where one has not.
enum lgpu_shut lgpu_residence_shut(int64_t nanos);
void lgpu_residence_open(void);
// lgpu_residence_is_shut says whether a touch would wait now.
bool lgpu_residence_is_shut(void);

// What the owner of the memory does. The functions are of a higher module; hook/wiring.c
// names them. NULL: nothing.
struct lgpu_residence_handlers {
	void (*wanted)(void); // a touch waits: called once for each shutting, by its thread, with no lock held
	void (*forked)(void); // this is a forked child, which has none of its parent's memory
};
extern const struct lgpu_residence_handlers lgpu_residence_handlers;

// lgpu_residence_reset is for a forked child: the lock is open, and nobody is inside.
void lgpu_residence_reset(void);

// ---- contexts and captures

// lgpu_residence_context_made notes a context, whose work a shutting waits for, and
// lgpu_residence_context_gone forgets it. Both are called inside a touch. False: there is
// no memory to note it, and it must not be used.
bool lgpu_residence_context_made(CUcontext context);
void lgpu_residence_context_gone(CUcontext context);
// lgpu_residence_context_of returns a context of a device, by the driver's ordinal; NULL: there is none now.
CUcontext lgpu_residence_context_of(CUdevice ordinal);
// lgpu_residence_context_at returns the context with an index, of those that there are; NULL: there are not so many.
CUcontext lgpu_residence_context_at(size_t index);

// lgpu_residence_capture_begins is called before a stream is captured, inside the touch
// that the call is, and after lgpu_gate_capture_begins: once it has returned, no context is
// about to be synchronised. lgpu_residence_capture_ended is called after
// lgpu_gate_capture_ended.
void lgpu_residence_capture_begins(void);
void lgpu_residence_capture_ended(void);
// lgpu_residence_captures reports whether any stream may be captured now.
bool lgpu_residence_captures(void);

#endif
