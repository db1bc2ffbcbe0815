// slices: a library to preload that sets the hardware time slice of its own process.
//
//	gcc -O2 -shared -fPIC -o libslices.so slices.c -ldl
//
// It sees the driver's library make channel groups, since libcuda calls libc's ioctl through its table of symbols, and
// sets and reads their slice when the program calls the two functions below. It changes nothing by itself. On a
// software GPU the same is asked of the driver's library, where that can do it. This measures the driver without lgpu;
// the interface is of NVIDIA's open-gpu-kernel-modules (nv-ioctl-numbers.h, nvos.h, ctrla06c.h, alloc_channel.h).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

enum {
	TYPE = 'F',
	NR_CONTROL = 0x2a,
	NR_ALLOC = 0x2b,
	ALLOC_SHORT = 32, // bytes: without the word of rights
	ALLOC_LONG = 48,
	CLASS_GROUP = 0xa06c,
	ENGINE_COMPUTE = 1,
	GROUPS = 256,
};
#define SET_TIMESLICE 0xa06c0103u
#define GET_TIMESLICE 0xa06c0104u

struct control {
	uint32_t client, object, command, flags;
	uint64_t params;
	uint32_t size, status;
};
_Static_assert(sizeof(struct control) == 32, "as the driver has it");

// What the two forms of an allocation begin with; the long one has rights after params.
struct alloc {
	uint32_t root, parent, object, class;
	uint64_t params;
	uint32_t more[6]; // short: size, status; long: rights (two), size, flags, status
};

struct group {
	int fd;
	uint32_t client, object;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct group groups[GROUPS]; // under lock
static int known;                   // under lock

static int (*next(void))(int, unsigned long, ...)
{
	static int (*found)(int, unsigned long, ...);
	if (found == NULL)
		found = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	return found;
}

// learn remembers a compute channel group that the driver has just made.
static void learn(int fd, const struct alloc *a, unsigned size)
{
	uint32_t status = a->more[size == ALLOC_SHORT ? 1 : 4];
	if (status != 0 || a->class != CLASS_GROUP || a->params == 0)
		return;
	if (((const uint32_t *)(uintptr_t)a->params)[3] != ENGINE_COMPUTE)
		return;
	pthread_mutex_lock(&lock);
	if (known < GROUPS)
		groups[known++] = (struct group){fd, a->root, a->object};
	pthread_mutex_unlock(&lock);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	void *argument = va_arg(list, void *);
	va_end(list);
	int r = next()(fd, request, argument);
	unsigned size = _IOC_SIZE(request);
	if (r == 0 && _IOC_TYPE(request) == TYPE && _IOC_NR(request) == NR_ALLOC && (size == ALLOC_SHORT || size == ALLOC_LONG))
		learn(fd, argument, size);
	return r;
}

// control returns the driver's status, or -1 if it could not be asked.
static long control(const struct group *g, uint32_t command, uint64_t *us)
{
	struct control c = {.client = g->client, .object = g->object, .command = command, .params = (uintptr_t)us, .size = sizeof *us};
	return next()(g->fd, _IOWR(TYPE, NR_CONTROL, struct control), &c) == 0 ? (long)c.status : -1;
}

// The software GPU's way: one channel group for each context.
static long simulated(const char *name, uint64_t us, uint64_t *read)
{
	int (*current)(void **) = (int (*)(void **))dlsym(RTLD_DEFAULT, "cuCtxGetCurrent");
	void *call = dlsym(RTLD_DEFAULT, name), *context = NULL;
	if (call == NULL || current == NULL || current(&context) != 0)
		return -1;
	return read != NULL ? ((int (*)(void *, uint64_t *))call)(context, read) : ((int (*)(void *, uint64_t))call)(context, us);
}

// slices_set gives all compute channel groups of the process a slice of us. Returns how many took it, or -1 with the
// driver's answer in *status if one did not.
int slices_set(uint64_t us, long *status)
{
	int done = 0;
	*status = 0;
	if (dlsym(RTLD_DEFAULT, "lgpusimSetTimeslice") != NULL)
		return (*status = simulated("lgpusimSetTimeslice", us, NULL)) == 0 ? 1 : -1;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < known; i++) {
		uint64_t value = us;
		long r = control(&groups[i], SET_TIMESLICE, &value);
		if (r == 0)
			done++;
		else
			*status = r;
	}
	pthread_mutex_unlock(&lock);
	return *status != 0 ? -1 : done;
}

// slices_get returns the longest slice of the process's compute channel groups in us; 0 if it cannot be read.
uint64_t slices_get(void)
{
	uint64_t longest = 0, value;
	if (simulated("lgpusimGetTimeslice", 0, &value) == 0)
		return value;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < known; i++)
		if (value = 0, control(&groups[i], GET_TIMESLICE, &value) == 0 && value > longest)
			longest = value;
	pthread_mutex_unlock(&lock);
	return longest;
}
