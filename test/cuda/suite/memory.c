/* SPDX-License-Identifier: Apache-2.0 */
/* Device, host and managed memory; copies and fills. */
#define _GNU_SOURCE
#include "suite.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, FILE_PAGES = 24 };

static unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 2654435761u >> 13);
}

static unsigned char *filled(size_t n)
{
	unsigned char *p = malloc(n);
	size_t i;

	CHECK(p);
	for (i = 0; i < n; i++)
		p[i] = pattern(i);
	return p;
}

CASE(alloc_and_free)
{
	CUdeviceptr p, base;
	size_t before, after, total, size;

	suite_context();
	OK(cuMemGetInfo(&before, &total));
	OK(cuMemAlloc(&p, 32 << 20));
	OK(cuMemGetInfo(&after, &total));
	CHECK(before - after >= 32 << 20 && before - after < 64 << 20);
	OK(cuMemGetAddressRange(&base, &size, p + 1000));
	EQUAL(base, p);
	EQUAL(size, 32 << 20);
	RETURNS(cuMemFree(p + 256), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(p));
	OK(cuMemGetInfo(&after, &total));
	EQUAL(after, before);
	RETURNS(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(0));
	RETURNS(cuMemAlloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuMemAlloc(NULL, 16), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuMemAlloc(&p, total * 2), CUDA_ERROR_OUT_OF_MEMORY);
	RETURNS(cuMemAlloc(&p, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	RETURNS(cuMemGetAddressRange(&base, &size, 4096), CUDA_ERROR_NOT_FOUND);
}

CASE(out_of_memory_is_real)
{
	CUdeviceptr p[64];
	size_t free_bytes, total, part;
	unsigned n = 0;

	suite_context();
	OK(cuMemGetInfo(&free_bytes, &total));
	part = (free_bytes / 16 + (2 << 20) - 1) & ~(size_t)((2 << 20) - 1);
	while (n < 64) {
		CUresult r = cuMemAlloc(&p[n], part);

		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			break;
		OK(r);
		n++;
	}
	CHECK(n >= 12 && n <= 16);
	OK(cuMemFree(p[--n]));
	OK(cuMemAlloc(&p[n], part));
	for (n++; n > 0; n--)
		OK(cuMemFree(p[n - 1]));
}

CASE(copies_in_all_directions)
{
	enum { N = 3 << 20 };
	unsigned char *h = filled(N), *g = calloc(1, N);
	CUdeviceptr a, b;
	CUstream s;

	suite_context();
	OK(cuMemAlloc(&a, N));
	OK(cuMemAlloc(&b, N));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuMemcpyHtoD(a, h, N));
	OK(cuMemcpyDtoD(b, a, N));
	OK(cuMemcpyDtoH(g, b, N));
	CHECK(memcmp(h, g, N) == 0);
	memset(g, 0, N);
	OK(cuMemsetD8(b, 0, N));
	OK(cuMemcpyHtoDAsync(a, h, N, s));
	OK(cuMemcpyDtoDAsync(b, a, N, s));
	OK(cuMemcpyDtoHAsync(g, b, N, s));
	OK(cuStreamSynchronize(s));
	CHECK(memcmp(h, g, N) == 0);
	memset(g, 0, N);
	OK(cuMemcpy((CUdeviceptr)(uintptr_t)g, b, N));
	CHECK(memcmp(h, g, N) == 0);
	memset(g, 0, N);
	OK(cuMemcpyAsync((CUdeviceptr)(uintptr_t)g, a + 1, N - 1, s));
	OK(cuStreamSynchronize(s));
	CHECK(memcmp(h + 1, g, N - 1) == 0);
	OK(cuMemcpy((CUdeviceptr)(uintptr_t)g, (CUdeviceptr)(uintptr_t)h, N));
	CHECK(memcmp(h, g, N) == 0);
	RETURNS(cuMemcpyHtoD(a + N - 4, h, 8 << 20), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuMemcpyDtoH(g, 4096, 16), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemcpyHtoD(a, h, 0));
}

CASE(fills)
{
	enum { N = 4096 };
	CUdeviceptr p;
	size_t pitch;
	uint32_t w[N];
	unsigned char rows[8 * 64];
	CUstream s;
	unsigned i, y;

	suite_context();
	OK(cuStreamCreate(&s, 0));
	OK(cuMemAlloc(&p, sizeof w));
	OK(cuMemsetD32(p, 0xdeadbeef, N));
	OK(cuMemsetD16(p, 0x1234, 2));
	OK(cuMemsetD8(p + 4, 0xab, 3));
	OK(cuMemcpyDtoH(w, p, sizeof w));
	EQUAL(w[0], 0x12341234);
	EQUAL(w[1], 0xdeababab);
	EQUAL(w[2], 0xdeadbeef);
	EQUAL(w[N - 1], 0xdeadbeef);
	OK(cuMemsetD32Async(p, 7, N / 2, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(w, p, sizeof w));
	EQUAL(w[N / 2 - 1], 7);
	EQUAL(w[N / 2], 0xdeadbeef);
	RETURNS(cuMemsetD32(p + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree(p));
	OK(cuMemAllocPitch(&p, &pitch, 64, 8, 4));
	CHECK(pitch >= 64);
	OK(cuMemsetD2D8(p, pitch, 1, 64, 8));
	OK(cuMemsetD2D8(p, pitch, 9, 10, 8));
	{
		CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = pitch,
				   .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = rows, .dstPitch = 64,
				   .WidthInBytes = 64, .Height = 8};

		OK(cuMemcpy2D(&c));
	}
	for (y = 0; y < 8; y++)
		for (i = 0; i < 64; i++)
			EQUAL(rows[y * 64 + i], i < 10 ? 9 : 1);
}

CASE(boxes)
{
	enum { W = 60, H = 7, D = 5 };
	unsigned char *h = filled(W * H * D), *g = calloc(1, W * H * D);
	CUdeviceptr p;
	CUDA_MEMCPY3D c;
	unsigned x, y, z;

	suite_context();
	OK(cuMemAlloc(&p, 128 * 16 * 8));
	memset(&c, 0, sizeof c);
	c.srcMemoryType = CU_MEMORYTYPE_HOST;
	c.srcHost = h;
	c.srcPitch = W;
	c.srcHeight = H;
	c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
	c.dstDevice = p;
	c.dstPitch = 128;
	c.dstHeight = 16;
	c.WidthInBytes = W;
	c.Height = H;
	c.Depth = D;
	OK(cuMemcpy3D(&c));
	memset(&c, 0, sizeof c);
	c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
	c.srcDevice = p;
	c.srcPitch = 128;
	c.srcHeight = 16;
	c.srcXInBytes = 2;
	c.srcY = 1;
	c.srcZ = 1;
	c.dstMemoryType = CU_MEMORYTYPE_HOST;
	c.dstHost = g;
	c.dstPitch = W;
	c.dstHeight = H;
	c.WidthInBytes = 20;
	c.Height = 3;
	c.Depth = 2;
	OK(cuMemcpy3D(&c));
	for (z = 0; z < 2; z++)
		for (y = 0; y < 3; y++)
			for (x = 0; x < 20; x++)
				EQUAL(g[(z * H + y) * W + x], h[((z + 1) * H + y + 1) * W + x + 2]);
	RETURNS(cuMemcpy3D(NULL), CUDA_ERROR_INVALID_VALUE);
}

CASE(pinned_memory)
{
	CUfunction f = NULL;
	CUdeviceptr d, p;
	CUstream s;
	unsigned char *h, *g;
	unsigned flags;
	size_t n = 1 << 20, i;
	int type;

	suite_context();
	OK(cuMemHostAlloc((void **)&h, n, CU_MEMHOSTALLOC_DEVICEMAP));
	OK(cuMemAllocHost((void **)&g, n));
	for (i = 0; i < n; i++)
		h[i] = pattern(i);
	OK(cuMemHostGetFlags(&flags, h));
	CHECK(flags & CU_MEMHOSTALLOC_DEVICEMAP);
	OK(cuMemHostGetDevicePointer(&d, h, 0));
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)h));
	EQUAL(type, CU_MEMORYTYPE_HOST);
	OK(cuStreamCreate(&s, 0));
	OK(cuMemAlloc(&p, n));
	OK(cuMemcpyHtoDAsync(p, h, n, s));
	OK(cuMemcpyDtoHAsync(g, p, n, s));
	OK(cuStreamSynchronize(s));
	CHECK(memcmp(h, g, n) == 0);
	{
		/* A kernel writes host memory where it is. */
		uint64_t count = n / 4;
		uint32_t seed = 3;

		f = suite_kernel("linear", "fill");
		LAUNCH(f, 4, 256, s, &d, &count, &seed);
		OK(cuStreamSynchronize(s));
		CHECK(memcmp(h, g, n) != 0);
	}
	OK(cuMemFreeHost(h));
	OK(cuMemFreeHost(g));
	RETURNS(cuMemFreeHost(g), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuMemHostAlloc(NULL, 16, 0), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuMemHostAlloc((void **)&h, 16, 0x1000), CUDA_ERROR_INVALID_VALUE);
}

