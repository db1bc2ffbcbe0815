// SPDX-License-Identifier: Apache-2.0

// check.h: for tests whose main returns 1 where something does not hold.
#include <stdio.h>

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			printf("line %d: %s\n", __LINE__, #condition);          \
			return 1;                                               \
		}                                                               \
	} while (0)
