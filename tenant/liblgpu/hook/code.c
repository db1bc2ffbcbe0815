// SPDX-License-Identifier: Apache-2.0

// Code: modules, and what loading one takes.
//
// The size of the variables is read from the image and charged before the image is
// loaded. The size of the rest (machine code, and the variables of compressed images)
// shows only afterwards. It is measured at once, and a module that is too large is
// unloaded again. Libraries: library.c.
#include "hook/hook.h"
#include "memory/image.h"
#include "residence/residence.h"

// Where pages are shared between modules they are smaller, never larger.
#define PAGE (UINT64_C(2) << 20)

// An image on its way into a device.
struct module_loading {
	struct lgpu_state *state; // NULL: not counted
	CUcontext context;
	int device;
	uint64_t bytes; // charged for its variables
};

// module_begin charges variables that take bytes. False: they do not fit.
static bool module_begin(struct module_loading *l, uint64_t bytes)
{
	l->context = NULL;
	l->state = lgpu_attached();
	l->device = l->state != NULL ? lgpu_current(&l->context) : -1;
	if (l->device < 0) {
		l->state = NULL;
		return true;
	}
	l->bytes = lgpu_round_up(bytes, PAGE);
	return lgpu_reserve(l->state, l->device, l->bytes);
}

// loaded notes what was loaded. False: it is to be unloaded, as too much was.
static bool loaded(const struct module_loading *l, CUmodule module, CUresult r)
{
	bool noted = true;
	if (r != CUDA_SUCCESS)
		lgpu_uncharge(l->state, l->device, l->bytes);
	else if (l->bytes != 0)
		noted = lgpu_note(l->state, LGPU_KIND_MODULE, (uint64_t)module, l->bytes, l->device, l->context);
	lgpu_reserved(l->state, l->device, l->bytes);
	if (!noted || r != CUDA_SUCCESS || lgpu_overhead_now(l->state, l->device))
		return noted;
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MODULE, (uint64_t)module);
	lgpu_free_end(&f, CUDA_SUCCESS);
	return false;
}

static CUresult module_end(const struct module_loading *l, CUmodule *module, CUresult r)
{
	if (l->state == NULL || loaded(l, r == CUDA_SUCCESS ? *module : NULL, r))
		return r;
	LGPU_TOUCHED(LGPU_REAL(cuModuleUnload)(*module));
	lgpu_overhead_now(l->state, l->device);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

LGPU_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
	LGPU_LOAD(module, module, lgpu_image_file_variables(fname), LGPU_TOUCHED(LGPU_REAL(cuModuleLoad)(module, fname)));
}

LGPU_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	LGPU_LOAD(module, module, lgpu_image_variables(image, SIZE_MAX), LGPU_TOUCHED(LGPU_REAL(cuModuleLoadData)(module, image)));
}

LGPU_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
					void **optionValues)
{
	LGPU_LOAD(module, module, lgpu_image_variables(image, SIZE_MAX),
	     LGPU_TOUCHED(LGPU_REAL(cuModuleLoadDataEx)(module, image, numOptions, options, optionValues)));
}

LGPU_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	LGPU_LOAD(module, module, lgpu_image_variables(fatCubin, SIZE_MAX), LGPU_TOUCHED(LGPU_REAL(cuModuleLoadFatBinary)(module, fatCubin)));
}

LGPU_EXPORT CUresult cuModuleUnload(CUmodule hmod)
{
	struct lgpu_freeing f = lgpu_free_begin(LGPU_KIND_MODULE, (uint64_t)hmod);
	CUresult r = lgpu_free_end(&f, LGPU_TOUCHED(LGPU_REAL(cuModuleUnload)(hmod)));
	struct lgpu_state *s = lgpu_attached();
	CUcontext context;
	int device = s != NULL && r == CUDA_SUCCESS ? lgpu_current(&context) : -1;
	if (device >= 0)
		lgpu_overhead_now(s, device);
	return r;
}
