// obey CONTROL.PTX: does what each line of its input says, until that ends, and answers with a line.
//   allocate BYTES        says how it went
//   launch COUNT MICROS [BLOCKS]
//                         so many kernels of that length, of one block unless it says, and says how many ns they took from
//                         the first launch to the end
//   fork                  a child that has left the session and its parent allocates 1 MiB; says how that went
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "try.h"

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void begin(void)
{
	CUdevice device;
	CUcontext context;
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	TRY(cuDevicePrimaryCtxRetain(&context, device));
	TRY(cuCtxSetCurrent(context));
}

int main(int argc, char **argv)
{
	CUmodule module;
	CUfunction spin;
	CUdeviceptr p;
	char line[128];
	uint64_t a, b;
	unsigned blocks;

	if (argc == 3 && strcmp(argv[2], "child") == 0) {
		begin();
		printf("child %s\n", name(cuMemAlloc(&p, 1 << 20)));
		return 0;
	}
	if (argc != 2)
		return 2;
	begin();
	TRY(cuModuleLoad(&module, argv[1]));
	TRY(cuModuleGetFunction(&spin, module, "spin"));
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) != NULL) {
		blocks = 1;
		if (sscanf(line, "allocate %" SCNu64, &a) == 1) {
			printf("allocate %" PRIu64 " %s\n", a, name(cuMemAlloc(&p, a)));
		} else if (sscanf(line, "launch %" SCNu64 " %" SCNu64 " %u", &a, &b, &blocks) >= 2) {
			uint64_t ns = b * 1000, from = now();
			void *params[] = {&ns};
			for (uint64_t i = 0; i < a; i++)
				TRY(cuLaunchKernel(spin, blocks, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
			TRY(cuCtxSynchronize());
			printf("launched %" PRIu64 "\n", now() - from);
		} else if (strcmp(line, "fork\n") == 0) {
			fflush(stdout);
			if (fork() == 0) { // the parent of the child that answers is gone by then
				setsid();
				if (fork() == 0)
					execl("/proc/self/exe", "obey", argv[1], "child", NULL);
				_exit(0);
			}
			continue;
		} else {
			return 2;
		}
		fflush(stdout);
	}
	TRY(cuCtxSynchronize());
	return 0;
}
