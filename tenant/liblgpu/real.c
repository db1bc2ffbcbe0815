// Finding the driver's libraries and functions.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"

static const struct {
	const char *soname, *stem, *env;
} libraries[LGPU_LIBRARIES] = {
	[LGPU_CUDA] = {"libcuda.so.1", "libcuda.so.", "LGPU_REAL_LIBCUDA"},
	[LGPU_NVML] = {"libnvidia-ml.so.1", "libnvidia-ml.so.", "LGPU_REAL_LIBNVML"},
};

static void *handles[LGPU_LIBRARIES];

static const char *basename_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash != NULL ? slash + 1 : path;
}

// ---- looking into loaded objects, without dlsym

struct elf {
	ElfW(Addr) base;
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *gnu_hash, *sysv_hash;
	const ElfW(Half) *versions;
};

static bool elf_open(const struct dl_phdr_info *object, struct elf *e)
{
	memset(e, 0, sizeof *e);
	e->base = object->dlpi_addr;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
			continue;
		const ElfW(Dyn) *d = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
		for (; d->d_tag != DT_NULL; d++) {
			// The loader has made these addresses absolute, except in the kernel's own object.
			ElfW(Addr) p = d->d_un.d_ptr < e->base ? d->d_un.d_ptr + e->base : d->d_un.d_ptr;
			switch (d->d_tag) {
			case DT_SYMTAB: e->symbols = (const void *)p; break;
			case DT_STRTAB: e->strings = (const void *)p; break;
			case DT_GNU_HASH: e->gnu_hash = (const void *)p; break;
			case DT_HASH: e->sysv_hash = (const void *)p; break;
			case DT_VERSYM: e->versions = (const void *)p; break;
			}
		}
	}
	return e->symbols != NULL && e->strings != NULL;
}

static void *elf_match(const struct elf *e, uint32_t i, const char *name)
{
	const ElfW(Sym) *s = &e->symbols[i];
	if (s->st_shndx == SHN_UNDEF || s->st_value == 0 || strcmp(e->strings + s->st_name, name) != 0)
		return NULL;
	// A hidden version is not what a new program would be linked to.
	if (e->versions != NULL && (e->versions[i] & 0x8000) != 0)
		return NULL;
	return (void *)(e->base + s->st_value);
}

void *lgpu_elf_find(const struct dl_phdr_info *object, const char *name)
{
	struct elf e;
	if (!elf_open(object, &e))
		return NULL;
	if (e.gnu_hash != NULL) {
		uint32_t buckets = e.gnu_hash[0], offset = e.gnu_hash[1], words = e.gnu_hash[2], h = 5381;
		const uint32_t *bucket = e.gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4);
		for (const char *c = name; *c != 0; c++)
			h = h * 33 + (uint8_t)*c;
		if (buckets == 0)
			return NULL;
		uint32_t i = bucket[h % buckets];
		if (i < offset)
			return NULL;
		for (const uint32_t *chain = bucket + buckets;; i++) {
			uint32_t found = chain[i - offset];
			void *p = (found | 1) == (h | 1) ? elf_match(&e, i, name) : NULL;
			if (p != NULL || (found & 1) != 0)
				return p;
		}
	}
	if (e.sysv_hash != NULL) {
		uint32_t h = 0;
		for (const char *c = name; *c != 0; c++) {
			h = (h << 4) + (uint8_t)*c;
			h = (h ^ (h & 0xf0000000) >> 24) & 0x0fffffff;
		}
		uint32_t buckets = e.sysv_hash[0];
		if (buckets == 0)
			return NULL;
		for (uint32_t i = e.sysv_hash[2 + h % buckets]; i != 0; i = e.sysv_hash[2 + buckets + i]) {
			void *p = elf_match(&e, i, name);
			if (p != NULL)
				return p;
		}
	}
	return NULL;
}

struct libc_search {
	const char *name;
	void *found;
};

static int libc_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct libc_search *s = arg;
	const char *base = basename_of(object->dlpi_name);
	if (strncmp(base, "libc.so.", 8) == 0 || strncmp(base, "libdl.so.", 9) == 0 ||
	    strncmp(base, "libpthread.so.", 14) == 0)
		s->found = lgpu_elf_find(object, s->name);
	return s->found != NULL;
}

