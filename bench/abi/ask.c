// ask NAMES: what the installed driver answers to cuGetProcAddress.
//
// NAMES is a file of exported symbols, one a line. Prints, for each that some version and flags of cuGetProcAddress
// answer, "symbol base since flags" as in tenant/abi/cuda.tsv; and a line "? ..." for a pointer that is no exported symbol, which
// the interposer could not translate.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 4096

typedef int (*get_proc_address)(const char *, void **, int, unsigned long long, int *);

static char names[MOST][96], bases[MOST][96];
static void *addresses[MOST];
static int since[MOST], flags_of[MOST], base_of[MOST];

// without_version cuts _v2, _ptsz and _ptds off a symbol's name.
static void without_version(char *name)
{
	for (;;) {
		char *tail = strrchr(name, '_');
		if (tail == NULL || (strcmp(tail, "_ptsz") != 0 && strcmp(tail, "_ptds") != 0 &&
				     !(tail[1] == 'v' && strspn(tail + 2, "0123456789") == strlen(tail + 2))))
			return;
		*tail = 0;
	}
}

int main(int argc, char **argv)
{
	FILE *f = argc == 2 ? fopen(argv[1], "r") : NULL;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int count = 0, bases_count = 0;
	if (f == NULL || driver == NULL) {
		fprintf(stderr, "usage: ask NAMES, on a machine with a driver\n");
		return 2;
	}
	get_proc_address get = (get_proc_address)dlsym(driver, "cuGetProcAddress_v2");
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
	if (get == NULL || init == NULL || init(0) != 0)
		return 1;
	while (count < MOST && fscanf(f, "%95s", names[count]) == 1) {
		addresses[count] = dlsym(driver, names[count]);
		count++;
	}
	for (int i = 0; i < count; i++) {
		char base[96];
		strcpy(base, names[i]);
		without_version(base);
		int known = 0;
		for (int b = 0; b < bases_count; b++)
			known |= strcmp(bases[b], base) == 0;
		if (!known)
			strcpy(bases[bases_count++], base);
	}
	for (int b = 0; b < bases_count; b++)
		for (int flags = 0; flags < 3; flags++)
			for (int version = 1000; version <= 20000; version += 10) {
				void *p = NULL;
				int status, found = -1;
				if (get(bases[b], &p, version, (unsigned long long)flags, &status) != 0 || p == NULL)
					continue;
				for (int i = 0; i < count && found < 0; i++)
					if (addresses[i] == p)
						found = i;
				if (found < 0) {
					printf("? %s %d %d\n", bases[b], version, flags);
					continue;
				}
				if (since[found] == 0 || version < since[found])
					since[found] = version;
				flags_of[found] |= 1 << flags;
				base_of[found] = b;
			}
	for (int i = 0; i < count; i++)
		if (flags_of[i] != 0)
			printf("%s %s %d %s%s%s\n", names[i], bases[base_of[i]], since[i], flags_of[i] & 1 ? "0" : "",
			       flags_of[i] & 2 ? "1" : "", flags_of[i] & 4 ? "2" : "");
	return 0;
}
