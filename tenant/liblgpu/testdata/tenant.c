// SPDX-License-Identifier: Apache-2.0

// A tenant with a will: each argument is a thing to do, and every result is
// printed. How the driver is reached is chosen when it is compiled: linked
// (LINKED), by dlsym (the default), or all by cuGetProcAddress (PROC).
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lgpu_cuda.h"
#include "lgpu_nvml.h"

#ifdef LINKED
#define CALL(name) name
#define NVML(name) name
#else
static void *library(const char *name)
{
	void *handle = dlopen(name, RTLD_NOW);
	if (handle == NULL) {
		printf("dlopen %s\n", dlerror());
		exit(1);
	}
	return handle;
}

static void *find(const char *name, const char *base, int version)
{
	void *cuda = library("libcuda.so.1");
#ifdef PROC
	CUdriverProcAddressQueryResult status;
	void *p = NULL;
	CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = dlsym(cuda, "cuGetProcAddress_v2");
	void *again = NULL;
	if (get("cuGetProcAddress", &again, 12000, 0, &status) != CUDA_SUCCESS || again != (void *)get)
		printf("cuGetProcAddress answers %p for itself, not %p\n", again, (void *)get);
	(void)name;
	get(base, &p, version, 0, &status);
	return p;
#else
	(void)base;
	(void)version;
	return dlsym(cuda, name);
#endif
}

static char *base_of(const char *name)
{
	static _Thread_local char base[64];
	snprintf(base, sizeof base, "%s", name);
	char *v = strstr(base, "_v2");
	if (v != NULL)
		*v = 0;
	return base;
}
#define CALL(name) ((__typeof__(&name))find(#name, base_of(#name), 12000))
#define NVML(name) ((__typeof__(&name))dlsym(library("libnvidia-ml.so.1"), #name))
#endif

static CUdeviceptr held[4096];
static int held_count;

static void init(void)
{
	CUcontext context;
	CUdevice device;
	CUresult r = CALL(cuInit)(0);
	if (r == CUDA_SUCCESS)
		r = CALL(cuDeviceGet)(&device, 0);
	if (r == CUDA_SUCCESS)
		r = CALL(cuDevicePrimaryCtxRetain)(&context, device);
	if (r == CUDA_SUCCESS)
		r = CALL(cuCtxSetCurrent)(context);
	printf("init %d\n", r);
}

static void alloc(size_t bytes)
{
	CUresult r = CALL(cuMemAlloc_v2)(&held[held_count], bytes);
	printf("alloc %zu %d\n", bytes, r);
	if (r == CUDA_SUCCESS)
		held_count++;
}

static void *thread_main(void *arg)
{
	CUcontext context = arg;
	long failed = 0;
	CUdeviceptr p[16];
	__typeof__(&cuMemAlloc_v2) allocate = CALL(cuMemAlloc_v2);
	__typeof__(&cuMemFree_v2) release = CALL(cuMemFree_v2);
	CALL(cuCtxSetCurrent)(context);
	for (int i = 0; i < 2000; i++) {
		size_t n = 0;
		for (; n < 16; n++)
			if (allocate(&p[n], 4096 * (n + 1)) != CUDA_SUCCESS)
				break;
		failed += n != 16;
		while (n > 0)
			release(p[--n]);
	}
	return (void *)failed;
}

static void threads(int n)
{
	pthread_t t[256];
	CUcontext context;
	long failed = 0;
	CALL(cuCtxGetCurrent)(&context);
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], NULL, thread_main, context);
	for (int i = 0; i < n; i++) {
		void *r;
		pthread_join(t[i], &r);
		failed += (long)r;
	}
	printf("threads %ld\n", failed);
}

static void info(void)
{
	size_t free_bytes = 0, total = 0;
	CUresult r = CALL(cuMemGetInfo_v2)(&free_bytes, &total);
	printf("info %d used %zu total %zu\n", r, total - free_bytes, total);
}

