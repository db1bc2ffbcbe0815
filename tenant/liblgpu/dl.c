// What dlsym and dlvsym answer for the driver's symbols; the entries are in
// dl_*.S.
//
// Translation is by pointer: the natural answer is looked up, and replaced
// only if it is the driver's function. So a library's own cuInit, and every
// name that is not the driver's, is answered as without us.
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "core.h"

// libc's dlsym and dlvsym, for dl_*.S.
void *lgpu_dl_real[2];
void *lgpu_dl_translate(void *handle, const char *name, const char *version, const void *caller, int which);

struct place {
	ElfW(Addr) address;
	const char *path; // of the object that holds address
	bool ours;
};

static bool object_holds(const struct dl_phdr_info *object, ElfW(Addr) address)
{
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &object->dlpi_phdr[i];
		if (h->p_type == PT_LOAD && address - object->dlpi_addr - h->p_vaddr < h->p_memsz)
			return true;
	}
	return false;
}

static int place_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct place *p = arg;
	if (!object_holds(object, p->address))
		return 0;
	p->path = object->dlpi_name;
	p->ours = object_holds(object, (ElfW(Addr))&lgpu_symbols);
	return 1;
}

// RTLD_NEXT means the objects behind the caller's, in the order in which they
// were loaded.
struct next {
	ElfW(Addr) caller;
	const char *name;
	bool passed, driver;
	enum lgpu_library library;
};

static int next_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct next *n = arg;
	if (!n->passed) {
		n->passed = object_holds(object, n->caller);
		return 0;
	}
	if (lgpu_elf_find(object, n->name) == NULL)
		return 0;
	if (!object_holds(object, (ElfW(Addr))&lgpu_symbols) && lgpu_is_driver(n->library, object->dlpi_name)) {
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
		struct next n = {.caller = (ElfW(Addr))caller, .name = name, .library = s->library};
		dl_iterate_phdr(next_visit, &n);
		return n.driver ? s->ours : NULL;
	}
	void *found = natural(handle, name, version, which);
	if (found == NULL)
		return NULL;
	if (found == lgpu_real_find((unsigned)number, false))
		return s->ours;
	struct place p = {.address = (ElfW(Addr))found};
	dl_iterate_phdr(place_visit, &p);
	if (p.path == NULL || p.ours || !lgpu_is_driver(s->library, p.path))
		return NULL;
	lgpu_real_adopt(s->library, p.path);
	return s->ours;
}
