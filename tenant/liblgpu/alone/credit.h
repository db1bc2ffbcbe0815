// SPDX-License-Identifier: Apache-2.0

// credit.h: the arithmetic of a compute cap. No clock, no shared state.
//
// Credit is device time in ns. It grows at the capped rate and is spent as work is
// charged. It is kept in one word, the horizon: the moment at which all time charged
// so far is paid for. This is the generic cell rate algorithm (ITU-T I.371), a token
// bucket that a crash cannot leave half-updated.
#ifndef LGPU_CREDIT_H
#define LGPU_CREDIT_H

#include <stdint.h>

#include "alone/policy_gen.h"
#include "process/region_gen.h"

// The most credit that an idle lgpu saves up.
#define LGPU_CREDIT_BURST ((int64_t)LGPU_POLICY_BURST)
// The credit that opens a closed gate: long enough that opening and draining
// are small beside it, short enough that every second has many.
#define LGPU_CREDIT_QUANTUM ((int64_t)LGPU_POLICY_QUANTUM)

// lgpu_credit is the device time left at now, negative when in debt. cap is in
// hundredths of a percent.
static inline int64_t lgpu_credit(int64_t horizon, int64_t now, uint32_t cap)
{
	int64_t credit = (int64_t)((__int128)(now - horizon) * cap / (int64_t)LGPU_FULL_COMPUTE);
	return credit < LGPU_CREDIT_BURST ? credit : LGPU_CREDIT_BURST;
}

// lgpu_credit_charge is the horizon after spent ns of device time, used up to now.
// Credit saved before that is cut to the burst. Credit that came in while the lgpu
// waited, for waited ns, for others to leave the device is not cut.
static inline int64_t lgpu_credit_charge(int64_t horizon, int64_t now, uint32_t cap, int64_t spent, int64_t waited)
{
	int64_t full = (int64_t)LGPU_FULL_COMPUTE;
	int64_t oldest = now - spent - waited - LGPU_CREDIT_BURST * full / cap;
	if (horizon < oldest)
		horizon = oldest;
	return horizon + (int64_t)((__int128)spent * full / cap);
}

// lgpu_credit_due is when the credit will have reached amount.
static inline int64_t lgpu_credit_due(int64_t horizon, uint32_t cap, int64_t amount)
{
	return horizon + amount * (int64_t)LGPU_FULL_COMPUTE / cap;
}

#endif
