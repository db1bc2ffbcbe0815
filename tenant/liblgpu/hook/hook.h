// SPDX-License-Identifier: Apache-2.0

// hook.h: what the entry points share.
#ifndef LGPU_HOOK_H
#define LGPU_HOOK_H

#include "memory/memory.h"
#include "process/process.h"

// ---- graphs (graph.c)

// Memory of executable graphs: begin before a launch or an upload of one, end after
// it. Both cost one load while no graph allocates.
extern bool lgpu_graphs_allocate;
struct lgpu_graph_charge {
	uint64_t bytes; // 0: nothing was charged
	int device;
};
CUresult lgpu_graph_memory_begin(CUgraphExec graph, struct lgpu_graph_charge *charge);
void lgpu_graph_memory_end(CUgraphExec graph, CUresult result, const struct lgpu_graph_charge *charge);
void lgpu_graphs_look(struct lgpu_state *s); // charge what they have reserved now

// lgpu_graph_walk calls visit for each node of a graph, and of the graphs inside it,
// until one returns an error, and returns that.
typedef CUresult (*lgpu_graph_visit)(CUgraphNode node, CUgraphNodeType type, void *arg);
CUresult lgpu_graph_walk(CUgraph graph, lgpu_graph_visit visit, void *arg);

// ---- libraries with large variables (library.c)

// Whether there may be such a library. While there is none, a launch costs one
// load.
extern bool lgpu_libraries_large;

// lgpu_kernel_use is called before a launch while there is: f may be a kernel of
// such a library, which the launch would load. An error: it does not fit.
CUresult lgpu_kernel_use(CUfunction f);

// lgpu_libraries_ended forgets what was loaded into a context that is no more.
void lgpu_libraries_ended(struct lgpu_state *s, CUcontext context);

// ---- local memory, which the threads of kernels have as their stacks (stack.c)

// lgpu_stacks_bytes is what stacks of so many bytes take of the current device.
uint64_t lgpu_stacks_bytes(size_t stack);

// lgpu_stacks_note is called for every function and kernel that a program gets
// to know: the stacks that it needs may be larger than those that its context
// has.
void lgpu_stacks_note(CUfunction f);
void lgpu_stacks_note_kernel(CUkernel kernel);

// Whether there is such a function. While there is none, a launch costs one load.
extern bool lgpu_stacks_large;

// lgpu_stacks_use is called before a launch while there is, and makes the stacks
// of the current context as large as f needs them, as the driver would do it. An
// error: they do not fit.
CUresult lgpu_stacks_use(CUfunction f);

// lgpu_stacks_rest has contexts give up their stacks, or have again what they had. Until then a question or a wish about
// their size waits.
void lgpu_stacks_rest(bool rest);
void lgpu_stacks_reset(void); // a forked child has none

// lgpu_stacks_lock and lgpu_stacks_unlock are around a call that is about their size.
void lgpu_stacks_lock(void);
void lgpu_stacks_unlock(void);

// ---- what a launch would make the driver take of the device (loads.c)

// lgpu_loads_any reports whether any launch may take memory. Mostly none does.
static inline bool lgpu_loads_any(void) { return lgpu_libraries_large || lgpu_stacks_large; }

// lgpu_launch_loads takes what a launch of f into stream would: the variables of
// a library that its context has not loaded, and larger stacks. An error: it does
// not fit.
CUresult lgpu_launch_loads(CUfunction f, CUstream stream);

// lgpu_graph_loads does so for the kernels of a graph, before it is instantiated.
CUresult lgpu_graph_loads(CUgraph graph);

// ---- loading code (code.c, library.c)

// LGPU_LOAD is the body of a call that loads an image and stores its handle. bytes is
// the size of its variables, kind is what the image becomes. kind_begin returns false
// if they do not fit. kind_end notes what was loaded, or unloads it, and returns the
// result of the call.
#define LGPU_LOAD(kind, handle, bytes, call)                                                                       \
	do {                                                                                                       \
		struct kind##_loading l;                                                                           \
		if (!kind##_begin(&l, lgpu_attached() != NULL ? (bytes) : 0))                                      \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                           \
		return kind##_end(&l, handle, call);                                                               \
	} while (0)

// ---- handles (vmm.c)

// lgpu_fix_range keeps what is mapped in a range on its device, if a call that lets others know of it has succeeded, and
// returns what that has. Inside a touch.
CUresult lgpu_fix_range(CUdeviceptr at, size_t bytes, CUresult r);

// ---- captures (stream.c)

// lgpu_capture_ended is called when a capture has ended by the end of its context.
void lgpu_capture_ended(void);

// ---- a forked child has none of these

void lgpu_graphs_reset(void);
void lgpu_handles_reset(void);
void lgpu_contexts_reset(void);
void lgpu_libraries_reset(void);

#endif
