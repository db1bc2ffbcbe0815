// SPDX-License-Identifier: Apache-2.0

// slices: does what it reads, one order a line, and prints each order with an answer
// when it is done. It runs with the stand-in of the resource manager.
//
//	init            cuInit
//	make D          a context of device D
//	retain D        the primary context of device D, as the current one; release D
//	destroy N       the N-th context that make has made, from 0 on
//	churn N         four threads make and destroy N contexts of device 0 each; answers at once
//	churned         waits for them
//	launch          a kernel, in a thread; answers at once
//	launched        waits for it
//	slices          prints the slices of groups that compute, and of those that copy
//	await N US      waits until the N-th group that computes has this slice
//	set N US        as the program itself might: the slice of the N-th such group
//	lose            every descriptor of the resource manager is of another file from now on
//	fork            a child that makes a context, and prints its slices
//	chained         calls that another library's ioctl has seen: are there any?
//	transparent     compares ioctl with the system call
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lgpu_cuda.h"
#include "testdata/rm_standin.h"

#define ROOM 2048
#define CHURNERS 4

static CUcontext contexts[ROOM];
static int made;
static pthread_t launcher, churners[CHURNERS];

static void *find(void *handle, const char *name)
{
	void *f = dlsym(handle, name);
	if (f == NULL)
		exit(3);
	return f;
}

static void *cuda(const char *name)
{
	static void *library;
	if (library == NULL)
		library = dlopen("libcuda.so.1", RTLD_LAZY);
	return find(library, name);
}

#define CALL(name) ((__typeof__(&name))cuda(#name))
#define STANDIN(name) ((__typeof__(&name))find(RTLD_DEFAULT, #name))

static void print_slices(bool compute)
{
	uint64_t slices[ROOM];
	int n = STANDIN(standin_slices)(compute, slices, ROOM);
	printf(compute ? "compute" : " copy");
	// Equal ones that follow each other as one, with how many there are.
	for (int i = 0, same = 1; i < n; i += same) {
		for (same = 1; i + same < n && slices[i + same] == slices[i]; same++)
			;
		printf(same > 1 ? " %d*%llu" : " %.0d%llu", same > 1 ? same : 0, (unsigned long long)slices[i]);
	}
}

static int print_all(void)
{
	print_slices(true);
	print_slices(false);
	printf("\n");
	return 0;
}

static int await(int group, uint64_t micros)
{
	for (;;) {
		uint64_t slices[ROOM];
		if (group < STANDIN(standin_slices)(true, slices, ROOM) && slices[group] == micros)
			return 0;
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	}
}

static int destroy(int n)
{
	return CALL(cuCtxDestroy_v2)(contexts[n]);
}

static int lose(void)
{
	int null = open("/dev/null", O_RDWR), lost = 0;
	for (int fd = 3; fd < 1024; fd++) {
		char name[32], path[64];
		snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(name, path, sizeof path - 1);
		path[n > 0 ? n : 0] = 0;
		if (strstr(path, "nvidiactl") != NULL)
			lost += dup2(null, fd) == fd;
	}
	return lost == 1 ? 0 : -1;
}

static int fork_one(void)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		CUcontext c;
		int r = CALL(cuCtxCreate_v2)(&c, 0, 0);
		printf("child %d: ", r);
		print_all();
		fflush(stdout);
		_exit(0);
	}
	int status = -1;
	waitpid(child, &status, 0);
	return status;
}

static void *launch(void *context)
{
	void *something[1] = {NULL}; // the stub driver wants no NULL
	CALL(cuCtxSetCurrent)(context);
	return (void *)(uintptr_t)CALL(cuLaunchKernel)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, something, something);
}

static int start_launch(void)
{
	CUcontext current = NULL;
	CALL(cuCtxGetCurrent)(&current);
	return pthread_create(&launcher, NULL, launch, current);
}

static int end_launch(void)
{
	void *r;
	pthread_join(launcher, &r);
	return (int)(uintptr_t)r;
}

static void *churn(void *count)
{
	for (uintptr_t n = (uintptr_t)count; n > 0; n--) {
		CUcontext c;
		if (CALL(cuCtxCreate_v2)(&c, 0, 0) != CUDA_SUCCESS || CALL(cuCtxDestroy_v2)(c) != CUDA_SUCCESS)
			return (void *)1;
	}
	return NULL;
}

static int start_churn(int n)
{
	int failed = 0;
	for (int i = 0; i < CHURNERS; i++)
		failed += pthread_create(&churners[i], NULL, churn, (void *)(uintptr_t)n) != 0;
	return failed;
}

