// SPDX-License-Identifier: Apache-2.0

// Libraries: code that the driver loads into a context when it is first used there, by
// a look-up or by a launch.
//
// A library with large variables is noted when it is loaded. Its variables are charged
// before its first use in each context. If they do not fit, that use fails, as it
// would on a full device. What is not known of a library (machine code, and the
// variables of compressed images) is measured after the uses that load it. If that is
// too much, the use fails. As the driver keeps the library, it stays charged, and
// nothing else is granted until it fits.
#include <stdlib.h>

#include "base/futex.h"
#include "hook/hook.h"
#include "memory/image.h"
#include "residence/residence.h"

// Smaller variables are measured only: looking for them is not worth a look at
// every launch.
#define LARGE (UINT64_C(2) << 20)

bool lgpu_libraries_large;

// A use is a library's variables in a context.
struct use {
	CUlibrary library;
	CUcontext context; // NULL: free
	int32_t device;
	uint64_t bytes;
};

static uint32_t uses_lock;
// Held over the first use of a library in a context, driver's call included, so
// that other threads' uses find its outcome.
static uint32_t first_lock;
static struct use *uses;
static size_t uses_room;

void lgpu_libraries_reset(void)
{
	lgpu_libraries_large = false;
	uses_lock = 0;
	first_lock = 0;
	for (size_t i = 0; i < uses_room; i++)
		uses[i].context = NULL;
}

// use_find returns the use of a library in a context, or NULL; with a NULL
// context, a free entry. The caller has the lock.
static struct use *use_find(CUlibrary library, CUcontext context)
{
	for (size_t i = 0; i < uses_room; i++)
		if (uses[i].context == context && (context == NULL || uses[i].library == library))
			return &uses[i];
	return NULL;
}

// uses_grow makes room for more of them. The caller has the lock.
static bool uses_grow(void)
{
	size_t room = uses_room == 0 ? 16 : 2 * uses_room;
	struct use *larger = realloc(uses, room * sizeof *uses);
	if (larger == NULL)
		return false;
	for (size_t i = uses_room; i < room; i++)
		larger[i] = (struct use){.context = NULL};
	uses = larger;
	uses_room = room;
	return true;
}

// use_add notes a use. False: there is no memory for that.
static bool use_add(const struct use *new)
{
	lgpu_lock(&uses_lock);
	bool room = use_find(NULL, NULL) != NULL || uses_grow();
	if (room)
		*use_find(NULL, NULL) = *new;
	lgpu_unlock(&uses_lock);
	return room;
}

// use_forget drops a use; its charge goes elsewhere.
static void use_forget(CUlibrary library, CUcontext context)
{
	lgpu_lock(&uses_lock);
	struct use *u = use_find(library, context);
	if (u != NULL)
		u->context = NULL;
	lgpu_unlock(&uses_lock);
}

// uses_drop forgets the uses of a library, of a context or of both, and gives
// back what is charged for them.
static void uses_drop(struct lgpu_state *s, CUlibrary library, CUcontext context)
{
	lgpu_lock(&uses_lock);
	for (size_t i = 0; i < uses_room; i++) {
		struct use *u = &uses[i];
		if (u->context == NULL || (library != NULL && u->library != library) || (context != NULL && u->context != context))
			continue;
		lgpu_uncharge(s, u->device, u->bytes);
		u->context = NULL;
	}
	lgpu_unlock(&uses_lock);
}

void lgpu_libraries_ended(struct lgpu_state *s, CUcontext context) { uses_drop(s, NULL, context); }

// A use under way.
struct using {
	struct lgpu_state *state; // NULL: not counted
	struct use use;           // its library is NULL if nothing is charged for this use
	bool locked;              // first_lock
};

static bool use_known(CUlibrary library, CUcontext context)
{
	lgpu_lock(&uses_lock);
	bool known = use_find(library, context) != NULL;
	lgpu_unlock(&uses_lock);
	return known;
}

// use_begin charges the variables of a library if this is its first use in the
// current context. False: they do not fit.
static bool use_begin(struct using *u, CUlibrary library)
{
	struct lgpu_entry e;
	u->state = lgpu_attached();
	u->use = (struct use){.library = NULL};
	u->locked = false;
	u->use.device = u->state != NULL ? lgpu_current(&u->use.context) : -1;
	if (u->use.device < 0)
		u->state = NULL;
	if (u->state == NULL || !__atomic_load_n(&lgpu_libraries_large, __ATOMIC_ACQUIRE) ||
	    !lgpu_accounts_get(LGPU_KIND_LIBRARY, (uint64_t)library, &e) || use_known(library, u->use.context))
		return true;
	lgpu_lock(&first_lock);
	struct use new = {library, u->use.context, u->use.device, e.bytes};
	bool known = use_known(library, new.context);
	if (!known && lgpu_reserve(u->state, new.device, e.bytes)) {
		if (use_add(&new)) {
			u->use = new;
			u->locked = true;
			return true;
		}
		lgpu_uncharge(u->state, new.device, e.bytes);
		lgpu_reserved(u->state, new.device, e.bytes);
	}
	lgpu_unlock(&first_lock);
	return known;
}

