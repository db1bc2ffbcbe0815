package criu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// mapsOf is the list of a process with mappings: start, end, prot, flags and status of each.
func mapsOf(maps ...[5]int64) []byte {
	var m message
	for _, one := range maps {
		var entry message
		for i, field := range []protowire.Number{mapStart, mapEnd, mapProt, mapFlags, mapStatus} {
			entry.number(field, one[i])
		}
		m.inner(mapsEach, entry)
	}
	return addEntry(newList(mapsMagic), m)
}

// coreOf is the list of a thread with what it has registered.
func coreOf(address int64) []byte {
	var m, thread, rseq message
	rseq.number(rseqAddress, address)
	thread.inner(threadRseq, rseq)
	m.inner(coreThread, thread)
	return addEntry(newList(coreMagic), m)
}

// Of mappings in tests.
const (
	rw       = unix.PROT_READ | unix.PROT_WRITE
	anon     = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	ordinary = statusRegular | statusPrivate
	mib      = 1 << 20
)

// TestTakeOut: what is left in the lists, and what goes to the process, are together what was there.
func TestTakeOut(t *testing.T) {
	page := int64(os.Getpagesize())
	dir := t.TempDir()
	put := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pages := int64(mib) / page // of a MiB
	put("pagemap-7.img", pagemapOf(3, [3]int64{64 * mib, 1, flagPresent | 2}, [3]int64{70 * mib, 8 * pages, flagPresent},
		[3]int64{90 * mib, 4 * pages, flagPresent}, [3]int64{100 * mib, 4 * pages, flagPresent}, [3]int64{110 * mib, 4 * pages, flagPresent},
		[3]int64{120 * mib, 4 * pages, flagPresent}))
	put("mm-7.img", mapsOf([5]int64{64 * mib, 66 * mib, rw, anon, ordinary}, // one page is too little
		[5]int64{69 * mib, 72 * mib, rw, anon, ordinary | statusHeap}, // two MiB of a run
		[5]int64{72 * mib, 73*mib - page, rw, anon, ordinary},         // too little
		[5]int64{73*mib - page, 74 * mib, unix.PROT_READ, anon, ordinary},
		[5]int64{74 * mib, 76 * mib, rw, anon, ordinary}, // two more of it
		[5]int64{76 * mib, 78 * mib, rw, anon | unix.MAP_GROWSDOWN, ordinary},
		[5]int64{90 * mib, 94 * mib, rw, anon, ordinary},   // another one has this, too
		[5]int64{100 * mib, 104 * mib, rw, anon, ordinary}, // the kernel writes to this
		[5]int64{110 * mib, 114 * mib, rw, unix.MAP_PRIVATE, 1<<6 | statusRegular},
		[5]int64{120 * mib, 124 * mib, rw | unix.PROT_EXEC, anon, ordinary}))
	put("core-7.img", coreOf(101*mib))
	put("core-8.img", coreOf(0))
	put("pagemap-9.img", pagemapOf(4, [3]int64{90 * mib, 4 * pages, flagPresent}))
	put("mm-9.img", mapsOf([5]int64{90 * mib, 94 * mib, rw, anon, ordinary}))
	put("pagemap-10.img", pagemapOf(5, [3]int64{90 * mib, 4 * pages, flagPresent})) // whose mappings are another's, too
	put("pagemap-shmem-9.img", pagemapOf(1, [3]int64{0, 4 * pages, flagPresent}))
	all, err := PagesIn(dir, 4*mib)
	if err != nil || len(all) != 4 {
		t.Fatal(all, err)
	}
	before, err := PagesIn(dir, 4*mib)
	if err != nil {
		t.Fatal(err)
	}
	if err := TakeOut(dir, all); err != nil {
		t.Fatal(err)
	}
	p := all[slices.IndexFunc(all, func(p *Pages) bool { return p.Name == "7" })]
	was := before[slices.IndexFunc(before, func(p *Pages) bool { return p.Name == "7" })]
	direct := int64(0)
	for _, r := range p.runs {
		if r.direct {
			direct += r.length
			if !(r.address == 70*mib || r.address == 74*mib) && r.address != 120*mib {
				t.Errorf("%d MiB at %d MiB are taken out", r.length/mib, r.address/mib)
			}
		}
	}
	if direct != 8*mib || p.Length() != was.Length()-direct || p.Size != was.Size {
		t.Errorf("%d bytes are taken out; %d of %d are left, in %d of %d", direct, p.Length(), was.Length(), p.Size, was.Size)
	}
	left, err := PagesIn(dir, 4*mib)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range left {
		var want []run
		for _, r := range all[i].runs {
			if !r.direct {
				want = append(want, r)
			}
		}
		if !slices.Equal(l.runs, want) || l.id != before[i].id || (l.Name != "7") != slices.Equal(l.runs, before[i].runs) {
			t.Errorf("the list of %s has %v, want %v", l.Name, l.runs, want)
		}
	}
	// Each page is in one of both, and each of both wants its blocks.
	if err := p.Make(true); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for k := range p.blocks {
		at := int64(k) * 4 * mib
		parts := map[bool]int64{}
		_, err := p.each(make([]byte, 4*mib), at, func(b []byte, r run, address int64) error {
			parts[r.direct] += int64(len(b))
			return nil
		})
		covered := int64(0)
		if _, also := was.each(make([]byte, 4*mib), at, func(b []byte, _ run, _ int64) error {
			covered += int64(len(b))
			return nil
		}); err != nil || also != nil || covered != parts[true]+parts[false] {
			t.Errorf("block %d: %v, %v; %v of %d bytes", k, err, also, parts, covered)
		}
		if p.Wants(at, 4*mib) != (parts[false] > 0) || p.wants(at, 4*mib, true) != (parts[true] > 0) {
			t.Errorf("block %d: the file wants it %v, the process %v: %v", k, p.Wants(at, 4*mib), p.wants(at, 4*mib, true), parts)
		}
	}
	put("mm-7.img", mapsOf([5]int64{64 * mib, 66 * mib, rw, anon, ordinary}, [5]int64{65 * mib, 67 * mib, rw, anon, ordinary}))
	if err := TakeOut(dir, left); !errors.Is(err, errDamaged) {
		t.Errorf("mappings one upon the other: %v", err)
	}
}

