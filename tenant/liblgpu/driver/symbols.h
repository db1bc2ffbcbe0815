// SPDX-License-Identifier: Apache-2.0

// symbols.h: the driver's symbols, from the one list of them in symbols_gen.inc.
#ifndef LGPU_SYMBOLS_H
#define LGPU_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

enum lgpu_library { LGPU_CUDA, LGPU_NVML, LGPU_LIBRARIES };
enum lgpu_class { LGPU_PASS, LGPU_HOOK, LGPU_REFUSE, LGPU_TOUCH };

// A symbol's number: LGPU_SYM_cuInit is cuInit's.
enum lgpu_symbol_number {
#define SYMBOL(library, class, name) LGPU_SYM_##name,
#define BASE(name, rows)
#include "driver/symbols_gen.inc"
#undef BASE
#undef SYMBOL
	LGPU_SYM_COUNT
};

// An exported symbol; its number is its index in lgpu_symbols, which is sorted by
// name.
struct lgpu_symbol {
	const char *name;
	void *ours; // what is given out instead of the driver's; NULL for passed ones
	uint8_t library;
	uint8_t class;
};
extern const struct lgpu_symbol lgpu_symbols[];

// A name of cuGetProcAddress and the numbers of the symbols that it can answer,
// up to one that is negative. Only names that can answer one of ours are listed,
// sorted.
struct lgpu_base {
	const char *name;
	const short *rows;
};
extern const struct lgpu_base lgpu_bases[];
extern const unsigned lgpu_base_count;

#endif
