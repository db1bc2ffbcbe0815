// Memory race: threads take memory from pools and give it back, on streams of
// their own and on each other's, as fast as they can and near the limit, while a
// process outside looks at what the device has in use. Exit status 1: at some
// moment that was more than the limit.
//
//	cc -Itenant/abi/include -o memory_race bench/memory_race.c -lcuda -lnvidia-ml -lpthread
//	lgpu run --memory 2GiB -- ./memory_race [threads [seconds]]
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lgpu_cuda.h"
#include "lgpu_nvml.h"

#define MIB (UINT64_C(1) << 20)
#define HELD 16

static CUcontext context;
static CUmemoryPool pool;
static atomic_long granted, refused, wrong;
static double seconds = 10;
static CUstream streams[64];
static int threads = 6;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// watch looks until its standard input ends, and prints looks and the most.
static int watch(void)
{
	nvmlDevice_t device;
	nvmlMemory_t m;
	uint64_t most = 0;
	long looks = 0;
	if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS)
		return 2;
	for (double end = now() + 2 * seconds + 60; now() < end; looks++) {
		if (nvmlDeviceGetMemoryInfo(device, &m) != NVML_SUCCESS)
			return 2;
		most = m.used > most ? m.used : most;
		if (looks == 0) {
			printf("%llu\n", (unsigned long long)m.used);
			fflush(stdout);
		}
		if (looks % 16 == 0) {
			fd_set set;
			struct timeval none = {0, 0};
			FD_ZERO(&set);
			FD_SET(0, &set);
			if (select(1, &set, NULL, NULL, &none) > 0)
				break;
		}
	}
	printf("%ld %llu\n", looks, (unsigned long long)most);
	return 0;
}

static void *work(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg * 7919 + 1;
	CUdeviceptr held[HELD] = {0};
	cuCtxSetCurrent(context);
	for (double end = now() + seconds; now() < end;) {
		int i = rand_r(&seed) % HELD;
		CUstream stream = streams[rand_r(&seed) % threads];
		if (held[i] != 0) {
			wrong += cuMemFreeAsync(held[i], stream) != CUDA_SUCCESS;
			held[i] = 0;
			continue;
		}
		CUresult r = cuMemAllocFromPoolAsync(&held[i], (uint64_t)(rand_r(&seed) % (96 * 1024)) * 1024 + 1, pool, stream);
		granted += r == CUDA_SUCCESS;
		refused += r == CUDA_ERROR_OUT_OF_MEMORY;
		wrong += r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY;
		if (r != CUDA_SUCCESS)
			held[i] = 0;
	}
	for (int i = 0; i < HELD; i++)
		if (held[i] != 0)
			cuMemFreeAsync(held[i], streams[0]);
	return NULL;
}

// outside starts this program again where lgpu is not, as the watcher.
static pid_t outside(const char *self, int *in, int *out)
{
	int to[2], from[2];
	if (pipe(to) != 0 || pipe(from) != 0)
		return -1;
	pid_t child = fork();
	if (child == 0) {
		char text[32];
		dup2(to[0], 0);
		dup2(from[1], 1);
		close(to[1]);
		unsetenv("LD_PRELOAD");
		unsetenv("LGPU_SOCKET");
		snprintf(text, sizeof text, "%f", seconds);
		execl(self, self, "watch", text, (char *)NULL);
		_exit(2);
	}
	close(to[0]);
	close(from[1]);
	*in = to[1];
	*out = from[0];
	return child;
}

int main(int argc, char **argv)
{
	CUdevice device;
	size_t f, t;
	int in, out, status;
	pthread_t thread[64];
	if (argc > 2)
		seconds = atof(argv[2]);
	if (argc > 1 && strcmp(argv[1], "watch") == 0)
		return watch();
	if (argc > 1)
		threads = atoi(argv[1]) < 64 ? atoi(argv[1]) : 64;
	if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
	    cuCtxSetCurrent(context) != CUDA_SUCCESS || cuDeviceGetDefaultMemPool(&pool, device) != CUDA_SUCCESS)
		return 2;
	for (int i = 0; i < threads; i++)
		cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING);
	cuMemGetInfo(&f, &t);
	uint64_t used = t - f, begin, most;
	long looks;
	pid_t watcher = outside(argv[0], &in, &out);
	FILE *said = watcher > 0 ? fdopen(out, "r") : NULL;
	if (said == NULL || fscanf(said, "%lu", &begin) != 1)
		return 2;
	for (int i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	close(in);
	if (fscanf(said, "%ld %lu", &looks, &most) != 2)
		return 2;
	waitpid(watcher, &status, 0);
	// What the device has beyond this process is not the lgpu's.
	double over = ((double)most - (double)begin + (double)used - (double)t) / MIB;
	printf("%ld granted, %ld refused, %ld other errors; the most of %ld looks: %.0f of %.0f MiB (%+.0f)\n", (long)granted, (long)refused,
	       (long)wrong, looks, (double)t / MIB + over, (double)t / MIB, over);
	return over > 0 || wrong != 0;
}
