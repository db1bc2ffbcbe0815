/* SPDX-License-Identifier: Apache-2.0 */
/*
 * freeze PID: checkpoints and restores a locked process of which only the restore thread can run, as one that dumps it
 * does: all other threads are stopped by ptrace meanwhile. Prints both results.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lgpu_cuda.h>

enum { MOST = 64, NOT_ALLOWED = 77 };

static int stopped[MOST], count;

static void stop(int thread)
{
	int status;

	if (count == MOST || ptrace(PTRACE_SEIZE, thread, NULL, NULL) != 0)
		exit(errno == EPERM ? NOT_ALLOWED : 2);
	if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) != 0 || waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status))
		exit(2);
	stopped[count++] = thread;
}

static void stop_others(int pid, int restore_thread)
{
	char path[64];
	struct dirent *e;
	DIR *tasks;

	snprintf(path, sizeof path, "/proc/%d/task", pid);
	if (!(tasks = opendir(path)))
		exit(2);
	while ((e = readdir(tasks)) != NULL)
		if (e->d_name[0] != '.' && atoi(e->d_name) != restore_thread)
			stop(atoi(e->d_name));
	closedir(tasks);
}

int main(int argc, char **argv)
{
	int pid = argc > 1 ? atoi(argv[1]) : 0, thread, i;
	CUresult saved, restored;

	alarm(60);
	if (cuCheckpointProcessGetRestoreThreadId(pid, &thread) != CUDA_SUCCESS)
		return 2;
	stop_others(pid, thread);
	saved = cuCheckpointProcessCheckpoint(pid, NULL);
	restored = cuCheckpointProcessRestore(pid, NULL);
	for (i = 0; i < count; i++)
		ptrace(PTRACE_DETACH, stopped[i], NULL, NULL);
	printf("%d %d\n", (int)saved, (int)restored);
	return 0;
}
