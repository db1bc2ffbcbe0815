// SPDX-License-Identifier: Apache-2.0

// card.h: what the driver card.c tells programs of itself.
#ifndef LGPU_TEST_CARD_H
#define LGPU_TEST_CARD_H

#include <stdbool.h>
#include <stdint.h>

#include "lgpu_cuda.h"

// card_recorded is how many events were recorded.
uint64_t card_recorded(void);

// card_waited is how many kernels were launched into streams that waited for a word.
uint64_t card_waited(void);

// card_hold has the work of a stream not end, what it has and what comes, or has it end.
void card_hold(CUstream stream, bool held);

#endif