CASE(registered_memory)
{
	size_t n = 1 << 20;
	unsigned char *h = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *copy = filled(n);
	CUdeviceptr d, p;
	CUfunction f;
	uint64_t count = 1024;
	uint32_t seed = 5, first;

	CHECK(h != MAP_FAILED);
	memcpy(h, copy, n);
	suite_context();
	OK(cuMemHostRegister(h, n, CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECK(memcmp(h, copy, n) == 0);
	RETURNS(cuMemHostRegister(h + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	OK(cuMemHostGetDevicePointer(&d, h, 0));
	OK(cuMemAlloc(&p, n));
	OK(cuMemcpyHtoD(p, h, n));
	f = suite_kernel("linear", "fill");
	LAUNCH(f, 4, 256, NULL, &d, &count, &seed);
	OK(cuCtxSynchronize());
	memcpy(&first, h, 4);
	CHECK(memcmp(&first, copy, 4) != 0);
	CHECK(memcmp(h + 4096, copy + 4096, n - 4096) == 0);
	OK(cuMemHostUnregister(h));
	CHECK(memcmp(h, &first, 4) == 0 && memcmp(h + 4096, copy + 4096, n - 4096) == 0);
	h[0] = 1;
	RETURNS(cuMemHostUnregister(h), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	RETURNS(cuMemHostRegister(NULL, n, 0), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuMemHostRegister(h, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

/* A memory file of FILE_PAGES pages that bear their numbers. */
static int numbered_file(int seals)
{
	int fd = (int)syscall(SYS_memfd_create, "suite", 2u /* MFD_ALLOW_SEALING */);
	unsigned char page[PAGE];
	int i;

	CHECK(fd >= 0);
	for (i = 0; i < FILE_PAGES; i++) {
		memset(page, i, sizeof page);
		CHECK(write(fd, page, sizeof page) == sizeof page);
	}
	CHECK(!seals || fcntl(fd, 1033 /* F_ADD_SEALS */, seals) == 0);
	return fd;
}

static unsigned char *map_file(void *at, int fd, int page, int pages)
{
	unsigned char *p = mmap(at, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd,
				(off_t)page * PAGE);

	CHECK(p != MAP_FAILED);
	return p;
}

/* Waits until the parent says so, looks for its device's bytes in the file, and writes some itself. */
static void other_process(int fd, int go)
{
	unsigned char *p = map_file(NULL, fd, 0, FILE_PAGES);

	CHECK(read(go, p, 1) == 1);
	CHECK(p[10 * PAGE - 1] == 9 && p[10 * PAGE] == 0xd1 && p[11 * PAGE - 1] == 0xd1 && p[11 * PAGE] == 11);
	memset(p + 12 * PAGE, 0xc1, PAGE);
	_exit(0);
}

/* Registered memory of a file stays the file's: devices share it with the file's other mappings. */
CASE(registered_file)
{
	int fd = numbered_file(2 | 4 /* F_SEAL_SHRINK, F_SEAL_GROW */), go[2];
	unsigned char *a, *b, got;
	CUdeviceptr d, e;
	CUcontext ctx;
	CUdevice dev;
	pid_t pid;

	CHECK(pipe(go) == 0);
	if ((pid = fork()) == 0) {
		close(go[1]);
		other_process(fd, go[0]);
	}
	a = map_file(NULL, fd, 4, 16);
	b = map_file(NULL, fd, 0, FILE_PAGES);
	madvise(a + 8 * PAGE, PAGE, MADV_DONTDUMP); /* makes it three mappings, of pages in order */
	suite_context();
	OK(cuMemHostRegister(a + 2 * PAGE, 12 * PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&d, a + 2 * PAGE, 0)); /* page 6 of the file */
	OK(cuMemcpyDtoH(&got, d + 7 * PAGE, 1));
	EQUAL(got, 13);
	OK(cuMemsetD8(d + 4 * PAGE, 0xd1, PAGE));
	CHECK(a[6 * PAGE] == 0xd1 && b[10 * PAGE] == 0xd1 && b[10 * PAGE - 1] == 9 && b[11 * PAGE] == 11);
	CHECK(write(go[1], "x", 1) == 1);
	EQUAL(suite_wait(pid), 0);
	OK(cuMemcpyDtoH(&got, d + 6 * PAGE, 1));
	EQUAL(got, 0xc1);
	b[13 * PAGE] = 77;
	OK(cuMemcpyDtoH(&got, d + 7 * PAGE, 1));
	EQUAL(got, 77);

	/* The same pages once more, by the other address. */
	OK(cuMemHostRegister(b + 10 * PAGE, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&e, b + 10 * PAGE, 0));
	OK(cuMemsetD8(e, 0xe1, 1));
	OK(cuMemcpyDtoH(&got, d + 4 * PAGE, 1));
	EQUAL(got, 0xe1);
	OK(cuMemHostUnregister(b + 10 * PAGE));
	OK(cuMemHostUnregister(a + 2 * PAGE));
	RETURNS(cuMemHostUnregister(a + 2 * PAGE), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	CHECK(a[6 * PAGE] == 0xe1 && b[10 * PAGE] == 0xe1);
	a[6 * PAGE] = 1;
	EQUAL(b[10 * PAGE], 1);

	/* The end of a context is the end of what was registered in it, and the pages still are the file's. */
	OK(cuDeviceGet(&dev, 0));
	OK(cuCtxCreate(&ctx, NULL, 0, dev));
	OK(cuMemHostRegister(a, 16 * PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuCtxDestroy(ctx));
	a[0] = 55;
	EQUAL(b[4 * PAGE], 55);
}

/* Files' memory of other kinds: a device and this address see the same. */
static void registered_both_see(unsigned char *a, int first, int second)
{
	unsigned char got[2] = {0, 0};
	CUdeviceptr d;

	OK(cuMemHostRegister(a, 2 * PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&d, a, 0));
	OK(cuMemcpyDtoH(&got[0], d + PAGE - 1, 1));
	OK(cuMemcpyDtoH(&got[1], d + PAGE, 1));
	CHECK(got[0] == first && got[1] == second);
	OK(cuMemsetD8(d + PAGE, 0xd2, 1));
	CHECK(a[PAGE] == 0xd2 && a[0] == first);
	OK(cuMemHostUnregister(a));
	CHECK(a[PAGE] == 0xd2 && a[0] == first);
}

CASE(registered_pieces_of_files)
{
	int fd = numbered_file(2 /* F_SEAL_SHRINK */), other = numbered_file(2), loose = numbered_file(0);
	unsigned char *a = map_file(NULL, fd, 0, 2);

	suite_context();
	registered_both_see(map_file(NULL, loose, 3, 2), 3, 4);
	/* Two pages of a file in the other order, and of two files. */
	map_file(a, fd, 7, 1);
	map_file(a + PAGE, fd, 6, 1);
	registered_both_see(a, 7, 6);
	map_file(a, fd, 8, 1);
	map_file(a + PAGE, other, 9, 1);
	registered_both_see(a, 8, 9);
	/* Half of it is the file's, half this process's own. */
	map_file(a, fd, 10, 1);
	CHECK(mmap(a + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 11 * PAGE) == a + PAGE);
	a[PAGE] = 0xb1;
	registered_both_see(a, 10, 0xb1);
	a = map_file(NULL, fd, 12, 2);
	close(fd);
	registered_both_see(a, 12, 13);
}

CASE(managed_memory)
{
	CUfunction f, v;
	CUdeviceptr p, bad;
	uint64_t n = 1 << 16;
	uint32_t seed = 11, wrong = 0, *h;
	unsigned managed = 7;
	CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

	suite_context();
	if (!suite_attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY))
		suite_skip("no managed memory");
	OK(cuMemAllocManaged(&p, n * 4, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemAlloc(&bad, 4));
	OK(cuMemsetD32(bad, 0, 1));
	OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
	EQUAL(managed, 1);
	h = (uint32_t *)(uintptr_t)p;
	h[17] = 99;
	f = suite_kernel("linear", "fill");
	v = suite_kernel("linear", "verify");
	LAUNCH(f, 8, 128, NULL, &p, &n, &seed);
	OK(cuCtxSynchronize());
	CHECK(h[17] != 99);
	h[18] ^= 1;
	OK(cuMemPrefetchAsync(p, n * 4, l, 0, NULL));
	OK(cuMemAdvise(p, n * 4, CU_MEM_ADVISE_SET_READ_MOSTLY, l));
	LAUNCH(v, 8, 128, NULL, &p, &n, &seed, &bad);
	OK(cuMemcpyDtoH(&wrong, bad, 4));
	EQUAL(wrong, 1);
	OK(cuMemFree(p));
	RETURNS(cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuMemAllocManaged(&p, 16, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(pointer_attributes)
{
	CUcontext ctx = suite_context(), of;
	CUpointer_attribute names[3] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
					CU_POINTER_ATTRIBUTE_RANGE_SIZE};
	unsigned type = 77;
	CUdeviceptr p, dp = 1;
	size_t size = 1;
	void *out[3] = {&type, &dp, &size};
	int ordinal, local;

	OK(cuMemAlloc(&p, 1 << 20));
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5));
	EQUAL(type, CU_MEMORYTYPE_DEVICE);
	OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, p));
	CHECK(of == ctx);
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
	EQUAL(ordinal, 0);
	OK(cuPointerGetAttributes(3, names, out, p + 5));
	EQUAL(type, CU_MEMORYTYPE_DEVICE);
	EQUAL(dp, p + 5);
	EQUAL(size, 1 << 20);
	RETURNS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&local),
		CUDA_ERROR_INVALID_VALUE);
	OK(cuPointerGetAttributes(3, names, out, (CUdeviceptr)(uintptr_t)&local));
	EQUAL(type, 0);
	EQUAL(dp, 0);
	RETURNS(cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p), CUDA_ERROR_INVALID_VALUE);
}

CASE(arrays)
{
	enum { W = 40, H = 9 };
	CUDA_ARRAY_DESCRIPTOR d = {W, H, CU_AD_FORMAT_FLOAT, 1}, e;
	CUDA_ARRAY3D_DESCRIPTOR d3 = {8, 4, 2, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0}, e3;
	float h[W * H], g[W * H];
	CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = h, .srcPitch = W * 4,
			   .dstMemoryType = CU_MEMORYTYPE_ARRAY, .WidthInBytes = W * 4, .Height = H};
	CUarray a, b;
	size_t before, after, total;
	unsigned i;

	suite_context();
	for (i = 0; i < W * H; i++)
		h[i] = (float)i;
	OK(cuMemGetInfo(&before, &total));
	OK(cuArrayCreate(&a, &d));
	OK(cuArrayGetDescriptor(&e, a));
	CHECK(e.Width == W && e.Height == H && e.Format == d.Format && e.NumChannels == 1);
	c.dstArray = a;
	OK(cuMemcpy2D(&c));
	memset(g, 0, sizeof g);
	c = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = a, .dstMemoryType = CU_MEMORYTYPE_HOST,
			    .dstHost = g, .dstPitch = W * 4, .WidthInBytes = W * 4, .Height = H};
	OK(cuMemcpy2D(&c));
	CHECK(memcmp(h, g, sizeof h) == 0);
	OK(cuArrayDestroy(a));
	OK(cuArray3DCreate(&b, &d3));
	OK(cuArray3DGetDescriptor(&e3, b));
	CHECK(e3.Depth == 2 && e3.NumChannels == 4);
	OK(cuArrayDestroy(b));
	d.Width = 100;
	d.Height = 0;
	OK(cuArrayCreate(&a, &d));
	OK(cuMemcpyHtoA(a, 4, h, 40));
	OK(cuMemcpyAtoH(g, a, 8, 32));
	CHECK(g[0] == h[1] && g[7] == h[8]);
	OK(cuArrayDestroy(a));
	OK(cuMemGetInfo(&after, &total));
	CHECK(after + (64 << 20) >= before);
	d.NumChannels = 3;
	RETURNS(cuArrayCreate(&a, &d), CUDA_ERROR_INVALID_VALUE);
	RETURNS(cuArrayCreate(&a, NULL), CUDA_ERROR_INVALID_VALUE);
}
