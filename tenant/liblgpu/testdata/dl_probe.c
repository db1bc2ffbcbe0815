// SPDX-License-Identifier: Apache-2.0

// Prints what dlsym and dlvsym answer, as "object:symbol+offset", for names
// that are not the driver's and for names that are. Run with the library and
// without it, the lines must be the same; but for "driver:" lines.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *what, void *p)
{
	Dl_info info;
	const char *slash;
	if (p == NULL) {
		const char *error = dlerror();
		// The message names the object; its folder is not of interest.
		slash = error != NULL ? strstr(error, "undefined symbol") : NULL;
		printf("%s NULL %s\n", what, slash != NULL ? slash : error != NULL ? "error" : "no error");
	} else if (dladdr(p, &info) != 0) {
		slash = strrchr(info.dli_fname, '/');
		printf("%s %s:%s+%td\n", what, slash != NULL ? slash + 1 : info.dli_fname, info.dli_sname != NULL ? info.dli_sname : "-",
		       info.dli_saddr != NULL ? (char *)p - (char *)info.dli_saddr : 0);
	} else {
		printf("%s unknown\n", what);
	}
}

// Defined by the probe's library: a caller of its own.
void *probe_next(const char *name);
void *probe_default(const char *name);
void *probe_next_version(const char *name, const char *version);

int custom_here(void) { return 1; }

int main(int argc, char **argv)
{
	void *self = dlopen(NULL, RTLD_NOW), *other = dlopen(argv[1], RTLD_NOW), *libc = dlopen("libc.so.6", RTLD_NOW);
	(void)argc;
	static const char *const names[] = {"malloc", "free", "curl_easy_init", "custom_function", "custom_here", "cudaMalloc", "cublasCreate_v2",
					    "cu", "c", "", "nv", "nvml", "nvmlUnknown", "cuUnknown", "puts", "dlopen", "no_such_symbol",
					    "environ", "probe_next"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		printf("%s\n", names[i]);
		dlerror();
		say(" handle", dlsym(self, names[i]));
		say(" other", dlsym(other, names[i]));
		say(" libc", dlsym(libc, names[i]));
		say(" default", dlsym(RTLD_DEFAULT, names[i]));
		say(" next", dlsym(RTLD_NEXT, names[i]));
		say(" library's default", probe_default(names[i]));
		say(" library's next", probe_next(names[i]));
	}
	// Versions, by dlvsym.
	say("realpath 2.3", dlvsym(libc, "realpath", "GLIBC_2.3"));
	say("realpath 2.2.5", dlvsym(libc, "realpath", "GLIBC_2.2.5"));
	say("realpath none", dlvsym(libc, "realpath", "GLIBC_9.9"));
	say("old function", dlvsym(other, "custom_versioned", "CUSTOM_1"));
	say("new function", dlvsym(other, "custom_versioned", "CUSTOM_2"));
	say("default version", dlsym(other, "custom_versioned"));
	say("next version", dlvsym(RTLD_NEXT, "malloc", "GLIBC_2.2.5"));
	say("library's next version", probe_next_version("malloc", "GLIBC_2.2.5"));
	// A library's own functions under the driver's names.
	say("its own cuInit", dlsym(other, "cuInit"));
	say("its own nvmlInit_v2", dlsym(other, "nvmlInit_v2"));
	say("not its cuMemAlloc_v2", dlsym(other, "cuMemAlloc_v2"));
	// The driver's.
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	say("driver: hooked", dlsym(driver, "cuMemAlloc_v2"));
	say("driver: hooked, by version", dlvsym(driver, "cuMemAlloc_v2", "ANY"));
	say("driver: next", dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
	say("driver: library's next", probe_next("cuMemAlloc_v2"));
	say("driver: default", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
	say("driver: passed", dlsym(driver, "cuDriverGetVersion"));
	say("driver: unknown", dlsym(driver, "cuNoSuchFunction"));
	return 0;
}
