package ptx

import (
	"fmt"
	"strings"
	"testing"
)

// unitsOf makes units named a, b, ... of texts.
func unitsOf(texts ...string) []Unit {
	var units []Unit
	for i, text := range texts {
		units = append(units, Unit{Name: string(rune('a' + i)), Source: []byte(header + text)})
	}
	return units
}

// linked links units whose first has a kernel k that stores a word at its parameter, and returns that word.
func linked(t *testing.T, units []Unit) uint32 {
	t.Helper()
	m, err := ParseUnits(Options{}, units...)
	if err != nil {
		t.Fatal(err)
	}
	a := newArena(1 << 16)
	img := loadModule(t, m, a)
	out := a.alloc(4)
	if _, err := runAll(grid(t, img, m.Kernels["k"], lin(1, 1), a, out), slice); err != nil {
		t.Fatal(err)
	}
	return words[uint32](a, out, 1)[0]
}

const (
	// caller is a kernel that stores what f gives for 5, plus the variable v.
	caller = `.extern .func (.param .b32 r) f (.param .b32 x);
.extern .global .align 4 .u32 v;
.visible .entry k(.param .u64 out) {
.reg .b32 a<4>; .reg .b64 o;
.param .b32 x0, r0;
ld.param.u64 o, [out];
st.param.b32 [x0], 5;
call.uni (r0), f, (x0);
ld.param.b32 a1, [r0];
ld.global.u32 a2, [v];
add.u32 a1, a1, a2;
st.global.u32 [o], a1;
ret; }
`
	// callee is f, which multiplies by its static variable.
	callee = `.global .align 4 .u32 own = 7;
LINK .func (.param .b32 r) f (.param .b32 x) {
.reg .b32 a<4>;
ld.param.b32 a1, [x];
ld.global.u32 a2, [own];
mul.lo.u32 a1, a1, a2;
st.param.b32 [r], a1;
ret; }
`
)

// fn is callee with a linkage and a factor.
func fn(link, factor string) string {
	return strings.NewReplacer("LINK", link, "= 7", "= "+factor).Replace(callee)
}

func TestUnits(t *testing.T) {
	const v = ".visible .global .align 4 .u32 v = 100;\n"
	for _, c := range []struct {
		name  string
		units []string
		want  uint32
	}{
		{"extern function and variable", []string{caller, fn(".visible", "7") + v}, 135},
		{"a static variable in each", []string{
			caller + ".global .align 4 .u32 own = 3;", fn(".visible", "7"), v + ".global .align 4 .u32 own = 9;"}, 135},
		{"a static function of the same name", []string{caller, fn(".visible", "7") + v, fn("", "3")}, 135},
		{"weak gives way", []string{caller, fn(".weak", "3"), fn(".visible", "7") + v}, 135},
		{"weak gives way, the other order", []string{caller, fn(".visible", "7"), fn(".weak", "3") + v}, 135},
		{"two weak ones", []string{caller, fn(".weak", "7"), fn(".weak", "3") + v}, 135},
		{"weak and its own variable", []string{caller, fn(".visible", "7"), v, ".weak .global .align 4 .u32 v = 1;"}, 135},
		{"common", []string{caller, fn(".visible", "7"), ".common .global .align 4 .u32 v;", ".common .global .align 4 .u32 v;"}, 35},
		{"common and a value", []string{caller, fn(".visible", "7"), ".common .global .align 4 .u32 v;", v}, 135},
		{"a pointer to another unit's", []string{
			`.extern .global .align 8 .u64 p;
.visible .entry k(.param .u64 out) { 
.reg .b32 a; .reg .b64 o, q; ld.param.u64 o, [out]; ld.global.u64 q, [p]; ld.u32 a, [q]; st.global.u32 [o], a; ret; }`,
			".extern .global .align 4 .u32 v;\n.visible .global .align 8 .u64 p = generic(v);", v}, 100},
		{"an extern that nothing uses", []string{caller, fn(".visible", "7") + v + ".extern .global .u32 nowhere;"}, 135},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := linked(t, unitsOf(c.units...)); got != c.want {
				t.Errorf("stores %d, want %d", got, c.want)
			}
		})
	}
}

func TestUnitErrors(t *testing.T) {
	const v = ".visible .global .align 4 .u32 v = 100;\n"
	for _, c := range []struct {
		name  string
		units []string
		want  string
	}{
		{"undefined function", []string{caller, v}, "Undefined reference to 'f' in 'k'"},
		{"undefined variable", []string{caller, fn(".visible", "7")}, "Undefined reference to 'v' in 'k'"},
		{"static is not seen", []string{caller, fn("", "7") + v}, "Undefined reference to 'f' in 'k'"},
		{"two functions", []string{caller, fn(".visible", "7") + v, fn(".visible", "7")},
			"Multiple definition of 'f' in 'c', first defined in 'b'"},
		{"two variables", []string{caller, fn(".visible", "7") + v, v},
			"Multiple definition of 'v' in 'c', first defined in 'b'"},
		{"two kernels", []string{caller, fn(".visible", "7") + v, ".entry k() { ret; }"},
			"Multiple definition of 'k' in 'c', first defined in 'a'"},
		{"a variable for a function", []string{caller, ".visible .global .u32 f; " + v}, "'f' in 'a' is a variable elsewhere"},
		{"another space", []string{caller, fn(".visible", "7") + ".visible .const .u32 v;"},
			"'v' in 'a' is in another state space elsewhere"},
		{"other parameters", []string{caller, v + ".visible .func f() { ret; }"}, "of a function with 0 and 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := ParseUnits(Options{}, unitsOf(c.units...)...)
			if err == nil {
				err = m.Unresolved()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestRegisterBound reads what a kernel with many live values is said to use.
func TestRegisterBound(t *testing.T) {
	load, store := "", ""
	for i := range 150 {
		load += fmt.Sprintf("ld.global.u32 q%d, [o+%d];\n", i, 4*i)
		store += fmt.Sprintf("st.global.u32 [o+%d], q%d;\n", 4*i, i)
	}
	many := ".reg .b32 q<150>;\n" + load + store
	for _, c := range []struct {
		directive string
		o         Options
		want      int
	}{{"", Options{}, 64}, {".maxnreg 32", Options{}, 32}, {".maxnreg 128", Options{}, 128}, {".maxnreg 255", Options{}, 152},
		{"", Options{MaxRegs: 96}, 96}, {"", Options{MaxRegs: 1}, 16}, {".maxnreg 40", Options{MaxRegs: 96}, 40}} {
		src := ".visible .entry k(.param .u64 p) " + c.directive + " {\n.reg .b64 o;\nld.param.u64 o, [p];\n" + many + "ret; }"
		m, err := ParseUnits(c.o, unitsOf(src)...)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Kernels["k"].Regs; got != c.want {
			t.Errorf("%q, %+v: %d registers, want %d", c.directive, c.o, got, c.want)
		}
	}
	if _, err := Parse([]byte(header + ".entry k() .maxnreg 0 { ret; }")); err == nil {
		t.Error(".maxnreg 0 is accepted")
	}
}
