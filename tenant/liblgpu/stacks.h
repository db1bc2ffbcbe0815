// stacks.h: local memory, which the threads of kernels have as their stacks
// (hooks_stack.c).
#ifndef LGPU_STACKS_H
#define LGPU_STACKS_H

#include "core.h"

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

#endif