// use_end ends a use. now: what else was loaded is measured at once, and may be
// too much. A first use that failed may have loaded the library all the same: what
// of it is there is overhead.
static CUresult use_end(const struct using *u, CUresult r, bool now)
{
	if (u->state == NULL)
		return r;
	int device = u->use.device;
	bool first = u->use.library != NULL;
	if (first && r != CUDA_SUCCESS) {
		use_forget(u->use.library, u->use.context);
		lgpu_overhead_grow(u->state, device, u->use.bytes);
	} else if (first) {
		lgpu_reserved(u->state, device, u->use.bytes);
	}
	if (u->locked)
		lgpu_unlock(&first_lock);
	if (r != CUDA_SUCCESS)
		return r;
	if (!now)
		lgpu_overhead_measure(u->state, device);
	else if (!lgpu_overhead_now(u->state, device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return r;
}

// ---- loading

static bool eager(void)
{
	CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
	return LGPU_REAL(cuModuleGetLoadingMode)(&mode) == CUDA_SUCCESS && mode == CU_MODULE_EAGER_LOADING;
}

// A library on its way in.
struct library_loading {
	struct using first; // where the program has libraries loaded at once, this is their first use
	uint64_t bytes;     // of its variables; 0: they are not large
	bool now;
};

// library_begin charges the variables if the driver loads them at once. False: they do
// not fit.
static bool library_begin(struct library_loading *l, uint64_t bytes)
{
	struct using *u = &l->first;
	*l = (struct library_loading){.first.state = lgpu_attached(), .bytes = bytes >= LARGE ? lgpu_round_up(bytes, LARGE) : 0};
	if (u->state == NULL)
		return true;
	u->use.device = lgpu_current(&u->use.context);
	l->now = u->use.device >= 0 && eager();
	if (!l->now)
		return true;
	u->use.bytes = l->bytes;
	return lgpu_reserve(u->state, u->use.device, l->bytes);
}

// library_note notes a library with large variables, and its first use if it is that.
// False: there is no memory for it.
static bool library_note(struct library_loading *l, CUlibrary library)
{
	struct using *u = &l->first;
	struct lgpu_entry e = {.key = (uint64_t)library, .bytes = l->bytes, .device = -1, .kind = LGPU_KIND_LIBRARY};
	if (!lgpu_accounts_put(&e, NULL))
		return false;
	__atomic_store_n(&lgpu_libraries_large, true, __ATOMIC_RELEASE);
	u->use.library = library;
	if (u->use.bytes == 0 || use_add(&u->use))
		return true;
	lgpu_accounts_take(LGPU_KIND_LIBRARY, e.key, &e);
	return false;
}

// library_end ends it. Programs load libraries by the hundred at their start, so that
// one measurement a second does where the driver does not load them at once.
static CUresult library_end(struct library_loading *l, CUlibrary *library, CUresult r)
{
	struct using *u = &l->first;
	if (u->state == NULL)
		return r;
	if (r == CUDA_SUCCESS && l->bytes != 0 && !library_note(l, *library)) {
		LGPU_TOUCHED(LGPU_REAL(cuLibraryUnload)(*library));
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (u->use.device < 0)
		return r;
	if (r != CUDA_SUCCESS) {
		lgpu_uncharge(u->state, u->use.device, u->use.bytes);
		lgpu_reserved(u->state, u->use.device, u->use.bytes);
		return r;
	}
	r = use_end(u, r, l->now);
	if (r != CUDA_SUCCESS)
		cuLibraryUnload(*library);
	return r;
}

LGPU_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
				       unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
				       unsigned int numLibraryOptions)
{
	LGPU_LOAD(library, library, lgpu_image_variables(code, SIZE_MAX),
	     LGPU_TOUCHED(LGPU_REAL(cuLibraryLoadData)(library, code, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
					  libraryOptionValues, numLibraryOptions)));
}

LGPU_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
					   void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
					   void **libraryOptionValues, unsigned int numLibraryOptions)
{
	LGPU_LOAD(library, library, lgpu_image_file_variables(fileName),
	     LGPU_TOUCHED(LGPU_REAL(cuLibraryLoadFromFile)(library, fileName, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
					      libraryOptionValues, numLibraryOptions)));
}

static void forgotten(const struct lgpu_entry *e, void *arg)
{
	(void)e;
	(void)arg;
}

LGPU_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
	struct lgpu_entry e;
	CUcontext context;
	struct lgpu_state *s = lgpu_attached();
	// The note goes first: another library may be given the handle.
	bool noted = s != NULL && lgpu_accounts_take(LGPU_KIND_LIBRARY, (uint64_t)library, &e);
	CUresult r = LGPU_TOUCHED(LGPU_REAL(cuLibraryUnload)(library));
	if (noted && r != CUDA_SUCCESS)
		lgpu_accounts_restore(&e);
	if (s == NULL || r != CUDA_SUCCESS)
		return r;
	if (noted) {
		uses_drop(s, library, NULL);
		lgpu_accounts_sweep(library, forgotten, NULL); // its kernels
	}
	int device = lgpu_current(&context);
	if (device >= 0)
		lgpu_overhead_now(s, device);
	return r;
}

