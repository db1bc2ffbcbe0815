// SPDX-License-Identifier: Apache-2.0

#include "memory/image.h"

#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"

// A fat binary is a header and entries, each a header and a payload. nvcc embeds
// it in a wrapper. Read off nvcc's output; the fields are named as in
// fatbinary.h, fatbinary_section.h and in public descriptions of the format.
#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define ENTRY_PTX 1
#define ENTRY_ELF 2
// Payloads that are compressed: LZ4, Zstandard, or of a way not seen yet.
#define ENTRY_COMPRESSED (UINT64_C(0x1000) | UINT64_C(0x2000) | UINT64_C(0x8000))

struct wrapper {
	uint32_t magic, version;
	const void *data;
	const void *name;
};

struct fatbin {
	uint32_t magic;
	uint16_t version, header;
	uint64_t size; // of all entries
};

struct entry {
	uint16_t kind, attributes;
	uint32_t header; // bytes before the payload
	uint64_t payload;
	uint32_t compressed, options;
	uint16_t minor, major;
	uint32_t arch, name, name_length;
	uint64_t flags;
};

// ---- PTX

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' || c == '%' || c == '.';
}

// A word of PTX: a directive with its dot, a name, a number; or one other character.
struct token {
	const char *text;
	size_t length;
};

static bool is(struct token t, const char *word) { return t.length == strlen(word) && memcmp(t.text, word, t.length) == 0; }

// next reads the token at *at, past space, comments and strings. Its length is
// 0 at the end.
static struct token next(const char **at, const char *end)
{
	const char *p = *at;
	for (;;) {
		while (p < end && is_space(*p))
			p++;
		if (end - p >= 2 && p[0] == '/' && p[1] == '/') {
			while (p < end && *p != '\n')
				p++;
		} else if (end - p >= 2 && p[0] == '/' && p[1] == '*') {
			for (p += 2; p < end && !(end - p >= 2 && p[0] == '*' && p[1] == '/'); p++)
				;
			p = end - p >= 2 ? p + 2 : end;
		} else if (p < end && *p == '"') {
			for (p++; p < end && *p != '"'; p++)
				;
			p = p < end ? p + 1 : end;
		} else {
			break;
		}
	}
	struct token t = {p, p < end};
	// Directives may follow each other, and numbers, without a space; instructions have dots.
	bool ends = t.length != 0 && (*p == '.' || (*p >= '0' && *p <= '9'));
	while (t.length != 0 && is_word(*p) && p + t.length < end && is_word(p[t.length]) && !(ends && p[t.length] == '.'))
		t.length++;
	*at = p + t.length;
	return t;
}

