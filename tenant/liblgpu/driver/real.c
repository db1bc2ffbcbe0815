// SPDX-License-Identifier: Apache-2.0

// Finding the driver's libraries and functions.
#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/driver.h"

#define OWN_PATH 1024

static const struct {
	const char *soname, *stem, *env;
} libraries[LGPU_LIBRARIES] = {
	[LGPU_CUDA] = {"libcuda.so.1", "libcuda.so.", "LGPU_REAL_LIBCUDA"},
	[LGPU_NVML] = {"libnvidia-ml.so.1", "libnvidia-ml.so.", "LGPU_REAL_LIBNVML"},
};

static void *handles[LGPU_LIBRARIES];

static void *open_library(const char *path, int mode)
{
	static void *(*f)(const char *, int);
	if (__atomic_load_n(&f, __ATOMIC_RELAXED) == NULL)
		__atomic_store_n(&f, (void *(*)(const char *, int))lgpu_libc("dlopen"), __ATOMIC_RELAXED);
	return f != NULL ? f(path, mode) : NULL;
}

static void *find_in(void *handle, const char *name)
{
	static void *(*f)(void *, const char *);
	if (__atomic_load_n(&f, __ATOMIC_RELAXED) == NULL)
		__atomic_store_n(&f, (void *(*)(void *, const char *))lgpu_libc("dlsym"), __ATOMIC_RELAXED);
	return f != NULL ? f(handle, name) : NULL;
}

// ---- which library is the driver's

// own_path is the path of the object that this code is in.
static int own_visit(struct dl_phdr_info *object, size_t size, void *path)
{
	(void)size;
	if (!lgpu_elf_holds(object, &lgpu_symbols))
		return 0;
	snprintf(path, OWN_PATH, "%s", object->dlpi_name);
	return 1;
}

static const char *own_path(char path[OWN_PATH])
{
	path[0] = 0;
	dl_iterate_phdr(own_visit, path);
	return path;
}

// named returns the path of the driver's library that the launcher or the environment names, or NULL. A program with
// more rights than its caller does not load what the caller's environment names.
static const char *named(enum lgpu_library library)
{
	const char *path = lgpu_stamped(libraries[library].env);
	if (path == NULL)
		path = secure_getenv(libraries[library].env);
	return path != NULL && path[0] != 0 ? path : NULL;
}

bool lgpu_is_driver(enum lgpu_library library, const char *path)
{
	const char *given = named(library);
	if (given != NULL && strcmp(path, given) == 0)
		return true;
	const char *base = lgpu_basename(path), *stem = libraries[library].stem;
	return strncmp(base, stem, strlen(stem)) == 0;
}

// beside stores the path of the driver's library that we have taken the place
// of: the renamed one in our own folder, else the one with the highest version
// in its name. The name's version is compared as text of equal length first.
static bool beside(enum lgpu_library library, const char *own, char *path, size_t size)
{
	const char *soname = libraries[library].soname, *stem = libraries[library].stem;
	int folder = (int)(lgpu_basename(own) - own);
	if (snprintf(path, size, "%.*s%s.lgpu-real", folder, own, soname) < (int)size && access(path, F_OK) == 0)
		return true;
	char best[256] = "";
	snprintf(path, size, "%.*s.", folder, own);
	DIR *d = opendir(path);
	if (d == NULL)
		return false;
	for (struct dirent *e; (e = readdir(d)) != NULL;) {
		const char *version = e->d_name + strlen(stem);
		if (strncmp(e->d_name, stem, strlen(stem)) != 0 || *version < '0' || *version > '9' || strchr(version, '.') == NULL ||
		    strlen(e->d_name) >= sizeof best)
			continue;
		size_t n = strlen(e->d_name), m = strlen(best);
		if (n > m || (n == m && strcmp(e->d_name, best) > 0))
			memcpy(best, e->d_name, n + 1);
	}
	closedir(d);
	return best[0] != 0 && snprintf(path, size, "%.*s%s", folder, own, best) < (int)size;
}

bool lgpu_second_copy(void)
{
	char own[OWN_PATH];
	return strcmp(lgpu_basename(own_path(own)), libraries[LGPU_NVML].soname) == 0;
}