static void devices(void)
{
	int count = 0;
	CALL(cuDeviceGetCount)(&count);
	printf("devices %d", count);
	for (int i = 0; i < count; i++) {
		CUuuid u;
		size_t total = 0;
		int units = 0;
		CALL(cuDeviceGetUuid)(&u, i);
		CALL(cuDeviceTotalMem_v2)(&total, i);
		CALL(cuDeviceGetAttribute)(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, i);
		printf(" %02x/%zuMiB/%d", (unsigned char)u.bytes[0], total >> 20, units);
	}
	printf("\n");
}

static void smi(void)
{
	unsigned int count = 0;
	nvmlReturn_t r = NVML(nvmlInit_v2)();
	if (r == NVML_SUCCESS)
		r = NVML(nvmlDeviceGetCount_v2)(&count);
	printf("nvml %d devices %u", r, count);
	for (unsigned int i = 0; i < count; i++) {
		nvmlDevice_t d;
		nvmlMemory_t m = {0};
		unsigned int index = 99, n = 64, first = 0;
		nvmlProcessInfo_t infos[64];
		char uuid[96] = "";
		if (NVML(nvmlDeviceGetHandleByIndex_v2)(i, &d) != NVML_SUCCESS)
			continue;
		NVML(nvmlDeviceGetUUID)(d, uuid, sizeof uuid);
		NVML(nvmlDeviceGetIndex)(d, &index);
		NVML(nvmlDeviceGetMemoryInfo)(d, &m);
		if (NVML(nvmlDeviceGetComputeRunningProcesses_v3)(d, &n, infos) == NVML_SUCCESS && n > 0)
			first = infos[0].pid == (unsigned)getpid() || infos[0].pid == (unsigned)getppid();
		printf(" %.6s/%u/%lluof%lluMiB/%uprocs%s", uuid, index, m.used >> 20, m.total >> 20, n, first ? "/known" : "");
	}
	printf("\n");
}

// strangers looks for other programs' processes by all ways on each of the machine's devices, whose handles are guessed:
// they are those of stub_driver.c.
static void strangers(void)
{
	nvmlProcessInfo_t infos[16];
	nvmlAccountingStats_t stats;
	nvmlEncoderSessionInfo_t encoders[16];
	nvmlFBCSessionInfo_t buffers[16];
	nvmlProcessDetail_v1_t details[2];
	unsigned int pids[16], own = (unsigned int)getpid();
	printf("strangers %d", NVML(nvmlInit_v2)());
	for (unsigned int i = 0; i < 4; i++) {
		nvmlDevice_t d = (nvmlDevice_t)(uintptr_t)(0x2000 + i);
		unsigned int n = 16, e = 16, f = 16, p = 16, version = LGPU_NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1);
		nvmlProcessDetailList_t counted = {.version = version};
		// Room for the lgpu's process alone.
		nvmlProcessDetailList_t detailed = {.version = version, .numProcArrayEntries = 1, .procArray = details};
		nvmlReturn_t listed = NVML(nvmlDeviceGetComputeRunningProcesses_v3)(d, &n, infos);
		nvmlReturn_t theirs = NVML(nvmlDeviceGetAccountingStats)(d, 1000000, &stats);
		nvmlReturn_t ours = NVML(nvmlDeviceGetAccountingStats)(d, own, &stats);
		NVML(nvmlDeviceGetEncoderSessions)(d, &e, encoders);
		NVML(nvmlDeviceGetFBCSessions)(d, &f, buffers);
		NVML(nvmlDeviceGetAccountingPids)(d, &p, pids);
		nvmlReturn_t asked = NVML(nvmlDeviceGetRunningProcessDetailList)(d, &counted);
		nvmlReturn_t given = NVML(nvmlDeviceGetRunningProcessDetailList)(d, &detailed);
		printf(" %d/%u:%d:%d:%u%s:%u%s:%u%s:%d/%u:%d/%u%s", listed, n, theirs, ours, e,
		       e == 1 && encoders[0].pid == own ? "own" : "", f, f == 1 && buffers[0].pid == own ? "own" : "", p,
		       p == 1 && pids[0] == own ? "own" : "", asked, counted.numProcArrayEntries, given,
		       detailed.numProcArrayEntries, given == 0 && details[0].pid == own ? "own" : "");
	}
	printf("\n");
}

