// lshmem_compat.h as a module that a program loads.
#define LSHMEM_COMPAT_MODULE
#include "compat.h"

extern "C" LSHMEM_GLOBAL void one(uint64_t *w, int *line) { *line = exercise(w); }
extern "C" LSHMEM_GLOBAL void block(uint64_t *w) { exercise_block(w); }
