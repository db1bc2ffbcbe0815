// SPDX-License-Identifier: Apache-2.0

// Linked into the library for tests: they shut and open its residence lock. Of what the library defines, only names like
// these are visible.
#include "residence/parts.h"

#define VISIBLE __attribute__((visibility("default")))
VISIBLE int cuTestShut(void);
VISIBLE int cuTestBusy(void);
VISIBLE int cuTestOpen(void);
VISIBLE int cuTestWaited(void);

int cuTestShut(void) { return (int)lgpu_residence_shut(60 * LGPU_NANOS); }
int cuTestBusy(void) { return (int)lgpu_residence_shut(LGPU_NANOS / 20); }

int cuTestOpen(void)
{
	lgpu_residence_open();
	return 0;
}

// cuTestWaited says whether a touch has come to wait since the lock was shut.
int cuTestWaited(void)
{
	return lgpu_residence_is_shut() &&
	       __atomic_load_n(&lgpu_residence->asked, __ATOMIC_SEQ_CST) == __atomic_load_n(&lgpu_residence->number, __ATOMIC_SEQ_CST);
}
