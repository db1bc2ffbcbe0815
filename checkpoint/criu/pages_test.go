package criu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// pagemapOf is a list of runs: addresses, and how many pages there are at each.
func pagemapOf(id int64, runs ...[3]int64) []byte {
	b := newList(pagemapMagic)
	add := func(entry message) { b = addEntry(b, entry) }
	var head message
	head.number(headPagesID, id)
	add(head)
	for _, r := range runs {
		var entry message
		entry.number(runAddress, r[0])
		entry.number(runPagesShort, r[1])
		entry.number(runFlags, r[2])
		add(entry)
	}
	return b
}

// filled are pages, each full of its number.
func filled(first byte, count int) (b []byte) {
	for i := range count {
		b = append(b, bytes.Repeat([]byte{first + byte(i)}, os.Getpagesize())...)
	}
	return b
}

// TestPages: the blocks of a file have its pages where they are in memory, and the file is made again from them.
func TestPages(t *testing.T) {
	page := int64(os.Getpagesize())
	size := int(4 * page)
	dir := filepath.Join(t.TempDir(), "no [pattern]*?")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// In blocks of four pages: the last two of one and the first of the next, a page far away, and one that is not there.
	put("pagemap-7.img", pagemapOf(3, [3]int64{18 * page, 3, flagPresent | 2}, [3]int64{23 * page, 1, flagPresent},
		[3]int64{30 * page, 1, 1}, [3]int64{1 << 40, 1, flagPresent}))
	put("pages-3.img", filled(1, 5))
	put("pagemap-shmem-9.img", pagemapOf(1))
	put("pages-1.img", nil)
	all, err := PagesIn(dir, size)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	p := all[0]
	if p.Name != "7" || p.Size != 3*int64(size) || p.Length() != 5*page || all[1].Name != "shmem-9" || all[1].Size != 0 {
		t.Errorf("%+v, %+v", p, all[1])
	}
	if err := p.Open(); err != nil {
		t.Fatal(err)
	}
	blocks := make([]byte, p.Size)
	if n, err := p.ReadAt(blocks, 0); err != nil || n != len(blocks) {
		t.Fatal(n, err)
	}
	none := make([]byte, page)
	want := slices.Concat(none, none, filled(1, 2), filled(3, 1), none, none, filled(4, 1), filled(5, 1), none, none, none)
	if !bytes.Equal(blocks, want) {
		t.Error("the blocks are not what is in memory")
	}
	var st unix.Stat_t
	if err := unix.Stat(p.path, &st); err != nil || st.Size != 5*page || st.Blocks != 0 {
		t.Errorf("%v, %d bytes, %d blocks of the disk; what is read is gone", err, st.Size, st.Blocks)
	}
	if _, err := p.ReadAt(blocks, 1); !errors.Is(err, io.EOF) {
		t.Errorf("behind the end: %v", err)
	}
	for _, inMemory := range []bool{false, true} {
		if err := p.Remove(); err != nil {
			t.Fatal(err)
		}
		if err := p.Make(inMemory); err != nil {
			t.Fatal(err)
		}
		for at := len(want) - size; at >= 0; at -= size {
			if n, err := p.WriteAt(want[at:at+size], int64(at)); err != nil || n != size {
				t.Fatal(n, err)
			}
		}
		if got, err := os.ReadFile(p.path); err != nil || !bytes.Equal(got, filled(1, 5)) {
			t.Errorf("in memory: %v: %v, the file has other pages", inMemory, err)
		}
	}
	if err := p.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := p.Open(); err == nil {
		t.Error("what is not there is opened")
	}
	put("pages-3.img", filled(1, 4))
	if err := p.Open(); err == nil {
		t.Error("a file that is too short is opened")
	}
}

// TestPagesDamaged: lists that CRIU does not write.
func TestPagesDamaged(t *testing.T) {
	page := int64(os.Getpagesize())
	for name, list := range map[string][]byte{
		"empty": {}, "no head": pagemapOf(1)[:8], "of another kind": treeOf(100), "no number": pagemapOf(-1),
		"out of order": pagemapOf(1, [3]int64{4 * page, 2, 4}, [3]int64{5 * page, 1, 4}),
		"between":      pagemapOf(1, [3]int64{7, 1, 4}), "beyond": pagemapOf(1, [3]int64{-page, 1, 4}),
		"none": pagemapOf(1, [3]int64{page, 0, 4}), "too many": pagemapOf(1, [3]int64{page, 1 << 40, 4}),
		"too many blocks": pagemapOf(1, [3]int64{page, maxPages - 1, 4}),
	} {
		if p, err := parsePagemap(list, page, page); err == nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"pagemap-1.img", "pagemap-2.img"} {
		if err := os.WriteFile(filepath.Join(dir, name), pagemapOf(5), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := PagesIn(dir, int(page)); !errors.Is(err, errDamaged) {
		t.Errorf("two lists of one file: %v", err)
	}
	if _, err := PagesIn(dir, int(page)+1); err == nil {
		t.Error("blocks that are no pages")
	}
}

func FuzzPagemap(f *testing.F) {
	f.Add(pagemapOf(3, [3]int64{1 << 20, 3, 4}, [3]int64{1 << 30, 1, 6}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePagemap(b, 1<<22, 4096)
		if err != nil {
			return
		}
		if p.Size != int64(len(p.blocks))<<22 || p.length > 4096*maxPages {
			t.Errorf("%+v", p)
		}
		covered := int64(0)
		for k := range p.blocks {
			_, err := p.inFile(make([]byte, 1<<22), int64(k)<<22, func(b []byte, at int64) error {
				if at < 0 || at+int64(len(b)) > p.length {
					return fmt.Errorf("%d bytes at %d of %d", len(b), at, p.length)
				}
				covered += int64(len(b))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if k == 64 { // enough of a large one
				return
			}
		}
		if covered != p.length {
			t.Errorf("blocks cover %d bytes of %d", covered, p.length)
		}
	})
}

// TestReady: a program whose memory was taken to blocks and back goes on where it was, but not before it may.
func TestReady(t *testing.T) {
	p := installed(t)
	c, dir, streams := dumped(t, p)
	all, err := PagesIn(dir, 1<<20)
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, f := range all {
		if err := f.Open(); err != nil {
			t.Fatal(err)
		}
		blocks := make([]byte, f.Size)
		if _, err := f.ReadAt(blocks, 0); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Remove(), f.Make(true)); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(blocks, 0); err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	its, in, out := pipes(t)
	r := again(t, dir, streams, its)
	if _, err := fmt.Fprintln(in, "two"); err != nil { // it answers as soon as it runs
		t.Fatal(err)
	}
	no := errors.New("not now")
	r.Ready = func() error { return no }
	if _, err := p.Restore(patience(t), r); !errors.Is(err, no) {
		t.Errorf("%v, want %v", err, no)
	}
	if alive(c.cmd.Process.Pid) {
		t.Error("it is there, though it was not to be")
	}
	r.Ready = func() error {
		waiting := []unix.PollFd{{Fd: int32(its[0].Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(waiting, 100); n != 1 || err != nil {
			t.Errorf("it has read its input before it may: %d, %v", n, err)
		}
		return nil
	}
	process, err := p.Restore(patience(t), r)
	explain(t, err)
	process.Commit()
	_, _ = its[0].Close(), its[1].Close()
	line, err := out.ReadString('\n')
	if err != nil || line != "2 two\n" {
		t.Errorf("%q, %v", line, err)
	}
	_ = in.Close()
	if state, err := process.Wait(); err != nil || state.ExitCode() != 7 {
		t.Errorf("%v, %v; want status 7", state, err)
	}
}
