// SPDX-License-Identifier: Apache-2.0

#include "process/process.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct lgpu_process *lgpu_process;

// Where the kernel cannot wipe the page at a fork (before Linux 4.14) the pid
// tells.
struct lgpu_process *lgpu_process_page(void)
{
	struct lgpu_process *p = __atomic_load_n(&lgpu_process, __ATOMIC_ACQUIRE);
	if (p == NULL) {
		void *page = lgpu_pages(sizeof *p);
		if (page == NULL)
			return NULL;
		if (__atomic_compare_exchange_n(&lgpu_process, &p, page, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			p = page;
		else
			munmap(page, sizeof *p);
	}
	int32_t pid = (int32_t)getpid(), seen = 0;
	if (!__atomic_compare_exchange_n(&p->pid, &seen, pid, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) && seen != pid) {
		memset(p, 0, sizeof *p);
		p->pid = pid;
	}
	return p;
}
