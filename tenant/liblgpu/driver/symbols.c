// SPDX-License-Identifier: Apache-2.0

#include "driver/symbols.h"

// Of our own functions only the addresses matter here. A passed symbol's is never
// given out: the driver's own is.
#define DECLARE_PASS(name)
#define DECLARE_HOOK(name) extern char name[];
#define DECLARE_REFUSE(name) extern char name[];
#define DECLARE_TOUCH(name) extern char name[];
#define ADDRESS_PASS(name) NULL
#define ADDRESS_HOOK(name) name
#define ADDRESS_REFUSE(name) name
#define ADDRESS_TOUCH(name) name

#define SYMBOL(library, class, name) DECLARE_##class(name)
#define BASE(name, rows)
#include "driver/symbols_gen.inc"
#undef SYMBOL

#define SYMBOL(library, class, name) {#name, ADDRESS_##class(name), LGPU_##library, LGPU_##class},
const struct lgpu_symbol lgpu_symbols[] = {
#include "driver/symbols_gen.inc"
};
#undef SYMBOL
#undef BASE

#define SYMBOL(library, class, name)
#define ROW(name) LGPU_SYM_##name,
#define BASE(name, rows) {#name, (const short[]){rows -1}},
const struct lgpu_base lgpu_bases[] = {
#include "driver/symbols_gen.inc"
};
const unsigned lgpu_base_count = sizeof lgpu_bases / sizeof *lgpu_bases;
