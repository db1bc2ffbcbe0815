// SPDX-License-Identifier: Apache-2.0

// image.h: what variables in code take of the device, read off the image before
// it is loaded.
#ifndef LGPU_IMAGE_H
#define LGPU_IMAGE_H

#include <stddef.h>
#include <stdint.h>

// lgpu_image_variables returns the bytes of the variables of an image as
// cuModuleLoadData takes it: PTX, a cubin, a fat binary or its wrapper. Of a fat
// binary's entries the largest counts. room is how much of it may be read;
// SIZE_MAX: as much as it says itself. 0: none, or they are not readable (compressed
// entries, sizes that are expressions).
uint64_t lgpu_image_variables(const void *image, size_t room);

// lgpu_image_file_variables is the same for a file.
uint64_t lgpu_image_file_variables(const char *path);

#endif
