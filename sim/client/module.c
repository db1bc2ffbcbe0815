/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, libraries and the linker: finding out what an image is, and the options with their logs. */
#define _GNU_SOURCE
#define LGPU_CUDA_PLAIN
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simc.h"
#include "hand_gen.h"

enum { MAX_OPTIONS = 64, NAME_ROOM = 4096 };
#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u
#define ELF 0x464c457fu

char *simc_read_file(const char *path, size_t *size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *text = NULL;
	struct stat st;
	size_t done = 0;

	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (text = malloc((size_t)st.st_size + 1)) != NULL) {
		while (done < (size_t)st.st_size) {
			ssize_t n = read(fd, text + done, (size_t)st.st_size - done);

			if (n <= 0)
				break;
			done += (size_t)n;
		}
		text[done] = 0;
		*size = done;
	}
	close(fd);
	return text;
}

/* The size of an image, which must be PTX text: the device runs no binaries. */
static CUresult text_size(const void *image, size_t *size)
{
	uint32_t magic;

	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	if (!*(const char *)image)
		return CUDA_ERROR_INVALID_IMAGE;
	*size = strnlen(image, sizeof magic);
	if (*size == sizeof magic) {
		memcpy(&magic, image, sizeof magic);
		if (magic == ELF || magic == FATBIN || magic == FATBIN_WRAPPER)
			return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	*size = strlen(image);
	return CUDA_SUCCESS;
}

/* Options sorted into what the hardware hears and what the client does itself. */
struct options {
	CUjit_option keys[MAX_OPTIONS];
	unsigned long long values[MAX_OPTIONS];
	unsigned count;
	char *info, *error;
	unsigned infoSize, errorSize;
};

static CUresult read_options(struct options *o, unsigned n, const CUjit_option *options, void *const *values)
{
	unsigned i;

	memset(o, 0, sizeof *o);
	if (n && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < n; i++) {
		uintptr_t v = (uintptr_t)values[i];

		switch (options[i]) {
		case CU_JIT_INFO_LOG_BUFFER:
			o->info = values[i];
			break;
		case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
			o->infoSize = (unsigned)v;
			break;
		case CU_JIT_ERROR_LOG_BUFFER:
			o->error = values[i];
			break;
		case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
			o->errorSize = (unsigned)v;
			break;
		case CU_JIT_WALL_TIME:
			break;
		default:
			if (options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS || o->count == MAX_OPTIONS)
				return CUDA_ERROR_INVALID_VALUE;
			o->keys[o->count] = options[i];
			o->values[o->count++] = v;
		}
	}
	if (!o->info)
		o->infoSize = 0;
	if (!o->error)
		o->errorSize = 0;
	if (o->infoSize)
		memset(o->info, 0, o->infoSize);
	if (o->errorSize)
		memset(o->error, 0, o->errorSize);
	return CUDA_SUCCESS;
}

/* The room for a log's text, beside its final zero. */
static unsigned room(unsigned size)
{
	return size ? size - 1 : 0;
}

/* Programs find the length of each log, and the time, in the place of the option's value. */
static void write_options(const struct options *o, unsigned n, const CUjit_option *options, void **values)
{
	unsigned i;

	for (i = 0; i < n; i++) {
		float none = 0;

		if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
			values[i] = (void *)(uintptr_t)(o->infoSize ? strlen(o->info) : 0);
		else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			values[i] = (void *)(uintptr_t)(o->errorSize ? strlen(o->error) : 0);
		else if (options[i] == CU_JIT_WALL_TIME)
			memcpy(&values[i], &none, sizeof none);
	}
}

CUresult simc_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
		void **optionValues)
{
	struct options o;
	size_t size;
	CUresult r;

	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = read_options(&o, numOptions, options, optionValues)) != CUDA_SUCCESS ||
	    (r = text_size(image, &size)) != CUDA_SUCCESS)
		return r;
	r = simc_rpc_ModuleLoadData(module, image, size, o.keys, o.values, o.count, o.info, room(o.infoSize), o.error,
				    room(o.errorSize));
	write_options(&o, numOptions, options, optionValues);
	return r;
}

CUresult simc_cuModuleLoadData(CUmodule *module, const void *image)
{
	return simc_cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

CUresult simc_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	return simc_cuModuleLoadDataEx(module, fatCubin, 0, NULL, NULL);
}

CUresult simc_cuModuleLoad(CUmodule *module, const char *fname)
{
	size_t size;
	char *text;
	CUresult r;

	if (!module || !fname)
		return CUDA_ERROR_INVALID_VALUE;
	if (!(text = simc_read_file(fname, &size)))
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = simc_cuModuleLoadData(module, text);
	free(text);
	return r;
}

CUresult simc_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_EAGER_LOADING;
	return CUDA_SUCCESS;
}

