package ptx

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

const header = ".version 8.0\n.target sm_90\n.address_size 64\n"

// snippet wraps a body in a kernel that has %out (address of out + 64 bytes a thread), %in (input buffer), %t (thread)
// and some registers of every class. The module text may hold functions and variables before it.
func snippet(module, body string) string {
	return header + module + `
.visible .entry k(.param .u64 in, .param .u64 out) {
.reg .b64 %in, %out, %d<16>;
.reg .b32 %t, %r<16>;
.reg .b16 %h<16>;
.reg .f32 %f<8>;
.reg .f64 %g<8>;
.reg .pred %p<8>;
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
mad.wide.u32 %out, %t, 64, %out;
` + body + "\nret;\n}\n"
}

// runSnippet runs one block of it over input words and returns 8 words of 64 bits a thread.
func runSnippet(t *testing.T, module, body string, threads uint32, in []uint64) ([]uint64, *Block, error) {
	t.Helper()
	a := newArena(1 << 20)
	m, img := load(t, []byte(snippet(module, body)), a)
	out := a.alloc(int(threads) * 64)
	pin := put(a, append(in, 0))
	b := grid(t, img, m.Kernels["k"], lin(1, threads), a, pin, out).Block(0)
	var err error
	for done := false; !done; {
		_, done, err = b.Run(At{NanosPerCycle: 1}, slice)
	}
	return words[uint64](a, out, int(threads)*8), b, err
}

func f32b(x float64) uint64 { return uint64(math.Float32bits(float32(x))) }

