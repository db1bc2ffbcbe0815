// region_file.h: mapping the file of a region.
#ifndef LGPU_REGION_FILE_H
#define LGPU_REGION_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct lgpu_process;
struct lgpu_limits;

// lgpu_region_map opens, checks and maps the region that begins at base of a
// file, and completes the state of p. With own_limits the limits are mapped as
// a writable copy. False: it cannot be used, and why has been said.
bool lgpu_region_map(struct lgpu_process *p, const char *path, off_t base, bool own_limits);

// lgpu_region_valid checks limits that came from where, which is named if they
// cannot be used.
bool lgpu_region_valid(const struct lgpu_limits *limits, const char *where);

// lgpu_uuid_parse reads "GPU-" and 32 hexadecimal digits with dashes.
bool lgpu_uuid_parse(const char *text, uint8_t uuid[16]);

#endif