// ---- uses

// FIRST_USE is the body of a call that may be the first use of a library.
#define FIRST_USE(library, call)                                                                                   \
	do {                                                                                                       \
		struct using u;                                                                                    \
		return LGPU_TOUCHED(!use_begin(&u, library) ? CUDA_ERROR_OUT_OF_MEMORY : use_end(&u, call, true)); \
	} while (0)

LGPU_EXPORT CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
	FIRST_USE(library, LGPU_REAL(cuLibraryGetModule)(pMod, library));
}

LGPU_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	FIRST_USE(library, LGPU_REAL(cuLibraryGetGlobal)(dptr, bytes, library, name));
}

LGPU_EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
	FIRST_USE(library, LGPU_REAL(cuLibraryGetManaged)(dptr, bytes, library, name));
}

// library_of returns the library of a kernel if its variables are large.
static CUlibrary library_of(const void *kernel)
{
	struct lgpu_entry e;
	return __atomic_load_n(&lgpu_libraries_large, __ATOMIC_ACQUIRE) && lgpu_accounts_get(LGPU_KIND_KERNEL, (uint64_t)kernel, &e) ?
		       (CUlibrary)e.context :
		       NULL;
}

// Called for every kernel of a program, and by some at every launch.
LGPU_EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
	struct using u;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	lgpu_touch_begin();
	if (use_begin(&u, library_of(kernel)))
		r = use_end(&u, LGPU_REAL(cuKernelGetFunction)(pFunc, kernel), u.use.library != NULL);
	lgpu_touch_end();
	if (r == CUDA_SUCCESS)
		lgpu_stacks_note(*pFunc);
	return r;
}

CUresult lgpu_kernel_use(CUfunction f)
{
	CUfunction function;
	CUcontext context;
	CUlibrary library = library_of(f);
	if (library == NULL || LGPU_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || use_known(library, context))
		return CUDA_SUCCESS;
	return cuKernelGetFunction(&function, (CUkernel)f);
}

// kernel_note notes what a kernel needs. If its library could not be noted, its
// launches are measured afterwards, like those of other libraries.
static void kernel_note(CUkernel kernel, CUlibrary library)
{
	struct lgpu_entry library_entry, e = {.key = (uint64_t)kernel, .context = library, .device = -1, .kind = LGPU_KIND_KERNEL};
	if (__atomic_load_n(&lgpu_libraries_large, __ATOMIC_ACQUIRE) &&
	    lgpu_accounts_get(LGPU_KIND_LIBRARY, (uint64_t)library, &library_entry))
		lgpu_accounts_put(&e, NULL);
}

LGPU_EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
	CUresult r = LGPU_REAL(cuLibraryGetKernel)(pKernel, library, name);
	if (r == CUDA_SUCCESS) {
		kernel_note(*pKernel, library);
		lgpu_stacks_note_kernel(*pKernel);
	}
	return r;
}

LGPU_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
	CUresult r = LGPU_REAL(cuLibraryEnumerateKernels)(kernels, numKernels, lib);
	unsigned int count = 0;
	if (r == CUDA_SUCCESS && lgpu_attached() != NULL)
		LGPU_REAL(cuLibraryGetKernelCount)(&count, lib);
	for (unsigned int i = 0; i < count && i < numKernels; i++)
		kernel_note(kernels[i], lib);
	return r;
}
