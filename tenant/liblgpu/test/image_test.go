package test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/sim/fatbin/fatbintest"
)

// cubin makes an ELF file with sections of these names and sizes, of which nothing but names and sizes is there.
func cubin(t *testing.T, sections ...any) []byte {
	t.Helper()
	names := []byte{0}
	table := []elf.Section64{{}}
	for i := 0; i < len(sections); i += 2 {
		table = append(table, elf.Section64{Name: uint32(len(names)), Type: uint32(elf.SHT_NOBITS), Size: sections[i+1].(uint64)})
		names = append(append(names, sections[i].(string)...), 0)
	}
	const cuda = 190 // EM_CUDA, of which debug/elf has no name
	header := elf.Header64{Machine: cuda, Shentsize: 64, Shnum: uint16(len(table) + 1), Shstrndx: uint16(len(table)), Ehsize: 64}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	table = append(table, elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: uint64(binary.Size(header)),
		Size: uint64(len(names))})
	header.Shoff = uint64(binary.Size(header) + len(names))
	var b bytes.Buffer
	for _, part := range []any{header, names, table} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// module is PTX with this in it.
func module(text string) []byte {
	return []byte(".version 7.0\n.target sm_70\n.address_size 64\n" + text)
}

// What the variables of an image take is read off it, whatever is in it.
func TestImages(t *testing.T) {
	ptx := func(text string) fatbintest.Entry {
		return fatbintest.Entry{Kind: fatbintest.PTX, Arch: 70, Data: module(text)}
	}
	device := cubin(t, ".text.nop", uint64(4096), ".nv.global", uint64(3<<20), ".nv.global.init", uint64(5), ".nv.globally",
		uint64(7), "nv.global", uint64(9))
	cases := []struct {
		what  string
		image []byte
		want  uint64
	}{
		{"nothing", nil, 0},
		{"a letter", []byte("x"), 0},
		{"no variables", module(".entry nop(){ ret; }"), 0},
		{"one", module(".visible .global .align 4 .b8 big[3221225472];"), 3 << 30},
		{"a scalar", module(".global .f64 x;"), 8},
		{"a vector", module(".global .v4 .f32 x[3];"), 48},
		{"dimensions", module(".global .u16 x[2][0x10][010U];"), 2 * 2 * 16 * 8},
		{"several in a declaration", module(".global .align 8 .s32 a, b[4], c[2][2];"), 4 + 16 + 16},
		{"initializers", module(".global .b32 a[4] = {1, 2, {3}, 4}, b = 7, c[2] = {a, generic(b)};"), 16 + 4 + 8},
		{"no size but an initializer", module(".global .b8 a[] = {1, 2};"), 0},
		{"no spaces", module(".visible.global.align 4.b32 x[256];.global.b8 y;"), 1025},
		{"managed", module(".visible .global .attribute(.managed) .b8 x[64];"), 64},
		{"comments", module("// .global .b8 a[100];\n/* .global .b8 b[100]; */ .global /* in between */ .b8 c[/* three */3];"), 3},
		{"strings", module(".file 1 \".global .b8 a[100];\"\n.global .b8 b[5];"), 5},
		{"another module's", module(".extern .global .b8 x[100]; .global .b8 y[2];"), 2},
		{"of a parameter", module(".entry k(.param .u64 .ptr .global .align 4 p){ ld.global.u32 %r1, [%rd1]; ret; }"), 0},
		{"other spaces", module(".const .b8 a[100]; .shared .b8 b[100]; .local .b8 c[100];"), 0},
		{"in a body", module(".entry k(){ .global .b8 x[10]; ret; }"), 10},
		{"too large to be", module(".global .b64 x[18446744073709551615], y[2];"), 1<<64 - 1},
		{"an endless comment", module(".global .b8 x[3]; /* .global .b8 y[4];"), 3},
		{"no end", module(".global .b8 x[3"), 0},
		{"a cubin", device, 3<<20 + 5},
		{"half a cubin", device[:len(device)/2], 0},
		{"another machine's file", func() []byte { b := bytes.Clone(device); b[18] = byte(elf.EM_X86_64); return b }(), 0},
		{"a 32-bit file", func() []byte { b := bytes.Clone(device); b[elf.EI_CLASS] = byte(elf.ELFCLASS32); return b }(), 0},
		{"a fat binary", fatbintest.Image(t, fatbintest.None, ptx(".global .b8 x[10];")), 10},
		{"the largest of several", fatbintest.Image(t, fatbintest.None, ptx(".global .b8 x[10];"),
			fatbintest.Entry{Kind: fatbintest.ELF, Arch: 90, Data: device}, ptx(".global .b8 x[11];")), 3<<20 + 5},
		{"a compressed one", fatbintest.Image(t, fatbintest.LZ4,
			ptx(".global .b8 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa[10];")), 0},
		{"compressed otherwise", fatbintest.Image(t, fatbintest.Zstd, ptx(".global .b8 x[10];")), 0},
		{"entries of another kind", fatbintest.Image(t, fatbintest.None, fatbintest.Entry{Kind: 16,
			Data: module(".global .b8 x[10];")}), 0},
	}
	dir := t.TempDir()
	args := []string{"3000"}
	var want []string
	for i, c := range cases {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, c.image, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	bin := program(t, "image_test", "memory/image.c", "base/log.c", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	have := strings.Split(strings.TrimSpace(mustRun(t, nil, bin, args...)), "\n")
	for i, c := range cases {
		want = append(want, fmt.Sprintf("%d %[1]d %[1]d", c.want))
		// A wrapper tells no size: half a file behind one is not a file.
		if i >= len(have) || have[i] != want[i] && c.what != "half a cubin" {
			t.Errorf("%s: as a file, as memory, behind a wrapper it takes %s, want %s", c.what, have[min(i, len(have)-1)], want[i])
		}
	}
}