// TestInstructions checks single instructions on one thread: %r1.. etc. are set by the body, %out gets the results.
func TestInstructions(t *testing.T) {
	r := func(ins ...string) string { return strings.Join(ins, "\n") }
	for _, c := range []struct {
		name, module, body string
		in, want           []uint64
	}{
		{"carry chain", "", r("ld.global.v2.u64 {%d1, %d2}, [%in];", "ld.global.v2.u64 {%d3, %d4}, [%in+16];",
			"add.cc.u64 %d5, %d1, %d3;", "addc.u64 %d6, %d2, %d4;", "st.global.v2.u64 [%out], {%d5, %d6};",
			"sub.cc.u64 %d5, %d1, %d3;", "subc.u64 %d6, %d2, %d4;", "st.global.v2.u64 [%out+16], {%d5, %d6};"),
			[]uint64{1, 5, math.MaxUint64, 7}, []uint64{0, 13, 2, math.MaxUint64 - 2}},
		{"mad carry", "", r("mov.u32 %r1, 0xffffffff;", "mad.lo.cc.u32 %r2, %r1, %r1, %r1;", "madc.hi.u32 %r3, %r1, %r1, 0;",
			"mov.b64 %d1, {%r2, %r3};", "st.global.b64 [%out], %d1;"), nil, []uint64{math.MaxUint32 * (math.MaxUint32 + 1)}},
		{"mul24", "", r("mov.u32 %r1, 0xff000003;", "mul24.lo.u32 %r2, %r1, %r1;", "mov.u32 %r4, 0x00ffffff;", "mul24.lo.s32 %r3, %r4, 5;",
			"mad24.hi.s32 %r5, %r4, %r4, 7;", "st.global.u32 [%out], %r2;", "st.global.u32 [%out+8], %r3;", "st.global.u32 [%out+16], %r5;"),
			nil, []uint64{9, 0xfffffffb, 7}},
		{"pack", "", r("ld.global.u64 %d1, [%in];", "mov.b64 {%r1, %r2}, %d1;", "mov.b64 %d2, {%r2, %r1};", "mov.b32 {%h1, %h2}, %r1;",
			"mov.b32 %r3, {%h2, %h1};", "mov.b64 {%h1, %h2, %h3, %h4}, %d1;", "mov.b64 %d3, {%h4, %h3, %h2, %h1};",
			"mov.b64 {_, %r4}, %d1;", "st.global.u64 [%out], %d2;", "st.global.u32 [%out+8], %r3;", "st.global.u64 [%out+16], %d3;", "st.global.u32 [%out+24], %r4;"),
			[]uint64{0x1122334455667788}, []uint64{0x5566778811223344, 0x77885566, 0x7788556633441122, 0x11223344}},
		{"sign extending load", "", r("ld.global.s8 %r1, [%in];", "ld.global.u8 %r2, [%in];", "ld.global.s16 %d1, [%in];", "ld.global.s32 %d2, [%in];",
			"st.global.u32 [%out], %r1;", "st.global.u32 [%out+8], %r2;", "st.global.u64 [%out+16], %d1;", "st.global.u64 [%out+24], %d2;"),
			[]uint64{0x80f0f180}, []uint64{0xffffff80, 0x80, 0xfffffffffffff180, 0xffffffff80f0f180}},
		{"narrow cvt", "", r("mov.u32 %r1, 0x1ff;", "cvt.s32.s8 %r2, %r1;", "cvt.u16.u8 %h1, %r1;", "cvt.sat.u8.u32 %h2, %r1;",
			"st.global.u32 [%out], %r2;", "st.global.u16 [%out+8], %h1;", "st.global.u16 [%out+16], %h2;"), nil, []uint64{0xffffffff, 0xff, 0xff}},
		{"f16", "", r("mov.f32 %f1, 0f3F801000;" /* 1 + 2^-11: a tie */, "cvt.rn.f16.f32 %h1, %f1;", "cvt.rp.f16.f32 %h2, %f1;", "cvt.f32.f16 %f2, %h2;",
			"add.rn.f16 %h3, %h2, %h2;", "fma.rn.f16 %h4, %h2, %h2, %h1;", "st.global.u16 [%out], %h1;", "st.global.u16 [%out+8], %h2;",
			"st.global.f32 [%out+16], %f2;", "st.global.u16 [%out+24], %h3;", "st.global.u16 [%out+32], %h4;"),
			nil, []uint64{0x3c00, 0x3c01, f32b(1 + 1.0/1024), 0x4001, 0x4001}},
		{"f16 pairs", "", r("mov.f32 %f1, 0f3F800000;", "mov.f32 %f2, 0fC0000000;", "cvt.rn.f16x2.f32 %r1, %f1, %f2;", "mul.rn.f16x2 %r2, %r1, %r1;",
			"cvt.rn.bf16x2.f32 %r3, %f1, %f2;", "neg.f16x2 %r4, %r1;", "st.global.u32 [%out], %r1;", "st.global.u32 [%out+8], %r2;",
			"st.global.u32 [%out+16], %r3;", "st.global.u32 [%out+24], %r4;"), nil, []uint64{0x3c00c000, 0x3c004400, 0x3f80c000, 0xbc004000}},
		{"flush and clamp", "", r("mov.b32 %f1, 0x00400000;", "add.ftz.f32 %f2, %f1, %f1;", "add.f32 %f3, %f1, %f1;", "mov.f32 %f4, 0f40000000;",
			"add.sat.f32 %f5, %f4, %f4;", "mul.ftz.f32 %f6, 0f80800000, 0f3F000000;", "st.global.f32 [%out], %f2;", "st.global.f32 [%out+8], %f3;",
			"st.global.f32 [%out+16], %f5;", "st.global.f32 [%out+24], %f6;"), nil, []uint64{0, 0x00800000, f32b(1), 0x80000000}},
		{"exact roots", "", r("ld.global.f32 %f1, [%in];", "sqrt.rn.f32 %f2, %f1;", "rcp.rn.f32 %f3, %f1;", "sqrt.rp.f32 %f4, %f1;", "div.full.f32 %f5, %f1, %f1;",
			"st.global.f32 [%out], %f2;", "st.global.f32 [%out+8], %f3;", "st.global.f32 [%out+16], %f4;", "st.global.f32 [%out+24], %f5;"),
			[]uint64{f32b(3)}, []uint64{f32b(math.Sqrt(3)), f32b(1.0 / 3), uint64(math.Float32bits(math.Nextafter32(float32(math.Sqrt(3)), 2))), f32b(1)}},
		{"minmax", "", r("min.f32 %f1, 0f7FFFFFFF, 0f3F800000;", "max.f32 %f2, 0f80000000, 0f00000000;", "min.NaN.f32 %f3, 0f7FC00000, 0f3F800000;",
			"min.f32 %f4, 0f00000000, 0f80000000;", "st.global.f32 [%out], %f1;", "st.global.f32 [%out+8], %f2;", "st.global.f32 [%out+16], %f3;",
			"st.global.f32 [%out+24], %f4;"), nil, []uint64{f32b(1), 0, nan32, 0x80000000}},
		{"two predicates", "", r("mov.pred %p3, 1;", "setp.lt.and.s32 %p1|%p2, -1, 0, !%p3;", "setp.lt.or.u32 %p4|%p5, -1, 0, %p3;",
			"selp.u32 %r1, 1, 2, %p1;", "selp.u32 %r2, 1, 2, %p2;", "selp.u32 %r3, 1, 2, %p4;", "set.eq.u32.s32 %r4, 5, 5;", "set.ne.f32.s32 %f1, 5, 6;",
			"slct.u32.s32 %r5, 3, 4, -1;", "st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};", "st.global.f32 [%out+16], %f1;", "st.global.u32 [%out+24], %r5;"),
			nil, []uint64{2<<32 | 2, 0xffffffff<<32 | 1, f32b(1), 4}},
		{"testp copysign", "", r("testp.subnormal.f32 %p1, 0f00000001;", "testp.normal.f32 %p2, 0f00000001;", "testp.notanumber.f64 %p3, 0d7FF8000000000000;",
			"selp.u32 %r1, 1, 0, %p1;", "selp.u32 %r2, 1, 0, %p2;", "selp.u32 %r3, 1, 0, %p3;", "copysign.f32 %f1, 0fBF800000, 0f40000000;",
			"st.global.u32 [%out], %r1;", "st.global.u32 [%out+8], %r2;", "st.global.u32 [%out+16], %r3;", "st.global.f32 [%out+24], %f1;"),
			nil, []uint64{1, 0, 1, f32b(-2)}},
		{"branch table", "", r("mov.u32 %r1, 1;", "mov.u32 %r2, 0;", "T: .branchtargets A, B;", "brx.idx %r1, T;", "A: add.u32 %r2, %r2, 100;",
			"B: add.u32 %r2, %r2, 10;", "st.global.u32 [%out], %r2;"), nil, []uint64{10}},
		{"register parameters", ".func (.reg .u32 res) f(.reg .u32 x, .reg .u32 y) { sub.u32 res, x, y; ret; }",
			r("mov.u32 %r1, 50;", "call (%r2), f, (%r1, 8);", "st.global.u32 [%out], %r2;"), nil, []uint64{42}},
		{"structure parameter", ".func (.param .align 8 .b8 res[16]) f(.param .align 8 .b8 x[16]) { .reg .b64 %a, %b; ld.param.v2.b64 {%a, %b}, [x]; st.param.v2.b64 [res], {%b, %a}; ret; }",
			r("{ .param .align 8 .b8 p[16]; .param .align 8 .b8 q[16];", "st.param.b64 [p], 1;", "st.param.b64 [p+8], 2;", "call (q), f, (p);",
				"ld.param.v2.b64 {%d1, %d2}, [q]; }", "st.global.v2.b64 [%out], {%d1, %d2};"), nil, []uint64{2, 1}},
		{"shared and local by generic address", ".shared .align 4 .b8 s[16];", r(".local .align 8 .b8 l[16];", "mov.u64 %d1, s;", "cvta.shared.u64 %d2, %d1;", "st.u32 [%d2+4], 7;",
			"ld.shared.u32 %r1, [s+4];", "mov.u64 %d3, l;", "cvta.local.u64 %d4, %d3;", "st.local.u32 [l+8], 9;", "ld.u32 %r2, [%d4+8];", "isspacep.shared %p1, %d2;",
			"isspacep.local %p2, %d2;", "selp.u32 %r3, 1, 0, %p1;", "selp.u32 %r4, 1, 0, %p2;", "st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};"), nil, []uint64{9<<32 | 7, 1}},
		{"atomics", "", r("st.global.u32 [%out], 10;", "atom.global.inc.u32 %r1, [%out], 10;", "atom.global.dec.u32 %r2, [%out], 4;", "atom.global.max.s32 %r3, [%out], -3;",
			"atom.global.cas.b32 %r4, [%out], 4, 99;", "red.global.xor.b32 [%out], 1;", "st.global.v4.u32 [%out+16], {%r1, %r2, %r3, %r4};",
			"st.global.u32 [%out+8], 0x00050006;", "mov.b16 %h1, 5;", "mov.b16 %h2, 77;", "atom.global.cas.b16 %h3, [%out+10], %h1, %h2;", "st.global.u16 [%out+32], %h3;",
			"st.global.f64 [%out+40], 0d3FF0000000000000;", "atom.global.add.f64 %g1, [%out+40], 0d4000000000000000;"),
			nil, []uint64{98, 77<<16 | 6, 10, 4<<32 | 4, 5, math.Float64bits(3)}},
		{"variables", ".const .align 4 .u32 c[3] = {5, 6, 7}; .global .align 8 .u64 g[2] = {c, generic(h)+4}; .global .u32 h[2] = {1, 2}; .global .b8 z[3][2] = {{1},{2,3}};",
			r("ld.const.u32 %r1, [c+8];", "ld.global.u64 %d1, [g];", "ld.const.u32 %r2, [%d1+4];", "ld.global.u64 %d2, [g+8];", "ld.u32 %r3, [%d2];", "ld.global.u8 %r4, [z+3];",
				"st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};"), nil, []uint64{6<<32 | 7, 3<<32 | 2}},
		{"clock", "", r("mov.u32 %r1, %clock;", "nanosleep.u32 5000;", "mov.u64 %d1, %globaltimer;", "shr.u64 %d1, %d1, 12;", "st.global.u64 [%out], %d1;"), nil, []uint64{1}},
		{"scoped names", "", r("{ .reg .b32 x; mov.u32 x, 3; { .reg .b32 x; mov.u32 x, 4; bra L; L: st.global.u32 [%out], x; } bra L; L: st.global.u32 [%out+8], x; }"),
			nil, []uint64{4, 3}},
		{"value kept by a predicated definition", "", r("mov.u32 %r1, 0;", "L: setp.eq.u32 %p1, %r1, 0;", "@%p1 mov.u32 %r2, 7;", "add.u32 %r3, %r2, %r1;",
			"mul.lo.u32 %r4, %r1, 100;", "add.u32 %r5, %r4, %r4;", "st.global.u32 [%out], %r3;", "st.global.u32 [%out+8], %r5;", "add.u32 %r1, %r1, 1;",
			"setp.lt.u32 %p2, %r1, 3;", "@%p2 bra L;"), nil, []uint64{9, 400}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := runSnippet(t, c.module, c.body, 1, c.in)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "out", got, c.want)
		})
	}
}

