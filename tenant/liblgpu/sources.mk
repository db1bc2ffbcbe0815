# What liblgpu.so is made of, and how; for the Makefile, and read by the tests. A folder is a module; README.md says
# which may include which.
LGPU_SOURCES = \
	base/environment.c base/libc.c base/log.c base/stamp.c \
	driver/dl.c driver/procaddress.c driver/real.c driver/symbols.c \
	driver/dl_x86_64.S driver/dl_aarch64.S driver/forward_x86_64.S driver/forward_aarch64.S \
	process/counter.c process/devices.c process/process.c process/region.c \
	daemon/daemon.c daemon/fork.c daemon/park.c \
	alone/clients.c alone/hami.c alone/turn.c \
	memory/accounts.c memory/anew.c memory/charge.c memory/exports.c memory/freed.c memory/image.c memory/overhead.c \
	memory/pools.c memory/reserve.c \
	gate/context.c gate/flight.c gate/gate.c gate/halt.c gate/linked.c gate/prepare.c gate/unlinked.c \
	residence/drain.c residence/lock.c \
	arena/arena.c arena/attach.c arena/attribute.c arena/clean.c arena/disk.c arena/follow.c arena/free.c arena/handles.c \
	arena/hash_ptx.S arena/level.c arena/move.c arena/mover.c arena/order.c arena/pool.c arena/ranges.c arena/share.c \
	arena/store.c arena/units.c \
	slice/groups.c slice/redirect.c slice/rm.c slice/sim.c slice/slice.c \
	view/attach.c view/device.c view/memory.c view/nvml.c \
	hook/array.c hook/code.c hook/context.c hook/copy.c hook/graph.c hook/launch.c hook/library.c hook/loads.c hook/memory.c \
	hook/pointer.c hook/pool.c hook/stack.c hook/stream.c hook/touch_gen.c hook/vmm.c hook/wiring.c
LGPU_CFLAGS = -std=c11 -O2 -g1 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -fno-semantic-interposition -D_GNU_SOURCE= \
	-DLGPU_CUDA_PLAIN -DLGPU_NVML_PLAIN -I../abi/include -I.
# No start files: nothing runs when the library is loaded. Bound to its own
# symbols: a program that defines a name of the driver does not divert them.
LGPU_LDFLAGS = -shared -nostartfiles -Wl,-soname,liblgpu.so -Wl,-Bsymbolic -Wl,-z,defs -Wl,-z,now -Wl,-z,relro \
	-Wl,-z,noexecstack -Wl,-z,nodelete -Wl,--version-script,liblgpu.map
