// Memory: takes all that a limit leaves, by every path that takes device
// memory, and gives it back. One line a path:
//
//	path  count  asked MiB  error  used MiB  limit MiB  device MiB  left MiB
//
// count allocations of asked bytes in all were made before error came; used
// and limit are what the lgpu shows then, device is what the whole device has
// in use beyond the beginning (from the command in $TRUTH, which must print
// MiB), left is what is still charged after all was freed. Exit status 1: the
// lgpu let through more than its limit, the error was another than out of
// memory, or something was left.
//
//	cc -Itenant/abi/include -o memory bench/memory.c -lcuda
//	lgpu run --memory 4GiB -- ./memory [path...]
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lgpu_cuda.h"

#include "device.h"

#define MIB (UINT64_C(1) << 20)
#define MOST 65536

static CUdevice device;
static CUcontext context;
static CUmemoryPool pool;
static CUstream stream;
static uint64_t chunk = 64 * MIB;

// One allocation by some path.
struct held {
	uint64_t a, b, c;
};
static struct held held[MOST];

// alloc returns the driver's error and adds what was asked for to *asked.
struct path {
	const char *name;
	CUresult (*alloc)(struct held *h, uint64_t *asked);
	void (*free)(struct held *h);
	void (*after)(void);
	int host; // takes device memory at most in passing
};

static CUresult plain(struct held *h, uint64_t *asked)
{
	*asked += chunk;
	return cuMemAlloc((CUdeviceptr *)&h->a, chunk);
}

static CUresult odd(struct held *h, uint64_t *asked)
{
	*asked += chunk / 16 * 3 + 1;
	return cuMemAlloc((CUdeviceptr *)&h->a, chunk / 16 * 3 + 1);
}

static CUresult small(struct held *h, uint64_t *asked)
{
	*asked += 300 * 1024;
	return cuMemAlloc((CUdeviceptr *)&h->a, 300 * 1024);
}

static void plain_free(struct held *h) { cuMemFree(h->a); }

static CUresult pitch(struct held *h, uint64_t *asked)
{
	size_t p;
	CUresult r = cuMemAllocPitch((CUdeviceptr *)&h->a, &p, 4000, chunk / 4096, 16);
	*asked += r == CUDA_SUCCESS ? p * (chunk / 4096) : 0;
	return r;
}

static CUresult managed(struct held *h, uint64_t *asked)
{
	*asked += chunk;
	return cuMemAllocManaged((CUdeviceptr *)&h->a, chunk, CU_MEM_ATTACH_GLOBAL);
}

static CUresult async(struct held *h, uint64_t *asked)
{
	*asked += chunk;
	return cuMemAllocAsync((CUdeviceptr *)&h->a, chunk, stream);
}

static CUresult async_small(struct held *h, uint64_t *asked)
{
	*asked += 3 * MIB;
	return cuMemAllocAsync((CUdeviceptr *)&h->a, 3 * MIB, stream);
}

static CUresult from_pool(struct held *h, uint64_t *asked)
{
	*asked += chunk;
	return cuMemAllocFromPoolAsync((CUdeviceptr *)&h->a, chunk, pool, stream);
}

static CUmemoryPool new_pool(void)
{
	CUmemPoolProps props;
	CUmemoryPool made = NULL;
	memset(&props, 0, sizeof props);
	props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	props.location.id = device;
	return cuMemPoolCreate(&made, &props) == CUDA_SUCCESS ? made : NULL;
}

static CUresult own_pool(struct held *h, uint64_t *asked)
{
	CUmemoryPool own = new_pool();
	*asked += chunk;
	h->c = (uint64_t)own;
	CUresult r = cuMemAllocFromPoolAsync((CUdeviceptr *)&h->a, chunk, own, stream);
	if (r != CUDA_SUCCESS)
		cuMemPoolDestroy(own);
	return r;
}

static void own_pool_free(struct held *h)
{
	cuMemFreeAsync(h->a, stream);
	cuStreamSynchronize(stream);
	cuMemPoolDestroy((CUmemoryPool)h->c);
}

// The pool is destroyed while its memory lives on.
static CUresult destroyed_pool(struct held *h, uint64_t *asked)
{
	CUresult r = own_pool(h, asked);
	if (r == CUDA_SUCCESS)
		cuMemPoolDestroy((CUmemoryPool)h->c);
	return r;
}

// Code with a variable of chunk bytes.
static const char *code(void)
{
	static char text[512];
	snprintf(text, sizeof text,
		 ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 variable[%llu];\n"
		 ".visible .entry nothing() { ret; }\n",
		 (unsigned long long)chunk);
	return text;
}

static CUresult module(struct held *h, uint64_t *asked)
{
	*asked += chunk;
	return cuModuleLoadData((CUmodule *)&h->a, code());
}

static void module_free(struct held *h) { cuModuleUnload((CUmodule)h->a); }