// others looks for devices by the calls that list neighbours: the result of each, and the numbers of the devices in
// stub_driver.c; with room for all, for one, and for none.
static void others(void)
{
	nvmlDevice_t first = (nvmlDevice_t)(uintptr_t)0x2000;
	printf("others %d", NVML(nvmlInit_v2)());
	for (unsigned int call = 0; call < 3; call++) {
		for (unsigned int k = 0; k < 3; k++) {
			const unsigned int rooms[] = {16, 1, 0};
			unsigned int room = rooms[k], n = room;
			nvmlDevice_t d[16];
			nvmlDevice_t *out = room != 0 ? d : NULL;
			nvmlReturn_t r = call == 0   ? NVML(nvmlSystemGetTopologyGpuSet)(0, &n, out)
					 : call == 1 ? NVML(nvmlDeviceGetTopologyNearestGpus)(first, NVML_TOPOLOGY_NODE, &n, out)
						     : NVML(nvmlUnitGetDevices)(NULL, &n, out);
			printf(" %d/%u", r, n);
			for (unsigned int i = 0; i < n && i < room && r == NVML_SUCCESS; i++)
				printf("%c%d", i == 0 ? ':' : ',', (int)((uintptr_t)d[i] - 0x2000));
		}
	}
	for (unsigned int i = 0; i < 4; i++) {
		nvmlDevice_t parent = (nvmlDevice_t)(uintptr_t)(0x2000 + i), instance;
		nvmlReturn_t r = NVML(nvmlDeviceGetMigDeviceHandleByIndex)(parent, 0, &instance);
		printf(" %d%s", r, instance == parent ? "=" : instance == NULL ? "" : "?");
	}
	printf("\n");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *colon = strchr(a, ':');
		unsigned long long n = colon != NULL ? strtoull(colon + 1, NULL, 0) : 0;
		if (strcmp(a, "init") == 0) {
			init();
		} else if (strncmp(a, "alloc:", 6) == 0) {
			alloc(n);
		} else if (strcmp(a, "free") == 0 && held_count > 0) {
			printf("free %d\n", CALL(cuMemFree_v2)(held[--held_count]));
		} else if (strcmp(a, "info") == 0) {
			info();
		} else if (strcmp(a, "devices") == 0) {
			devices();
		} else if (strcmp(a, "smi") == 0) {
			smi();
		} else if (strcmp(a, "strangers") == 0) {
			strangers();
		} else if (strcmp(a, "others") == 0) {
			others();
		} else if (strncmp(a, "threads:", 8) == 0) {
			threads((int)n);
		} else if (strcmp(a, "fork") == 0) {
			// The child does the rest; the parent reports how that went.
			pid_t pid = fork();
			if (pid != 0) {
				int status;
				waitpid(pid, &status, 0);
				printf("child %d\n", status);
				return 0;
			}
		} else if (strcmp(a, "exec") == 0) {
			// The rest is done by a new program in a child.
			pid_t pid = fork();
			if (pid == 0) {
				argv[i] = argv[0];
				execv(argv[0], argv + i);
				_exit(127);
			}
			int status;
			waitpid(pid, &status, 0);
			printf("child %d\n", status);
			return 0;
		} else if (strcmp(a, "become") == 0) {
			argv[i] = argv[0];
			execv(argv[0], argv + i);
		} else if (strcmp(a, "closeall") == 0) {
			for (int fd = 3; fd < 2048; fd++)
				close(fd);
		} else if (strcmp(a, "die") == 0) {
			kill(getpid(), SIGKILL);
		} else if (strcmp(a, "wait") == 0) {
			// Until the test closes our standard input.
			char c;
			printf("waiting\n");
			while (read(0, &c, 1) > 0)
				;
		} else {
			printf("unknown %s\n", a);
		}
	}
	return 0;
}