static void *load(enum lgpu_library library)
{
	char own[OWN_PATH];
	const char *mine = lgpu_basename(own_path(own)), *soname = libraries[library].soname;
	bool replaced = strcmp(mine, libraries[LGPU_CUDA].soname) == 0 || strcmp(mine, libraries[LGPU_NVML].soname) == 0;
	// The driver's library has the name that programs ask for. Where a copy of us has its place, that copy must be
	// loaded under the name first, or a later dlopen would be given the driver's.
	if (replaced && strcmp(mine, soname) != 0)
		open_library(soname, RTLD_LAZY);
	char path[1280];
	const char *given = named(library), *chosen = soname;
	lgpu_stamp_export();
	if (given != NULL)
		chosen = given;
	else if (replaced && beside(library, own, path, sizeof path))
		chosen = path;
	else if (replaced)
		chosen = NULL;
	void *handle = chosen != NULL ? open_library(chosen, RTLD_LAZY) : NULL;
	if (handle == NULL) {
		static bool said[LGPU_LIBRARIES];
		if (!__atomic_exchange_n(&said[library], true, __ATOMIC_RELAXED))
			lgpu_log(LGPU_LOG_ERROR, "the driver's %s cannot be loaded%s%s; there is no GPU for this process", soname,
				 chosen != NULL && chosen != soname ? " from " : "", chosen != NULL && chosen != soname ? chosen : "");
	}
	return handle;
}

static void *real_handle(enum lgpu_library library, bool may_load)
{
	void *handle = __atomic_load_n(&handles[library], __ATOMIC_ACQUIRE);
	if (handle == NULL && may_load) {
		// No lock is held here: the driver's initialisers may call back into dlsym. Two threads load it twice,
		// which only counts its uses.
		void *loaded = load(library);
		if (loaded != NULL)
			handle = __atomic_compare_exchange_n(&handles[library], &handle, loaded, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
					 ? loaded : handle;
	}
	return handle;
}

void lgpu_real_adopt(enum lgpu_library library, const char *path)
{
	void *none = NULL, *handle = open_library(path, RTLD_LAZY | RTLD_NOLOAD);
	if (handle != NULL)
		__atomic_compare_exchange_n(&handles[library], &none, handle, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

// ---- functions

int lgpu_symbol_find(const char *name)
{
	// Most names are somebody else's.
	if (!(name[0] == 'c' && name[1] == 'u') && !(name[0] == 'n' && name[1] == 'v'))
		return -1;
	int low = 0, high = LGPU_SYM_COUNT - 1;
	while (low <= high) {
		int middle = (low + high) / 2, order = strcmp(name, lgpu_symbols[middle].name);
		if (order == 0)
			return middle;
		if (order < 0)
			high = middle - 1;
		else
			low = middle + 1;
	}
	return -1;
}

void *lgpu_real_find(unsigned number, bool may_load)
{
	void *handle = real_handle(lgpu_symbols[number].library, may_load);
	return handle != NULL ? find_in(handle, lgpu_symbols[number].name) : NULL;
}

static CUresult cuda_missing(void) { return CUDA_ERROR_NO_DEVICE; }
static CUresult cuda_unknown(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static CUresult cuda_refused(void) { return CUDA_ERROR_NOT_SUPPORTED; }
static nvmlReturn_t nvml_missing(void) { return NVML_ERROR_LIBRARY_NOT_FOUND; }
static nvmlReturn_t nvml_unknown(void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }
// What an unprivileged caller is told about a setting of the whole device.
static nvmlReturn_t nvml_refused(void) { return NVML_ERROR_NO_PERMISSION; }

static const char *nvml_missing_string(nvmlReturn_t result)
{
	return result == NVML_SUCCESS ? "Success" : "the driver's libnvidia-ml.so.1 is missing";
}

void *lgpu_real_resolve(unsigned number)
{
	const struct lgpu_symbol *s = &lgpu_symbols[number];
	bool nvml = s->library == LGPU_NVML;
	if (s->class == LGPU_REFUSE && lgpu_authority() != LGPU_BY_NOBODY) {
		lgpu_log(LGPU_LOG_WARN, "%s is refused inside an lgpu", s->name);
		return nvml ? (void *)nvml_refused : (void *)cuda_refused;
	}
	void *f = lgpu_real_find(number, true);
	if (f != NULL) {
		__atomic_store_n(&lgpu_reals[number], f, __ATOMIC_RELAXED);
		return f;
	}
	if (number == LGPU_SYM_nvmlErrorString)
		return (void *)nvml_missing_string;
	if (real_handle(s->library, false) == NULL)
		return nvml ? (void *)nvml_missing : (void *)cuda_missing;
	lgpu_log(LGPU_LOG_INFO, "the driver has no %s", s->name);
	return nvml ? (void *)nvml_unknown : (void *)cuda_unknown;
}
