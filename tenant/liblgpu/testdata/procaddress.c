// SPDX-License-Identifier: Apache-2.0

// Reads lines "base version flags symbol class", where symbol is what the
// driver answers or "-". Both forms of cuGetProcAddress must answer with the
// driver's own function where it is passed, and with ours where it is not.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lgpu_cuda.h"

int main(void)
{
	char base[128], symbol[128], class[16];
	int version, flags, lines = 0, wrong = 0;
	void *driver = dlopen(getenv("LGPU_REAL_LIBCUDA"), RTLD_NOW);
	CUresult (*v1)(const char *, void **, int, cuuint64_t) = dlsym(driver, "cuGetProcAddress");
	CUresult (*v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = dlsym(driver, "cuGetProcAddress_v2");
	while (scanf("%127s %d %d %127s %15s", base, &version, &flags, symbol, class) == 5) {
		void *one = NULL, *two = NULL, *want = NULL;
		CUdriverProcAddressQueryResult status = -1;
		Dl_info info;
		lines++;
		CUresult r1 = v1(base, &one, version, (cuuint64_t)flags);
		CUresult r2 = v2(base, &two, version, (cuuint64_t)flags, &status);
		if (strcmp(symbol, "-") != 0)
			want = strcmp(class, "pass") == 0 ? dlsym(driver, symbol) : dlsym(RTLD_DEFAULT, symbol);
		int ours = want != NULL && dladdr(want, &info) != 0 && strstr(info.dli_fname, "liblgpu") != NULL;
		if (one != want || two != want || (want != NULL && (r1 != 0 || r2 != 0 || status != 0)) ||
		    (want != NULL && ours != (strcmp(class, "pass") != 0))) {
			printf("%s version %d flags %d: got %p and %p (%d, %d, status %d), want %s %p\n", base, version, flags, one, two, r1,
			       r2, (int)status, symbol, want);
			wrong++;
		}
	}
	printf("%d lines, %d wrong\n", lines, wrong);
	return wrong != 0 || lines == 0;
}
