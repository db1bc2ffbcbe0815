// SPDX-License-Identifier: Apache-2.0

// The functions of higher modules that lower modules call.
#include "arena/arena.h"
#include "daemon/daemon.h"
#include "gate/gate.h"
#include "hook/hook.h"
#include "memory/exports.h"
#include "memory/freed.h"
#include "memory/memory.h"
#include "memory/pools.h"
#include "residence/residence.h"
#include "slice/slice.h"

static void lost(void)
{
	lgpu_gate_alone();
	lgpu_slice_release();
	lgpu_arena_lost();
}

static void found(void)
{
	lgpu_arena_found();
	lgpu_gate_together();
}

static void look(void)
{
	lgpu_slice_look();
	lgpu_arena_look();
}

// While a process has left its devices, what the driver says that it has there is not what it holds.
static bool parking(bool parked)
{
	if (!lgpu_stores_rest(parked) && parked)
		return false;
	if (parked)
		lgpu_slice_release();
	else
		lgpu_stacks_rest(false);
	for (uint32_t i = 0; i < lgpu_process->state.limits->devices && i < LGPU_MAX_DEVICES; i++)
		lgpu_overhead_moving((int)i);
	if (parked)
		lgpu_stacks_rest(true);
	return true;
}

const struct lgpu_daemon_handlers lgpu_daemon_handlers = {
	.gate = lgpu_gate_told,
	.slice = lgpu_slice_told,
	.gone = lgpu_exports_gone,
	.keep = lgpu_arena_keep,
	.store = lgpu_arena_store,
	.lost = lost,
	.found = found,
	.idle = lgpu_overhead_idle,
	.halt = lgpu_gate_halt,
	.halted = lgpu_gate_halted,
	.proceed = lgpu_gate_proceed,
	.parking = parking,
	.back = lgpu_arena_found,
	.charge = lgpu_charge_anew,
	.look = look,
};

const struct lgpu_memory_handlers lgpu_memory_handlers = {
	.trim = lgpu_arena_pools_trim,
};

const struct lgpu_residence_handlers lgpu_residence_handlers = {
	.wanted = lgpu_arena_wanted,
};

void (*const lgpu_forget[])(void) = {
	lgpu_accounts_reset,
	lgpu_pools_reset,
	lgpu_overhead_reset,
	lgpu_graphs_reset,
	lgpu_contexts_reset,
	lgpu_libraries_reset,
	lgpu_stacks_reset,
	lgpu_freed_reset,
	lgpu_exports_reset,
	lgpu_handles_reset,
	lgpu_arena_reset,
	lgpu_residence_reset,
	NULL,
};