static int end_churn(void)
{
	uintptr_t failed = 0;
	for (int i = 0; i < CHURNERS; i++) {
		void *r;
		pthread_join(churners[i], &r);
		failed += (uintptr_t)r;
	}
	return (int)failed;
}

// ---- transparency

static int differs(const char *what, int fd, unsigned long request, void *arg)
{
	errno = 77;
	int with = ioctl(fd, request, arg), with_error = errno;
	errno = 77;
	int without = (int)syscall(SYS_ioctl, fd, request, arg), without_error = errno;
	if (with == without && with_error == without_error)
		return 0;
	printf("%s: %d, errno %d; the system call: %d, errno %d\n", what, with, with_error, without, without_error);
	return 1;
}

static int transparent(void)
{
	static const unsigned long driver[] = {STANDIN_FREE, STANDIN_CONTROL, STANDIN_ALLOC, STANDIN_ALLOC_RIGHTS};
	static char page[64] __attribute__((aligned(8)));
	struct winsize size = {.ws_row = 24, .ws_col = 80}, seen = {0};
	int wrong = 0, count = -1, pair[2], tty = posix_openpt(O_RDWR | O_NOCTTY), null = open("/dev/null", O_RDWR);
	if (tty < 0 || null < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || write(pair[0], "four", 4) != 4)
		return -1;
	wrong += ioctl(tty, TIOCSWINSZ, &size) != 0 || ioctl(tty, TIOCGWINSZ, &seen) != 0 || seen.ws_col != 80;
	wrong += ioctl(pair[1], FIONREAD, &count) != 0 || count != 4;
	wrong += ioctl(null, FIOCLEX) != 0 || fcntl(null, F_GETFD) != FD_CLOEXEC;
	wrong += differs("window size", tty, TIOCGWINSZ, &seen);
	wrong += differs("window size of a socket", pair[0], TIOCGWINSZ, &seen);
	wrong += differs("bytes to read", pair[1], FIONREAD, &count);
	wrong += differs("a bad address", pair[1], FIONREAD, (void *)8);
	wrong += differs("no such descriptor", 987, FIONREAD, &count);
	for (unsigned i = 0; i < sizeof driver / sizeof *driver; i++) {
		unsigned long extended = driver[i] | ~0xffffffffUL;
		wrong += differs("the driver's on /dev/null", null, driver[i], page);
		wrong += differs("the driver's on /dev/null, sign-extended", null, extended, page);
		wrong += differs("the driver's with a bad address", null, driver[i], (void *)8);
		wrong += differs("the driver's on a socket", pair[0], driver[i], NULL);
		wrong += differs("the driver's on no descriptor", -1, driver[i], NULL);
	}
	close(tty), close(null), close(pair[0]), close(pair[1]);
	return wrong;
}

static int obey(char *line)
{
	char word[16] = "";
	unsigned long long a = 0, b = 0;
	CUcontext c;
	sscanf(line, "%15s %llu %llu", word, &a, &b);
	if (strcmp(word, "init") == 0)
		return CALL(cuInit)(0);
	if (strcmp(word, "make") == 0)
		return CALL(cuCtxCreate_v2)(&contexts[made++], 0, (CUdevice)a);
	if (strcmp(word, "retain") == 0)
		return CALL(cuDevicePrimaryCtxRetain)(&c, (CUdevice)a) || CALL(cuCtxSetCurrent)(c);
	if (strcmp(word, "release") == 0)
		return CALL(cuDevicePrimaryCtxRelease_v2)((CUdevice)a);
	if (strcmp(word, "destroy") == 0)
		return destroy((int)a);
	if (strcmp(word, "churn") == 0)
		return start_churn((int)a);
	if (strcmp(word, "churned") == 0)
		return end_churn();
	if (strcmp(word, "launch") == 0)
		return start_launch();
	if (strcmp(word, "launched") == 0)
		return end_launch();
	if (strcmp(word, "slices") == 0)
		return print_all();
	if (strcmp(word, "await") == 0)
		return await((int)a, b);
	if (strcmp(word, "set") == 0) {
		STANDIN(standin_set)((int)a, b);
		return 0;
	}
	if (strcmp(word, "lose") == 0)
		return lose();
	if (strcmp(word, "fork") == 0)
		return fork_one();
	if (strcmp(word, "chained") == 0)
		return ((int (*)(void))find(RTLD_DEFAULT, "chain_calls"))() == 0;
	return strcmp(word, "transparent") == 0 ? transparent() : -1;
}

int main(void)
{
	char line[64];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin) != NULL) {
		line[strcspn(line, "\n")] = 0;
		printf("%s: %d\n", line, obey(line));
	}
	return 0;
}
