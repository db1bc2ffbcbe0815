// SPDX-License-Identifier: Apache-2.0

// cuGetProcAddress: the driver chooses the function by the caller's version and flags,
// and we replace the address that it returns by that of our function. This is possible
// because every address that it returns is that of an exported symbol.
#include <string.h>

#include "driver/driver.h"

static const struct lgpu_base *base_find(const char *name)
{
	unsigned low = 0, high = lgpu_base_count;
	while (low < high) {
		unsigned middle = (low + high) / 2;
		int order = strcmp(name, lgpu_bases[middle].name);
		if (order == 0)
			return &lgpu_bases[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

// A form that is not known and can do nothing but touch memory does harm only where memory
// moves; whether it does in this process may turn out later.
static bool strict;
static const char *given;

const char *lgpu_procaddress_strict(void)
{
	__atomic_store_n(&strict, true, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&given, __ATOMIC_SEQ_CST);
}

// give_unknown says whether a form that is not known may be given out.
static bool give_unknown(const struct lgpu_base *b, bool limited)
{
	if (lgpu_authority() == LGPU_BY_NOBODY)
		return true;
	if (!limited)
		__atomic_store_n(&given, b->name, __ATOMIC_SEQ_CST); // before the look: one of the two sees the other
	return !limited && !__atomic_load_n(&strict, __ATOMIC_SEQ_CST);
}

// translate replaces the driver's function by ours. False: the driver has
// chosen a form of such a call that this build does not know.
static bool translate(const char *name, void **function)
{
	const struct lgpu_base *b = base_find(name);
	bool limited = false;
	if (b == NULL || *function == NULL)
		return true;
	for (const short *row = b->rows; *row >= 0; row++) {
		unsigned number = (unsigned)*row;
		limited = limited || lgpu_symbols[number].class == LGPU_HOOK || lgpu_symbols[number].class == LGPU_REFUSE;
		if (lgpu_real_find(number, true) != *function)
			continue;
		if (lgpu_symbols[number].class != LGPU_PASS)
			*function = lgpu_symbols[number].ours;
		return true;
	}
	return give_unknown(b, limited);
}

static CUresult unknown(const char *name, void **function)
{
	lgpu_log(LGPU_LOG_ERROR, "the driver's newest form of %s is not known to this build of lgpu and is withheld", name);
	*function = NULL;
	return CUDA_ERROR_NOT_FOUND;
}

LGPU_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
	CUresult r = LGPU_REAL(cuGetProcAddress)(symbol, pfn, cudaVersion, flags);
	if (r == CUDA_SUCCESS && symbol != NULL && pfn != NULL && !translate(symbol, pfn))
		return unknown(symbol, pfn);
	return r;
}

LGPU_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
					 CUdriverProcAddressQueryResult *symbolStatus)
{
	CUresult r = LGPU_REAL(cuGetProcAddress_v2)(symbol, pfn, cudaVersion, flags, symbolStatus);
	if (r == CUDA_SUCCESS && symbol != NULL && pfn != NULL && !translate(symbol, pfn)) {
		if (symbolStatus != NULL)
			*symbolStatus = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
		return unknown(symbol, pfn);
	}
	return r;
}
