// SPDX-License-Identifier: Apache-2.0

// freed.h: the streams on which memory of pools was freed (freed.c).
#ifndef LGPU_FREED_H
#define LGPU_FREED_H

#include "process/process.h"

// lgpu_freed_note notes that memory was freed in the order of a stream.
void lgpu_freed_note(CUstream stream);

// What lgpu_freed_settle found.
enum lgpu_freed {
	LGPU_FREED_NONE,    // the driver knows of all that was freed
	LGPU_FREED_SETTLED, // something has come back since the last look
	LGPU_FREED_COMING,  // a stream has not reached its frees yet
};

// lgpu_freed_settle lets the driver know which frees streams have reached. It waits
// for no stream.
enum lgpu_freed lgpu_freed_settle(void);

// lgpu_freed_ended is called before a context ends, lgpu_freed_stream_ends before
// a stream does.
void lgpu_freed_ended(CUcontext context);
void lgpu_freed_stream_ends(CUstream stream);
// A forked child has none.
void lgpu_freed_reset(void);

#endif
