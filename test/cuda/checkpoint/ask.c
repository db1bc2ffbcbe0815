/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask PID state|thread|lock MS|checkpoint|restore [OLD-UUID NEW-UUID]...|unlock: makes one call of the checkpoint API about
 * another process and prints its result, and what it told, as numbers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lgpu_cuda.h>

enum { MOST_PAIRS = 100 };

static CUuuid uuid(const char *digits)
{
	CUuuid u;
	unsigned byte;
	size_t i;

	for (i = 0; i < sizeof u; i++) {
		if (sscanf(digits + 2 * i, "%2x", &byte) != 1)
			exit(2);
		u.bytes[i] = (char)byte;
	}
	return u;
}

static CUresult restore(int pid, int argc, char **argv)
{
	static CUcheckpointGpuPair pairs[MOST_PAIRS];
	CUcheckpointRestoreArgs args = {.gpuPairs = pairs};

	for (; argc >= 2 && args.gpuPairsCount < MOST_PAIRS; argc -= 2, argv += 2) {
		pairs[args.gpuPairsCount].oldUuid = uuid(argv[0]);
		pairs[args.gpuPairsCount++].newUuid = uuid(argv[1]);
	}
	return cuCheckpointProcessRestore(pid, args.gpuPairsCount ? &args : NULL);
}

int main(int argc, char **argv)
{
	int pid = argc > 2 ? atoi(argv[1]) : 0, told = -1;
	const char *what = argc > 2 ? argv[2] : "";
	CUcheckpointLockArgs patience = {0};
	CUprocessState state = (CUprocessState)-1;
	CUresult r;

	if (!strcmp(what, "state")) {
		r = cuCheckpointProcessGetState(pid, &state);
		told = (int)state;
	} else if (!strcmp(what, "thread")) {
		r = cuCheckpointProcessGetRestoreThreadId(pid, &told);
	} else if (!strcmp(what, "lock")) {
		patience.timeoutMs = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
		r = cuCheckpointProcessLock(pid, &patience);
	} else if (!strcmp(what, "checkpoint")) {
		r = cuCheckpointProcessCheckpoint(pid, NULL);
	} else if (!strcmp(what, "restore")) {
		r = restore(pid, argc - 3, argv + 3);
	} else if (!strcmp(what, "unlock")) {
		r = cuCheckpointProcessUnlock(pid, NULL);
	} else {
		return 2;
	}
	printf("%d %d\n", (int)r, told);
	return 0;
}