// A library takes its memory when it is first used.
static CUresult library(struct held *h, uint64_t *asked)
{
	CUdeviceptr p;
	size_t n;
	CUresult r = cuLibraryLoadData((CUlibrary *)&h->a, code(), NULL, NULL, 0, NULL, NULL, 0);
	if (r != CUDA_SUCCESS)
		return r;
	*asked += chunk;
	r = cuLibraryGetGlobal(&p, &n, (CUlibrary)h->a, "variable");
	if (r != CUDA_SUCCESS)
		cuLibraryUnload((CUlibrary)h->a);
	return r;
}

static void library_free(struct held *h) { cuLibraryUnload((CUlibrary)h->a); }

static void async_free(struct held *h) { cuMemFreeAsync(h->a, stream); }

static void synchronise(void)
{
	cuStreamSynchronize(stream);
	cuMemPoolTrimTo(pool, 0);
	CUmemoryPool current;
	if (cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS)
		cuMemPoolTrimTo(current, 0);
}

static CUmemAllocationProp properties(void)
{
	CUmemAllocationProp p;
	memset(&p, 0, sizeof p);
	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = device;
	return p;
}

// The handle is released at once: the mapping keeps the memory.
static CUresult mapped(struct held *h, uint64_t *asked)
{
	CUmemAllocationProp p = properties();
	CUmemGenericAllocationHandle handle;
	CUmemAccessDesc access = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult r = cuMemCreate(&handle, chunk, &p, 0);
	if (r != CUDA_SUCCESS)
		return r;
	*asked += chunk;
	r = cuMemAddressReserve((CUdeviceptr *)&h->a, chunk, 0, 0, 0);
	if (r == CUDA_SUCCESS)
		r = cuMemMap(h->a, chunk, 0, handle, 0);
	if (r == CUDA_SUCCESS)
		r = cuMemSetAccess(h->a, chunk, &access, 1);
	cuMemRelease(handle);
	return r;
}

static void mapped_free(struct held *h)
{
	cuMemUnmap(h->a, chunk);
	cuMemAddressFree(h->a, chunk);
}

// Only a descriptor keeps the memory.
static CUresult exported(struct held *h, uint64_t *asked)
{
	CUmemAllocationProp p = properties();
	CUmemGenericAllocationHandle handle;
	int fd = -1;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	CUresult r = cuMemCreate(&handle, chunk, &p, 0);
	if (r != CUDA_SUCCESS)
		return r;
	*asked += chunk;
	r = cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	cuMemRelease(handle);
	h->a = (uint64_t)fd;
	return r;
}

static void exported_free(struct held *h) { close((int)h->a); }

static uint64_t used(uint64_t *total);
static uint64_t row_before; // charged before a row

// Who keeps the accounts looks once a second.
static void exported_after(void)
{
	uint64_t limit;
	for (int i = 0; i < 50 && used(&limit) > row_before; i++)
		usleep(100000);
}

static CUresult array2(struct held *h, uint64_t *asked)
{
	CUDA_ARRAY_DESCRIPTOR d = {1024, chunk / 16384, CU_AD_FORMAT_FLOAT, 4};
	*asked += chunk;
	return cuArrayCreate((CUarray *)&h->a, &d);
}

static CUresult array3(struct held *h, uint64_t *asked)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {256, 128, chunk / (256 * 128 * 4), CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
	*asked += chunk;
	return cuArray3DCreate((CUarray *)&h->a, &d);
}

static void array_free(struct held *h) { cuArrayDestroy((CUarray)h->a); }

static CUresult mipmap(struct held *h, uint64_t *asked)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {2048, chunk / (2048 * 16), 0, CU_AD_FORMAT_FLOAT, 4, 0};
	*asked += chunk;
	return cuMipmappedArrayCreate((CUmipmappedArray *)&h->a, &d, 4);
}

static void mipmap_free(struct held *h) { cuMipmappedArrayDestroy((CUmipmappedArray)h->a); }

// A graph that allocates and frees; the driver keeps its memory for the next
// launch. All of one stream would share memory, so each keeps what it allocates.
static CUresult graph(struct held *h, uint64_t *asked)
{
	CUDA_MEM_ALLOC_NODE_PARAMS p;
	CUmemAllocationProp where = properties();
	CUgraph g;
	CUgraphNode node;
	CUgraphExec exec;
	memset(&p, 0, sizeof p);
	p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.poolProps.location = where.location;
	p.bytesize = chunk;
	CUresult r = cuGraphCreate(&g, 0);
	if (r != CUDA_SUCCESS)
		return r;
	r = cuGraphAddMemAllocNode(&node, g, NULL, 0, &p);
	if (r == CUDA_SUCCESS)
		r = cuGraphInstantiate(&exec, g, 0);
	if (r != CUDA_SUCCESS) {
		cuGraphDestroy(g);
		return r;
	}
	r = cuGraphLaunch(exec, stream);
	if (r == CUDA_SUCCESS)
		r = cuStreamSynchronize(stream);
	if (r != CUDA_SUCCESS) {
		cuGraphExecDestroy(exec);
		cuGraphDestroy(g);
		return r;
	}
	*asked += chunk;
	*h = (struct held){(uint64_t)exec, (uint64_t)g, p.dptr};
	return r;
}

