// The PEs of a job as threads of one process, which carry messages by callbacks; and two that meet by a unique id.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lshmem.h"

enum { PES = 3 };
static pthread_barrier_t all;
static char gathered[PES << 16];
static int calls, refuse;

struct member {
	int rank;
	const lshmem_uniqueid *id;
	int failed;
};

static int meet(void *context) {
	(void)context;
	pthread_barrier_wait(&all);
	return refuse;
}
static int gather(void *context, const void *send, void *receive, size_t bytes) {
	struct member *m = context;
	if (bytes > 1 << 16)
		return 1;
	memcpy(gathered + (size_t)m->rank * bytes, send, bytes);
	pthread_barrier_wait(&all);
	memcpy(receive, gathered, bytes * PES);
	__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
	pthread_barrier_wait(&all);
	return refuse;
}
static int exchange(void *context, const void *send, void *receive, size_t bytes) {
	struct member *m = context;
	if (bytes * PES > 1 << 16)
		return 1;
	memcpy(gathered + (size_t)m->rank * bytes * PES, send, bytes * PES);
	pthread_barrier_wait(&all);
	for (size_t i = 0; i < PES; i++)
		memcpy((char *)receive + i * bytes, gathered + (i * PES + (size_t)m->rank) * bytes, bytes);
	pthread_barrier_wait(&all);
	return refuse;
}
static void aborted(void *context, int code, const char *why) { (void)context, (void)code, (void)why; }

static void *run(void *p) {
	struct member *m = p;
	lshmem_callbacks callbacks = {sizeof callbacks, m, gather, meet, m->rank >= 0 ? exchange : NULL, aborted};
	lshmem_config config;
	lshmem_pe_t pe;
	uint64_t *s, v = 0;
	int pes = m->id ? 2 : PES, status;
	lshmem_config_init(&config);
	config.pe = m->rank;
	config.pes = pes;
	config.uniqueid = m->id;
	config.callbacks = m->id ? NULL : &callbacks;
	m->failed = __LINE__;
	status = lshmem_init(&config, &pe);
	if (refuse) {
		m->failed = status == LSHMEM_OK ? __LINE__ : 0;
		return NULL;
	}
	if (status != LSHMEM_OK || lshmem_calloc(pe, 2, 8, (void **)&s) != LSHMEM_OK) {
		fprintf(stderr, "PE %d: %s\n", m->rank, lshmem_last_error());
		return NULL;
	}
	v = (uint64_t)m->rank + 40;
	m->failed = __LINE__;
	if (lshmem_p(pe, s, &v, 8, (m->rank + 1) % pes) || lshmem_barrier(pe, LSHMEM_TEAM_WORLD) || lshmem_g(pe, &v, s, 8, m->rank) ||
	    v != (uint64_t)((m->rank + pes - 1) % pes) + 40)
		return NULL;
	m->failed = __LINE__;
	if (lshmem_free(pe, s) || lshmem_finalize(pe))
		return NULL;
	m->failed = 0;
	return NULL;
}

static int together(int n, const lshmem_uniqueid *id) {
	pthread_t t[PES];
	struct member m[PES];
	int failed = 0;
	pthread_barrier_init(&all, NULL, PES);
	for (int i = 0; i < n; i++) {
		m[i] = (struct member){i, id, 0};
		pthread_create(&t[i], NULL, run, &m[i]);
	}
	for (int i = 0; i < n; i++) {
		pthread_join(t[i], NULL);
		if (m[i].failed) {
			fprintf(stderr, "PE %d failed at line %d\n", i, m[i].failed);
			failed = 1;
		}
	}
	pthread_barrier_destroy(&all);
	return failed;
}

int main(void) {
	lshmem_uniqueid id;
	int failed = together(PES, NULL);
	if (!calls)
		failed = 1;
	refuse = 1;
	failed |= together(PES, NULL);
	refuse = 0;
	if (lshmem_get_uniqueid(&id) != LSHMEM_OK) {
		fprintf(stderr, "%s\n", lshmem_last_error());
		return 1;
	}
	return failed | together(2, &id);
}
