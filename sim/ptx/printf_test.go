package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
)

func itoa(i int) string { return strconv.Itoa(i) }

// spell writes a record's pieces for people.
func spell(t *testing.T, record []byte) string {
	t.Helper()
	var out strings.Builder
	for len(record) > 0 {
		kind, n := binary.LittleEndian.Uint32(record), int(binary.LittleEndian.Uint32(record[4:]))
		value, text := binary.LittleEndian.Uint64(record[8:]), string(record[16:16+n])
		record = record[16+(n+7)&^7:]
		switch kind {
		case PieceText:
			fmt.Fprintf(&out, "<%s>", text)
			continue
		case PieceFloat:
			fmt.Fprintf(&out, "[%s %v]", strings.TrimSuffix(text, "\x00"), math.Float64frombits(value))
			continue
		case PieceString:
			fmt.Fprintf(&out, "[%s %q]", strings.TrimSuffix(text[:value], "\x00"), strings.TrimSuffix(text[value:], "\x00"))
			continue
		}
		fmt.Fprintf(&out, "[%s %d]", strings.TrimSuffix(text, "\x00"), int64(value))
	}
	return out.String()
}

// printed runs one thread that calls vprintf with a format and arguments that the body stores at %SP, and returns the
// record and the result.
func printed(t *testing.T, format, body string) (string, int32) {
	t.Helper()
	bytes := ""
	for _, c := range []byte(format + "\x00") {
		bytes += itoa(int(c)) + ", "
	}
	src := header + `.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 fmt[] = {` + strings.TrimSuffix(bytes, ", ") + `};
.global .align 1 .b8 str[4] = {97, 98, 99, 0};
.visible .entry k(.param .u64 out) {
.local .align 8 .b8 args[64];
.reg .b64 %SP, o, s; .reg .b32 r;
.param .b64 p0, p1; .param .b32 r0;
mov.u64 %SP, args;
cvta.local.u64 %SP, %SP;
ld.param.u64 o, [out];
` + body + `
mov.u64 s, fmt;
cvta.global.u64 s, s;
st.param.b64 [p0], s;
st.param.b64 [p1], %SP;
call.uni (r0), vprintf, (p0, p1);
ld.param.b32 r, [r0];
st.global.u32 [o], r;
ret; }`
	a := newArena(1 << 16)
	m, img := load(t, []byte(src), a)
	out := a.alloc(4)
	var got []byte
	params := make([]byte, 8)
	binary.LittleEndian.PutUint64(params, out)
	g, err := img.NewGrid(Launch{Kernel: m.Kernels["k"], Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Params: params,
		Print: func(r []byte) { got = append(got, r...) }}, a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runAll(g, slice); err != nil {
		t.Fatal(err)
	}
	return spell(t, got), words[int32](a, out, 1)[0]
}

func TestPrintf(t *testing.T) {
	for _, c := range []struct {
		format, body, want string
		count              int32
	}{
		{"plain", "", "<plain>", 0},
		{"%d %u|%lld\n",
			"st.u32 [%SP], -3; st.u32 [%SP+4], -3; st.u64 [%SP+8], -5;",
			"[%lld -3]< >[%llu 4294967293]<|>[%lld -5]<\n>", 3},
		{"%x%f", "st.u32 [%SP], 255; st.f64 [%SP+8], 0d3FF8000000000000;", "[%llx 255][%f 1.5]", 2},
		{"%s!", "mov.u64 s, str; cvta.global.u64 s, s; st.u64 [%SP], s;", "[%s \"abc\"]<!>", 1},
		{"%s", "st.u64 [%SP], 0;", "[%s \"(null)\"]", 1},
		{"%c%p", "st.u32 [%SP], 65; st.u64 [%SP+8], 4096;", "[%c 65][%p 4096]", 2},
		{"100%%", "", "<100><%>", 0},
		{"%-8.3d|%+5d", "st.u32 [%SP], 7; st.u32 [%SP+4], 8;", "[%-8.3lld 7]<|>[%+5lld 8]", 2},
		{"%*.*f", "st.u32 [%SP], 9; st.u32 [%SP+4], 2; st.f64 [%SP+8], 0d3FF8000000000000;", "[%9.2f 1.5]", 3},
		{"%*d", "st.u32 [%SP], -9; st.u32 [%SP+4], 2;", "[%-9lld 2]", 2},
		{"%hhd %hu %ld",
			"st.u32 [%SP], 0x1ff; st.u32 [%SP+4], 0x1ffff; st.u64 [%SP+8], 4294967296;",
			"[%lld -1]< >[%llu 65535]< >[%lld 4294967296]", 3},
		{"%y%", "", "<%><y><%>", 0},
	} {
		got, count := printed(t, c.format, c.body)
		if got != c.want || count != c.count {
			t.Errorf("%q: %s, %d arguments; want %s, %d", c.format, got, count, c.want, c.count)
		}
	}
}

// TestWarpSize uses the constant in every place that takes a number.
func TestWarpSize(t *testing.T) {
	out, _, err := runSnippet(t, ".global .u32 w = WARP_SZ; .global .b8 table[WARP_SZ];",
		"mov.u32 %r1, WARP_SZ; ld.global.u32 %r2, [w]; "+
			"add.u32 %r1, %r1, WARP_SZ; mov.b64 %d1, {%r1, %r2}; st.global.u64 [%out], %d1;", 1, nil)
	if err != nil || out[0] != 32<<32|64 {
		t.Errorf("%#x, %v", out[0], err)
	}
}
