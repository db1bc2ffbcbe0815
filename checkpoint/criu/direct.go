package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lgpu/lgpu/internal/proc"
)

// CRIU reads and fills the memory of each process by one thread, to a file and from one, which is as large. So that is left to it
// only where it knows more of memory than its contents.
//
// At a dump its files with memory lead nowhere. What would be in them is read from where it is, by all threads, when all else is
// written and the processes stand still (Dump.Still).
//
// At a restore most of it is taken out of CRIU's lists, and written to the processes when they are there, before they run
// (Restore.Ready). Then it is nowhere twice.

// errNowhere says that memory was written to where nobody finds it, and is not found where it was either.
var errNowhere = errors.New("memory that processes share is not to be found")

// pagesPath is the path of a file with memory, by its number.
func pagesPath(dir string, id int64) string {
	return filepath.Join(dir, fmt.Sprintf("pages-%d.img", id))
}

// leadNowhere has files with memory that CRIU makes, the first so many, be a descriptor of CRIU's. remove removes what is left of
// that.
func leadNowhere(dir string, count, fd int) (remove func() error, err error) {
	remove = func() error {
		var err error
		for id := range int64(count) {
			if path := pagesPath(dir, id+1); leads(path) {
				err = errors.Join(err, os.Remove(path))
			}
		}
		return err
	}
	for id := range int64(count) {
		if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", fd), pagesPath(dir, id+1)); err != nil {
			return nil, errors.Join(err, remove())
		}
	}
	return remove, nil
}

// leads says whether there is a link.
func leads(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == os.ModeSymlink
}

// leadToShared has the files with memory that processes share lead to that memory.
func leadToShared(dir string, shared map[uint64]string) error {
	all, err := PagesIn(dir, 1<<20)
	if err != nil {
		return err
	}
	for _, p := range all {
		if _, process := processOf(p.Name); process || !leads(p.path) {
			continue
		}
		number, err := strconv.ParseUint(strings.TrimPrefix(p.Name, sharedPrefix), 10, 64)
		if err != nil || shared[number] == "" {
			return errNowhere
		}
		if err := errors.Join(os.Remove(p.path), os.Symlink(shared[number], p.path)); err != nil {
			return err
		}
	}
	return nil
}

// sharedPrefix begins the names of memory that processes share. The number behind it is that of the file that such memory has in
// the kernel.
const sharedPrefix = "shmem-"

// deleted ends what the kernel calls a file that has no name, or none any more.
const deleted = " (deleted)"

