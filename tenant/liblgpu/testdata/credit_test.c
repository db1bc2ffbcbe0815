// SPDX-License-Identifier: Apache-2.0

// Properties of the credit arithmetic over random histories. Prints "ok".
#include <stdio.h>
#include <stdlib.h>

#include "alone/credit.h"
#include "check.h"

int main(void)
{
	srand(1);
	for (int round = 0; round < 2000; round++) {
		uint32_t cap = 1 + (uint32_t)rand() % LGPU_FULL_COMPUTE;
		int64_t now = INT64_C(1000000000) * (1 + rand() % 1000000), began = now, horizon = 0, used = 0;
		CHECK(lgpu_credit(horizon, now, cap) == LGPU_CREDIT_BURST);
		// A tenant that always runs when it may, in steps of its own length.
		int64_t step = 1 + rand() % 60000000;
		for (int i = 0; i < 1000; i++) {
			int64_t due = lgpu_credit_due(horizon, cap, LGPU_CREDIT_QUANTUM);
			if (now < due)
				now = due;
			CHECK(lgpu_credit(horizon, now, cap) >= LGPU_CREDIT_QUANTUM - 1);
			// Others have the device first, though not for so long that we
			// could no longer have our cap.
			double most = 0.9 * (double)step * (LGPU_FULL_COMPUTE - cap) / cap;
			int64_t waited = most < 2e8 ? (int64_t)most : 200000000;
			now += waited + step;
			horizon = lgpu_credit_charge(horizon, now, cap, step, waited);
			used += step;
		}
		// Delivered: the cap, give or take the burst at the start and one step.
		double delivered = (double)used, entitled = (double)(now - began) * cap / LGPU_FULL_COMPUTE;
		CHECK(delivered <= entitled + (double)LGPU_CREDIT_BURST + (double)step);
		CHECK(delivered >= entitled - (double)LGPU_CREDIT_BURST - (double)step);
		// Debt is paid at the capped rate, and no faster.
		int64_t credit = lgpu_credit(horizon, now, cap), later = now + INT64_C(1000000);
		int64_t gained = lgpu_credit(horizon, later, cap) - credit;
		CHECK(gained >= 0 && gained <= INT64_C(1000000) * cap / (int64_t)LGPU_FULL_COMPUTE + 1);
	}
	printf("ok\n");
	return 0;
}
