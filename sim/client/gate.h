// SPDX-License-Identifier: Apache-2.0

// The gate around every call of the driver API: while it is closed, calls wait before they begin.
#ifndef LGPUSIM_GATE_H
#define LGPUSIM_GATE_H

#include <stdint.h>

// Passes the gate now, and leaves when the calling function returns. Calls inside a call, and those of the library's
// own threads, pass always.
#define SIMC_PASS __attribute__((cleanup(simc_leave))) int simc_pass_ = simc_pass()

int simc_pass(void);
void simc_leave(int *pass);

// Nanoseconds of CLOCK_MONOTONIC, and how many there are between two looks at what nothing tells of.
uint64_t simc_now(void);
#define SIMC_LOOK 50000000u
// Closes the gate and waits until no call is inside. 0, or -1 when stop has said so, which is asked now and then: the gate
// is open again then.
int simc_close_gate(int (*stop)(void));
void simc_open_gate(void);
// In a child: no other thread is inside.
void simc_reset_gate(void);

// futex(2) on a word that processes share: sleeps while it has the value, at most until the time given (0: for ever).
void simc_sleep(uint32_t *word, uint32_t value, uint64_t deadline);
void simc_wake(uint32_t *word);

#endif
