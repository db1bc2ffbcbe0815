// symbols.h: the tables that are generated from the list of driver symbols.
#ifndef LGPU_SYMBOLS_H
#define LGPU_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

enum lgpu_library { LGPU_CUDA, LGPU_NVML, LGPU_LIBRARIES };
enum lgpu_class { LGPU_PASS, LGPU_HOOK, LGPU_REFUSE };

// An exported symbol; its number is its index in lgpu_symbols.
struct lgpu_symbol {
	const char *name;
	void *ours; // what is given out instead of the driver's; NULL for passed ones
	uint8_t library;
	uint8_t class;
};
extern const struct lgpu_symbol lgpu_symbols[];

// A name of cuGetProcAddress and the symbols that it can answer:
// lgpu_base_rows[first .. first+count). Only names that can answer one of ours
// are listed.
struct lgpu_base {
	const char *name;
	unsigned short first, count;
};
extern const struct lgpu_base lgpu_bases[];
extern const unsigned lgpu_base_count;
extern const unsigned short lgpu_base_rows[];

#endif
