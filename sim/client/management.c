// SPDX-License-Identifier: Apache-2.0

// A checkpoint of the process concerns the connection of its libnvidia-ml, too: another library with a copy of its own of
// what connects, which is found among those that are loaded.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "simc.h"

enum { MOST_FOUND = 8 };

// The paths of libraries that are called libnvidia-ml. In an lgpu the interposer is, besides the one that is meant.
struct found {
	char *path[MOST_FOUND];
	unsigned count;
};

static void (*move)(const char *path); // of libnvidia-ml, once it has been found

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
	static const char want[] = "libnvidia-ml.so";
	const char *name = strrchr(info->dlpi_name, '/');
	struct found *f = arg;

	(void)size;
	if (name && strncmp(name + 1, want, sizeof want - 1) == 0 && f->count < MOST_FOUND &&
	    (f->path[f->count] = strdup(info->dlpi_name)) != NULL)
		f->count++;
	return 0;
}

void simc_find_management(void)
{
	struct found f = {.count = 0};
	void *library, *symbol;
	unsigned i;

	if (move)
		return;
	dl_iterate_phdr(look, &f);
	for (i = 0; i < f.count; i++) {
		library = move ? NULL : dlopen(f.path[i], RTLD_NOW | RTLD_NOLOAD);
		symbol = library ? dlsym(library, "lgpusimMoveManagement") : NULL;
		if (symbol)
			memcpy(&move, &symbol, sizeof move); // and the library stays loaded
		else if (library)
			dlclose(library);
		free(f.path[i]);
	}
}

void simc_tell_management(const char *path)
{
	if (move)
		move(path);
}
