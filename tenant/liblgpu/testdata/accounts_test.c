// SPDX-License-Identifier: Apache-2.0

// What is noted under an address is charged exactly once, whatever comes to be under it meanwhile. Prints nothing.
#include <stdio.h>

#include "memory/accounts.h"
#include "check.h"

static struct lgpu_entry entry(uint64_t key, uint64_t bytes)
{
	return (struct lgpu_entry){.key = key, .bytes = bytes, .kind = LGPU_KIND_MEMORY};
}

int main(void)
{
	struct lgpu_entry a = entry(4096, 1), b = entry(4096, 2), e;
	// The address was freed and given out again before its first note went.
	CHECK(lgpu_accounts_put(&a, &e) && e.kind == 0);
	CHECK(lgpu_accounts_put(&b, &e) && e.kind == LGPU_KIND_MEMORY && e.bytes == 1);
	CHECK(lgpu_accounts_get(LGPU_KIND_MEMORY, 4096, &e) && e.bytes == 2);
	// A note that was taken does not come back over a newer one, and does where there is none.
	CHECK(!lgpu_accounts_restore(&a));
	CHECK(lgpu_accounts_take(LGPU_KIND_MEMORY, 4096, &e) && e.bytes == 2);
	CHECK(!lgpu_accounts_take(LGPU_KIND_MEMORY, 4096, &e));
	CHECK(lgpu_accounts_restore(&a));
	CHECK(lgpu_accounts_take(LGPU_KIND_MEMORY, 4096, &e) && e.bytes == 1);
	// So it is among many, in a table that grows, is full and empties.
	for (uint64_t i = 1; i <= 20000; i++) {
		a = entry(i << 9, i);
		CHECK(lgpu_accounts_put(&a, &e) && e.kind == 0);
	}
	for (uint64_t i = 1; i <= 20000; i += 2)
		CHECK(lgpu_accounts_take(LGPU_KIND_MEMORY, i << 9, &e) && e.bytes == i);
	for (uint64_t i = 1; i <= 20000; i++) {
		a = entry(i << 9, i + 7);
		CHECK(lgpu_accounts_restore(&a) == (i % 2 == 1));
	}
	for (uint64_t i = 1; i <= 20000; i++)
		CHECK(lgpu_accounts_take(LGPU_KIND_MEMORY, i << 9, &e) && e.bytes == (i % 2 == 1 ? i + 7 : i));
	return 0;
}
