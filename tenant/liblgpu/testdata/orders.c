// SPDX-License-Identifier: Apache-2.0

// orders CONTROL.PTX: does what it reads, one order a line, and prints each order with the driver's answer when it is
// done.
//
//	init                cuInit
//	context             the primary context of device 0
//	launch N US         N kernels that run so long each; returns when the last is launched
//	later N US          the same in a thread; prints when the last is launched
//	sync                cuCtxSynchronize
//	alloc MIB           cuMemAlloc
//	free                of the newest allocation
//	info                prints free and total MiB
//	units               prints the number of compute units
//	close N             every descriptor from N on
//	fork                a child that sleeps until it is killed; prints its pid
//	capture             a stream capture that stays open
//	captured            its end
//	share               prints a name of the newest allocation for other processes
//	open NAME           another process's allocation
//	shut                it is not needed any more
//	hold                a kernel that runs until release has launched another
//	release
//	alarm               a signal every millisecond from now on
//	claim MIB           alloc in a thread
//	stack BYTES         what each thread of a kernel has as its stack from now on
//	stacks BYTES        fails unless that is so
//	graph               makes an executable graph of nothing
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "lgpu_cuda.h"

static const char *image;
static CUdevice device;
static CUcontext context;
static CUfunction spin, wait_flag;
static CUdeviceptr flags; // three words
static CUdeviceptr held[64];
static int count;
static CUstream capturing;
static CUdeviceptr opened;

// share prints the name of the newest allocation, and open_shared reads it.
static CUresult share(void)
{
	CUipcMemHandle handle;
	CUresult r = cuIpcGetMemHandle(&handle, held[count - 1]);
	for (size_t i = 0; i < sizeof handle; i++)
		printf("%02x", ((unsigned char *)&handle)[i]);
	printf("\n");
	return r;
}

static CUresult open_shared(const char *name)
{
	CUipcMemHandle handle;
	for (size_t i = 0; i < sizeof handle; i++)
		if (sscanf(name + 2 * i, "%2hhx", &((unsigned char *)&handle)[i]) != 1)
			return CUDA_ERROR_INVALID_VALUE;
	return cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult begin_capture(void)
{
	CUresult r = cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING);
	return r == CUDA_SUCCESS ? cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL) : r;
}

static CUresult end_capture(void)
{
	CUgraph graph;
	return cuStreamEndCapture(capturing, &graph);
}

static CUresult make_context(void)
{
	CUmodule module;
	CUresult r = cuDeviceGet(&device, 0);
	if (r == CUDA_SUCCESS)
		r = cuDevicePrimaryCtxRetain(&context, device);
	if (r == CUDA_SUCCESS)
		r = cuCtxSetCurrent(context);
	if (r == CUDA_SUCCESS)
		r = cuModuleLoad(&module, image);
	if (r == CUDA_SUCCESS)
		r = cuModuleGetFunction(&wait_flag, module, "wait_flag");
	return r == CUDA_SUCCESS ? cuModuleGetFunction(&spin, module, "spin") : r;
}

// wait_for launches a kernel that waits until a flag has a value and then sets another to one more.
static CUresult wait_for(CUdeviceptr flag, unsigned value, CUdeviceptr then)
{
	void *params[] = {&flag, &value, &then};
	CUstream stream;
	CUresult r = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	return r == CUDA_SUCCESS ? cuLaunchKernel(wait_flag, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL) : r;
}

static CUresult hold(void)
{
	CUresult r = cuMemAlloc_v2(&flags, 12);
	if (r == CUDA_SUCCESS)
		r = cuMemsetD32_v2(flags, 0, 3);
	return r == CUDA_SUCCESS ? wait_for(flags, 1, flags + 4) : r;
}

static void ignore(int number) { (void)number; }

static void set_alarm(void)
{
	struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 1000}, {0, 1000}};
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
}

static CUresult launch(int n, unsigned us)
{
	unsigned long long ns = us * 1000ull;
	void *params[] = {&ns};
	CUresult r = CUDA_SUCCESS;
	while (n-- > 0 && r == CUDA_SUCCESS)
		r = cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
	return r;
}

struct order {
	char text[192];
	int n;
	unsigned us;
};