// sharedMemory finds the memory that processes share, mapped or open, by those numbers.
func sharedMemory(processes []int) (map[uint64]string, error) {
	fd, err := unix.MemfdCreate("like", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var like unix.Stat_t // all of it is on one file system, which nobody else has
	if err := unix.Fstat(fd, &like); err != nil {
		return nil, err
	}
	all := map[uint64]string{}
	err = eachNameless(processes, func(path, _ string) {
		var st unix.Stat_t
		// Other files are not touched: who serves them may be a process that stands still.
		if unix.Stat(path, &st) == nil && st.Dev == like.Dev {
			all[st.Ino] = path
		}
	})
	return all, err
}

// eachNameless calls a function with each file that processes have mapped or open by a name that it has not, or not any more: its
// path below /proc, and that name.
func eachNameless(processes []int, with func(path, name string)) error {
	for _, pid := range processes {
		for _, folder := range []string{"map_files", "fd"} {
			folder = fmt.Sprintf("/proc/%d/%s", pid, folder)
			entries, err := os.ReadDir(folder)
			if err != nil && alive(pid) {
				return err
			}
			for _, e := range entries {
				path := filepath.Join(folder, e.Name())
				name, _ := os.Readlink(path) // it may be unmapped or closed by now
				if name, is := strings.CutSuffix(name, deleted); is {
					with(path, name)
				}
			}
		}
	}
	return nil
}

// empty removes all that a folder has.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// processOf is the process that a memory's name names.
func processOf(name string) (pid int, is bool) {
	n, err := strconv.ParseUint(name, 10, 31)
	return int(n), err == nil
}

// leastDirect is the least that is worth it at a restore, in one piece, bytes.
const leastDirect = 1 << 20

// The list that has the mappings of a process, in one message (CRIU's mm.proto, with those of vma.proto in it).
const (
	mapsPrefix = "mm-"
	mapsMagic  = 0x57492820
	maxMaps    = 64 << 20
	mapsEach   = 14
	mapStart   = 1
	mapEnd     = 2
	mapProt    = 5
	mapFlags   = 6
	mapStatus  = 7
	// Of mapStatus (CRIU's include/image.h).
	statusRegular, statusHeap, statusPrivate = 1 << 0, 1 << 5, 1 << 9
)

// The list that has what a thread is, in one message (CRIU's core.proto and rseq.proto). The kernel writes to what a thread has
// registered for restartable sequences (rseq(2)) when the thread is there.
const (
	coreMagic   = 0x55053847
	maxCore     = 16 << 20
	coreThread  = 5
	threadRseq  = 15
	rseqAddress = 1
)

// TakeOut takes out of CRIU's lists in a folder what can be written to the processes themselves. From then on the files of these
// pages have the rest, and Process writes the others. The pages are all that PagesIn has found there.
//
// It is what lies in writable private memory without a file that one process alone has: what several have in the same place they
// may share, since one was forked from another, and CRIU sees to it that they do again.
func TakeOut(dir string, all []*Pages) error {
	kernels, err := rseqs(dir)
	if err != nil {
		return err
	}
	maps, starts := map[*Pages][]mapping{}, map[int64]int{}
	for _, p := range all {
		if maps[p], err = mappings(dir, p.Name); err != nil {
			return err
		}
		for _, m := range maps[p] {
			starts[m.start]++
		}
	}
	for _, p := range all {
		maps[p] = slices.DeleteFunc(maps[p], func(m mapping) bool {
			return !m.plain || starts[m.start] > 1 || slices.ContainsFunc(kernels, func(a int64) bool { return a >= m.start && a < m.end })
		})
		if !p.takeOut(maps[p]) {
			continue
		}
		if err := replaceList(filepath.Join(dir, pagemapPrefix+p.Name+".img"), p.list()); err != nil {
			return err
		}
	}
	return nil
}

// mapping is one of a process. A plain one is private, writable, has no file, and nothing of CRIU's or the kernel's is special
// about it.
type mapping struct {
	start, end int64
	plain      bool
}

// mappings are those of a process, by its number, in their order; none of what is no process.
func mappings(dir, name string) (all []mapping, err error) {
	if _, process := processOf(name); !process {
		return nil, nil
	}
	path := filepath.Join(dir, mapsPrefix+name+".img")
	text, err := readList(path, maxMaps)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the memory is another's, too
	}
	if err != nil {
		return nil, err
	}
	if all, err = parseMappings(text); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func parseMappings(text []byte) (all []mapping, err error) {
	err = eachEntry(text, mapsMagic, func(entry []byte) error {
		return fields(entry, func(field protowire.Number, _ int64, one []byte) error {
			if field != mapsEach {
				return nil
			}
			m, err := parseMapping(one)
			if err != nil || len(all) > 0 && uint64(m.start) < uint64(all[len(all)-1].end) { // the last may be the kernel's
				return errDamaged
			}
			all = append(all, m)
			return nil
		})
	})
	return all, err
}

func parseMapping(text []byte) (m mapping, err error) {
	var prot, flags, status int64
	err = fields(text, func(field protowire.Number, number int64, _ []byte) error {
		switch field {
		case mapStart:
			m.start = number
		case mapEnd:
			m.end = number
		case mapProt:
			prot = number
		case mapFlags:
			flags = number
		case mapStatus:
			status = number
		}
		return nil
	})
	if err != nil || uint64(m.end) <= uint64(m.start) {
		return mapping{}, errDamaged
	}
	const readWrite = unix.PROT_READ | unix.PROT_WRITE
	const kind = unix.MAP_TYPE | unix.MAP_ANONYMOUS | unix.MAP_GROWSDOWN | unix.MAP_HUGETLB
	m.plain = prot&readWrite == readWrite && flags&kind == unix.MAP_PRIVATE|unix.MAP_ANONYMOUS &&
		status&^statusHeap == statusRegular|statusPrivate && m.end > 0 && m.end < highestAddress
	return m, nil
}

// rseqs are the addresses at which the kernel writes to threads.
func rseqs(dir string) (all []int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), corePrefix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, err := readList(path, maxCore)
		var address int64
		if err == nil {
			address, err = parseRseq(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, address)
	}
	return all, nil
}

// parseRseq returns what a thread has registered; 0 for none.
func parseRseq(text []byte) (address int64, err error) {
	err = eachEntry(text, coreMagic, func(entry []byte) error {
		thread, err := inner(entry, coreThread)
		if err != nil {
			return err
		}
		rseq, err := inner(thread, threadRseq)
		if err != nil {
			return err
		}
		return fields(rseq, func(field protowire.Number, number int64, _ []byte) error {
			if field == rseqAddress {
				address = number
			}
			return nil
		})
	})
	return address, err
}

