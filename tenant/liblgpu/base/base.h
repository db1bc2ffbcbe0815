// SPDX-License-Identifier: Apache-2.0

// base.h: what every part of liblgpu.so may use: messages, numbers, libc,
// threads, and what the environment says. futex.h has locks and time.
#ifndef LGPU_BASE_H
#define LGPU_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Log levels; LGPU_LOG names the highest that is printed on stderr.
enum lgpu_log_level { LGPU_LOG_ERROR = 1, LGPU_LOG_WARN, LGPU_LOG_INFO, LGPU_LOG_DEBUG };
void lgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

// lgpu_number reads a C integer literal (decimal, 0x, leading 0 for octal) and
// stores where it ended. False: there is none, or it needs more than 64 bits.
bool lgpu_number(const char *text, uint64_t *value, const char **end);

// What says which lgpu this process is in, and what it may use.
enum lgpu_authority {
	LGPU_BY_NOBODY, // no lgpu in the environment: stand aside
	LGPU_BY_DAEMON, // LGPU_SOCKET: the daemon there
	LGPU_BY_REGION, // LGPU_REGION: the file of a region
	LGPU_BY_HAMI,   // HAMi's environment
};

// lgpu_authority reads it off the environment.
enum lgpu_authority lgpu_authority(void);

// lgpu_stamped returns what the launcher of a contained program has written into this copy of the library under a name
// of the environment, or NULL. lgpu_setting returns that, or else what the environment says, or NULL.
const char *lgpu_stamped(const char *name);
const char *lgpu_setting(const char *name);
// lgpu_stamp_export puts all that is written there into the environment, where the driver's libraries look.
void lgpu_stamp_export(void);

// lgpu_true reports whether text is a word for true, as HAMi's environment has them.
bool lgpu_true(const char *text);

// lgpu_libc finds a function of libc, libdl or libpthread. What moved between
// those libraries, or got a newer version, cannot be linked to by a library
// that must run with every glibc since 2.17.
void *lgpu_libc(const char *name);
// lgpu_elf_find returns the address of a function that the loaded object with
// these program headers defines, or NULL.
struct dl_phdr_info;
void *lgpu_elf_find(const struct dl_phdr_info *object, const char *name);
// lgpu_elf_holds reports whether address is in the loaded object.
bool lgpu_elf_holds(const struct dl_phdr_info *object, const void *address);

// lgpu_basename is the part of path after its last slash.
const char *lgpu_basename(const char *path);

// lgpu_thread_start runs fn(arg) in a new detached thread in which all signals
// are blocked: the program's handlers never run there.
bool lgpu_thread_start(void *(*fn)(void *), void *arg);

// lgpu_at_fork has every fork from now on call prepare before it, and child in the
// child, which may call only what a signal handler may. False: it cannot.
bool lgpu_at_fork(void (*prepare)(void), void (*child)(void));

// lgpu_pages returns zeroed pages of the process's own, which the kernel wipes in
// a forked child, or NULL.
void *lgpu_pages(size_t bytes);
void lgpu_pages_free(void *pages, size_t bytes);

// A step at which a test can have the process die.
#ifdef LGPU_FAULT_POINTS
// lgpu_fault kills the process when it is the point named by LGPU_FAULT.
void lgpu_fault(const char *point);
#define LGPU_FAULT_POINT(name) lgpu_fault(name)
#else
#define LGPU_FAULT_POINT(name) ((void)0)
#endif

#endif
