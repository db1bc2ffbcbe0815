// SPDX-License-Identifier: Apache-2.0

// descriptors: what calls say that need a descriptor when the process may have no more, and whether all is well again when
// it may. Prints the name and the result of each call.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lgpu_cuda.h"

static struct rlimit usual;

static void check(CUresult r, const char *what)
{
	if (r == CUDA_SUCCESS)
		return;
	printf("%s %d\n", what, (int)r);
	exit(0);
}

// The process may have no descriptor but those that it has.
static void none(void)
{
	struct rlimit r = usual;
	int next = dup(0);

	close(next);
	r.rlim_cur = (rlim_t)next;
	setrlimit(RLIMIT_NOFILE, &r);
}

static void as_usual(void) { setrlimit(RLIMIT_NOFILE, &usual); }

static void *call(void *context)
{
	size_t available, total;

	return (void *)(long)(cuCtxSetCurrent(context) ?: cuMemGetInfo(&available, &total));
}

// The result of a thread's first call.
static int thread(CUcontext context)
{
	pthread_t t;
	void *r;

	pthread_create(&t, NULL, call, context);
	pthread_join(t, &r);
	return (int)(long)r;
}

int main(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	CUmemGenericAllocationHandle handle;
	CUdevice device;
	CUcontext context;
	CUdeviceptr managed;
	int fd = -1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	getrlimit(RLIMIT_NOFILE, &usual);
	none();
	printf("init %d\n", (int)cuInit(0));
	as_usual();
	check(cuInit(0), "init");
	check(cuDeviceGet(&device, 0), "device");
	check(cuDevicePrimaryCtxRetain(&context, device), "context");
	check(cuCtxSetCurrent(context), "current");
	check(cuMemCreate(&handle, 2 << 20, &prop, 0), "create");
	for (int limited = 1; limited >= 0; limited--) {
		if (limited)
			none();
		printf("export %d\n", (int)cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		printf("managed %d\n", (int)cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
		printf("thread %d\n", thread(context));
		as_usual();
	}
	return 0;
}