static void graph_free(struct held *h)
{
	cuMemFree(h->c);
	cuGraphExecDestroy((CUgraphExec)h->a);
	cuGraphDestroy((CUgraph)h->b);
}

static void graph_after(void)
{
	cuCtxSynchronize();
	cuDeviceGraphMemTrim(device);
}

static const struct path paths[] = {
	{"cuMemAlloc", plain, plain_free, NULL, 0},
	{"odd-sizes", odd, plain_free, NULL, 0},
	{"small", small, plain_free, NULL, 0},
	{"cuMemAllocPitch", pitch, plain_free, NULL, 0},
	{"cuMemAllocManaged", managed, plain_free, NULL, 1},
	{"cuMemAllocAsync", async, async_free, synchronise, 0},
	{"async-small", async_small, async_free, synchronise, 0},
	{"cuMemAllocFromPoolAsync", from_pool, async_free, synchronise, 0},
	{"pools-of-their-own", own_pool, own_pool_free, synchronise, 0},
	{"destroyed-pools", destroyed_pool, async_free, synchronise, 0},
	{"cuModuleLoadData", module, module_free, NULL, 0},
	{"cuLibraryGetGlobal", library, library_free, NULL, 0},
	{"descriptors", exported, exported_free, exported_after, 0},
	{"cuMemCreate+cuMemMap", mapped, mapped_free, NULL, 0},
	{"cuArrayCreate", array2, array_free, NULL, 0},
	{"cuArray3DCreate", array3, array_free, NULL, 0},
	{"cuMipmappedArrayCreate", mipmap, mipmap_free, NULL, 0},
	{"graph-alloc-node", graph, graph_free, graph_after, 0},
};

static double truth(void)
{
	double v = -1;
	const char *command = getenv("TRUTH");
	FILE *f = command != NULL ? popen(command, "r") : NULL;
	if (f != NULL) {
		if (fscanf(f, "%lf", &v) != 1)
			v = -1;
		pclose(f);
	}
	return v;
}

static uint64_t used(uint64_t *total)
{
	size_t f = 0, t = 0;
	cuMemGetInfo(&f, &t);
	*total = t;
	return t - f;
}

static int row(const struct path *p)
{
	uint64_t limit, asked = 0, made, before = used(&limit);
	double device_before = truth();
	row_before = before;
	int count = 0;
	CUresult r = CUDA_SUCCESS;
	while (count < MOST) {
		made = asked;
		r = p->alloc(&held[count], &made);
		if (r != CUDA_SUCCESS)
			break;
		asked = made;
		count++;
	}
	uint64_t full = used(&limit);
	double device_full = truth();
	while (count > 0 && p->free != NULL) {
		count--;
		p->free(&held[count]);
		held[count].b = 1;
	}
	if (p->after != NULL)
		p->after();
	uint64_t left = used(&limit);
	int n = 0;
	while (n < MOST && held[n].b != 0)
		n++;
	int bad = r != CUDA_ERROR_OUT_OF_MEMORY || full > limit || left > before || (!p->host && before + asked > limit);
	printf("%-24s %6d %10.2f %5d %10.2f %10.2f %10.2f %8.2f%s\n", p->name, n, (double)asked / MIB, r, (double)full / MIB,
	       (double)limit / MIB, device_before < 0 ? -1 : device_full - device_before, (double)(left - before) / MIB, bad ? "  BAD" : "");
	fflush(stdout);
	memset(held, 0, sizeof held);
	return bad;
}

int main(int argc, char **argv)
{
	uint64_t limit;
	int bad = 0;
	CUresult r = use_first_device(&device, &context);
	if (r == CUDA_SUCCESS)
		r = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	if (r == CUDA_SUCCESS)
		pool = new_pool();
	if (r == CUDA_SUCCESS && pool == NULL)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r != CUDA_SUCCESS) {
		fprintf(stderr, "memory: cannot begin: error %d\n", r);
		return 2;
	}
	uint64_t begin = used(&limit);
	if (limit < 2048 * MIB)
		chunk = limit / 64 / (2 * MIB) * (2 * MIB) >= 2 * MIB ? limit / 64 / (2 * MIB) * (2 * MIB) : 2 * MIB;
	printf("begins with %.2f of %.2f MiB; chunks of %.2f MiB\n", (double)begin / MIB, (double)limit / MIB, (double)chunk / MIB);
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		int wanted = argc < 2;
		for (int k = 1; k < argc; k++)
			wanted |= strcmp(argv[k], paths[i].name) == 0;
		if (wanted)
			bad |= row(&paths[i]);
	}
	return bad;
}