func TestApproximations(t *testing.T) {
	for name, f := range map[string]func(float64) float64{
		"rcp.approx": func(x float64) float64 { return 1 / x }, "sqrt.approx": math.Sqrt, "rsqrt.approx": func(x float64) float64 { return 1 / math.Sqrt(x) },
		"ex2.approx": math.Exp2, "lg2.approx": math.Log2, "sin.approx": math.Sin, "cos.approx": math.Cos, "tanh.approx": math.Tanh,
	} {
		in := []uint64{}
		for i := range 32 {
			in = append(in, f32b(0.1+float64(i)/7))
		}
		body := "mad.wide.u32 %d1, %t, 8, %in;\nld.global.f32 %f1, [%d1];\n" + name + ".f32 %f2, %f1;\nst.global.f32 [%out], %f2;"
		got, _, err := runSnippet(t, "", body, 32, in)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range in {
			want, x := f(float64(f32of(v))), float64(f32of(got[i*8]))
			if math.Abs(x-want) > 1e-6*math.Abs(want)+1e-7 {
				t.Errorf("%s(%v) = %v, want %v", name, f32of(v), x, want)
			}
		}
	}
}

func TestFmaRoundsOnce(t *testing.T) {
	p := func(x float64) float32 { return float32(x) }
	e := math.Ldexp
	for _, c := range []struct{ a, b, c, want float32 }{
		// Just below the middle of two subnormal results; rounding to f64 first would hit the middle.
		{p(e(1+e(1, -20), -75)), p(e(1-e(1, -20), -75)), p(e(1, -127) + e(1, -149)), p(e(1, -127) + e(1, -149))},
		// The same for normal results.
		{p(e(1+e(1, -20), -12)), p(e(1-e(1, -20), -12)), p(1 + e(1, -23)), p(1 + e(1, -23))},
	} {
		if got := math.Float32frombits(uint32(fma32(c.a, c.b, c.c))); got != c.want {
			t.Errorf("fma(%v, %v, %v) = %v, want %v", c.a, c.b, c.c, got, c.want)
		}
	}
}

