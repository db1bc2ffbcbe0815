// sliced CONTROL.PTX CONTEXTS: keeps the device busy with kernels of 2 ms until its input ends, in the first of so many
// contexts. Says "ready" once it works, and then how long the time slices of its contexts are, whenever that has
// changed: "40 contexts: 50 to 2000 us". Of its input, "more" makes as many contexts again, and "long US" gives all of them
// such a time slice.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "try.h"

enum { MOST = 1000, LOOK = 2000 /* us */, AHEAD = 8 };

static CUcontext contexts[MOST];
static atomic_int made;
static atomic_bool over;

static void make(CUdevice device, int count)
{
	for (int i = 0; i < count && made < MOST; i++) {
		TRY(cuCtxCreate(&contexts[made], NULL, 0, device));
		made++;
	}
}

// driver is the software GPU's library, of which lgpu's shows only what a driver has too.
static void *driver(void)
{
	const char *path = getenv("LGPU_REAL_LIBCUDA");
	return path != NULL ? dlopen(path, RTLD_NOW) : RTLD_DEFAULT;
}

// lengthen gives all contexts a time slice, by the driver's own function.
static void lengthen(uint64_t micros)
{
	CUresult (*set)(CUcontext context, uint64_t micros);
	*(void **)&set = dlsym(driver(), "lgpusimSetTimeslice");
	for (int i = 0; set != NULL && i < made; i++)
		TRY(set(contexts[i], micros));
}

static void *watch(void *unused)
{
	CUresult (*get)(CUcontext context, uint64_t *micros);
	uint64_t shortest = 0, longest = 0;
	int seen = 0;

	(void)unused;
	*(void **)&get = dlsym(driver(), "lgpusimGetTimeslice");
	while (get != NULL && !over) {
		uint64_t micros, from = UINT64_MAX, to = 0;
		int count = made;
		for (int i = 0; i < count; i++) {
			TRY(get(contexts[i], &micros));
			from = micros < from ? micros : from;
			to = micros > to ? micros : to;
		}
		if (count != seen || from != shortest || to != longest) {
			printf("%d contexts: %llu to %llu us\n", count, (unsigned long long)from, (unsigned long long)to);
			fflush(stdout);
		}
		seen = count;
		shortest = from;
		longest = to;
		usleep(LOOK);
	}
	return NULL;
}

static void *work(void *control)
{
	CUmodule module;
	CUfunction spin;
	CUevent ends[AHEAD];
	unsigned long long ns = 2000000;
	void *params[] = {&ns};

	TRY(cuCtxSetCurrent(contexts[0]));
	TRY(cuModuleLoad(&module, control));
	TRY(cuModuleGetFunction(&spin, module, "spin"));
	for (int i = 0; i < AHEAD; i++)
		TRY(cuEventCreate(&ends[i], 0));
	for (uint64_t i = 0; !over; i++) {
		if (i >= AHEAD)
			TRY(cuEventSynchronize(ends[i % AHEAD]));
		TRY(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		TRY(cuEventRecord(ends[i % AHEAD], NULL));
	}
	TRY(cuCtxSynchronize());
	return NULL;
}

int main(int argc, char **argv)
{
	CUdevice device;
	pthread_t watcher, worker;
	char line[32];

	if (argc != 3)
		return 2;
	int count = atoi(argv[2]);
	TRY(cuInit(0));
	TRY(cuDeviceGet(&device, 0));
	make(device, count);
	puts("ready");
	fflush(stdout);
	if (pthread_create(&watcher, NULL, watch, NULL) != 0 || pthread_create(&worker, NULL, work, argv[1]) != 0)
		return 1;
	while (fgets(line, sizeof line, stdin) != NULL) {
		unsigned long long micros;
		if (sscanf(line, "long %llu", &micros) == 1)
			lengthen(micros);
		else
			make(device, count);
	}
	over = true;
	return pthread_join(worker, NULL) != 0 || pthread_join(watcher, NULL) != 0;
}
