// SPDX-License-Identifier: Apache-2.0

// Which lgpu this process is in, found out at its first call.
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alone/alone.h"
#include "alone/hami.h"
#include "arena/arena.h"
#include "base/futex.h"
#include "daemon/daemon.h"
#include "residence/residence.h"
#include "view/view.h"

// keep returns a copy of text that lives as long as the process: the
// environment may change under a pointer into it.
static const char *keep(const char *text, int length)
{
	char *copy = malloc((size_t)length + 1);
	if (copy != NULL) {
		memcpy(copy, text, (size_t)length);
		copy[length] = 0;
	}
	return copy;
}

// map_region maps the region that LGPU_REGION names.
static bool map_region(struct lgpu_process *p)
{
	struct lgpu_state *s = &p->state;
	const char *path = getenv("LGPU_REGION");
	if (path == NULL) // another thread has unset it just now
		return false;
	const char *slash = strrchr(path, '/');
	s->path = keep(path, (int)strlen(path));
	s->turns = slash == NULL ? keep(".", 1) : keep(path, slash == path ? 1 : (int)(slash - path));
	s->filter = true;
	return s->path != NULL && s->turns != NULL && lgpu_region_map(p, s->path, 0, false);
}

static bool map(struct lgpu_process *p, enum lgpu_authority authority, bool client)
{
	switch (authority) {
	case LGPU_BY_DAEMON: return lgpu_daemon_map(p, client);
	case LGPU_BY_REGION: return map_region(p);
	case LGPU_BY_HAMI: return lgpu_hami_map(p);
	default: return false;
	}
}

// forget_parent empties what a forked child has copies of. The first process to
// attach finds all that empty.
static void forget_parent(void)
{
	static bool attached_before;
	for (void (*const *forget)(void) = lgpu_forget; attached_before && *forget != NULL; forget++)
		(*forget)();
	attached_before = true;
}

// manage prepares for an lgpu whose memory can leave its devices. False: this process cannot be managed.
static bool manage(const struct lgpu_state *s)
{
	bool any = false;
	for (uint32_t i = 0; i < s->limits->devices && i < LGPU_MAX_DEVICES; i++)
		any = any || s->limits->device[i].overcommit != 0;
	return !any || lgpu_residence_manage();
}

static enum lgpu_attachment attach(bool client)
{
	struct lgpu_process *p = lgpu_process_page();
	if (p == NULL)
		return LGPU_BROKEN;
	if (__atomic_load_n(client ? &p->attached : &p->viewed, __ATOMIC_ACQUIRE) != NULL)
		return LGPU_ATTACHED;
	// To attach in HAMi mode is to ask NVML, and NVML's library calls its own
	// exported functions by way of ours. Those calls are not the program's.
	int32_t thread = (int32_t)syscall(SYS_gettid);
	if (__atomic_load_n(&p->attacher, __ATOMIC_RELAXED) == thread)
		return LGPU_UNLIMITED;
	lgpu_lock(&p->lock);
	__atomic_store_n(&p->attacher, thread, __ATOMIC_RELAXED);
	enum lgpu_attachment result = LGPU_ATTACHED;
	bool known = p->unlimited || p->broken || p->viewed != NULL;
	enum lgpu_authority authority = known ? LGPU_BY_NOBODY : lgpu_authority();
	if (p->unlimited || (!known && authority == LGPU_BY_NOBODY)) {
		p->unlimited = true;
		result = LGPU_UNLIMITED;
	} else if (p->broken || (p->viewed == NULL && !map(p, authority, client))) {
		p->broken = true;
		result = LGPU_BROKEN;
	} else {
		__atomic_store_n(&p->viewed, &p->state, __ATOMIC_RELEASE);
		if (client && p->attached == NULL) {
			forget_parent();
			if (manage(&p->state) && (p->state.linked ? lgpu_daemon_join(p) : lgpu_alone_claim(&p->state))) {
				__atomic_store_n(&p->attached, &p->state, __ATOMIC_RELEASE);
				lgpu_arena_attached(&p->state);
			} else {
				p->broken = true;
				result = LGPU_BROKEN;
			}
		}
	}
	__atomic_store_n(&p->attacher, 0, __ATOMIC_RELAXED);
	lgpu_unlock(&p->lock);
	return result;
}

enum lgpu_attachment lgpu_attach(void) { return attach(true); }
enum lgpu_attachment lgpu_attach_view(void) { return attach(false); }
