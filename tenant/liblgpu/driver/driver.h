// SPDX-License-Identifier: Apache-2.0

// driver.h: the driver's two libraries, and their functions.
#ifndef LGPU_DRIVER_H
#define LGPU_DRIVER_H

#include "lgpu_cuda.h"
#include "lgpu_nvml.h"

#include "base/base.h"
#include "driver/symbols.h"

// A function that stands in for the driver's.
#define LGPU_EXPORT __attribute__((visibility("default")))

// lgpu_symbol_find returns the number of the symbol called name, or -1.
int lgpu_symbol_find(const char *name);

// The driver's functions, as far as they are known. Those of passed symbols
// begin with a forwarder that finds the function; those of hooked ones with NULL.
extern void *lgpu_reals[LGPU_SYM_COUNT];
void *lgpu_real_resolve(unsigned number);

static inline void *lgpu_real(unsigned number)
{
	void *f = __atomic_load_n(&lgpu_reals[number], __ATOMIC_RELAXED);
	return f != NULL ? f : lgpu_real_resolve(number);
}

// LGPU_REAL(cuMemFree_v2)(p) calls the driver's function. A function that the
// driver lacks returns an error.
#define LGPU_REAL(name) ((__typeof__(&name))lgpu_real(LGPU_SYM_##name))

// lgpu_real_find returns the driver's address of a symbol, or NULL. With
// load, the library is loaded if need be.
void *lgpu_real_find(unsigned number, bool load);
// lgpu_real_adopt makes an already loaded library the driver's, if none is yet.
void lgpu_real_adopt(enum lgpu_library library, const char *path);
// lgpu_is_driver reports whether path is that of the driver's library.
bool lgpu_is_driver(enum lgpu_library library, const char *path);

// lgpu_procaddress_strict has cuGetProcAddress withhold the forms of calls of the class touch
// that this build does not know, as it does with those of the other classes. It returns the
// name of one that was given out before, or NULL.
const char *lgpu_procaddress_strict(void);

// lgpu_second_copy reports whether we have the place of libnvidia-ml.so.1: a
// process that uses CUDA as well has a copy of us for each.
bool lgpu_second_copy(void);

#endif
