// freed.h: the streams on which memory of pools was freed (freed.c).
#ifndef LGPU_FREED_H
#define LGPU_FREED_H

#include "core.h"

// lgpu_freed_note notes that memory was freed in the order of a stream.
void lgpu_freed_note(CUstream stream);

// What lgpu_freed_settle found.
enum lgpu_freed {
	LGPU_FREED_NONE,    // nothing was freed that the driver has not taken notice of
	LGPU_FREED_SETTLED, // something has come back since the last look
	LGPU_FREED_COMING,  // some stream has not got there yet
};

// lgpu_freed_settle makes the driver take notice of what streams have got to. It
// waits for none.
enum lgpu_freed lgpu_freed_settle(void);

// lgpu_freed_ended is called before a context ends.
void lgpu_freed_ended(CUcontext context);
// A forked child has none.
void lgpu_freed_reset(void);

#endif
