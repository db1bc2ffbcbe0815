package ptx

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/lgpu/lgpu/sim/kernels"
)

// tryAll parses, links with made-up addresses and runs every kernel for a while on memory that is mostly not there.
// Whatever the source, each step gives a value or an error of the promised type.
func tryAll(t *testing.T, src []byte) {
	m, err := Parse(src)
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || m != nil {
			t.Fatalf("Parse: module %v, error %T %v", m, err, err)
		}
		return
	}
	a := newArena(1 << 12)
	addrs := map[string]uint64{}
	for _, g := range m.Globals {
		addrs[g.Name] = a.base + uint64(g.Align)
	}
	img, err := m.Link(addrs)
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("Link: %T %v", err, err)
		}
		return
	}
	for _, g := range m.Globals {
		img.InitData(g)
	}
	for _, k := range m.Kernels {
		if k.ParamBytes < 0 || k.ParamBytes > MaxParamBytes || k.SharedBytes > MaxSharedBytes || k.LocalBytes > MaxLocalBytes {
			t.Fatalf("kernel %+v", k)
		}
		block := [3]uint32{40, 1, 1}
		if k.ReqNTID[0] != 0 {
			block = [3]uint32{uint32(k.ReqNTID[0]), uint32(k.ReqNTID[1]), uint32(k.ReqNTID[2])}
		}
		p := make([]byte, k.ParamBytes)
		for i := 0; i+8 <= len(p); i += 8 {
			p[i+5], p[i+4] = 0x7f, 0 // the arena's address in every aligned word
		}
		g, err := img.NewGrid(Launch{Kernel: k, Grid: [3]uint32{1, 1, 1}, Block: block, Params: p, Print: func([]byte) {}}, a)
		if err != nil {
			continue
		}
		b := g.Block(0)
		for range 3 {
			used, done, err := b.Run(At{NanosPerCycle: 1}, 2000)
			var f *Fault
			if err != nil && !errors.As(err, &f) || err != nil && !done || used < 0 || !done && used == 0 {
				t.Fatalf("Run: used %d, done %v, %T %v", used, done, err, err)
			}
			_ = err == nil || err.Error() != ""
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(kernels.Linear)
	f.Add(kernels.Compute)
	f.Add(kernels.Control)
	f.Add([]byte(snippet(".const .align 4 .u32 c[3] = {5, 6, 7}; .global .align 8 .u64 g[2] = {c, generic(c)+4};", "T: .branchtargets A;\nbrx.idx %r1, T;\nA: bar.red.popc.u32 %r2, 0, %p2;")))
	f.Add([]byte(snippet(".func (.reg .u32 res) f(.reg .u32 x) { ret; } .extern .shared .b8 s[];", "call (%r2), f, (%r1);\nmov.u64 %d1, s;\nshfl.sync.up.b32 %r1|%p1, %t, 3, 0, -1;\nP: .callprototype (.param .b32 _) _ (.param .b32 _);")))
	f.Add([]byte(snippet("", "{ .reg .b32 x; .param .align 8 .b8 p[16]; st.param.b64 [p], 1; mov.b64 {%r1, %r2}, %d1; cvt.rn.f16x2.f32 %r1, %f1, %f2; nanosleep.u32 50; atom.shared.add.f32 %f1, [%d1], %f2; setp.lt.and.s32 %p1|%p2, -1, 0, !%p3; }")))
	f.Add([]byte(snippet(".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);"+
		".weak .global .b8 s[4] = {37, 115, 37, 0};",
		"{ .param .b64 p, q; .param .b32 r; "+
			"mov.u64 %d1, s; st.param.b64 [p], %d1; st.param.b64 [q], %in; call (r), vprintf, (p, q); }")))
	f.Fuzz(tryAll)
}

// TestMutated is the seeded part of the fuzzing: lines of the kernels dropped, doubled, cut and exchanged.
func TestMutated(t *testing.T) {
	for _, src := range [][]byte{kernels.Linear, kernels.Compute, kernels.Control} {
		for i := range 400 {
			tryAll(t, mutate(src, uint64(i)))
		}
	}
}

func mutate(src []byte, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 2))
	out := append([]byte(nil), src...)
	for range 1 + r.IntN(4) {
		at := r.IntN(len(out))
		n := min(r.IntN(40), len(out)-at)
		switch r.IntN(5) {
		case 0:
			out = append(out[:at:at], out[at+n:]...)
		case 1:
			out = append(out[:at+n:at+n], out[at:]...)
		case 2:
			out = out[:at+1]
		case 3:
			copy(out[at:at+n], src[r.IntN(len(src)-40):])
		case 4:
			out[at] = byte(r.IntN(256))
		}
	}
	return out
}
