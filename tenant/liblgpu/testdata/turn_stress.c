// SPDX-License-Identifier: Apache-2.0

// turn_stress FOLDER PROCESSES TURNS: processes take turns on one device.
//
// Each checks that it is alone while it has the turn. One of them kills itself
// in the middle of its first turn. Prints how many turns each had.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/futex.h"
#include "alone/turn.h"

#define MOST 64

struct shared {
	uint32_t inside, violations, had[MOST], ready;
};

static void tenant(struct shared *s, const char *folder, int me, uint32_t turns, int processes)
{
	static const uint8_t uuid[16] = {0xab, 1, 2, 3};
	struct lgpu_queue queue;
	lgpu_turn_open(&queue, folder, uuid, (uint64_t)me + 1);
	if (queue.page == NULL)
		exit(3);
	__atomic_fetch_add(&s->ready, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&s->ready, __ATOMIC_SEQ_CST) < (uint32_t)processes)
		usleep(100);
	while (s->had[me] < turns) {
		while (!lgpu_turn_try(&queue, lgpu_now()))
			lgpu_turn_wait(&queue, 1000000);
		if (__atomic_add_fetch(&s->inside, 1, __ATOMIC_SEQ_CST) != 1)
			__atomic_fetch_add(&s->violations, 1, __ATOMIC_SEQ_CST);
		int64_t until = lgpu_now() + 20000;
		while (lgpu_now() < until)
			;
		s->had[me]++;
		__atomic_sub_fetch(&s->inside, 1, __ATOMIC_SEQ_CST);
		if (me == 1)
			raise(SIGKILL); // with the turn
		if (!lgpu_turn_kept(&queue))
			__atomic_fetch_add(&s->violations, 1, __ATOMIC_SEQ_CST);
		lgpu_turn_leave(&queue, lgpu_now());
	}
	exit(0);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int processes = atoi(argv[2]);
	if (processes < 2 || processes > MOST)
		return 2;
	struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < processes; i++)
		if (fork() == 0)
			tenant(s, argv[1], i, (uint32_t)atoi(argv[3]), processes);
	int status, failed = 0;
	for (int i = 0; i < processes; i++) {
		wait(&status);
		failed += !(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	}
	printf("violations %u failed %d had", s->violations, failed);
	for (int i = 0; i < processes; i++)
		printf(" %u", s->had[i]);
	printf("\n");
	return 0;
}