CUresult simc_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
		void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
		void** libraryOptionValues, unsigned int numLibraryOptions)
{
	unsigned long long values[MAX_OPTIONS];
	struct options o;
	size_t size;
	unsigned i;
	CUresult r;

	if (!library || (numLibraryOptions && !libraryOptions) || numLibraryOptions > MAX_OPTIONS)
		return CUDA_ERROR_INVALID_VALUE;
	/* An option may be a mere flag, for which there is no value. */
	for (i = 0; i < numLibraryOptions; i++)
		values[i] = libraryOptionValues ? (uintptr_t)libraryOptionValues[i] : 0;
	if ((r = read_options(&o, numJitOptions, jitOptions, jitOptionsValues)) != CUDA_SUCCESS ||
	    (r = text_size(code, &size)) != CUDA_SUCCESS)
		return r;
	r = simc_rpc_LibraryLoadData(library, code, size, o.keys, o.values, o.count, libraryOptions, values,
				     numLibraryOptions, o.info, room(o.infoSize), o.error, room(o.errorSize));
	write_options(&o, numJitOptions, jitOptions, jitOptionsValues);
	return r;
}

CUresult simc_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
		void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
		void **libraryOptionValues, unsigned int numLibraryOptions)
{
	size_t size;
	char *text;
	CUresult r;

	if (!library || !fileName)
		return CUDA_ERROR_INVALID_VALUE;
	if (!(text = simc_read_file(fileName, &size)))
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = simc_cuLibraryLoadData(library, text, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
				   libraryOptionValues, numLibraryOptions);
	free(text);
	return r;
}

/* Hands out a name that came as bytes as a string that stays. */
static CUresult keep_name(CUresult r, char *text, const char **name)
{
	if (r != CUDA_SUCCESS)
		return r;
	*name = simc_intern(text);
	return *name ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult simc_cuFuncGetName(const char **name, CUfunction hfunc)
{
	char text[NAME_ROOM] = "";

	return name ? keep_name(simc_rpc_FuncGetName(hfunc, text, sizeof text - 1), text, name) : CUDA_ERROR_INVALID_VALUE;
}

CUresult simc_cuKernelGetName(const char **name, CUkernel hfunc)
{
	char text[NAME_ROOM] = "";

	return name ? keep_name(simc_rpc_KernelGetName(hfunc, text, sizeof text - 1), text, name) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- the linker. Its logs are buffers given at creation, its image belongs to it. */

struct link {
	CUlinkState state;
	struct options o;
	unsigned char *image;
	struct link *next;
};

static pthread_mutex_t link_lock = PTHREAD_MUTEX_INITIALIZER;
static struct link *links;

static struct link *find_link(CUlinkState state)
{
	struct link *l;

	pthread_mutex_lock(&link_lock);
	for (l = links; l && l->state != state; l = l->next)
		;
	pthread_mutex_unlock(&link_lock);
	return l;
}

CUresult simc_cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
		CUlinkState *stateOut)
{
	struct link *l;
	CUresult r;

	if (!stateOut)
		return CUDA_ERROR_INVALID_VALUE;
	if (!(l = calloc(1, sizeof *l)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if ((r = read_options(&l->o, numOptions, options, optionValues)) != CUDA_SUCCESS ||
	    (r = simc_rpc_LinkCreate(&l->state, l->o.keys, l->o.values, l->o.count)) != CUDA_SUCCESS) {
		free(l);
		return r;
	}
	pthread_mutex_lock(&link_lock);
	l->next = links;
	links = l;
	pthread_mutex_unlock(&link_lock);
	*stateOut = l->state;
	return CUDA_SUCCESS;
}

CUresult simc_cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
		unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	struct link *l = find_link(state);
	struct options o;
	CUresult r;

	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!data || !size)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = read_options(&o, numOptions, options, optionValues)) != CUDA_SUCCESS)
		return r;
	if (type != CU_JIT_INPUT_PTX)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	return simc_rpc_LinkAddData(state, type, data, size, name ? name : "", l->o.error, room(l->o.errorSize));
}

CUresult simc_cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
		CUjit_option *options, void **optionValues)
{
	size_t size;
	char *text;
	CUresult r;

	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	if (!(text = simc_read_file(path, &size)))
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = simc_cuLinkAddData_v2(state, type, text, size, path, numOptions, options, optionValues);
	free(text);
	return r;
}

CUresult simc_cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut)
{
	struct link *l = find_link(state);
	unsigned char *image;
	size_t size;
	CUresult r;

	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!cubinOut)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = simc_rpc_LinkComplete(state, &size, l->o.error, room(l->o.errorSize))) != CUDA_SUCCESS)
		return r;
	if (!(image = calloc(1, size + 1)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if ((r = simc_rpc_LinkImage(state, image, size)) != CUDA_SUCCESS) {
		free(image);
		return r;
	}
	pthread_mutex_lock(&link_lock);
	free(l->image);
	l->image = image;
	pthread_mutex_unlock(&link_lock);
	*cubinOut = image;
	if (sizeOut)
		*sizeOut = size + 1;
	return CUDA_SUCCESS;
}

CUresult simc_cuLinkDestroy(CUlinkState state)
{
	struct link **at, *l;
	CUresult r;

	pthread_mutex_lock(&link_lock);
	for (at = &links; (l = *at) != NULL && l->state != state; at = &l->next)
		;
	if (l)
		*at = l->next;
	pthread_mutex_unlock(&link_lock);
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	r = simc_rpc_LinkDestroy(state);
	free(l->image);
	free(l);
	return r;
}
