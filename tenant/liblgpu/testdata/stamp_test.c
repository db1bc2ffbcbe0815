// SPDX-License-Identifier: Apache-2.0

// stamp_test reads stamps as a launcher writes them, then any bytes at all, up to the last byte of the place for them.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/stamp.c"
#include "testdata/check.h"

// place returns the stamp of this program, which it may then write to.
static char *place(void)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)stamp / page * page;
	uintptr_t end = ((uintptr_t)stamp + STAMP_BYTES + page - 1) / page * page;
	return mprotect((void *)begin, end - begin, PROT_READ | PROT_WRITE) == 0 ? (char *)(uintptr_t)written() : NULL;
}

int main(void)
{
	char *p = place();
	CHECK(p != NULL);
	CHECK(lgpu_stamped("A") == NULL);
	setenv("A", "environment", 1);
	setenv("B", "environment", 1);
	CHECK(strcmp(lgpu_setting("A"), "environment") == 0);

	static const char text[] = "AB=0\0A=stamp\0=no name\0no value\0C=\0";
	memcpy(p, text, sizeof text);
	CHECK(strcmp(lgpu_stamped("A"), "stamp") == 0);
	CHECK(strcmp(lgpu_setting("A"), "stamp") == 0);
	CHECK(strcmp(lgpu_setting("B"), "environment") == 0);
	CHECK(strcmp(lgpu_stamped("C"), "") == 0);
	CHECK(lgpu_stamped("no value") == NULL);
	lgpu_stamp_export();
	CHECK(strcmp(getenv("A"), "stamp") == 0 && strcmp(getenv("AB"), "0") == 0 && strcmp(getenv("C"), "") == 0);

	memset(p, 'x', STAMP_BYTES); // without an end
	CHECK(lgpu_stamped("x") == NULL);
	for (int round = 0; round < 20000; round++) {
		for (int i = 0; i < 64; i++)
			p[random() % STAMP_BYTES] = "\0=AB"[random() % 4];
		const char *value = lgpu_stamped("A");
		CHECK(value == NULL || (value > p && value < p + STAMP_BYTES));
	}
	lgpu_stamp_export();
	return 0;
}