func TestConversionEdges(t *testing.T) {
	for _, c := range []struct {
		dt, st typ
		x      float64
		want   uint64
	}{
		{tS16, tF64, -32769, 0x8000}, {tS16, tF64, 32768, 0x7fff}, {tU16, tF64, -1, 0}, {tU16, tF64, 65536, 0xffff}, {tS32, tF64, -1 << 31, 0x80000000},
		{tU64, tF64, 1 << 63, 1 << 63}, {tU64, tF64, 1 << 64, math.MaxUint64}, {tS64, tF64, 1 << 63, math.MaxInt64}, {tS32, tF64, math.NaN(), 0x80000000},
	} {
		cv := conversion{dt: c.dt, st: c.st, mode: rz, integral: true}
		if got := cv.one(math.Float64bits(c.x)) & c.dt.mask(); got != c.want {
			t.Errorf("cvt.rzi%v%v of %v = %#x, want %#x", c.dt, c.st, c.x, got, c.want)
		}
	}
	for b := range uint64(1 << 16) { // every f16 survives the way to f32 and back
		x := fmt16.toFloat(b)
		if back := packF16(x, rn); back != b && x == x {
			t.Fatalf("f16 %#x became %#x", b, back)
		}
	}
}

// TestWarpOperations runs one warp and compares word 0 of each lane with a function of the lane.
func TestWarpOperations(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       func(lane int) uint64
	}{
		{"shfl up", "shfl.sync.up.b32 %r1|%p1, %t, 3, 0, -1;\n@!%p1 mov.u32 %r1, 99;\nst.global.u32 [%out], %r1;", func(l int) uint64 {
			if l < 3 {
				return 99
			}
			return uint64(l - 3)
		}},
		{"shfl bfly", "shfl.sync.bfly.b32 %r1, %t, 5, 31, -1;\nst.global.u32 [%out], %r1;", func(l int) uint64 { return uint64(l ^ 5) }},
		{"shfl down in segments of 8", "shfl.sync.down.b32 %r1|%p1, %t, 2, 0x1807, -1;\nst.global.u32 [%out], %r1;", func(l int) uint64 {
			if l&7 > 5 {
				return uint64(l)
			}
			return uint64(l + 2)
		}},
		{"shfl idx in segments of 16", "shfl.sync.idx.b32 %r1, %t, 3, 0x100f, -1;\nst.global.u32 [%out], %r1;", func(l int) uint64 { return uint64(l&16 | 3) }},
		{"ballot", "setp.gt.u32 %p1, %t, 20;\nvote.sync.ballot.b32 %r1, %p1, -1;\nst.global.u32 [%out], %r1;", func(int) uint64 { return 0xffe00000 }},
		{"any all uni", "setp.gt.u32 %p1, %t, 20;\nvote.sync.any.pred %p2, %p1, -1;\nvote.sync.all.pred %p3, %p1, -1;\nvote.sync.uni.pred %p4, !%p3, -1;\n" +
			"selp.u32 %r1, 1, 0, %p2;\nselp.u32 %r2, 2, 0, %p3;\nselp.u32 %r3, 4, 0, %p4;\nadd.u32 %r1, %r1, %r2;\nadd.u32 %r1, %r1, %r3;\nst.global.u32 [%out], %r1;",
			func(int) uint64 { return 5 }},
		{"match any", "shr.u32 %r1, %t, 3;\nmatch.any.sync.b32 %r2, %r1, -1;\nst.global.u32 [%out], %r2;", func(l int) uint64 { return 0xff << (l &^ 7) }},
		{"match all", "mov.u32 %r1, 7;\nmatch.all.sync.b32 %r2|%p1, %r1, -1;\n@%p1 st.global.u32 [%out], %r2;", func(int) uint64 { return 0xffffffff }},
		{"redux", "redux.sync.add.s32 %r1, %t, -1;\nredux.sync.max.u32 %r2, %t, -1;\nadd.u32 %r1, %r1, %r2;\nst.global.u32 [%out], %r1;", func(int) uint64 { return 496 + 31 }},
		{"elect", "elect.sync %r1|%p1, -1;\nselp.u32 %r2, 7, %r1, %p1;\nst.global.u32 [%out], %r2;", func(l int) uint64 { return 7 * uint64(bit(l == 0)) }},
		{"activemask", "setp.lt.u32 %p1, %t, 4;\n@%p1 bra A;\nbra E;\nA: activemask.b32 %r1;\nst.global.u32 [%out], %r1;\nE:", func(l int) uint64 { return 15 * uint64(bit(l < 4)) }},
		{"lanemasks", "mov.u32 %r1, %lanemask_lt;\nmov.u32 %r2, %lanemask_ge;\nadd.u32 %r1, %r1, %r2;\nst.global.u32 [%out], %r1;", func(int) uint64 { return 0xffffffff }},
		{"sync waits for diverged lanes", "mov.u32 %r1, 0;\nsetp.lt.u32 %p1, %t, 16;\n@%p1 bra B;\nL: add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p2, %r1, 3000;\n@%p2 bra L;\nB:\n" +
			"shfl.sync.idx.b32 %r2, %r1, 31, 31, -1;\nst.global.u32 [%out], %r2;", func(int) uint64 { return 3000 }},
		{"warp barrier", "setp.lt.u32 %p1, %t, 16;\n@%p1 bra B;\nst.global.u32 [%in], 77;\nbar.warp.sync -1;\nst.global.u32 [%out], 77;\nbra E;\nB: bar.warp.sync -1;\n" +
			"ld.volatile.global.u32 %r1, [%in];\nst.global.u32 [%out], %r1;\nE:", func(int) uint64 { return 77 }},
		// Quarters of a warp go through the same operations with masks of their own, each only when its leader comes,
		// which waits for the quarter above: nobody may be released, or kept, by another's lanes.
		{"quarters that synchronize by themselves", "shr.u32 %r1, %t, 3;\nshl.b32 %r2, %r1, 3;\nmov.u32 %r3, 0xff;\nshl.b32 %r3, %r3, %r2;\n" +
			"and.b32 %r4, %t, 7;\nsetp.ne.u32 %p1, %r4, 0;\n@%p1 bra S;\nsetp.eq.u32 %p2, %r1, 3;\n@%p2 bra S;\n" +
			"L: ld.volatile.global.u32 %r5, [%in];\nsetp.le.u32 %p3, %r5, %r1;\n@%p3 bra L;\n" + // until the counter is above the quarter
			"S: bar.warp.sync %r3;\nvote.sync.ballot.b32 %r6, 1, %r3;\nsetp.eq.u32 %p4, %r4, 0;\nshfl.sync.idx.b32 %r7, %t, %r2, 31, %r3;\nbar.warp.sync %r3;\n" +
			"@%p4 st.volatile.global.u32 [%in], %r1;\n" +
			"shr.u32 %r6, %r6, %r2;\nadd.u32 %r6, %r6, %r7;\nst.global.u32 [%out], %r6;", func(l int) uint64 { return uint64(0xff + l&^7) }},
		{"producer below consumer in a warp", "setp.eq.u32 %p1, %t, 31;\n@%p1 bra P;\nL: ld.volatile.global.u32 %r1, [%in];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra L;\nbra E;\n" +
			"P: st.volatile.global.u32 [%in], 5;\nE: mov.u32 %r2, 1;\nst.global.u32 [%out], %r2;", func(int) uint64 { return 1 }},
		{"lanes of exited threads are not waited for", "setp.lt.u32 %p1, %t, 8;\n@!%p1 st.global.u32 [%out], 1;\n@!%p1 exit;\nvote.sync.ballot.b32 %r1, 1, -1;\nst.global.u32 [%out], %r1;",
			func(l int) uint64 {
				if l < 8 {
					return 0xff
				}
				return 1
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := runSnippet(t, "", c.body, 32, nil)
			if err != nil {
				t.Fatal(err)
			}
			for l := range 32 {
				if got[8*l] != c.want(l) {
					t.Fatalf("lane %d: %#x, want %#x", l, got[8*l], c.want(l))
				}
			}
		})
	}
}

