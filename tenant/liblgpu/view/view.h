// SPDX-License-Identifier: Apache-2.0

// view.h: the lgpu as the program sees it, from its first call on.
#ifndef LGPU_VIEW_H
#define LGPU_VIEW_H

#include "process/process.h"

// Whether and how this process is limited.
enum lgpu_attachment {
	LGPU_UNLIMITED, // no lgpu in the environment: stand aside
	LGPU_ATTACHED,
	LGPU_BROKEN, // there is one, but it cannot be used: no GPU for this process
};

// lgpu_attach maps the region of the lgpu named by the environment and makes this
// process one of its clients. Later calls return what the first found.
enum lgpu_attachment lgpu_attach(void);
// lgpu_attach_view is the same for programs that only look: the process is no
// client afterwards.
enum lgpu_attachment lgpu_attach_view(void);

#endif