// TestShared: files with memory that processes share lead to it, and where it is not found that is said.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	memory, err := unix.MemfdCreate("one", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(memory), "one")
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(memory, &st); err != nil {
		t.Fatal(err)
	}
	last := filled(7, 1) // of the pages, of which it has a half
	clear(last[len(last)/2:])
	if _, err := f.WriteAt(last[:len(last)/2], int64(3*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	remove, err := leadNowhere(dir, 3, memory)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string][]byte{
		fmt.Sprintf("pagemap-shmem-%d.img", st.Ino): pagemapOf(2, [3]int64{3 * int64(os.Getpagesize()), 1, flagPresent}),
		"pagemap-1.img": pagemapOf(1),
	}
	for name, text := range lists {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := leadToShared(dir, nil); !errors.Is(err, errNowhere) {
		t.Errorf("it is not there: %v", err)
	}
	shared, err := sharedMemory([]int{os.Getpid()})
	if err == nil {
		err = leadToShared(dir, shared)
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := PagesIn(dir, 1<<20)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	p := all[1]
	if err := p.Open(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, p.Size)
	if _, err := p.ReadAt(b, 0); err != nil || !bytes.Equal(b[3*os.Getpagesize():][:os.Getpagesize()], last) {
		t.Errorf("%v, or it has something else", err)
	}
	if _, err := p.ReadAt(b, 0); err != nil || !bytes.Equal(b[3*os.Getpagesize():][:os.Getpagesize()], last) {
		t.Errorf("%v, or it is used up", err)
	}
	if err := errors.Join(p.Remove(), remove()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != len(lists) {
		t.Errorf("%v, %v", left, err)
	}
}

// TestSharedEnd: memory that processes share need not end where a page does, and has what was mapped behind its end.
func TestSharedEnd(t *testing.T) {
	dir, page := t.TempDir(), os.Getpagesize()
	memory, err := unix.MemfdCreate("end", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(memory), "end")
	defer f.Close()
	if err := f.Truncate(int64(page + 100)); err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(memory, 0, 2*page, rw, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	want := filled(7, 2)
	copy(mapped, want)
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
	for id, pages := range []int64{2, 3} {
		remove, err := leadNowhere(dir, 1, memory)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, "pagemap-shmem-5.img")
		if err := os.WriteFile(name, pagemapOf(1, [3]int64{0, pages, flagPresent}), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := PagesIn(dir, mib)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if err := all[0].Open(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, all[0].Size)
		_, err = all[0].ReadAt(b, 0)
		if id == 0 && (err != nil || !bytes.Equal(b[:2*page], want)) {
			t.Errorf("%v, or it has something else", err)
		}
		if id == 1 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a page more than it has: %v", err)
		}
		if err := errors.Join(all[0].Close(), remove()); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzMappings(f *testing.F) {
	f.Add(mapsOf([5]int64{mib, 2 * mib, rw, anon, ordinary}, [5]int64{-10 << 20, -8 << 20, rw, anon, ordinary}),
		pagemapOf(1, [3]int64{mib, 256, 4}), coreOf(5))
	f.Fuzz(func(t *testing.T, maps, pagemap, core []byte) {
		_, _ = parseRseq(core)
		all, err := parseMappings(maps)
		if err != nil {
			return
		}
		p, err := parsePagemap(pagemap, 1<<22, 4096)
		if err != nil {
			return
		}
		before := slices.Clone(p.runs)
		p.takeOut(slices.DeleteFunc(all, func(m mapping) bool { return !m.plain }))
		merged := p.runs[:0:0]
		for _, r := range p.runs { // the cuts are undone
			if n := len(merged); n > 0 && !slices.ContainsFunc(before, func(b run) bool { return b.address == r.address }) {
				merged[n-1].length += r.length
			} else {
				merged = append(merged, r)
			}
		}
		if !slices.EqualFunc(merged, before, func(a, b run) bool { return a.address == b.address && a.length == b.length }) {
			t.Errorf("%v became %v", before, p.runs)
		}
	})
}

// forked is a program with memory that it shares with its child, of which each has written to a part, and with memory of its own
// in both. It answers each line with a hash of all of that.
const forked = `
import hashlib, mmap, os, sys
def memory(n): return mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def filled(n):
    m = memory(n)
    m[:n // 2] = os.urandom(n // 2)
    m[n - 4097:n - 4096] = b"x"
    return m
both = filled(8 << 20)
shared = mmap.mmap(-1, 1 << 20)
shared[5000:5003] = b"abc"
ask, answer = os.pipe(), os.pipe()
child = os.fork() == 0
apart = child and memory(48 << 20) # so that they do not have the same places
own = [filled(16 << 20), filled(64 << 10), filled(3 << 20)]
both[100] ^= 1 + child
def state():
    h = hashlib.sha256()
    for m in [both, shared, *own]: h.update(m)
    return h.digest()
if child:
    os.close(ask[1])
    while os.read(ask[0], 1): os.write(answer[1], state())
    os._exit(0)
for line in sys.stdin:
    os.write(ask[1], b"?")
    print((state() + os.read(answer[0], 32)).hex(), flush=True)
sys.exit(7)
`

// TestDirect: memory that CRIU neither reads nor writes is as it was, in a program with two processes that share some. A dump can
// be broken off then, and if one of the two is killed while they are filled, that ends the restore.
func TestDirect(t *testing.T) {
	t.Run("at once", func(t *testing.T) { testDirect(t, false) })
	t.Run("at the second try", func(t *testing.T) { testDirect(t, true) })
}

// testDirect has the shared memory not be found at first if that is to be.
func testDirect(t *testing.T, lost bool) {
	p := installed(t)
	adopt(t)
	its, in, out := pipes(t)
	c := exec.Command("python3", "-c", forked)
	c.Stdin, c.Stdout, c.Stderr = its[0], its[1], os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(c.Start(), its[0].Close(), its[1].Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	said := func(in *os.File, read interface{ ReadString(byte) (string, error) }) string {
		t.Helper()
		_, errAsk := fmt.Fprintln(in)
		line, err := read.ReadString('\n')
		if err := errors.Join(errAsk, err); err != nil || len(strings.TrimSpace(line)) != 128 {
			t.Fatalf("%q, %v", line, err)
		}
		return line
	}
	want := said(in, out)
	streams, dir := keys(t, c.Process.Pid), t.TempDir()
	pids := family(c.Process.Pid)
	d := Dump{PID: c.Process.Pid, Dir: dir}
	no := errors.New("not now")
	d.Still = func() error { return no }
	if err := p.Dump(patience(t), d); !errors.Is(err, no) {
		t.Errorf("%v, want %v", err, no)
	}
	if got := said(in, out); got != want {
		t.Errorf("its memory is %s after a dump that was broken off, and was %s", got, want)
	}
	if err := empty(dir); err != nil {
		t.Fatal(err)
	}
	var all []*Pages
	blocks := map[*Pages][]byte{}
	read, first := 0, lost
	d.Still = func() (err error) {
		if first {
			first = false
			return errNowhere
		}
		if all, err = PagesIn(dir, 4*mib); err != nil {
			return err
		}
		for _, f := range all {
			if err := f.Open(); err != nil {
				return err
			}
			if f.memory != nil || f.live {
				read++
			}
			blocks[f] = make([]byte, f.Size)
			if _, err := f.ReadAt(blocks[f], 0); err != nil {
				return err
			}
			if err := f.Remove(); err != nil {
				return err
			}
		}
		return nil
	}
	explain(t, p.Dump(patience(t), d))
	_ = c.Wait() // killed by CRIU
	bury(t, pids[1:])
	if want := map[bool]int{false: len(all), true: 0}[lost]; read != want || len(all) != len(pids)+1 {
		t.Errorf("%d of %d memories, with one that is shared, were read from the %d processes", read, len(all), len(pids))
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "pages-*")); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if err := TakeOut(dir, all); err != nil {
		t.Fatal(err)
	}
	taken := int64(0)
	for _, f := range all {
		if err := f.Make(true); err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(blocks[f], 0); err != nil {
			t.Fatal(err)
		}
		for _, r := range f.runs {
			if r.direct {
				taken += r.length
			}
		}
	}
	if taken < 8*mib {
		t.Errorf("%d bytes are taken out, of two processes with 10 MiB of their own", taken)
	}
	fill := func() error {
		for _, f := range all {
			m, err := f.Process()
			if err != nil {
				return err
			}
			if m == nil {
				continue
			}
			defer m.Close()
			if _, err := m.WriteAt(blocks[f], 0); err != nil {
				return err
			}
		}
		return nil
	}
	its, in, out = pipes(t)
	r := again(t, dir, streams, its)
	for _, killed := range pids {
		r.Ready = func() error {
			if err := unix.Kill(killed, unix.SIGKILL); err != nil {
				return err
			}
			for alive(killed) {
			}
			return fill()
		}
		var ended *Ended
		if _, err := p.Restore(patience(t), r); errors.As(err, &ended) != (killed == pids[0]) ||
			killed != pids[0] && !strings.Contains(fmt.Sprint(err), "it can be tried again") {
			t.Errorf("process %d of %d is killed: %v", killed, pids, err)
		}
		if slices.ContainsFunc(pids, alive) {
			t.Error("some of it is there")
		}
	}
	r.Ready = fill
	program, err := p.Restore(patience(t), r)
	explain(t, err)
	program.Commit()
	_, _ = its[0].Close(), its[1].Close()
	if got := said(in, out); got != want {
		t.Errorf("its memory is %s, and was %s", got, want)
	}
	_ = in.Close()
	if state, err := program.Wait(); err != nil || state.ExitCode() != 7 {
		t.Errorf("%v, %v; want status 7", state, err)
	}
	for gone := time.Now().Add(10 * time.Second); slices.ContainsFunc(pids, alive) && time.Now().Before(gone); {
		time.Sleep(time.Millisecond) // its child ends with it
	}
	for _, f := range all {
		if m, err := f.Process(); m != nil || err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("process %s has ended: %v, %v", f.Name, m, err)
		}
	}
}
