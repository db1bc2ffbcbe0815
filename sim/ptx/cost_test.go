package ptx

import (
	"strings"
	"testing"
)

// TestCosts holds the interpreter to the cost model of the package comment.
func TestCosts(t *testing.T) {
	cycles := func(body string) int64 {
		a := newArena(1 << 16)
		m, img := load(t, []byte(snippet(".shared .align 16 .b8 s[256]; .func f() { ret; }", "mov.pred %p1, 0;\nmov.u32 %r1, 1;\n"+body)), a)
		n, err := runAll(grid(t, img, m.Kernels["k"], lin(1, 32), a, a.alloc(64), a.alloc(32*64)), slice)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const times = 10
	for instr, want := range map[string]int64{
		"add.u32 %r1, %r1, 3;": 1, "fma.rn.f32 %f1, %f1, %f1, %f1;": 1, "add.ftz.sat.f32 %f1, %f1, %f1;": 1, "setp.eq.u32 %p2, %r1, 0;": 1,
		"mov.b64 {%r1, %r2}, %d1;": 1, "mov.b64 %d1, {%r1, %r2};": 1, "cvt.rn.f32.s32 %f1, %r1;": 1, "@%p1 div.s64 %d1, %d1, %d1;": 1,
		"membar.gl;": 1, "ld.param.u32 %r1, [in];": 1, "ld.param.u64 %d1, [in];": 2,
		"mul.wide.u32 %d1, %r1, %r1;": 2, "mad.lo.s64 %d1, %d1, %d1, %d1;": 2, "add.f64 %g1, %g1, %g1;": 2, "cvt.u64.u32 %d1, %r1;": 2,
		"shfl.sync.idx.b32 %r1, %r1, 0, 31, -1;": 2, "ld.shared.u32 %r1, [s];": 2, "st.shared.v4.u32 [s], {%r1, %r1, %r1, %r1};": 5,
		"ld.global.u32 %r1, [%in];": 4, "ld.global.v2.u64 {%d1, %d2}, [%out];": 7, "rcp.approx.f32 %f1, %f1;": 4, "bar.sync 0;": 4,
		"sqrt.rn.f32 %f1, %f1;": 8, "div.u32 %r1, %r1, %r1;": 8, "red.global.add.u32 [%out], 1;": 8, "div.u64 %d1, %d1, %d1;": 16,
		"div.rn.f64 %g1, %g1, %g1;": 16, "call f, ();": 8,
	} {
		if got := cycles(strings.Repeat(instr+"\n", times)) - cycles(""); got != times*want {
			t.Errorf("%s takes %d cycles, want %d", instr, got/times, want)
		}
	}
}