func TestBarriers(t *testing.T) {
	// Warps 0 and 1 wait at barrier 1 for a word that warp 2 writes before it arrives there.
	got, _, err := runSnippet(t, ".shared .u32 s;", `
setp.ge.u32 %p1, %t, 64;
@%p1 bra P;
bar.sync 1, 96;
ld.shared.u32 %r1, [s];
bra E;
P: st.shared.u32 [s], 8;
bar.arrive 1, 96;
mov.u32 %r1, 8;
E: setp.lt.u32 %p2, %t, 10;
bar.red.popc.u32 %r2, 0, %p2;
bar.red.and.pred %p3, 0, %p2;
barrier.cta.red.or.aligned.pred %p4, 0, %p2;
selp.u32 %r3, 100, 0, %p3;
selp.u32 %r4, 1000, 0, %p4;
add.u32 %r1, %r1, %r2;
add.u32 %r1, %r1, %r3;
add.u32 %r1, %r1, %r4;
st.global.u32 [%out], %r1;`, 96, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 96 {
		if got[8*i] != 1018 {
			t.Fatalf("thread %d: %d, want 1018", i, got[8*i])
		}
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, module, body string
		kind               FaultKind
		line               bool
	}{
		{"misaligned", "", "st.global.u32 [%out+2], 1;", FaultMisaligned, true},
		{"misaligned vector", "", "ld.global.v2.u32 {%r1, %r2}, [%out+4];", FaultMisaligned, true},
		{"null", "", "mov.u64 %d1, 0;\nld.global.u32 %r1, [%d1];", FaultAddress, true},
		{"atomic on nothing", "", "mov.u64 %d1, 64;\nred.global.add.u32 [%d1], 1;", FaultAddress, true},
		{"function address", ".func f() { ret; }", "mov.u64 %d1, f;\nld.u32 %r1, [%d1];", FaultAddress, true},
		{"shared", ".shared .u32 s[4];", "mov.u32 %r1, s;\nst.shared.u32 [%r1+16], 1;", FaultShared, true},
		{"local", "", ".local .b32 l[4];\nmov.u64 %d1, l;\nst.local.u32 [%d1+16], 1;", FaultLocal, true},
		{"parameters are read-only", "", "mov.b64 %d1, in;\ncvta.param.u64 %d1, %d1;\nst.u64 [%d1], 1;", FaultReadOnly, true},
		{"trap", "", "setp.eq.u32 %p1, %t, 0;\n@%p1 trap;", FaultTrap, true},
		{"assertion", ".extern .func __assertfail();", "call __assertfail, ();", FaultAssert, true},
		{"recursion without end", ".func f() { call f, (); ret; }", "call f, ();", FaultStack, true},
		{"pointer to no function", ".func f() { ret; }", "mov.u64 %d1, f;\nadd.u64 %d1, %d1, 64;\nP: .callprototype _ ();\ncall %d1, (), P;", FaultCall, true},
		{"function of another type", ".func f(.param .b32 x) { ret; }", "mov.u64 %d1, f;\nP: .callprototype _ ();\ncall %d1, (), P;", FaultCall, true},
		{"barrier that cannot complete", "", "bar.sync 1, 512;", FaultDeadlock, true},
		{"two barriers", "", "setp.lt.u32 %p1, %t, 32;\n@%p1 bra A;\nbar.sync 1, 64;\nA: bar.sync 2, 64;", FaultDeadlock, true},
		{"barrier number", "", "bar.sync 16;", FaultInstruction, true},
		{"branch table", "", "T: .branchtargets A;\nmov.u32 %r1, 1;\nbrx.idx %r1, T;\nA:", FaultInstruction, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := runSnippet(t, c.module, c.body, 64, nil)
			f := wantFault(t, err, c.kind)
			if (f.Line != 0) != c.line || f.PC == "" || f.Kernel != "k" {
				t.Errorf("fault %+v", f)
			}
			if !strings.Contains(err.Error(), c.kind.String()) {
				t.Errorf("text %q", err)
			}
		})
	}
}

