// SPDX-License-Identifier: Apache-2.0

// image_test N FILE...: prints what the variables of the image in each file take, as a file, as memory and behind a
// wrapper; then reads N mutations of it. Each lies in memory of exactly its size, so that a read past it is seen.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/image.h"

// Of nvcc's output: what stands before an embedded fat binary.
struct wrapper {
	unsigned magic, version;
	const void *data, *name;
};

static unsigned long long state = 88172645463325252ull;

static size_t below(size_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return n == 0 ? 0 : (size_t)(state % n);
}

// look reads an image of which there is no byte more.
static uint64_t look(const char *data, size_t size)
{
	char *exact = malloc(size);
	if (exact == NULL && size != 0)
		exit(2);
	if (size != 0)
		memcpy(exact, data, size);
	uint64_t bytes = lgpu_image_variables(exact, size);
	free(exact);
	return bytes;
}

// mutate changes a copy of data a little and returns its new size.
static size_t mutate(char *copy, const char *data, size_t size)
{
	static const char *const words[] = {"{", "[", "]", ";", "\"", "/*", "//", "=", ",",
					    ".global", ".extern ", ".b8 ", "0x", "18446744073709551615"};
	memcpy(copy, data, size);
	for (size_t changes = 1 + below(4); changes > 0 && size > 0; changes--) {
		size_t at = below(size);
		switch (below(5)) {
		case 0: copy[at] = (char)below(256); break;
		case 1: copy[at] ^= (char)(1 << below(8)); break;
		case 2: size = at; break;
		case 3: memset(copy + at, below(2) == 0 ? 0 : 0xff, size - at < 8 ? size - at : 8); break;
		default: {
			const char *word = words[below(sizeof words / sizeof words[0])];
			size_t n = strlen(word) < size - at ? strlen(word) : size - at;
			memcpy(copy + at, word, n);
		}
		}
	}
	return size;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 0;
	for (int i = 2; i < argc; i++) {
		static char data[1 << 16], copy[1 << 16];
		FILE *f = fopen(argv[i], "r");
		if (f == NULL)
			return 2;
		size_t size = fread(data, 1, sizeof data - 1, f);
		fclose(f);
		data[size] = 0; // PTX in memory ends with a zero
		struct wrapper w = {0x466243b1, 1, data, NULL};
		printf("%llu %llu %llu\n", (unsigned long long)lgpu_image_file_variables(argv[i]), (unsigned long long)look(data, size),
		       (unsigned long long)lgpu_image_variables(&w, SIZE_MAX));
		for (size_t cut = 0; cut <= size && cut < 512; cut++)
			look(data, cut);
		for (int k = 0; k < n; k++)
			look(copy, mutate(copy, data, size));
	}
	return 0;
}
