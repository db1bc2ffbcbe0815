// heirs: does what it reads, one order a line, and answers each with a line. What its children have made lives in the
// descriptors that it has of it.
//
//	child MIB     a child makes so much, gives it away and ends: prints the driver's answer
//	own MIB       this process does so, and releases the handle
//	import        takes in the oldest descriptor's memory and maps it
//	allocate MIB  plainly
//	close         all descriptors
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lgpu_cuda.h"

#define MIB ((size_t)1 << 20)

static int descriptors[64], count;
static size_t sizes[64];
static int ready;

static CUresult begin(void)
{
	CUdevice device;
	CUcontext context;
	if (ready)
		return CUDA_SUCCESS;
	CUresult r = cuInit(0);
	if (r == CUDA_SUCCESS)
		r = cuDeviceGet(&device, 0);
	if (r == CUDA_SUCCESS)
		r = cuDevicePrimaryCtxRetain(&context, device);
	if (r == CUDA_SUCCESS)
		r = cuCtxSetCurrent(context);
	ready = r == CUDA_SUCCESS;
	return r;
}

// make makes memory and a descriptor of it, which is all that is left of it.
static CUresult make(size_t bytes, int *fd)
{
	CUmemAllocationProp p;
	CUmemGenericAllocationHandle h;
	memset(&p, 0, sizeof p);
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CUresult r = begin();
	if (r == CUDA_SUCCESS)
		r = cuMemCreate(&h, bytes, &p, 0);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuMemExportToShareableHandle(fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	CUresult released = cuMemRelease(h);
	return r != CUDA_SUCCESS ? r : released;
}

union control {
	struct cmsghdr header;
	char room[CMSG_SPACE(sizeof(int))];
};

// The child's answer comes with the descriptor, if there is one.
static void child(int to, size_t bytes)
{
	int fd = -1;
	CUresult r = make(bytes, &fd);
	struct iovec v = {&r, sizeof r};
	union control control;
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	if (fd >= 0) {
		m.msg_control = &control;
		m.msg_controllen = sizeof control;
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	}
	_exit(sendmsg(to, &m, 0) < 0);
}

static CUresult from_child(size_t bytes, int *fd)
{
	int pair[2];
	CUresult r = CUDA_ERROR_UNKNOWN;
	struct iovec v = {&r, sizeof r};
	union control control;
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
		return r;
	pid_t pid = fork();
	if (pid == 0)
		child(pair[1], bytes);
	close(pair[1]);
	ssize_t n = recvmsg(pair[0], &m, 0);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	if (c != NULL)
		memcpy(fd, CMSG_DATA(c), sizeof *fd);
	close(pair[0]);
	waitpid(pid, NULL, 0);
	return r;
}

static CUresult take_in(void)
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr at;
	CUresult r = begin();
	if (r == CUDA_SUCCESS)
		r = cuMemImportFromShareableHandle(&h, (void *)(intptr_t)descriptors[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r == CUDA_SUCCESS)
		r = cuMemAddressReserve(&at, sizes[0], 0, 0, 0);
	return r == CUDA_SUCCESS ? cuMemMap(at, sizes[0], 0, h, 0) : r;
}

int main(void)
{
	char line[64], word[16];
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof line, stdin) != NULL) {
		size_t n = 0;
		CUdeviceptr p;
		CUresult r = CUDA_SUCCESS;
		line[strcspn(line, "\n")] = 0;
		sscanf(line, "%15s %zu", word, &n);
		int fd = -1;
		if (strcmp(word, "child") == 0) {
			r = from_child(n * MIB, &fd);
		} else if (strcmp(word, "own") == 0) {
			r = make(n * MIB, &fd);
		} else if (strcmp(word, "import") == 0) {
			r = take_in();
		} else if (strcmp(word, "allocate") == 0) {
			r = begin();
			r = r == CUDA_SUCCESS ? cuMemAlloc_v2(&p, n * MIB) : r;
		} else if (strcmp(word, "close") == 0) {
			while (count > 0)
				close(descriptors[--count]);
		}
		if (fd >= 0 && count < 64) {
			sizes[count] = n * MIB;
			descriptors[count++] = fd;
		}
		printf("%s %d\n", line, (int)r);
	}
	return 0;
}
