// library.h: libraries with large variables (hooks_library.c).
#ifndef LGPU_LIBRARY_H
#define LGPU_LIBRARY_H

#include "core.h"

// Whether there may be such a library. While there is none, a launch costs one
// load.
extern bool lgpu_libraries_large;

// lgpu_kernel_use is called before a launch while there is: f may be a kernel of
// such a library, which the launch would load. An error: it does not fit.
CUresult lgpu_kernel_use(CUfunction f);

// lgpu_libraries_ended forgets what was loaded into a context that is no more.
void lgpu_libraries_ended(struct lgpu_state *s, CUcontext context);
// A forked child has none.
void lgpu_libraries_reset(void);

#endif
