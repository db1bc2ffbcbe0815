// A PE whose callback comes back when nobody waits for it any more: the job is lost, the PE has left, and nothing of
// its callbacks is used again.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lshmem.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static int hold, held, left, stray, returned;

static int gather(void *context, const void *send, void *receive, size_t bytes) {
	pthread_mutex_lock(&lock);
	(void)context;
	stray += left;
	if (hold) {
		held = 1;
		while (!left)
			pthread_cond_wait(&change, &lock);
		returned = 1;
		pthread_cond_broadcast(&change);
	}
	pthread_mutex_unlock(&lock);
	memcpy(receive, send, bytes);
	return 0;
}
static int meet(void *context) {
	(void)context;
	return 0;
}

static int failed(const char *what) {
	fprintf(stderr, "%s: %s\n", what, lshmem_last_error());
	return 1;
}

int main(void) {
	lshmem_callbacks callbacks = {sizeof callbacks, NULL, gather, meet, NULL, NULL};
	lshmem_config config;
	lshmem_pe_t pe;
	void *p;
	lshmem_config_init(&config);
	config.pe = 0;
	config.pes = 1;
	config.callbacks = &callbacks;
	if (lshmem_init(&config, &pe))
		return failed("init");
	pthread_mutex_lock(&lock);
	hold = 1;
	pthread_mutex_unlock(&lock);
	if (lshmem_malloc(pe, 100, &p) != LSHMEM_ERR_TIMEOUT)
		return failed("malloc whose callback does not return");
	lshmem_finalize(pe); // its result is that of a job that was lost
	pthread_mutex_lock(&lock);
	left = 1;
	pthread_cond_broadcast(&change);
	while (held && !returned)
		pthread_cond_wait(&change, &lock);
	pthread_mutex_unlock(&lock);
	usleep(50000); // nothing tells that the library calls nothing more
	pthread_mutex_lock(&lock);
	if (!held || stray)
		fprintf(stderr, "held %d, called %d times after the end\n", held, stray);
	return !held || stray;
}
