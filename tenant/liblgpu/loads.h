// loads.h: what a launch would make the driver take of the device (loads.c).
#ifndef LGPU_LOADS_H
#define LGPU_LOADS_H

#include "library.h"
#include "stacks.h"

// lgpu_loads_any reports whether any launch may take memory. Mostly none does.
static inline bool lgpu_loads_any(void) { return lgpu_libraries_large || lgpu_stacks_large; }

// lgpu_launch_loads takes what a launch of f into stream would: the variables of
// a library that its context has not loaded, and larger stacks. An error: it does
// not fit.
CUresult lgpu_launch_loads(CUfunction f, CUstream stream);

// lgpu_graph_loads does so for the kernels of a graph, before it is instantiated.
CUresult lgpu_graph_loads(CUgraph graph);

#endif
