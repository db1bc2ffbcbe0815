// SPDX-License-Identifier: Apache-2.0

// Modules, libraries and the linker: finding out what an image is, and the options with their logs.
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

enum { MAX_OPTIONS = 64, NAME_ROOM = 4096, MAX_IMAGE = 255 << 20 };
#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u
#define ELF 0x464c457fu
#define LINKED "LGPULINK"

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

// __fatBinC_Wrapper_t, which nvcc's code hands to the driver, and the header of what it points at (sim/fatbin).
struct wrapper {
	uint32_t magic, version;
	const void *data;
	const void *more;
};

struct header {
	uint32_t magic;
	uint16_t version, size;
	uint64_t bytes; // behind the header
};

// The beginning of an image that the linker made (sim/driver, linkedImage).
struct linked {
	char magic[8];
	uint64_t size;
};

// Finds an image's bytes: PTX text, a fat binary, or what the linker made. *room is how many bytes there are, or SIZE_MAX
// for memory of the program's, in which an image tells its size itself; it becomes the size.
static CUresult find_image(const void **image, size_t *room)
{
	struct wrapper wrapper;
	struct header header;
	struct linked linked;
	size_t n;

	if (!*image)
		return CUDA_ERROR_INVALID_VALUE;
	if (*room == 0 || !*(const char *)*image)
		return CUDA_ERROR_INVALID_IMAGE;
	n = strnlen(*image, *room < sizeof linked.magic ? *room : sizeof linked.magic);
	memset(&header, 0, sizeof header);
	memcpy(&header, *image, n < sizeof header.magic ? n : sizeof header.magic);
	if (header.magic == FATBIN_WRAPPER && *room == SIZE_MAX) {
		memcpy(&wrapper, *image, sizeof wrapper);
		*image = wrapper.data;
		if (!*image)
			return CUDA_ERROR_INVALID_IMAGE;
		memcpy(&header, *image, sizeof header.magic);
		if (header.magic != FATBIN)
			return CUDA_ERROR_INVALID_IMAGE;
	}
	if (header.magic == FATBIN) {
		if (*room < sizeof header)
			return CUDA_ERROR_INVALID_IMAGE;
		memcpy(&header, *image, sizeof header);
		if (header.bytes > MAX_IMAGE || header.size + header.bytes > *room)
			return CUDA_ERROR_INVALID_IMAGE;
		*room = header.size + header.bytes;
		return CUDA_SUCCESS;
	}
	if (header.magic == ELF || header.magic == FATBIN_WRAPPER)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	if (n == sizeof linked.magic && !memcmp(*image, LINKED, sizeof linked.magic)) {
		if (*room < sizeof linked)
			return CUDA_ERROR_INVALID_IMAGE;
		memcpy(&linked, *image, sizeof linked);
		if (linked.size > MAX_IMAGE || linked.size > *room)
			return CUDA_ERROR_INVALID_IMAGE;
		*room = linked.size;
		return CUDA_SUCCESS;
	}
	*room = *room == SIZE_MAX ? strlen(*image) : strnlen(*image, *room);
	return CUDA_SUCCESS;
}

// Options sorted into what the hardware hears and what the client does itself.
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

// The room for a log's text, beside its final zero.
static unsigned room(unsigned size)
{
	return size ? size - 1 : 0;
}

// Programs find the length of each log, and the time, in the place of the option's value.
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

static CUresult load_module(CUmodule *module, const void *image, size_t size, unsigned int numOptions,
			    CUjit_option *options, void **optionValues)
{
	struct options o;
	CUresult r;

	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if ((r = read_options(&o, numOptions, options, optionValues)) != CUDA_SUCCESS ||
	    (r = find_image(&image, &size)) != CUDA_SUCCESS)
		return r;
	r = simc_rpc_ModuleLoadData(module, image, size, o.keys, o.values, o.count, o.info, room(o.infoSize), o.error,
				    room(o.errorSize));
	write_options(&o, numOptions, options, optionValues);
	return r;
}

CUresult simc_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
		void **optionValues)
{
	return load_module(module, image, SIZE_MAX, numOptions, options, optionValues);
}

CUresult simc_cuModuleLoadData(CUmodule *module, const void *image)
{
	return load_module(module, image, SIZE_MAX, 0, NULL, NULL);
}

CUresult simc_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
	return load_module(module, fatCubin, SIZE_MAX, 0, NULL, NULL);
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
	r = load_module(module, text, size, 0, NULL, NULL);
	free(text);
	return r;
}

CUresult simc_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = simc_eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

static CUresult load_library(CUlibrary *library, const void *code, size_t size, CUjit_option *jitOptions,
		void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
		void **libraryOptionValues, unsigned int numLibraryOptions)
{
	unsigned long long values[MAX_OPTIONS];
	struct options o;
	unsigned i;
	CUresult r;

	if (!library || (numLibraryOptions && !libraryOptions) || numLibraryOptions > MAX_OPTIONS)
		return CUDA_ERROR_INVALID_VALUE;
	// An option may be a mere flag, for which there is no value.
	for (i = 0; i < numLibraryOptions; i++)
		values[i] = libraryOptionValues ? (uintptr_t)libraryOptionValues[i] : 0;
	if ((r = read_options(&o, numJitOptions, jitOptions, jitOptionsValues)) != CUDA_SUCCESS ||
	    (r = find_image(&code, &size)) != CUDA_SUCCESS)
		return r;
	r = simc_rpc_LibraryLoadData(library, code, size, o.keys, o.values, o.count, libraryOptions, values,
				     numLibraryOptions, o.info, room(o.infoSize), o.error, room(o.errorSize));
	write_options(&o, numJitOptions, jitOptions, jitOptionsValues);
	return r;
}

CUresult simc_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
		void **jitOptionsValues, unsigned int numJitOptions, CUlibraryOption *libraryOptions,
		void** libraryOptionValues, unsigned int numLibraryOptions)
{
	return load_library(library, code, SIZE_MAX, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
			    libraryOptionValues, numLibraryOptions);
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
	r = load_library(library, text, size, jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
			 libraryOptionValues, numLibraryOptions);
	free(text);
	return r;
}

// Hands out a name that came as bytes as a string that stays.
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

// ---- the linker. Its logs are buffers given at creation, its image belongs to it.

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

static CUresult add_input(CUlinkState state, CUjitInputType type, const void *data, size_t size, const char *name,
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
	if (type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_FATBINARY)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	if ((r = find_image(&data, &size)) != CUDA_SUCCESS)
		return r;
	return simc_rpc_LinkAddData(state, type, data, size, name ? name : "", l->o.error, room(l->o.errorSize));
}

CUresult simc_cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
		unsigned int numOptions, CUjit_option *options, void **optionValues)
{
	uint32_t magic = 0;

	// A wrapper points at its fat binary, whose size the caller need not know.
	if (type == CU_JIT_INPUT_FATBINARY && data && size >= sizeof magic)
		memcpy(&magic, data, sizeof magic);
	return add_input(state, type, data, magic == FATBIN_WRAPPER ? SIZE_MAX : size, name, numOptions, options,
			 optionValues);
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
	r = add_input(state, type, text, size, path, numOptions, options, optionValues);
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
	r = simc_rpc_LinkComplete(state, &size, l->o.error, room(l->o.errorSize));
	if (r != CUDA_SUCCESS)
		return r;
	if (!(image = malloc(size)))
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
		*sizeOut = size;
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
