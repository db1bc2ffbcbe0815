// SPDX-License-Identifier: Apache-2.0

// The loaded object that is the driver's library: what it defines, and what it calls.
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/futex.h"
#include "slice/parts.h"

#if defined(__x86_64__)
#define SLOT_CALL R_X86_64_JUMP_SLOT
#define SLOT_DATA R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define SLOT_CALL R_AARCH64_JUMP_SLOT
#define SLOT_DATA R_AARCH64_GLOB_DAT
#else
#error "the relocations of this architecture are not known"
#endif

// A search visits the driver's library, which is the object that has the driver's
// cuInit. Without a driver that would be a function of ours.
struct search {
	const void *init;
	const char *name;
	void *found, *ours, *function;
	bool done;
};

static bool driver_is(const struct dl_phdr_info *object, const struct search *s)
{
	return lgpu_elf_holds(object, s->init) && !lgpu_elf_holds(object, &lgpu_symbols);
}

static int symbol_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct search *s = arg;
	if (!driver_is(object, s))
		return 0;
	s->found = lgpu_elf_find(object, s->name);
	return 1;
}

void *lgpu_driver_symbol(const char *name)
{
	struct search s = {.init = lgpu_real(LGPU_SYM_cuInit), .name = name};
	dl_iterate_phdr(symbol_visit, &s);
	return s.found;
}

// The relocations of an object, and what their symbols are called.
struct relocations {
	const ElfW(Rela) *calls, *data;
	size_t call_bytes, data_bytes;
	const ElfW(Sym) *symbols;
	const char *strings;
};

static bool relocations_of(const struct dl_phdr_info *object, struct relocations *r)
{
	memset(r, 0, sizeof *r);
	for (int i = 0; i < object->dlpi_phnum; i++) {
		if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
			continue;
		const ElfW(Dyn) *d = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
		for (; d->d_tag != DT_NULL; d++) {
			const void *p = (const void *)(d->d_un.d_ptr < object->dlpi_addr ? d->d_un.d_ptr + object->dlpi_addr : d->d_un.d_ptr);
			switch (d->d_tag) {
			case DT_JMPREL: r->calls = p; break;
			case DT_PLTRELSZ: r->call_bytes = d->d_un.d_val; break;
			case DT_RELA: r->data = p; break;
			case DT_RELASZ: r->data_bytes = d->d_un.d_val; break;
			case DT_SYMTAB: r->symbols = p; break;
			case DT_STRTAB: r->strings = p; break;
			case DT_PLTREL:
				if (d->d_un.d_val != DT_RELA)
					return false;
			}
		}
	}
	return r->symbols != NULL && r->strings != NULL;
}

// read_only reports whether the loader has write-protected the page of an address
// after it had relocated the object.
static bool read_only(const struct dl_phdr_info *object, uintptr_t address, uintptr_t page)
{
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &object->dlpi_phdr[i];
		uintptr_t begin = object->dlpi_addr + h->p_vaddr, end = begin + h->p_memsz;
		if (h->p_type == PT_GNU_RELRO && address >= (begin & ~(page - 1)) && address < (end & ~(page - 1)))
			return true;
	}
	return false;
}

// write_slot replaces the function in a slot. The page is as it was afterwards.
static bool write_slot(const struct dl_phdr_info *object, void **slot, void *function)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	void *begin = (void *)((uintptr_t)slot & ~(page - 1));
	bool protect = read_only(object, (uintptr_t)slot, page);
	if (protect && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0)
		return false;
	__atomic_store_n(slot, function, __ATOMIC_RELEASE);
	if (protect)
		mprotect(begin, page, PROT_READ);
	return true;
}

static void redirect_in(const struct dl_phdr_info *object, const struct relocations *r, const ElfW(Rela) *table, size_t bytes,
			struct search *s)
{
	for (size_t i = 0; table != NULL && i < bytes / sizeof *table; i++) {
		unsigned type = (unsigned)ELF64_R_TYPE(table[i].r_info);
		if ((type != SLOT_CALL && type != SLOT_DATA) ||
		    strcmp(r->strings + r->symbols[ELF64_R_SYM(table[i].r_info)].st_name, s->name) != 0)
			continue;
		void **slot = (void **)(object->dlpi_addr + table[i].r_offset), *now = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
		if (now == s->ours || now == s->function || write_slot(object, slot, s->function))
			s->done = true;
	}
}

static int redirect_visit(struct dl_phdr_info *object, size_t size, void *arg)
{
	(void)size;
	struct search *s = arg;
	struct relocations r;
	if (!driver_is(object, s))
		return 0;
	if (relocations_of(object, &r)) {
		redirect_in(object, &r, r.calls, r.call_bytes, s);
		redirect_in(object, &r, r.data, r.data_bytes, s);
	}
	return 1;
}

bool lgpu_driver_redirect(const char *name, void *ours, void *function)
{
	// Two threads at once would protect a page that the other writes to.
	static uint32_t lock;
	struct search s = {.init = lgpu_real(LGPU_SYM_cuInit), .name = name, .ours = ours, .function = function};
	lgpu_lock(&lock);
	dl_iterate_phdr(redirect_visit, &s);
	lgpu_unlock(&lock);
	return s.done;
}
