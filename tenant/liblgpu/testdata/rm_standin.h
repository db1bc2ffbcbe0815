// SPDX-License-Identifier: Apache-2.0

// The resource manager, as its stand-in plays it and the stub driver uses it.
// Written apart from the interposer's own description of it (slice/rm.c).
#ifndef LGPU_TEST_RM_STANDIN_H
#define LGPU_TEST_RM_STANDIN_H

#include <stdbool.h>
#include <stdint.h>

#define STANDIN_FREE 0xc0104629UL
#define STANDIN_CONTROL 0xc020462aUL
#define STANDIN_ALLOC 0xc020462bUL
#define STANDIN_ALLOC_RIGHTS 0xc030462bUL

struct standin_free {
	uint32_t client, parent, object, status;
};
struct standin_alloc {
	uint32_t client, parent, object, class;
	uint64_t parameters;
	uint32_t size, status;
};
struct standin_alloc_rights {
	uint32_t client, parent, object, class;
	uint64_t parameters, rights;
	uint32_t size, flags, status, pad;
};
struct standin_control {
	uint32_t client, object, command, flags;
	uint64_t parameters;
	uint32_t size, status;
};

// Classes, engines, commands and answers.
#define STANDIN_CLIENT 0x41
#define STANDIN_DEVICE 0x80
#define STANDIN_GROUP 0xa06c
#define STANDIN_CHANNEL 0xc86f
#define STANDIN_COMPUTE 1
#define STANDIN_COPY 9
#define STANDIN_SET 0xa06c0103
#define STANDIN_GET 0xa06c0104
#define STANDIN_INVALID_ARGUMENT 0x1f
#define STANDIN_INVALID_CLIENT 0x23
#define STANDIN_NO_MEMORY 0x51
#define STANDIN_NOT_SUPPORTED 0x56
#define STANDIN_NOT_FOUND 0x57
#define STANDIN_OWN_SLICE 2048 // of the driver's library, µs

// standin_slices stores the slices, in µs, of the channel groups of this process, in
// the order in which they were made, and returns how many there are; those that
// compute, or the others. standin_set changes that of one that computes.
int standin_slices(bool compute, uint64_t *slices, int room);
void standin_set(int group, uint64_t micros);

#endif
