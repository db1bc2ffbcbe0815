# What liblgpu.so is made of, and how; for the Makefile, and read by the tests.
LGPU_SOURCES = accounts.c charge.c counter.c daemon.c dl.c exports.c freed.c hami.c hooks_array.c hooks_code.c hooks_context.c hooks_device.c hooks_graph.c \
	hooks_launch.c hooks_library.c hooks_memory.c hooks_nvml.c hooks_pool.c hooks_stack.c hooks_vmm.c image.c loads.c log.c overhead.c procaddress.c real.c state.c \
	gate.c turn.c symbols_gen.c dl_x86_64.S dl_aarch64.S forward_x86_64.S forward_aarch64.S
LGPU_CFLAGS = -std=c11 -O2 -g -Wall -Wextra -Werror -fPIC -fvisibility=hidden -fno-semantic-interposition -D_GNU_SOURCE= \
	-DLGPU_CUDA_PLAIN -DLGPU_NVML_PLAIN -I../abi/include -I.
# No start files: nothing runs when the library is loaded. Bound to its own
# symbols: a program that defines a name of the driver does not divert them.
LGPU_LDFLAGS = -shared -nostartfiles -Wl,-soname,liblgpu.so -Wl,-Bsymbolic -Wl,-z,defs -Wl,-z,now -Wl,-z,relro \
	-Wl,-z,noexecstack -Wl,-z,nodelete -Wl,--version-script,liblgpu_gen.map