void *lgpu_libc(const char *name)
{
	struct libc_search s = {name, NULL};
	dl_iterate_phdr(libc_visit, &s);
	if (s.found != NULL)
		return s.found;
	// Before glibc 2.34 a program may run without libdl and libpthread.
	struct libc_search loader = {"__libc_dlopen_mode", NULL};
	dl_iterate_phdr(libc_visit, &loader);
	if (loader.found == NULL)
		return NULL;
	((void *(*)(const char *, int))loader.found)("libdl.so.2", RTLD_LAZY);
	((void *(*)(const char *, int))loader.found)("libpthread.so.0", RTLD_LAZY);
	dl_iterate_phdr(libc_visit, &s);
	return s.found;
}

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

struct own_search {
	ElfW(Addr) address;
	char path[1024];
};

static int own_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct own_search *s = arg;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &object->dlpi_phdr[i];
		if (h->p_type == PT_LOAD && s->address - object->dlpi_addr - h->p_vaddr < h->p_memsz) {
			snprintf(s->path, sizeof s->path, "%s", object->dlpi_name);
			return 1;
		}
	}
	return 0;
}

bool lgpu_is_driver(enum lgpu_library library, const char *path)
{
	const char *named = getenv(libraries[library].env);
	if (named != NULL && strcmp(path, named) == 0)
		return true;
	const char *base = basename_of(path), *stem = libraries[library].stem;
	return strncmp(base, stem, strlen(stem)) == 0;
}

// beside stores the path of the driver's library that we have taken the place
// of: the renamed one in our own folder, else the one with the highest version
// in its name. The name's version is compared as text of equal length first.
static bool beside(enum lgpu_library library, const char *own, char *path, size_t size)
{
	const char *soname = libraries[library].soname, *stem = libraries[library].stem;
	int folder = (int)(basename_of(own) - own);
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
	struct own_search own = {(ElfW(Addr))&lgpu_symbols, ""};
	dl_iterate_phdr(own_visit, &own);
	return strcmp(basename_of(own.path), libraries[LGPU_NVML].soname) == 0;
}

static void *load(enum lgpu_library library)
{
	struct own_search own = {(ElfW(Addr))&lgpu_symbols, ""};
	dl_iterate_phdr(own_visit, &own);
	const char *mine = basename_of(own.path), *soname = libraries[library].soname;
	bool replaced = strcmp(mine, libraries[LGPU_CUDA].soname) == 0 || strcmp(mine, libraries[LGPU_NVML].soname) == 0;
	// The driver's library has the name that programs ask for. Where a copy of us has its place, that copy must be
	// loaded under the name first, or a later dlopen would be given the driver's.
	if (replaced && strcmp(mine, soname) != 0)
		open_library(soname, RTLD_LAZY);
	char path[1280];
	const char *named = getenv(libraries[library].env), *chosen = soname;
	if (named != NULL && named[0] != 0)
		chosen = named;
	else if (replaced && beside(library, own.path, path, sizeof path))
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

void *lgpu_slot_resolve(unsigned number)
{
	const struct lgpu_symbol *s = &lgpu_symbols[number];
	bool nvml = s->library == LGPU_NVML;
	if (s->class == LGPU_REFUSE && lgpu_configured()) {
		lgpu_log(LGPU_LOG_WARN, "%s is refused inside an lgpu", s->name);
		return nvml ? (void *)nvml_refused : (void *)cuda_refused;
	}
	void *f = lgpu_real_find(number, true);
	if (f != NULL) {
		__atomic_store_n(&lgpu_slots[number], f, __ATOMIC_RELAXED);
		return f;
	}
	if (number == LGPU_SYM_nvmlErrorString)
		return (void *)nvml_missing_string;
	if (real_handle(s->library, false) == NULL)
		return nvml ? (void *)nvml_missing : (void *)cuda_missing;
	lgpu_log(LGPU_LOG_INFO, "the driver has no %s", s->name);
	return nvml ? (void *)nvml_unknown : (void *)cuda_unknown;
}

bool lgpu_thread_start(void *(*fn)(void *), void *arg)
{
	// Opaque to us: the layout of pthread_attr_t does not matter where none is given.
	int (*create)(unsigned long *, const void *, void *(*)(void *), void *) =
		(int (*)(unsigned long *, const void *, void *(*)(void *), void *))lgpu_libc("pthread_create");
	int (*detach)(unsigned long) = (int (*)(unsigned long))lgpu_libc("pthread_detach");
	if (create == NULL || detach == NULL)
		return false;
	sigset_t all, before;
	unsigned long thread;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before); // of this thread, and inherited by the new one
	int error = create(&thread, NULL, fn, arg);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (error == 0)
		detach(thread);
	return error == 0;
}
