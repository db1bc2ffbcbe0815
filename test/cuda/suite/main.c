/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "suite.h"

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, TIMEOUT_SECONDS = 60 };

static struct suite_case *cases;
static const char *kernels;

void suite_add(struct suite_case *c)
{
	struct suite_case **at;

	for (at = &cases; *at && strcmp((*at)->name, c->name) < 0; at = &(*at)->next)
		;
	c->next = *at;
	*at = c;
}

void suite_fail(const char *file, int line, const char *format, ...)
{
	va_list ap;

	printf("# %s:%d: ", file, line);
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

void suite_skip(const char *reason)
{
	printf("# %s\n", reason);
	fflush(stdout);
	_exit(SKIPPED);
}

const char *suite_error(CUresult r)
{
	static char number[32];
	const char *name;

	if (cuGetErrorName(r, &name) == CUDA_SUCCESS)
		return name;
	snprintf(number, sizeof number, "%d", r);
	return number;
}

CUcontext suite_context(void)
{
	CUcontext ctx;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&ctx, 0));
	OK(cuCtxSetCurrent(ctx));
	return ctx;
}

char *suite_ptx(const char *file)
{
	char path[4096], *text;
	FILE *f;
	long size;

	snprintf(path, sizeof path, "%s/%s.ptx", kernels, file);
	if (!(f = fopen(path, "r")) || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0)
		suite_fail(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
	rewind(f);
	text = calloc(1, (size_t)size + 1);
	CHECK(text && fread(text, 1, (size_t)size, f) == (size_t)size);
	fclose(f);
	return text;
}

CUmodule suite_module(const char *file)
{
	char *text = suite_ptx(file);
	CUmodule m;

	OK(cuModuleLoadData(&m, text));
	free(text);
	return m;
}

CUfunction suite_kernel(const char *file, const char *name)
{
	CUfunction f;

	OK(cuModuleGetFunction(&f, suite_module(file), name));
	return f;
}

int suite_attribute(CUdevice_attribute a)
{
	int v;

	OK(cuDeviceGetAttribute(&v, a, 0));
	return v;
}

int suite_wait(int pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		CHECK(errno == EINTR);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* How often the process was checkpointed, could not be, and had work that did not end. */
static int restored, refused, busy;

static void checkpoint(int pid)
{
	enum { PATIENCE_MS = 100 };
	CUcheckpointLockArgs patience = {.timeoutMs = PATIENCE_MS};
	CUresult r = cuCheckpointProcessLock(pid, &patience);

	if (r == CUDA_ERROR_NOT_INITIALIZED)
		return;
	if (r == CUDA_ERROR_NOT_READY) {
		busy++;
		return;
	}
	if (r != CUDA_SUCCESS)
		suite_fail(__FILE__, __LINE__, "lock: %s", suite_error(r));
	r = cuCheckpointProcessCheckpoint(pid, NULL);
	if (r == CUDA_SUCCESS) {
		restored++;
		if ((r = cuCheckpointProcessRestore(pid, NULL)) != CUDA_SUCCESS)
			suite_fail(__FILE__, __LINE__, "restore: %s", suite_error(r));
	} else if (r == CUDA_ERROR_NOT_SUPPORTED) {
		refused++;
	} else {
		suite_fail(__FILE__, __LINE__, "checkpoint: %s", suite_error(r));
	}
	if ((r = cuCheckpointProcessUnlock(pid, NULL)) != CUDA_SUCCESS)
		suite_fail(__FILE__, __LINE__, "unlock: %s", suite_error(r));
}

void suite_after_call(void)
{
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

	if (!getenv("SUITE_CHECKPOINT"))
		return;
	pthread_mutex_lock(&one);
	checkpoint(getpid());
	pthread_mutex_unlock(&one);
}

/* suite KERNELS [PATTERN...]: runs the cases whose names match, all without a pattern, and prints TAP. */
int main(int argc, char **argv)
{
	struct suite_case *c;
	int n = 0, failed = 0, i;

	if (argc < 2) {
		fprintf(stderr, "usage: %s FOLDER-OF-PTX [PATTERN...]\n", argv[0]);
		return 2;
	}
	kernels = argv[1];
	for (c = cases; c; c = c->next) {
		int chosen = argc == 2, status;
		pid_t pid;

		for (i = 2; i < argc; i++)
			chosen |= fnmatch(argv[i], c->name, 0) == 0;
		if (!chosen)
			continue;
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			alarm(TIMEOUT_SECONDS);
			c->run();
			if (restored + refused + busy)
				printf("# %s: restored %d, refused %d, busy %d\n", c->name, restored, refused, busy);
			fflush(stdout);
			exit(0);
		}
		status = pid < 0 ? 1 : suite_wait(pid);
		n++;
		if (status == 0 || status == SKIPPED)
			printf("ok %d - %s%s\n", n, c->name, status ? " # SKIP" : "");
		else
			printf("not ok %d - %s # status %d\n", n, c->name, status);
		failed += status != 0 && status != SKIPPED;
	}
	printf("1..%d\n", n);
	return failed != 0;
}
