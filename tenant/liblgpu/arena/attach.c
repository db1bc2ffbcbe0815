// SPDX-License-Identifier: Apache-2.0

// The beginning, and the connection to the daemon.
#include "arena/parts.h"

#include "daemon/daemon.h"
#include "residence/residence.h"

void lgpu_arena_attached(struct lgpu_state *s)
{
	bool wanted = false;
	for (int i = 0; i < (int)s->limits->devices && i < (int)LGPU_MAX_DEVICES; i++)
		wanted |= lgpu_arena_wants(s, i);
	if (!wanted || !lgpu_managed)
		return;
	lgpu_clean_configure();
	if (!lgpu_mover_start())
		lgpu_log(LGPU_LOG_ERROR, "no thread to move memory; what this process allocates waits until it is ended");
	lgpu_daemon_listen();
	for (int i = 0; i < (int)s->limits->devices && i < (int)LGPU_MAX_DEVICES; i++)
		if (lgpu_arena_wants(s, i))
			lgpu_daemon_send(&(struct lgpu_message){.kind = (uint16_t)LGPU_LINK_NEED, .device = (uint32_t)i,
								.flags = (uint32_t)LGPU_LINK_FLAG_RESIDENT});
}

bool lgpu_arena_context_fits(const struct lgpu_state *s, int device)
{
	return !lgpu_managed || !lgpu_arena_wants(s, device) || lgpu_level_fixed(device);
}

void lgpu_arena_lost(void)
{
	if (lgpu_managed)
		lgpu_levels_lost();
}

// The new daemon hears what is resident before anybody asks it for more.
void lgpu_arena_found(void)
{
	struct lgpu_state *s = lgpu_attached();
	if (!lgpu_managed || s == NULL)
		return;
	for (int i = 0; i < (int)s->limits->devices && i < (int)LGPU_MAX_DEVICES; i++) {
		struct lgpu_level *l = &lgpu_levels[i];
		if (!lgpu_arena_wants(s, i))
			continue;
		struct lgpu_message m = {.kind = (uint16_t)LGPU_LINK_KEPT, .device = (uint32_t)i, .value = lgpu_level_resident(s, i)};
		__atomic_store_n(&l->said, m.value, __ATOMIC_RELEASE);
		int memory = lgpu_store_fd(i, true), disk = lgpu_store_fd(i, false);
		if (memory >= 0 && disk >= 0) {
			m.flags = (uint32_t)LGPU_LINK_FLAG_MORE;
			lgpu_daemon_send_file(&m, disk);
			m.flags = 0;
		}
		lgpu_daemon_send_file(&m, memory >= 0 ? memory : disk);
		lgpu_level_fixed_again(i);
		__atomic_store_n(&l->asked, 0, __ATOMIC_RELEASE); // the new one has not heard it
	}
	lgpu_levels_found();
	lgpu_mover_wake();
}
