// SPDX-License-Identifier: Apache-2.0

// Start, versions, names of errors, and how programs find the other symbols.
#define _GNU_SOURCE
#define LGPU_CUDA_PLAIN
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simc.h"

enum { DRIVER_VERSION = 13000 };

void simc_log(int level, const char *format, ...)
{
	const char *wanted = getenv("LGPU_LOG");
	char line[512];
	va_list ap;
	int n;

	if (!wanted || atoi(wanted) < level)
		return;
	va_start(ap, format);
	n = vsnprintf(line, sizeof line - 1, format, ap);
	va_end(ap);
	if (n < 0)
		return;
	if ((size_t)n > sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return; // nowhere to say so
}

CUresult simc_enter(int needs)
{
	if (__atomic_load_n(&simc_state, __ATOMIC_ACQUIRE) != SIMC_READY)
		return simc_not_ready();
	if ((needs & SIMC_NEEDS_CONTEXT) && !simc_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	return CUDA_SUCCESS;
}

CUresult simc_unsupported(const char *name)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static const char *said[1024];
	static unsigned count;
	unsigned i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < count && said[i] != name; i++)
		;
	if (i == count && count < sizeof said / sizeof said[0]) {
		said[count++] = name;
		simc_log(2, "lgpu sim: %s is not supported", name);
	}
	pthread_mutex_unlock(&lock);
	return CUDA_ERROR_NOT_SUPPORTED;
}

static void at_exit(void) { atexit(simc_deinitialize); }

CUresult cuInit(unsigned int Flags)
{
	SIMC_PASS;
	static pthread_once_t exit_once = PTHREAD_ONCE_INIT;
	const char *visible, *units, *share;
	CUresult r;

	if (Flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = simc_connect()) != CUDA_SUCCESS)
		return r;
	pthread_once(&exit_once, at_exit);
	visible = getenv("CUDA_VISIBLE_DEVICES");
	units = getenv("LGPU_SIM_UNITS");
	share = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	r = simc_rpc_Init(Flags, (visible ? 1 : 0) | (units ? 2 : 0) | (simc_eager() ? 4 : 0), visible ? visible : "",
			  units ? units : "", share ? share : "");
	if (r == CUDA_SUCCESS)
		simc_start_restore();
	return r;
}

int simc_eager(void)
{
	const char *mode = getenv("CUDA_MODULE_LOADING");

	return mode && !strcmp(mode, "EAGER");
}

CUresult cuDriverGetVersion(int *driverVersion)
{
	if (!driverVersion)
		return CUDA_ERROR_INVALID_VALUE;
	*driverVersion = DRIVER_VERSION;
	return CUDA_SUCCESS;
}

static const struct simc_error *find_error(CUresult error)
{
	unsigned i;

	for (i = 0; i < simc_error_count; i++)
		if (simc_errors[i].code == error)
			return &simc_errors[i];
	return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
	const struct simc_error *e = find_error(error);

	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	*pStr = e ? e->name : NULL;
	return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Descriptions that programs print and compare most. The others are the name in words: "file not found".
static const struct simc_error descriptions[] = {
	{CUDA_SUCCESS, "no error"},
	{CUDA_ERROR_INVALID_VALUE, "invalid argument"},
	{CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
	{CUDA_ERROR_DEINITIALIZED, "driver shutting down"},
	{CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
	{CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
	{CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"},
	{CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
	{CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"},
	{CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "named symbol not found"},
	{CUDA_ERROR_NOT_READY, "device not ready"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
	{CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
	{CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
	{CUDA_ERROR_UNKNOWN, "unknown error"},
};

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
	const struct simc_error *e = find_error(error);
	char text[128];
	const char *from;
	size_t n = 0;
	unsigned i;

	if (!pStr)
		return CUDA_ERROR_INVALID_VALUE;
	*pStr = NULL;
	if (!e)
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < sizeof descriptions / sizeof descriptions[0]; i++) {
		if (descriptions[i].code == error) {
			*pStr = descriptions[i].name;
			return CUDA_SUCCESS;
		}
	}
	from = strncmp(e->name, "CUDA_ERROR_", 11) == 0 ? e->name + 11 : e->name;
	for (; *from && n < sizeof text - 1; from++)
		text[n++] = *from == '_' ? ' ' : (char)(*from >= 'A' && *from <= 'Z' ? *from + 32 : *from);
	text[n] = 0;
	*pStr = simc_intern(text);
	return *pStr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

const char *simc_intern(const char *s)
{
	struct entry {
		struct entry *next;
		char text[];
	};
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct entry *entries;
	struct entry *e;
	size_t n = strlen(s) + 1;

	pthread_mutex_lock(&lock);
	for (e = entries; e && strcmp(e->text, s) != 0; e = e->next)
		;
	if (!e && (e = malloc(sizeof *e + n)) != NULL) {
		memcpy(e->text, s, n);
		e->next = entries;
		entries = e;
	}
	pthread_mutex_unlock(&lock);
	return e ? e->text : NULL;
}

// The first entry of a base, or NULL.
static const struct simc_proc *find_base(const char *base)
{
	unsigned lo = 0, hi = simc_proc_count;

	while (lo < hi) {
		unsigned mid = lo + (hi - lo) / 2;

		if (strcmp(simc_procs[mid].base, base) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < simc_proc_count && strcmp(simc_procs[lo].base, base) == 0 ? &simc_procs[lo] : NULL;
}

// What the real driver answers: sim/wire/gen has the table from tenant/abi/cuda.tsv.
static CUresult lookup(const char *symbol, void **pfn, int version, cuuint64_t flags,
		       CUdriverProcAddressQueryResult *status)
{
	const struct simc_proc *p, *best = NULL;

	if (!symbol || !*symbol || !pfn || flags > 2)
		return CUDA_ERROR_INVALID_VALUE;
	if (version > DRIVER_VERSION)
		return CUDA_ERROR_INVALID_VALUE;
	*pfn = NULL;
	p = find_base(symbol);
	if (!p) {
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
		return CUDA_SUCCESS;
	}
	for (; p < simc_procs + simc_proc_count && strcmp(p->base, symbol) == 0; p++)
		if ((p->flags >> flags & 1) && p->since <= version)
			best = p;
	*status = best ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	if (best)
		memcpy(pfn, &best->fn, sizeof *pfn);
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *symbolStatus)
{
	CUdriverProcAddressQueryResult status;
	CUresult r = lookup(symbol, pfn, cudaVersion, flags, &status);

	if (r == CUDA_SUCCESS && symbolStatus)
		*symbolStatus = status;
	return r;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status;
	void *found;
	CUresult r = lookup(symbol, pfn ? &found : NULL, cudaVersion, flags, &status);

	if (r != CUDA_SUCCESS)
		return r;
	if (status != CU_GET_PROC_ADDRESS_SUCCESS)
		return CUDA_ERROR_NOT_FOUND;
	*pfn = found;
	return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
	if (!ppExportTable || !pExportTableId)
		return CUDA_ERROR_INVALID_VALUE;
	*ppExportTable = NULL;
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuProfilerInitialize(const char *config, const char *output, int mode);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

CUresult cuProfilerInitialize(const char *config, const char *output, int mode)
{
	(void)config;
	(void)output;
	(void)mode;
	return CUDA_ERROR_NOT_SUPPORTED;
}

// There is no profiler to start or stop, so that both have happened at once.
CUresult cuProfilerStart(void)
{
	return simc_enter(0);
}

CUresult cuProfilerStop(void)
{
	return simc_enter(0);
}
