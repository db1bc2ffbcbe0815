package ptx

import "testing"

// A lane of warp 0 is late at a vote, by more than the time after which it runs out of turn, while warp 1 sleeps again
// and again until warp 0 is done.
const lateAtVote = `
.version 7.4
.target sm_70
.address_size 64
.visible .entry late(.param .u64 flag, .param .u64 out)
{
	.reg .pred %p<4>;
	.reg .b32 %r<8>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [flag];
	ld.param.u64 %rd2, [out];
	mov.u32 %r1, %tid.x;
	setp.gt.u32 %p1, %r1, 31;
	@%p1 bra SLEEP;
	mov.u32 %r2, 0;
	setp.ne.s32 %p2, %r1, 0;
	@%p2 bra VOTE;
LATE:
	add.s32 %r2, %r2, 1;
	setp.lt.u32 %p3, %r2, 3000;
	@%p3 bra LATE;
VOTE:
	setp.gt.u32 %p3, %r1, 20;
	vote.sync.ballot.b32 %r3, %p3, -1;
	@%p2 bra END;
	st.global.u32 [%rd2], %r3;
	st.relaxed.sys.u32 [%rd1], 1;
	bra END;
SLEEP:
	nanosleep.u32 20;
	ld.relaxed.sys.u32 %r4, [%rd1];
	setp.eq.s32 %p3, %r4, 0;
	@%p3 bra SLEEP;
END:
	ret;
}
`

func TestLateAtVoteBesideSleepers(t *testing.T) {
	f := setup(t, []byte(lateAtVote), 1<<16)
	flag, out := put(f.a, []uint32{0}), put(f.a, []uint32{0})
	b := f.grid("late", lin(1, 64), flag, out).Block(0)
	for range 1000 {
		_, done, err := b.Run(At{NanosPerCycle: 1}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			equal(t, "ballot", words[uint32](f.a, out, 1), []uint32{0xffe00000})
			return
		}
	}
	t.Fatal("the lanes of a warp that came to the same vote never met")
}
