// SPDX-License-Identifier: Apache-2.0

// A library with functions whose names look like the driver's, one of them
// versioned, and lookups on its own behalf.
#include <dlfcn.h>
#include <stdlib.h>

int curl_easy_init(void) { return 2; }
int custom_function(void) { return 3; }
int cuInit(unsigned flags) { return (int)flags + 4; }
int nvmlInit_v2(void) { return 5; }

int custom_versioned_old(void) { return 6; }
int custom_versioned_new(void) { return 7; }
__asm__(".symver custom_versioned_old, custom_versioned@CUSTOM_1");
__asm__(".symver custom_versioned_new, custom_versioned@@CUSTOM_2");

// In the way of malloc, as an allocator would be.
void *malloc(size_t size)
{
	static void *(*next)(size_t);
	if (next == NULL)
		next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
	return next(size);
}

void *probe_next(const char *name) { return dlsym(RTLD_NEXT, name); }
void *probe_default(const char *name) { return dlsym(RTLD_DEFAULT, name); }
void *probe_next_version(const char *name, const char *version) { return dlvsym(RTLD_NEXT, name, version); }
