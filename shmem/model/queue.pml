/* The queue protocol for SPIN: the same steps as in callers.go, waits.go and nic.go, written a second time and judged by
 * another checker, so that a slip in one of the two shows. Three callers share a queue of DEPTH blocks; each makes a call and
 * then waits until all that is ready is complete (quiet). Counters of the device are full, those on the wire have four bits and
 * wrap at once.
 *
 *	spin -a queue.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 *
 * Defects are switched on by -D for spin: M13, M14, M15 (with -DFULL), M16, M17 (doorbell before record), M17PLAIN (posted
 * is stored, not raised), M18, UNFENCED (no fence between record and doorbell), and M11 by -DBATCH and -DCALL. The
 * assertions name the properties of properties.go; init, at the end, judges what is left when nothing moves. */

#ifndef DEPTH
#define DEPTH 4
#endif
#ifndef BATCH
#define BATCH 2
#endif
#ifndef CALL
#define CALL 3			/* blocks of the largest call */
#endif
#ifndef START
#define START 14		/* of all counters; a multiple of BATCH */
#endif
#define MASK 15
#ifdef FULL			/* one more, and all calls large: more is reserved than the wire can tell apart */
#define CALLERS 4
#else
#define CALLERS 3
#endif

byte reserved = START, ready = START, posted = START, consumed = START;
bool lock;
byte record = START & MASK, record_new = START & MASK; /* what the NIC sees for sure; the latest store */
byte doorbell = START;
bool rung;
byte known = START, done = START, completed = START;   /* the NIC's: may fetch below, executed, completed */
byte cqe = (START - 1) & MASK;
byte finished;

/* A block: the count it was written for, and who can see it: its writer 0, whoever saw it published 1, the NIC 2. */
byte at[DEPTH], level[DEPTH], writer[DEPTH];
bool written[DEPTH], last[DEPTH], second[DEPTH];

#define PENDING(idx, wc) (((idx + 64 - wc - 2) & MASK) < DEPTH)
#define CONSUMED(idx, wc) \
	((idx & ~MASK) + ((wc + 1) & MASK) + ((idx & MASK) > ((wc + 1) & MASK) -> MASK + 1 : 0))

#ifdef M15
#define POSTED(idx) true
#else
#define POSTED(idx) (posted >= idx)
#endif

/* fence makes visible what the caller wrote and what it saw published. */
inline fence(to) {
	d_step {
		i = 0;
		do
		:: i < DEPTH ->
			if
			:: written[i] && level[i] < to && (writer[i] == id || level[i] > 0) -> level[i] = to
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0
	}
}

/* poll waits until idx blocks are complete. */
inline poll(idx) {
	if
	:: consumed >= idx
	:: consumed < idx && POSTED(idx) ->
		do
		:: consumed >= idx -> break
		:: d_step { !PENDING(idx, cqe) -> wc = cqe };
			if
			:: consumed >= idx
			:: consumed < idx ->
				d_step {
					c = CONSUMED(idx, wc);
					assert(c <= completed);		/* P8 */
#ifdef M13
					assert(c >= consumed);		/* P8 */
					consumed = c;
#else
					consumed = (c > consumed -> c : consumed);
#endif
					c = 0
				}
			fi;
			wc = 0;
			break
		od
	fi;
	skip			/* no jump into a d_step that may follow */
}

/* call sends n blocks; the last of them asks for a completion. */
inline call(n) {
	d_step { base = reserved; reserved = reserved + n };
#ifndef M14
	if
	:: base + n > DEPTH + START -> poll((base + n - DEPTH))
	:: else
	fi;
#endif
	d_step {
		i = 0;
		do
		:: i < n ->
			spot = (base + i) % DEPTH;
			assert(!written[spot] || at[spot] < completed);	/* P1 */
			written[spot] = true;
			at[spot] = base + i;
			level[spot] = 0;
			writer[spot] = id;
			last[spot] = (i == n - 1);
			second[spot] = false;
			i++
		:: else -> break
		od;
#ifdef M18
		second[(base + n - 1) % DEPTH] = (n > 1);	/* of a request that began a block before */
#endif
		i = 0; spot = 0
	};
	ready == base;
#ifndef M16
	fence(1);
#endif
	ready = ready + n;
	end = base + n;
	if
	:: end == reserved || base / BATCH != end / BATCH || n >= BATCH ->
		d_step { !lock -> lock = true };
#ifdef M17PLAIN
		posted = end;
		grew = true;
#else
		d_step {
			grew = (posted < end);
			posted = (grew -> end : posted)
		};
#endif
		if
		:: grew ->
			fence(2);
#ifdef M17
			ring(end);
			record_new = end & MASK;
#else
			d_step { record = record_new; record_new = end & MASK };
#ifndef UNFENCED
			record = record_new;
#endif
			ring(end);
#endif
		:: else
		fi;
		d_step { record = record_new; lock = false; grew = false }
	:: else
	fi;
	base = 0; end = 0
}

inline ring(value) {
	d_step {
		assert(value >= doorbell);				/* P3 */
		doorbell = value;
		rung = true
	}
}

proctype caller(byte id; byte n) {
	byte base, end, i, spot, wc, c, all;
	bool grew;

	call(n);
	all = ready;
	poll(all);
	assert(completed >= all);					/* P4 */
	finished++
}

/* The NIC: the doorbell wakes it, the record says how far to fetch. */
active proctype nic() {
	byte spot;
end:
	do
	:: d_step { rung -> rung = false; known = known + ((record - known) & MASK) }
	:: d_step { rung && record_new != record -> rung = false; record = record_new; known = known + ((record - known) & MASK) }
	:: d_step {
		done < known ->
		spot = done % DEPTH;
		assert(written[spot] && at[spot] == done);		/* P2: there is something */
		assert(level[spot] == 2);				/* P2: and it can be seen */
		done++;
		spot = 0
	   }
	:: d_step {
		completed < done ->
		spot = completed % DEPTH;
		if
		:: last[spot] -> cqe = (completed - second[spot]) & MASK
		:: else
		fi;
		completed++;
		spot = 0
	   }
	od
}

init {
	atomic {
#ifdef FULL
		run caller(0, CALL);
		run caller(1, CALL);
		run caller(2, CALL);
		run caller(3, CALL)
#else
		run caller(0, CALL);
		run caller(1, 2);
		run caller(2, 1)
#endif
	};
	timeout;
	assert(done == posted);						/* P3: every doorbell arrived */
	assert(reserved != ready || posted == ready);			/* P3: nothing ready is left */
	assert(finished == CALLERS)					/* P7, P8: nobody waits for ever */
}
