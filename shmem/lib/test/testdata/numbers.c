// A PE whose number is not the environment's but the next one.
#include <stdio.h>
#include <stdlib.h>

#include "lshmem.h"

int main(void) {
	lshmem_config config;
	lshmem_pe_t pe;
	int me = -1, n = -1;
	lshmem_config_init(&config);
	config.pes = atoi(getenv("LSHMEM_PES"));
	config.pe = (atoi(getenv("LSHMEM_PE")) + 1) % config.pes;
	if (lshmem_init(&config, &pe) || lshmem_my_pe(pe, &me) || lshmem_n_pes(pe, &n) || lshmem_finalize(pe)) {
		fprintf(stderr, "%s\n", lshmem_last_error());
		return 1;
	}
	if (me != config.pe || n != config.pes)
		fprintf(stderr, "PE %d of %d, which was to be %d of %d\n", me, n, config.pe, config.pes);
	return me != config.pe || n != config.pes;
}
