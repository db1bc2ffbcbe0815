/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management, pools, and memory that processes share. */
#define _GNU_SOURCE
#include "suite.h"

#include <sys/socket.h>
#include <unistd.h>

static CUmemAllocationProp device_memory(CUmemAllocationHandleType handles)
{
	CUmemAllocationProp p;

	memset(&p, 0, sizeof p);
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.requestedHandleTypes = handles;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return p;
}

static void allow(CUdeviceptr p, size_t n, CUmemAccess_flags flags)
{
	CUmemAccessDesc d = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};

	OK(cuMemSetAccess(p, n, &d, 1));
}

CASE(vmm)
{
	CUmemAllocationProp prop = device_memory(0), got;
	CUmemGenericAllocationHandle a, b, kept;
	CUmemLocation where = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	unsigned long long flags;
	size_t g, before, after, total;
	CUdeviceptr va;
	int x = 5, y = 0;

	suite_context();
	if (!suite_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		suite_skip("no virtual memory management");
	OK(cuMemGetAllocationGranularity(&g, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	EQUAL(g, 2 << 20);
	OK(cuMemGetInfo(&before, &total));
	OK(cuMemAddressReserve(&va, 4 * g, 0, 0, 0));
	OK(cuMemGetInfo(&after, &total));
	EQUAL(after, before);
	OK(cuMemCreate(&a, g, &prop, 0));
	OK(cuMemCreate(&b, 2 * g, &prop, 0));
	OK(cuMemGetInfo(&after, &total));
	EQUAL(before - after, 3 * g);
	RETURNS(cuMemCreate(&kept, g + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemMap(va, g / 2, 0, a, 0) != CUDA_SUCCESS);
	OK(cuMemMap(va, g, 0, a, 0));
	OK(cuMemMap(va + g, 2 * g, 0, b, 0));
	RETURNS(cuMemMap(va, 2 * g, 0, b, 0), CUDA_ERROR_INVALID_VALUE); /* it is taken */
	RETURNS(cuMemcpyHtoD(va, &x, sizeof x), CUDA_ERROR_INVALID_VALUE);
	allow(va, 3 * g, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemGetAccess(&flags, &where, va));
	EQUAL(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemcpyHtoD(va + g - 2, &x, sizeof x));
	OK(cuMemcpyDtoH(&y, va + g - 2, sizeof y));
	EQUAL(y, 5);
	OK(cuMemRetainAllocationHandle(&kept, (void *)(uintptr_t)(va + g)));
	EQUAL(kept, b);
	OK(cuMemGetAllocationPropertiesFromHandle(&got, b));
	EQUAL(got.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
	OK(cuMemRelease(kept));
	OK(cuMemRelease(a));
	OK(cuMemRelease(b));
	OK(cuMemcpyDtoH(&y, va + g - 2, sizeof y)); /* a mapping keeps its memory */
	RETURNS(cuMemAddressFree(va, 4 * g), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(va, 3 * g));
	OK(cuMemAddressFree(va, 4 * g));
	OK(cuMemGetInfo(&after, &total));
	EQUAL(after, before);
}

/* Sends one descriptor over a socket. */
static void send_fd(int sock, int fd)
{
	char room[CMSG_SPACE(sizeof fd)] = {0}, byte = 1;
	struct iovec iov = {&byte, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	CHECK(sendmsg(sock, &m, 0) == 1);
}

static int receive_fd(int sock)
{
	char room[CMSG_SPACE(sizeof(int))], byte;
	struct iovec iov = {&byte, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	int fd;

	CHECK(recvmsg(sock, &m, 0) == 1 && CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}

CASE(vmm_shared_by_descriptor)
{
	CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;
	int sock[2], pid, fd, x = 0;
	size_t g = 2 << 20;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sock) == 0);
	if ((pid = fork()) == 0) {
		char done;

		close(sock[0]); // so that the end of the parent is the end of input
		suite_context();
		fd = receive_fd(sock[1]);
		OK(cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		OK(cuMemAddressReserve(&va, g, 0, 0, 0));
		OK(cuMemMap(va, g, 0, h, 0));
		allow(va, g, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		OK(cuMemcpyDtoH(&x, va, sizeof x));
		EQUAL(x, 1234);
		x = 5678;
		OK(cuMemcpyHtoD(va, &x, sizeof x));
		OK(cuCtxSynchronize()); // a copy from pageable memory may still be under way when it returns
		CHECK(write(sock[1], "d", 1) == 1 && read(sock[1], &done, 1) == 1);
		_exit(0);
	}
	suite_context();
	OK(cuMemCreate(&h, g, &prop, 0));
	OK(cuMemAddressReserve(&va, g, 0, 0, 0));
	OK(cuMemMap(va, g, 0, h, 0));
	allow(va, g, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	x = 1234;
	OK(cuMemcpyHtoD(va, &x, sizeof x));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_fd(sock[0], fd);
	CHECK(read(sock[0], &x, 1) == 1);
	OK(cuMemcpyDtoH(&x, va, sizeof x));
	EQUAL(x, 5678);
	CHECK(write(sock[0], "d", 1) == 1);
	EQUAL(suite_wait(pid), 0);
}

CASE(ipc_memory)
{
	CUipcMemHandle handle;
	CUdeviceptr p, base;
	int sock[2], pid, x;
	size_t size;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sock) == 0);
	if ((pid = fork()) == 0) {
		close(sock[0]);
		suite_context();
		CHECK(read(sock[1], &handle, sizeof handle) == sizeof handle);
		OK(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
		OK(cuMemGetAddressRange(&base, &size, p));
		EQUAL(size, 1 << 20);
		OK(cuMemcpyDtoH(&x, p, sizeof x));
		EQUAL(x, 77);
		x = 88;
		OK(cuMemcpyHtoD(p, &x, sizeof x));
		OK(cuIpcCloseMemHandle(p));
		CHECK(write(sock[1], "d", 1) == 1);
		_exit(0);
	}
	suite_context();
	OK(cuMemAlloc(&p, 1 << 20));
	x = 77;
	OK(cuMemcpyHtoD(p, &x, sizeof x));
	OK(cuIpcGetMemHandle(&handle, p));
	CHECK(write(sock[0], &handle, sizeof handle) == sizeof handle);
	CHECK(read(sock[0], &x, 1) == 1);
	EQUAL(suite_wait(pid), 0);
	OK(cuMemcpyDtoH(&x, p, sizeof x));
	EQUAL(x, 88);
	memset(&handle, 0x55, sizeof handle);
	CHECK(cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
}

CASE(async_allocation)
{
	CUmemoryPool pool;
	CUfunction f;
	CUdeviceptr p, q;
	CUstream s;
	uint64_t n = 1 << 18;
	uint32_t seed = 1, first;
	cuuint64_t reserved, used, keep = UINT64_MAX;

	suite_context();
	if (!suite_attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED))
		suite_skip("no pools");
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemAllocAsync(&p, n * 4, s));
	f = suite_kernel("linear", "fill");
	LAUNCH(f, 4, 128, s, &p, &n, &seed);
	OK(cuMemcpyDtoHAsync(&first, p, 4, s));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	CHECK(used >= n * 4);
	OK(cuMemFreeAsync(p, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	EQUAL(used, 0);
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
	CHECK(reserved >= n * 4);
	OK(cuMemAllocAsync(&q, n * 4, s));
	OK(cuMemFree(q));
	OK(cuMemPoolTrimTo(pool, 0));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
	EQUAL(reserved, 0);
	RETURNS(cuMemFreeAsync(4096, s), CUDA_ERROR_INVALID_VALUE);
}

CASE(own_pool)
{
	CUmemPoolProps props;
	CUmemoryPool pool, current;
	CUdeviceptr p;
	CUstream s;
	size_t before, after, total;

	suite_context();
	memset(&props, 0, sizeof props);
	props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	OK(cuMemGetInfo(&before, &total));
	OK(cuStreamCreate(&s, 0));
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&p, 8 << 20, pool, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemGetInfo(&after, &total));
	CHECK(before - after >= 8 << 20);
	OK(cuMemFreeAsync(p, s));
	OK(cuStreamSynchronize(s));
	OK(cuDeviceGetMemPool(&current, 0));
	CHECK(current != pool);
	OK(cuDeviceSetMemPool(0, pool));
	OK(cuDeviceGetMemPool(&current, 0));
	CHECK(current == pool);
	OK(cuMemPoolDestroy(pool));
	RETURNS(cuMemPoolCreate(&pool, NULL), CUDA_ERROR_INVALID_VALUE);
	props.allocType = 0;
	RETURNS(cuMemPoolCreate(&pool, &props), CUDA_ERROR_INVALID_VALUE);
}
