// SPDX-License-Identifier: Apache-2.0

// Which devices a program sees, and their attributes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/futex.h"
#include "daemon/daemon.h"
#include "gate/gate.h"
#include "slice/slice.h"
#include "view/view.h"

#define VISIBLE "CUDA_VISIBLE_DEVICES"

// chosen returns which of the lgpu's devices the user's word names: an ordinal,
// or the beginning of one UUID. -1: none.
static int chosen(const struct lgpu_limits *l, const char *word, size_t length)
{
	int found = -1;
	uint64_t ordinal;
	const char *end;
	if (length == 0)
		return -1;
	if (word[0] >= '0' && word[0] <= '9') {
		// Decimal even with a leading zero, as the driver has it.
		while (length > 1 && word[0] == '0') {
			word++;
			length--;
		}
		if (!lgpu_number(word, &ordinal, &end) || end != word + length || ordinal >= l->devices)
			return -1;
		return (int)ordinal;
	}
	for (uint32_t i = 0; i < l->devices; i++) {
		char text[LGPU_UUID_TEXT];
		lgpu_uuid_text(&l->device[i], text);
		if (length > 4 && length < LGPU_UUID_TEXT && strncasecmp(text, word, length) == 0) {
			if (found >= 0)
				return -1; // it could be either
			found = (int)i;
		}
	}
	return found;
}

// compose writes the driver's list of visible devices: the lgpu's, in its
// order, or what the user has chosen among them. As with the driver, the first
// word that names nothing, or names something twice, ends the list.
static void compose(const struct lgpu_limits *l, const char *user, char *list, size_t size)
{
	char *p = list, text[LGPU_UUID_TEXT];
	bool taken[LGPU_MAX_DEVICES] = {false};
	*p = 0;
	for (uint32_t i = 0;; i++) {
		int index = i < l->devices ? (int)i : -1;
		if (user != NULL) {
			while (*user == ' ')
				user++;
			size_t length = strcspn(user, ",");
			size_t word = length;
			while (word > 0 && user[word - 1] == ' ')
				word--;
			index = chosen(l, user, word);
			user += user[length] == ',' ? length + 1 : length;
			if (index >= 0 && taken[index]) {
				*list = 0; // the driver shows none then
				return;
			}
		}
		if (index < 0 || (size_t)(p - list) + LGPU_UUID_TEXT + 1 >= size)
			return;
		taken[index] = true;
		lgpu_uuid_text(&l->device[index], text);
		p += sprintf(p, "%s%s", p == list ? "" : ",", text);
	}
}

// all_known reports whether every device that the driver shows is the lgpu's.
static bool all_known(void)
{
	int count = 0;
	CUdevice device;
	if (LGPU_REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
		return false;
	for (int i = 0; i < count; i++)
		if (LGPU_REAL(cuDeviceGet)(&device, i) != CUDA_SUCCESS || lgpu_limits_index(device) < 0)
			return false;
	return true;
}

// init_visible calls the driver's cuInit with only the lgpu's devices visible.
// The environment is the program's: it is as before afterwards.
static CUresult init_visible(const struct lgpu_state *s, unsigned int flags)
{
	char list[LGPU_MAX_DEVICES * (LGPU_UUID_TEXT + 1)];
	const char *user = getenv(VISIBLE);
	char *saved = user != NULL ? strdup(user) : NULL;
	if (user != NULL && saved == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	compose(s->limits, user, list, sizeof list);
	setenv(VISIBLE, list, 1);
	CUresult r = LGPU_REAL(cuInit)(flags);
	if (saved != NULL)
		setenv(VISIBLE, saved, 1);
	else
		unsetenv(VISIBLE);
	free(saved);
	return r;
}

LGPU_EXPORT CUresult cuInit(unsigned int Flags)
{
	enum lgpu_attachment attachment = lgpu_attach();
	if (attachment == LGPU_UNLIMITED)
		return LGPU_REAL(cuInit)(Flags);
	if (attachment == LGPU_BROKEN)
		return CUDA_ERROR_INVALID_DEVICE;
	struct lgpu_process *p = lgpu_process;
	struct lgpu_state *s = lgpu_attached();
	lgpu_lock(&p->init);
	CUresult r;
	if (p->initialised || !s->filter)
		r = LGPU_REAL(cuInit)(Flags);
	else
		r = init_visible(s, Flags);
	if (r == CUDA_SUCCESS && !p->initialised) {
		if (!all_known()) {
			lgpu_log(LGPU_LOG_ERROR, "the driver shows devices that are not the lgpu's; there is no GPU for this process");
			// The process stays attached: a program that goes on all the same is limited, and
			// gets no context.
			p->broken = true;
			r = CUDA_ERROR_INVALID_DEVICE;
		} else if (!lgpu_gate_init(s) || (s->linked && !lgpu_slice_init())) {
			r = CUDA_ERROR_OUT_OF_MEMORY;
		} else {
			p->initialised = true;
			if (s->linked)
				lgpu_daemon_listen(); // from now on it may be to be parked
		}
	}
	lgpu_unlock(&p->init);
	return r;
}

LGPU_EXPORT CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
	CUresult r = LGPU_REAL(cuDeviceGetAttribute)(pi, attrib, dev);
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || r != CUDA_SUCCESS || pi == NULL || attrib != CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
		return r;
	int device = lgpu_limits_index(dev);
	uint32_t units = device >= 0 ? __atomic_load_n(&s->limits->device[device].units, __ATOMIC_RELAXED) : 0;
	if (units != 0 && units < (uint32_t)*pi)
		*pi = (int)units;
	return r;
}
