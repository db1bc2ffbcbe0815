// SPDX-License-Identifier: Apache-2.0

// What kernels print: the pieces of vprintf's calls, formatted by this program's C library into its standard output.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "channel.h"

// Kinds of piece, as in sim/ptx/printf.go.
enum { TEXT, INTEGER, FLOATING, POINTER, CHARACTER, STRING };

struct piece {
	uint32_t kind, size;
	uint64_t value;
	char text[];
};

static void print_one(const struct piece *p)
{
	double d;

	switch (p->kind) {
	case TEXT:
		fwrite(p->text, 1, p->size, stdout);
		break;
	case INTEGER:
		printf(p->text, (long long)p->value);
		break;
	case FLOATING:
		memcpy(&d, &p->value, sizeof d);
		printf(p->text, d);
		break;
	case POINTER:
		printf(p->text, (void *)(uintptr_t)p->value);
		break;
	case CHARACTER:
		printf(p->text, (int)p->value);
		break;
	case STRING:
		printf(p->text, p->text + p->value);
		break;
	}
}

void simc_print(const unsigned char *pieces, size_t n)
{
	while (n >= sizeof(struct piece)) {
		const struct piece *p = (const struct piece *)(const void *)pieces;
		size_t size = sizeof *p + ((p->size + 7) & ~(size_t)7);

		print_one(p);
		if (size > n)
			break;
		pieces += size;
		n -= size;
	}
}