// type_bytes returns the size of a type like .f32, or 0.
static uint64_t type_bytes(struct token t)
{
	static const struct {
		const char *name;
		uint64_t bytes;
	} types[] = {
		{".b8", 1}, {".u8", 1}, {".s8", 1}, {".b16", 2}, {".u16", 2}, {".s16", 2}, {".f16", 2}, {".bf16", 2},
		{".b32", 4}, {".u32", 4}, {".s32", 4}, {".f32", 4}, {".f16x2", 4}, {".bf16x2", 4}, {".tf32", 4},
		{".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}, {".b128", 16},
	};
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
		if (is(t, types[i].name))
			return types[i].bytes;
	return 0;
}

static uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t product;
	return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
	uint64_t sum;
	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

// dimension reads "N]" after a bracket. 0: it is no plain number.
static uint64_t dimension(const char **at, const char *end)
{
	char text[32];
	const char *stop;
	uint64_t value;
	struct token t = next(at, end);
	if (t.length == 0 || t.length >= sizeof text || t.text[0] == ']')
		return 0;
	size_t length = t.length - (t.text[t.length - 1] == 'U');
	memcpy(text, t.text, length);
	text[length] = 0;
	return lgpu_number(text, &value, &stop) && *stop == 0 && is(next(at, end), "]") ? value : 0;
}

// variables returns what a declaration takes, from after its .global to its semicolon.
static uint64_t variables(const char **at, const char *end)
{
	uint64_t sum = 0, element = 0, vector = 1, one = 0;
	bool skip = false; // an initializer
	for (struct token t = next(at, end); t.length != 0 && !is(t, ";"); t = next(at, end)) {
		if (is(t, ".align") || is(t, ".attribute")) {
			next(at, end);
		} else if (is(t, ".v2") || is(t, ".v4")) {
			vector = (uint64_t)(t.text[2] - '0');
		} else if (type_bytes(t) != 0) {
			element = one = type_bytes(t) * vector;
		} else if (is(t, "[") && !skip) {
			one = times(one, dimension(at, end));
		} else if (is(t, "=")) {
			skip = true;
		} else if (is(t, "{") && skip) {
			for (int depth = 1; depth > 0 && t.length != 0;) {
				t = next(at, end);
				depth += is(t, "{") - is(t, "}");
			}
		} else if (is(t, ",")) {
			sum = plus(sum, one);
			one = element;
			skip = false;
		}
	}
	return plus(sum, one);
}

// ptx returns what the variables of a module take. What is declared .extern is
// another module's, and ".ptr .global" says something of a parameter.
static uint64_t ptx(const char *text, size_t length)
{
	uint64_t sum = 0;
	struct token before = {text, 0};
	for (const char *at = text, *end = text + length;;) {
		struct token t = next(&at, end);
		if (t.length == 0)
			return sum;
		if (is(t, ".global") && !is(before, ".extern") && !is(before, ".ptr"))
			sum = plus(sum, variables(&at, end));
		before = t;
	}
}

// ---- cubins

// named reports whether a section's name is what is asked for.
static bool named(const unsigned char *names, uint64_t size, uint64_t at, const char *name)
{
	size_t length = strlen(name) + 1;
	return at < size && size - at >= length && memcmp(names + at, name, length) == 0;
}

// elf returns what the variables of a cubin take. Images lie at any address.
static uint64_t elf(const unsigned char *image, size_t room)
{
	Elf64_Ehdr h;
	Elf64_Shdr section, names;
	if (room < sizeof h)
		return 0;
	memcpy(&h, image, sizeof h);
	if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != EM_CUDA || h.e_shentsize != sizeof section || h.e_shoff > room ||
	    (room - h.e_shoff) / sizeof section < h.e_shnum || h.e_shstrndx >= h.e_shnum)
		return 0;
	const unsigned char *table = image + h.e_shoff;
	memcpy(&names, table + h.e_shstrndx * sizeof section, sizeof names);
	if (names.sh_offset > room || names.sh_size > room - names.sh_offset)
		return 0;
	uint64_t sum = 0;
	for (size_t i = 0; i < h.e_shnum; i++) {
		memcpy(&section, table + i * sizeof section, sizeof section);
		const unsigned char *text = image + names.sh_offset;
		if (named(text, names.sh_size, section.sh_name, ".nv.global") ||
		    named(text, names.sh_size, section.sh_name, ".nv.global.init"))
			sum = plus(sum, section.sh_size);
	}
	return sum;
}

// ---- what holds them

static uint64_t payload(const struct entry *e, const unsigned char *data)
{
	if ((e->flags & ENTRY_COMPRESSED) != 0)
		return 0;
	return e->kind == ENTRY_PTX ? ptx((const char *)data, strnlen((const char *)data, e->payload)) :
	       e->kind == ENTRY_ELF ? elf(data, e->payload) : 0;
}

static uint64_t fatbin(const unsigned char *image, size_t room)
{
	struct fatbin h;
	struct entry e;
	if (room < sizeof h)
		return 0;
	memcpy(&h, image, sizeof h);
	if (h.header < sizeof h || h.header > room)
		return 0;
	uint64_t most = 0, end = room - h.header < h.size ? room : h.header + h.size;
	for (uint64_t at = h.header; end - at >= sizeof e; at += e.header + e.payload) {
		memcpy(&e, image + at, sizeof e);
		if (e.header < sizeof e || e.header > end - at || e.payload > end - at - e.header)
			break;
		uint64_t bytes = payload(&e, image + at + e.header);
		most = bytes > most ? bytes : most;
	}
	return most;
}

uint64_t lgpu_image_variables(const void *image, size_t room)
{
	uint32_t magic;
	// No image is that short; and of none of the magic numbers a byte is 0.
	if (image == NULL || strnlen(image, room < sizeof magic ? room : sizeof magic) < sizeof magic)
		return 0;
	memcpy(&magic, image, sizeof magic);
	if (magic == WRAPPER_MAGIC && room == SIZE_MAX) {
		struct wrapper w;
		memcpy(&w, image, sizeof w);
		image = w.data;
		if (image == NULL)
			return 0;
		memcpy(&magic, image, sizeof magic);
	}
	if (magic == FATBIN_MAGIC)
		return fatbin(image, room);
	if (memcmp(&magic, ELFMAG, SELFMAG) == 0)
		return elf(image, room);
	return ptx(image, strnlen(image, room));
}

uint64_t lgpu_image_file_variables(const char *path)
{
	struct stat st;
	int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1; // a pipe's first reader would disturb it
	if (fd < 0)
		return 0;
	uint64_t bytes = 0;
	if (syscall(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
		void *image = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (image != MAP_FAILED) {
			bytes = lgpu_image_variables(image, (size_t)st.st_size);
			munmap(image, (size_t)st.st_size);
		}
	}
	close(fd);
	return bytes;
}
