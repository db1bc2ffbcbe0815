// Which devices a program sees, and their attributes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "futex.h"
#include "gate.h"

#define VISIBLE "CUDA_VISIBLE_DEVICES"
#define UUID_TEXT 41 // "GPU-" and 36 characters

void lgpu_uuid_text(const uint8_t uuid[16], char text[UUID_TEXT])
{
	char *p = text + sprintf(text, "GPU-");
	for (int i = 0; i < 16; i++)
		p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

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
		char text[UUID_TEXT];
		lgpu_uuid_text(l->device[i].uuid, text);
		if (length > 4 && length < UUID_TEXT && strncasecmp(text, word, length) == 0) {
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
	char *p = list, text[UUID_TEXT];
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
		if (index < 0 || (size_t)(p - list) + UUID_TEXT + 1 >= size)
			return;
		taken[index] = true;
		lgpu_uuid_text(l->device[index].uuid, text);
		p += sprintf(p, "%s%s", p == list ? "" : ",", text);
	}
}

int lgpu_uuid_index(const struct lgpu_limits *limits, const uint8_t uuid[16])
{
	for (uint32_t i = 0; i < limits->devices; i++)
		if (memcmp(limits->device[i].uuid, uuid, 16) == 0)
			return (int)i;
	return -1;
}

// find_index returns -2 while the driver cannot tell, as before cuInit.
static int find_index(const struct lgpu_state *s, CUdevice device)
{
	CUuuid uuid;
	// The older form answers with the whole device where the newer names a part of it.
	int index = -2;
	if (LGPU_REAL(cuDeviceGetUuid)(&uuid, device) == CUDA_SUCCESS)
		index = lgpu_uuid_index(s->limits, (const uint8_t *)uuid.bytes);
	if (index < 0 && LGPU_REAL(cuDeviceGetUuid_v2)(&uuid, device) == CUDA_SUCCESS)
		index = lgpu_uuid_index(s->limits, (const uint8_t *)uuid.bytes);
	return index;
}

int lgpu_limits_index(CUdevice device)
{
	struct lgpu_process *p = lgpu_process;
	struct lgpu_state *s = lgpu_attached();
	if (s == NULL || device < 0 || (size_t)device >= sizeof p->device)
		return -1;
	int known = __atomic_load_n(&p->device[device], __ATOMIC_RELAXED);
	if (known == 0) {
		int index = find_index(s, device);
		if (index == -2)
			return -1;
		known = index >= 0 ? index + 1 : -1;
		__atomic_store_n(&p->device[device], (signed char)known, __ATOMIC_RELAXED);
	}
	return known > 0 ? known - 1 : -1;
}

int lgpu_current(CUcontext *context)
{
	CUdevice device;
	*context = NULL;
	if (LGPU_REAL(cuCtxGetCurrent)(context) != CUDA_SUCCESS || *context == NULL ||
	    LGPU_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return -1;
	return lgpu_limits_index(device);
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
	char list[LGPU_MAX_DEVICES * (UUID_TEXT + 1)];
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
		} else if (!lgpu_gate_init(s)) {
			r = CUDA_ERROR_OUT_OF_MEMORY;
		} else {
			p->initialised = true;
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
