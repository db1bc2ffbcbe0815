// SPDX-License-Identifier: Apache-2.0

// Local memory. A context has stacks for as many threads as its device can run at once.
// When a kernel that needs larger stacks is launched, the driver makes the stacks of
// the context larger, by up to 512 KiB for each of more than a hundred thousand
// threads, and they stay so large. So functions that need large stacks are noted when a
// program looks them up. Before one of them is launched, the stacks are made larger by
// a call that can be refused.
#include "base/futex.h"
#include "gate/gate.h"
#include "hook/hook.h"
#include "residence/residence.h"

// What contexts of driver 580 have from their beginning, in bytes a thread.
#define SMALL 1024

bool lgpu_stacks_large;

uint64_t lgpu_stacks_bytes(size_t stack)
{
	CUdevice device;
	int units = 0, threads = 0;
	uint64_t bytes;
	if (LGPU_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
	    LGPU_REAL(cuDeviceGetAttribute)(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
	    LGPU_REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) != CUDA_SUCCESS)
		return 0;
	return __builtin_mul_overflow((uint64_t)units * (uint64_t)threads, stack, &bytes) ? UINT64_MAX : bytes;
}

static void note(const void *f, CUresult r, int local)
{
	struct lgpu_entry e = {.key = (uint64_t)f, .bytes = (uint64_t)local, .device = -1, .kind = LGPU_KIND_STACK};
	struct lgpu_entry stale;
	if (r == CUDA_SUCCESS && local > SMALL && lgpu_accounts_put(&e, NULL))
		__atomic_store_n(&lgpu_stacks_large, true, __ATOMIC_RELEASE);
	else if (__atomic_load_n(&lgpu_stacks_large, __ATOMIC_RELAXED))
		lgpu_accounts_take(LGPU_KIND_STACK, (uint64_t)f, &stale); // of a function that is no more
}

void lgpu_stacks_note(CUfunction f)
{
	int local = 0;
	if (lgpu_attached() == NULL)
		return;
	CUresult r = LGPU_REAL(cuFuncGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, f);
	note(f, r, local);
}

void lgpu_stacks_note_kernel(CUkernel kernel)
{
	CUdevice device;
	int local = 0;
	if (lgpu_attached() == NULL || LGPU_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return;
	CUresult r = LGPU_REAL(cuKernelGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, device);
	note(kernel, r, local);
}

CUresult lgpu_stacks_use(CUfunction f)
{
	struct lgpu_entry e;
	size_t stack = 0;
	// The driver may round the size of a stack.
	if (!lgpu_accounts_get(LGPU_KIND_STACK, (uint64_t)f, &e) ||
	    LGPU_REAL(cuCtxGetLimit)(&stack, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS || stack >= e.bytes)
		return CUDA_SUCCESS;
	CUresult r = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, e.bytes);
	// Where the limit cannot be set now (a stream is being captured), the driver
	// grows the stacks when the kernel runs, and they are measured afterwards.
	return r == CUDA_ERROR_OUT_OF_MEMORY ? r : CUDA_SUCCESS;
}

// ---- stacks that rest

// Half of what a context has of its device are stacks, in which nothing is between two kernels. A program that leaves its
// devices need not have them copied, nor kept: its contexts give them up before, and get them again.

static uint32_t size; // lock of their size; held while they rest
static bool rests;    // they do; of the thread that hears the daemon

void lgpu_stacks_lock(void) { lgpu_lock(&size); }
void lgpu_stacks_unlock(void) { lgpu_unlock(&size); }

void lgpu_stacks_reset(void)
{
	size = 0;
	rests = false;
}

static void give_up(size_t *was)
{
	if (LGPU_REAL(cuCtxGetLimit)(was, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS ||
	    LGPU_REAL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 0) != CUDA_SUCCESS)
		*was = 0;
}

static void have_again(size_t *was)
{
	CUresult r = *was != 0 ? LGPU_REAL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, *was) : CUDA_SUCCESS;
	if (r != CUDA_SUCCESS)
		lgpu_log(LGPU_LOG_WARN, "the stacks of kernels cannot be of %zu bytes again, as before the program left its device: error %d; "
			 "a kernel that needs them fails", *was, (int)r);
	*was = 0;
}

void lgpu_stacks_rest(bool rest)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (rest == rests || LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode) != CUDA_SUCCESS)
		return;
	rests = rest;
	if (rest)
		lgpu_stacks_lock();
	lgpu_gate_each_context(rest ? give_up : have_again);
	if (!rest)
		lgpu_stacks_unlock();
	LGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

LGPU_EXPORT CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuModuleGetFunction)(hfunc, hmod, name));
	if (r == CUDA_SUCCESS)
		lgpu_stacks_note(*hfunc);
	return r;
}

LGPU_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuModuleEnumerateFunctions)(functions, numFunctions, mod));
	unsigned int count = 0;
	if (r == CUDA_SUCCESS && lgpu_attached() != NULL)
		LGPU_REAL(cuModuleGetFunctionCount)(&count, mod);
	for (unsigned int i = 0; i < count && i < numFunctions; i++)
		lgpu_stacks_note(functions[i]);
	return r;
}
