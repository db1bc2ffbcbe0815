// SPDX-License-Identifier: Apache-2.0

// newest STEP...: asks cuGetProcAddress for the call that STUB_NEWEST names (STEP ask), or calls cuInit (STEP init), and
// prints what came of it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lgpu_cuda.h"

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		void *f = NULL;
		if (strcmp(argv[i], "init") == 0) {
			__typeof__(&cuInit) init = (__typeof__(&cuInit))dlsym(RTLD_DEFAULT, "cuInit");
			printf("init %d\n", (int)init(0));
			continue;
		}
		__typeof__(&cuGetProcAddress) ask = (__typeof__(&cuGetProcAddress))dlsym(RTLD_DEFAULT, "cuGetProcAddress");
		CUresult r = ask(getenv("STUB_NEWEST"), &f, 13000, 0);
		printf("%s %d\n", f != NULL ? "given" : "withheld", (int)r);
	}
	return 0;
}
