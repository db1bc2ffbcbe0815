// SPDX-License-Identifier: Apache-2.0

// What the hand-written parts of the software GPU's libcuda.so.1 share.
#ifndef LGPUSIM_SIMC_H
#define LGPUSIM_SIMC_H

#include "channel.h"
#include "gate.h"
#include "rpc_gen.h"

enum { SIMC_NEEDS_CONTEXT = 1 };

// The checks before every call: initialised, not forked, hardware alive, and a current context where one is needed.
CUresult simc_enter(int needs);
// The answer of a symbol that has none, which is named in the log once.
CUresult simc_unsupported(const char *name);
// Whether the environment asks for modules to be loaded eagerly (CUDA_MODULE_LOADING).
int simc_eager(void);
// Writes a line to the error output when LGPU_LOG is at least level.
void simc_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The default stream as the calling form means it.
static inline CUstream simc_per_thread(CUstream s)
{
	return s ? s : CU_STREAM_PER_THREAD;
}

// The stream given inside a structure, or none given.
static inline CUstream simc_stream(CUstream s)
{
	return simc_tls.per_thread ? simc_per_thread(s) : s;
}

// cuGetProcAddress's table, sorted by base, then age.
struct simc_proc {
	const char *base;
	void (*fn)(void);
	int since;
	unsigned flags; // bit n: found with flags n
};
extern const struct simc_proc simc_procs[];
extern const unsigned simc_proc_count;

struct simc_error {
	CUresult code;
	const char *name;
};
extern const struct simc_error simc_errors[];
extern const unsigned simc_error_count;

// Host memory that the hardware shares, by the context that owns it (hostmem.c).
void simc_forget_context_memory(CUcontext ctx);
// Of a checkpoint: takes the descriptors of this memory from the hardware, gives them to the next one, and closes them.
CUresult simc_take_pages(void);
CUresult simc_give_pages(void);
void simc_drop_pages(void);

// Looks for a libnvidia-ml of the software GPU in the process. The loader's lock is taken: no gate may be closed.
void simc_find_management(void);
// Has it give its connection up and, with a path, go to the hardware there the next time (simc_move_management).
void simc_tell_management(const char *path);

// Starts the restore thread, once (checkpoint.c). Without one the process cannot be checkpointed, and that is all.
void simc_start_restore(void);

// A copy of s that lives as long as the process; equal strings share one. NULL without memory.
const char *simc_intern(const char *s);

// A kernel's parameter bytes, gathered from either form in which programs give them. *bytes is malloc'ed, or NULL for a
// kernel without parameters.
CUresult simc_gather_params(CUfunction f, void **kernelParams, void **extra, unsigned char **bytes, unsigned *size);
// The reverse: pointers to each parameter within bytes. *pointers is malloc'ed.
CUresult simc_scatter_params(CUfunction f, unsigned char *bytes, unsigned size, void ***pointers);

// A file's bytes with a zero after them, malloc'ed, or NULL.
char *simc_read_file(const char *path, size_t *size);

#endif