// readOnly is an arena that must not be written.
type readOnly struct{ *arena }

func (r readOnly) Window(addr uint64) (uint64, []byte, bool, bool) {
	base, mem, _, ok := r.arena.Window(addr)
	return base, mem, false, ok
}

func TestReadOnlyMemory(t *testing.T) {
	a := newArena(1 << 16)
	m, img := load(t, []byte(snippet("", "ld.global.u32 %r1, [%in];\nst.global.u32 [%out], %r1;")), a)
	g := grid(t, img, m.Kernels["k"], lin(1, 1), readOnly{a}, a.alloc(8), a.alloc(64))
	_, err := runAll(g, slice)
	wantFault(t, err, FaultReadOnly)
}

func TestEndOfMapping(t *testing.T) {
	for _, before := range []string{"", "ld.global.u32 %r1, [%in];\n"} {
		a := newArena(4096 + 4)
		m, img := load(t, []byte(snippet("", before+"ld.global.u64 %d1, [%in];")), a)
		_, err := runAll(grid(t, img, m.Kernels["k"], lin(1, 1), a, a.base+4096, a.base), slice)
		if f := wantFault(t, err, FaultAddress); f.Addr != a.base+4096 {
			t.Errorf("fault %+v", f)
		}
	}
}

func TestLaunchArguments(t *testing.T) {
	a := newArena(1 << 16)
	m, img := load(t, []byte(header+".visible .entry k(.param .u64 x) .reqntid 32, 2 { .shared .b8 s[1024]; .reg .b32 %r; mov.u32 %r, s; ret; }"), a)
	k := m.Kernels["k"]
	if k.SharedBytes != 1024 || k.ParamBytes != 8 || k.MaxThreads != 64 || k.ReqNTID != [3]int{32, 2, 1} || k.Regs == 0 {
		t.Errorf("kernel %+v", k)
	}
	good := Launch{Kernel: k, Grid: [3]uint32{2, 3, 4}, Block: [3]uint32{32, 2, 1}, Params: make([]byte, 8)}
	g, err := img.NewGrid(good, a)
	if err != nil || g.Blocks() != 24 || g.Block(24) != nil || g.Block(-1) != nil || g.Block(23).Index() != [3]uint32{1, 2, 3} {
		t.Fatalf("grid %+v, %v", g, err)
	}
	for name, change := range map[string]func(*Launch){
		"no kernel": func(l *Launch) { l.Kernel = nil }, "foreign kernel": func(l *Launch) { l.Kernel = &Kernel{Name: "k"} },
		"empty grid": func(l *Launch) { l.Grid[1] = 0 }, "huge grid": func(l *Launch) { l.Grid = [3]uint32{1 << 31, 1, 1} },
		"grid product": func(l *Launch) { l.Grid = [3]uint32{1<<31 - 1, 1<<31 - 1, 1<<31 - 1} },
		"block shape":  func(l *Launch) { l.Block = [3]uint32{2, 32, 1} }, "block size": func(l *Launch) { l.Block = [3]uint32{32, 2, 2} },
		"short parameters": func(l *Launch) { l.Params = l.Params[:7] }, "shared": func(l *Launch) { l.SharedDynamic = MaxSharedBytes },
		"shared overflow": func(l *Launch) { l.SharedDynamic = math.MaxUint32 },
	} {
		l := good
		change(&l)
		if _, err := img.NewGrid(l, a); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestRegisterMemory: what a block may take of the host is bounded, at launch and in recursion.
func TestRegisterMemory(t *testing.T) {
	many := func(prefix string, n int) string { // values that all live across a branch
		var b strings.Builder
		fmt.Fprintf(&b, ".reg .b32 %%%s<%d>;\n", prefix, n)
		for i := range n {
			fmt.Fprintf(&b, "mov.u32 %%%s%d, 1;\n", prefix, i)
		}
		b.WriteString("bra " + prefix + ";\n" + prefix + ":\n")
		for i := range n {
			fmt.Fprintf(&b, "st.shared.u32 [x], %%%s%d;\n", prefix, i)
		}
		return b.String()
	}
	a := newArena(1 << 20)
	m, img := load(t, []byte(snippet(".shared .u32 x;", many("v", 40000))), a)
	l := Launch{Kernel: m.Kernels["k"], Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1024, 1, 1}, Params: make([]byte, 16)}
	if _, err := img.NewGrid(l, a); err == nil || !strings.Contains(err.Error(), "registers") {
		t.Errorf("40000 registers of 1024 threads: %v", err)
	}
	_, _, err := runSnippet(t, ".shared .u32 x; .func f() {"+many("v", 5000)+"call f, (); ret; }", "call f, ();", 32, nil)
	wantFault(t, err, FaultStack)
	if _, err := Parse([]byte(snippet(".shared .u32 x;", many("v", maxRegs+1)))); err == nil {
		t.Error("too many registers are accepted")
	}
}

func TestSharedLayout(t *testing.T) {
	src := header + `
.shared .align 4 .b8 a[100];
.shared .align 16 .b8 b[64];
.shared .align 4 .b8 unused[5000];
.func f() { .reg .b32 %r; mov.u32 %r, a; ret; }
.visible .entry uses_both() { .reg .b32 %r; mov.u32 %r, b; call f, (); ret; }
.visible .entry only_b() { .reg .b32 %r; mov.u32 %r, b; ret; }
.visible .entry neither() { ret; }
.visible .entry deep() { .local .b8 l[40]; call g, (); ret; }
.func g() { .local .b8 l[100]; ret; }
`
	src = strings.Replace(src, ".visible .entry deep", ".func g();\n.visible .entry deep", 1)
	m, err := Parse([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"uses_both": 112 + 64, "only_b": 64, "neither": 0} {
		if got := m.Kernels[name].SharedBytes; got != want {
			t.Errorf("%s: %d bytes of shared memory, want %d", name, got, want)
		}
	}
	if got := m.Kernels["deep"].LocalBytes; got != 48+112 {
		t.Errorf("deep: %d bytes of local memory, want %d", got, 48+112)
	}
}

func TestLinkErrors(t *testing.T) {
	for src, want := range map[string]string{
		".global .u32 x;": "variable has no address",
		".extern .global .u32 x; .visible .entry k() { .reg .u32 r; ld.global.u32 r, [x]; ret; }": "Undefined reference to 'x' in 'k'",
		".extern .func f(); .visible .entry k() { call f, (); ret; }":                             "Undefined reference to 'f' in 'k'",
		".global .u64 p = nowhere;": "Undefined reference to 'nowhere' in 'p'",
	} {
		m, err := Parse([]byte(header + src))
		if err != nil {
			t.Fatal(err)
		}
		addrs := map[string]uint64{"p": 0x1000}
		if _, err := m.Link(addrs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", src, err, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for body, want := range map[string]string{
		"foo.u32 %r1, %r2;":          `line 16: foo.u32 %r1, %r2: instruction is not supported`,
		"add.u32 %r1, %r2;":          "operands",
		"add.q32 %r1, %r2, %r3;":     "type is missing",
		"add.u32.foo %r1, %r2, %r3;": "modifier .foo",
		"add.u32 %r1, %d2, %r3;":     "register %d2 of type .b64",
		"add.u32 %r1, %r99, %r3;":    "unknown register %r99",
		"bra NOWHERE;":               "unknown label NOWHERE",
		"ld.global.u32 %r1, %r2;":    "not an address",
		"wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1}, [%d1];": "not supported",
		"ld.shared.u32 %r1, [in];":                                 "another state space",
		"ld.param.u64 %d1, [in+12];":                               "past the 16 bytes",
		"mov.u32 %r1, 1":                                           "';' was expected",
		"mov.u32 %r1, %foo.x;":                                     "unknown register %foo.x",
		"call f, ();":                                              "unknown function f",
		"cvt.rn.f32.pred %f1, %p1;":                                "not supported",
	} {
		_, err := Parse([]byte(snippet("", body)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
	for src, want := range map[string]string{
		"":        "no PTX",
		"\x7fELF": "unexpected byte",
		".version 7.0\n.target sm_70\n.address_size 32":                                     "only 64",
		header + ".visible .entry k() {":                                                    "end of file",
		header + ".global .texref t;":                                                       "texref",
		header + ".shared .b8 a[2000000]; .entry k() { .reg .b32 %r; mov.u32 %r, a; ret; }": "shared memory",
		header + "/* no end":                                                                "comment",
	} {
		if _, err := Parse([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", src, err, want)
		}
	}
	if _, err := Parse([]byte(header + ".entry k() {" + strings.Repeat("{", 1000))); err == nil {
		t.Error("deep scopes are accepted")
	}
	if _, err := Parse([]byte(header + fmt.Sprintf(".global .u32 a[%d];", 1<<41))); err == nil {
		t.Error("huge array is accepted")
	}
}
