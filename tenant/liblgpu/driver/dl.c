// SPDX-License-Identifier: Apache-2.0

// What dlsym and dlvsym answer for the driver's symbols; their entry points are in
// dl_*.S.
//
// The symbol is looked up as without us. Only if the answer is the driver's own
// function, ours is returned instead. So another library's function of the same name
// is found as without us, and so is every symbol that is not the driver's.
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "driver/driver.h"

// libc's dlsym and dlvsym, for dl_*.S.
void *lgpu_dl_real[2];
void *lgpu_dl_translate(void *handle, const char *name, const char *version, const void *caller, int which);

// The loaded object that an address is in.
struct home {
	const void *address;
	const char *path;
	bool ours;
};

static int home_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct home *p = arg;
	if (!lgpu_elf_holds(object, p->address))
		return 0;
	p->path = object->dlpi_name;
	p->ours = lgpu_elf_holds(object, &lgpu_symbols);
	return 1;
}

// RTLD_NEXT means the objects after the caller's, in the order in which they
// were loaded.
struct next {
	const void *caller;
	const char *name;
	bool passed, driver;
	enum lgpu_library library;
};

static int next_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct next *n = arg;
	if (!n->passed) {
		n->passed = lgpu_elf_holds(object, n->caller);
		return 0;
	}
	if (lgpu_elf_find(object, n->name) == NULL)
		return 0;
	if (!lgpu_elf_holds(object, &lgpu_symbols) && lgpu_is_driver(n->library, object->dlpi_name)) {
		n->driver = true;
		lgpu_real_adopt(n->library, object->dlpi_name);
	}
	return 1;
}

static void *natural(void *handle, const char *name, const char *version, int which)
{
	if (which == 1)
		return ((void *(*)(void *, const char *, const char *))lgpu_dl_real[1])(handle, name, version);
	return ((void *(*)(void *, const char *))lgpu_dl_real[0])(handle, name);
}

// lgpu_dl_translate returns our function where the answer would be the
// driver's, else NULL: let libc answer.
void *lgpu_dl_translate(void *handle, const char *name, const char *version, const void *caller, int which)
{
	static const char *const names[] = {"dlsym", "dlvsym"};
	if (__atomic_load_n(&lgpu_dl_real[which], __ATOMIC_RELAXED) == NULL)
		__atomic_store_n(&lgpu_dl_real[which], lgpu_libc(names[which]), __ATOMIC_RELAXED);
	int number = name != NULL ? lgpu_symbol_find(name) : -1;
	if (number < 0 || lgpu_symbols[number].class == LGPU_PASS || handle == RTLD_DEFAULT)
		return NULL;
	const struct lgpu_symbol *s = &lgpu_symbols[number];
	if (handle == RTLD_NEXT) {
		struct next n = {.caller = caller, .name = name, .library = s->library};
		dl_iterate_phdr(next_visit, &n);
		return n.driver ? s->ours : NULL;
	}
	void *found = natural(handle, name, version, which);
	if (found == NULL)
		return NULL;
	if (found == lgpu_real_find((unsigned)number, false))
		return s->ours;
	struct home p = {.address = found};
	dl_iterate_phdr(home_visit, &p);
	if (p.path == NULL || p.ours || !lgpu_is_driver(s->library, p.path))
		return NULL;
	lgpu_real_adopt(s->library, p.path);
	return s->ours;
}
