// SPDX-License-Identifier: Apache-2.0

// Functions of other loaded objects, libc first of all, found without dlsym.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

const char *lgpu_basename(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash != NULL ? slash + 1 : path;
}

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

bool lgpu_elf_holds(const struct dl_phdr_info *object, const void *address)
{
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &object->dlpi_phdr[i];
		if (h->p_type == PT_LOAD && (ElfW(Addr))address - object->dlpi_addr - h->p_vaddr < h->p_memsz)
			return true;
	}
	return false;
}

struct libc_search {
	const char *name;
	void *found;
};

static int libc_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct libc_search *s = arg;
	const char *base = lgpu_basename(object->dlpi_name);
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

bool lgpu_at_fork(void (*prepare)(void), void (*child)(void))
{
	// What pthread_atfork calls, which is not in libc.so itself. This library is never unloaded, and needs no handle.
	int (*add)(void (*)(void), void (*)(void), void (*)(void), void *) =
		(int (*)(void (*)(void), void (*)(void), void (*)(void), void *))lgpu_libc("__register_atfork");
	return add != NULL && add(prepare, NULL, child, NULL) == 0;
}

void *lgpu_pages(size_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return NULL;
	madvise(pages, bytes, MADV_WIPEONFORK);
	return pages;
}

void lgpu_pages_free(void *pages, size_t bytes) { munmap(pages, bytes); }
