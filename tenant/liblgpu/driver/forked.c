// SPDX-License-Identifier: Apache-2.0

// What a forked child has of its parent's driver: device files, and mappings of them. No call of CUDA does anything in such a
// child any more (CUDA_ERROR_NOT_INITIALIZED), so they are of no use; but a process that has them cannot be written to an image.
// NVML's files look the same, and a child may begin NVML anew: where the parent has begun it, all stays as it is.
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/driver.h"

bool lgpu_nvml_begun;

static bool of_device(const char *path) { return strncmp(path, "/dev/nvidia", sizeof "/dev/nvidia" - 1) == 0; }

// lines reads a file line by line.
struct lines {
	int fd;
	size_t at, have;
	char bytes[2048];
};

// next_line stores a line, or as much of it as there is room for. False: there is none.
static bool next_line(struct lines *l, char *line, size_t room)
{
	for (size_t n = 0;;) {
		if (l->at == l->have) {
			ssize_t got = read(l->fd, l->bytes, sizeof l->bytes);
			if (got <= 0)
				return false;
			l->at = 0;
			l->have = (size_t)got;
		}
		char c = l->bytes[l->at++];
		if (c == '\n') {
			line[n] = 0;
			return true;
		}
		if (n < room - 1)
			line[n++] = c;
	}
}

// address reads a hexadecimal number, which ends at the character end, and returns what is behind that.
static const char *address(const char *text, char end, uintptr_t *value)
{
	for (*value = 0; *text != 0 && *text != end; text++)
		*value = *value << 4 | (uintptr_t)(*text <= '9' ? *text - '0' : *text - 'a' + 10);
	return *text == end ? text + 1 : text;
}

struct mapping {
	uintptr_t from, to;
	int protection;
};

// mapped finds mappings of devices (proc_pid_maps(5)), at most so many, and returns their number.
static size_t mapped(struct mapping *some, size_t room)
{
	struct lines maps = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
	char line[128];
	size_t n = 0;
	while (n < room && next_line(&maps, line, sizeof line)) {
		const char *path = strchr(line, '/');
		if (path == NULL || !of_device(path))
			continue;
		const char *rights = address(address(line, '-', &some[n].from), ' ', &some[n].to);
		some[n].protection = (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0);
		n++;
	}
	if (maps.fd >= 0)
		close(maps.fd);
	return n;
}

// unmap has memory of nobody's take the place of mappings of devices: what looks there once more finds zeros.
static void unmap(void)
{
	struct mapping some[64];
	size_t found, done;
	do {
		found = mapped(some, sizeof some / sizeof *some);
		done = 0;
		for (size_t i = 0; i < found; i++)
			done += mmap((void *)some[i].from, some[i].to - some[i].from, some[i].protection,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
	} while (done > 0);
}

// entry begins what getdents64(2) stores, for which libc has no name everywhere.
struct entry {
	uint64_t inode;
	int64_t next;
	uint16_t length;
	uint8_t type;
	char name[];
};

// let_go has /dev/null take the place of devices that are open: their numbers stay taken, as the driver may close them.
static void let_go(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), all = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_Alignas(struct entry) char bytes[2048];
	long got;
	while (null >= 0 && all >= 0 && (got = syscall(SYS_getdents64, all, bytes, sizeof bytes)) > 0) {
		for (long at = 0; at < got;) {
			const struct entry *e = (const struct entry *)(bytes + at);
			at += e->length;
			char path[32] = "";
			int fd = 0;
			for (const char *digit = e->name; *digit >= '0' && *digit <= '9'; digit++)
				fd = 10 * fd + *digit - '0';
			if (readlinkat(all, e->name, path, sizeof path - 1) > 0 && of_device(path))
				dup3(null, fd, O_CLOEXEC);
		}
	}
	if (all >= 0)
		close(all);
	if (null >= 0)
		close(null);
}

void lgpu_driver_forked(void)
{
	if (__atomic_load_n(&lgpu_nvml_begun, __ATOMIC_RELAXED))
		return;
	unmap();
	let_go();
}
