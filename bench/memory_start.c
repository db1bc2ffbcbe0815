// Memory start: what the first CUDA call costs processes that start at once.
// Prints the median and the 99th percentile of cuInit in milliseconds, over
// several rounds; run it with and without lgpu.
//
//	cc -O2 -Itenant/abi/include -o memory_start bench/memory_start.c -lcuda
//	lgpu run --memory 1GiB -- ./memory_start [processes [rounds]]
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lgpu_cuda.h"

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	int processes = argc > 1 ? atoi(argv[1]) : 64, rounds = argc > 2 ? atoi(argv[2]) : 10, n = processes * rounds;
	double *took = mmap(NULL, sizeof *took * (size_t)n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (processes < 1 || rounds < 1 || took == MAP_FAILED)
		return 2;
	for (int r = 0; r < rounds; r++) {
		int gate[2];
		char c;
		if (pipe(gate) != 0)
			return 2;
		for (int p = 0; p < processes; p++) {
			if (fork() == 0) {
				close(gate[1]);
				if (read(gate[0], &c, 1) != 0) // until all are there
					_exit(1);
				double begin = now();
				CUresult result = cuInit(0);
				took[r * processes + p] = now() - begin;
				_exit(result != CUDA_SUCCESS);
			}
		}
		close(gate[0]);
		close(gate[1]);
		int status, bad = 0;
		for (int p = 0; p < processes; p++) {
			wait(&status);
			bad += status != 0;
		}
		if (bad != 0)
			return printf("%d of %d processes failed\n", bad, processes), 1;
	}
	qsort(took, (size_t)n, sizeof *took, order);
	printf("cuInit in %d processes at once, %d rounds: p50 %.3f ms, p99 %.3f ms\n", processes, rounds, took[n / 2], took[n * 99 / 100]);
	return 0;
}