static void *later(void *arg)
{
	struct order *o = arg;
	CUresult r = cuCtxSetCurrent(context);
	if (r == CUDA_SUCCESS)
		r = launch(o->n, o->us);
	printf("%s: %d\n", o->text, (int)r);
	free(o);
	return NULL;
}

static void *claim(void *arg)
{
	struct order *o = arg;
	CUdeviceptr p;
	CUresult r = cuCtxSetCurrent(context);
	if (r == CUDA_SUCCESS)
		r = cuMemAlloc_v2(&p, (size_t)o->n << 20);
	printf("%s: %d\n", o->text, (int)r);
	free(o);
	return NULL;
}

int main(int argc, char **argv)
{
	struct order o;
	char word[16];
	if (argc != 2)
		return 2;
	image = argv[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(o.text, sizeof o.text, stdin) != NULL) {
		CUresult r = CUDA_SUCCESS;
		o.text[strcspn(o.text, "\n")] = 0;
		o.n = 0;
		o.us = 0;
		sscanf(o.text, "%15s %d %u", word, &o.n, &o.us);
		if (strcmp(word, "init") == 0) {
			r = cuInit(0);
		} else if (strcmp(word, "context") == 0) {
			r = make_context();
		} else if (strcmp(word, "launch") == 0) {
			r = launch(o.n, o.us);
		} else if (strcmp(word, "later") == 0 || strcmp(word, "claim") == 0) {
			pthread_t thread;
			struct order *copy = malloc(sizeof *copy);
			*copy = o;
			pthread_create(&thread, NULL, word[0] == 'l' ? later : claim, copy);
			pthread_detach(thread);
			continue;
		} else if (strcmp(word, "hold") == 0) {
			r = hold();
		} else if (strcmp(word, "release") == 0) {
			r = wait_for(flags + 8, 0, flags);
		} else if (strcmp(word, "alarm") == 0) {
			set_alarm();
		} else if (strcmp(word, "sync") == 0) {
			r = cuCtxSynchronize();
		} else if (strcmp(word, "alloc") == 0) {
			r = cuMemAlloc_v2(&held[count], (size_t)o.n << 20);
			count += r == CUDA_SUCCESS;
		} else if (strcmp(word, "free") == 0) {
			r = cuMemFree_v2(held[--count]);
		} else if (strcmp(word, "info") == 0) {
			size_t left = 0, total = 0;
			r = cuMemGetInfo_v2(&left, &total);
			printf("%zu of %zu\n", left >> 20, total >> 20);
		} else if (strcmp(word, "units") == 0) {
			int units = 0;
			r = cuDeviceGetAttribute(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
			printf("%d units\n", units);
		} else if (strcmp(word, "close") == 0) {
			for (int fd = o.n; fd < 4096; fd++)
				close(fd);
		} else if (strcmp(word, "fork") == 0) {
			pid_t child = fork();
			if (child == 0) {
				pause();
				_exit(0);
			}
			printf("child %d\n", (int)child);
		} else if (strcmp(word, "capture") == 0) {
			r = begin_capture();
		} else if (strcmp(word, "captured") == 0) {
			r = end_capture();
		} else if (strcmp(word, "graph") == 0) {
			CUgraph graph;
			CUgraphExec exec;
			r = cuGraphCreate(&graph, 0);
			r = r == CUDA_SUCCESS ? cuGraphInstantiateWithFlags(&exec, graph, 0) : r;
		} else if (strcmp(word, "stack") == 0) {
			r = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, (size_t)o.n);
		} else if (strcmp(word, "stacks") == 0) {
			size_t bytes = 0;
			r = cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE);
			r = r == CUDA_SUCCESS && bytes != (size_t)o.n ? CUDA_ERROR_UNKNOWN : r;
		} else if (strcmp(word, "share") == 0) {
			r = share();
		} else if (strcmp(word, "open") == 0) {
			r = open_shared(o.text + strlen("open "));
			strcpy(o.text, "open");
		} else if (strcmp(word, "shut") == 0) {
			r = cuIpcCloseMemHandle(opened);
		} else {
			return 2;
		}
		printf("%s: %d\n", o.text, (int)r);
	}
	return 0;
}