// takeOut has the runs of pages within mappings be direct, cut where these begin and end, and says whether there are any. What
// stays in the file is without gaps again.
func (p *Pages) takeOut(maps []mapping) (some bool) {
	if p.others || len(maps) == 0 {
		return false
	}
	var runs []run
	length := int64(0)
	add := func(like run, from, to int64, direct bool) {
		if from == to {
			return
		}
		r := run{address: from, length: to - from, offset: length, flags: like.flags, direct: direct}
		if direct {
			some, r.offset = true, 0
		} else {
			length += r.length
		}
		runs = append(runs, r)
	}
	for _, r := range p.runs {
		at, end := r.address, r.address+r.length
		for len(maps) > 0 && maps[0].end <= at {
			maps = maps[1:]
		}
		for _, m := range maps {
			if m.start >= end {
				break
			}
			if begin, stop := max(at, m.start), min(end, m.end); stop-begin >= leastDirect {
				add(r, at, begin, false)
				add(r, begin, stop, true)
				at = stop
			}
		}
		add(r, at, end, false)
	}
	p.runs, p.length = runs, length
	n := 0
	for i := range p.blocks {
		for runs[n].address+runs[n].length <= p.blocks[i].address { // each block has a part of a run
			n++
		}
		p.blocks[i].run = n
	}
	return some
}

// list is CRIU's list of what is in the file.
func (p *Pages) list() []byte {
	var head message
	head.number(headPagesID, p.id)
	list := addEntry(newList(pagemapMagic), head)
	page := int64(os.Getpagesize())
	for _, r := range p.runs {
		if r.direct {
			continue
		}
		var entry message
		entry.number(runAddress, r.address)
		entry.number(runPagesShort, min(r.length/page, 1<<32-1))
		entry.number(runFlags, r.flags)
		entry.number(runPages, r.length/page)
		list = addEntry(list, entry)
	}
	return list
}

// Process is the memory of a process, in the same blocks as Pages.
type Process struct {
	pages *Pages
	pid   int
	alive *proc.Handle
}

// Process opens the process, which is there and does not run: in Restore.Ready. It returns nil where TakeOut has taken nothing
// out. An error wraps os.ErrProcessDone if it has ended.
func (p *Pages) Process() (*Process, error) {
	if !slices.ContainsFunc(p.runs, func(r run) bool { return r.direct }) {
		return nil, nil
	}
	pid, _ := processOf(p.Name) // nothing is taken out of what is no process
	return p.of(pid)
}

// of opens the process that the memory is of.
func (p *Pages) of(pid int) (m *Process, err error) {
	m = &Process{pages: p, pid: pid}
	if m.alive, err = proc.Open(pid, 0); err == nil && m.alive.Ended() {
		m.alive.Close()
		err = os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return m, nil
}

// Close lets go of the process.
func (m *Process) Close() { m.alive.Close() }

// Wants says whether there is anything to write to so many bytes from an offset on.
func (m *Process) Wants(offset, length int64) bool { return m.pages.wants(offset, length, true) }

// WriteAt writes blocks, as Pages.WriteAt does. What is for the file is left out. It may be called by many goroutines at once.
func (m *Process) WriteAt(b []byte, offset int64) (int, error) {
	return m.pages.each(b, offset, func(b []byte, r run, address int64) error {
		if !r.direct {
			return nil
		}
		return m.all(b, address, unix.ProcessVMWritev, nil)
	})
}

// all reads or writes memory in as many calls as it takes. otherwise does what the process itself could not, or where that call
// is not allowed; it may be nil.
func (m *Process) all(b []byte, address int64, call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error),
	otherwise func([]byte, int64) (int, error)) error {
	for len(b) > 0 {
		if m.alive.Ended() { // from here on its number may be given to another
			return fmt.Errorf("memory of process %d: %w", m.pid, os.ErrProcessDone)
		}
		local := []unix.Iovec{{Base: &b[0]}}
		local[0].SetLen(len(b))
		n, err := call(m.pid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}, 0)
		if err != nil && otherwise != nil {
			n, err = otherwise(b, address)
		}
		switch {
		case err != nil && m.alive.Ended():
			err = os.ErrProcessDone
		case err == nil && n == 0:
			err = unix.EFAULT
		}
		if err != nil {
			return fmt.Errorf("memory of process %d at %#x: %w", m.pid, address, err)
		}
		b, address = b[n:], address+int64(n)
	}
	return nil
}
