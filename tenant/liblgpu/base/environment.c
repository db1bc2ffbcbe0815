// SPDX-License-Identifier: Apache-2.0

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

static bool set(const char *name)
{
	const char *text = lgpu_setting(name);
	return text != NULL && text[0] != 0;
}

bool lgpu_true(const char *text)
{
	static const char *const words[] = {"1", "t", "T", "true", "TRUE", "True"};
	for (size_t i = 0; text != NULL && i < sizeof words / sizeof *words; i++)
		if (strcmp(text, words[i]) == 0)
			return true;
	return false;
}

static bool hami_limits(void)
{
	if (lgpu_true(getenv("CUDA_DISABLE_CONTROL")))
		return false;
	for (char **e = environ; *e != NULL; e++)
		if (strncmp(*e, "CUDA_DEVICE_MEMORY_LIMIT", 24) == 0 || strncmp(*e, "CUDA_DEVICE_SM_LIMIT", 20) == 0 ||
		    strncmp(*e, "CUDA_DEVICE_MEMORY_SHARED_CACHE=", 32) == 0)
			return true;
	return false;
}

enum lgpu_authority lgpu_authority(void)
{
	if (set("LGPU_SOCKET"))
		return LGPU_BY_DAEMON;
	if (set("LGPU_REGION"))
		return LGPU_BY_REGION;
	return hami_limits() ? LGPU_BY_HAMI : LGPU_BY_NOBODY;
}
