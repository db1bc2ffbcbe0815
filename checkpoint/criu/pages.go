package criu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// A list that says which memory a file has: first a message with the number of the file, then for each run of pages one (CRIU's
// pagemap.proto). The pages themselves are one after the other in the file, those that are not PRESENT left out.
const (
	pagemapPrefix  = "pagemap-"
	pagemapMagic   = 0x56084025
	maxPagemap     = 256 << 20
	headPagesID    = 1
	runAddress     = 1
	runPagesShort  = 2 // where there is no runPages
	runInParent    = 3
	runFlags       = 4
	runPages       = 5
	flagPresent    = 1 << 2
	maxPages       = 1 << 33 // of a file, all in all
	maxBlocks      = 1 << 24 // likewise
	highestAddress = 1 << 62
)

// Pages is a file of an image with memory of a process, or with memory that processes share. Seen through ReadAt and WriteAt it
// has blocks instead, each at an address that is a multiple of the block's size, in the order of the addresses; what a block has
// no page for is zero. So a block is the same in two images if nothing in it has changed, wherever its pages are in the files.
//
// ReadAt and WriteAt may be called by many goroutines at once.
type Pages struct {
	Name string // of the memory: the number of a process, or what CRIU calls shared memory
	Size int64  // of all blocks, bytes

	id     int64  // of the file, as CRIU has it
	path   string // of the file
	length int64  // its bytes
	size   int64  // of a block
	blocks []block
	runs   []run
	others bool // its list has what is no run, too

	file   *os.File
	mapped []byte   // the file, where it is in memory
	memory *Process // which has the memory; the file is that, too, for what the quick way does not read
	live   bool     // the file is memory that processes have
}

// block is an address with the first run that has pages of it.
type block struct {
	address int64
	run     int
}

// run is a run of pages: where they are in memory and in the file, all in bytes. A direct one is not in the file (see TakeOut).
type run struct {
	address, length, offset int64
	flags                   int64
	direct                  bool
}

// PagesIn finds the files with memory in a folder, as its lists say. Their blocks have so many bytes, a multiple of a page.
func PagesIn(dir string, blockSize int) (all []*Pages, err error) {
	if page := os.Getpagesize(); blockSize < page || blockSize%page != 0 {
		return nil, fmt.Errorf("memory in blocks of %d bytes: no multiple of a page", blockSize)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	had := map[string]bool{}
	for _, e := range entries {
		memory, is := strings.CutPrefix(e.Name(), pagemapPrefix)
		memory, ends := strings.CutSuffix(memory, ".img")
		if !is || !ends {
			continue
		}
		name := filepath.Join(dir, e.Name())
		text, err := readList(name, maxPagemap)
		if err != nil {
			return nil, err
		}
		p, err := parsePagemap(text, int64(blockSize), int64(os.Getpagesize()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		p.Name = memory
		p.path = filepath.Join(dir, p.path)
		if had[p.path] {
			return nil, fmt.Errorf("%s: %w: another list has its file", name, errDamaged)
		}
		had[p.path] = true
		all = append(all, p)
	}
	return all, nil
}

// parsePagemap reads a list. The path of what it returns has no folder.
func parsePagemap(text []byte, blockSize, page int64) (*Pages, error) {
	p := &Pages{size: blockSize}
	first := true
	err := eachEntry(text, pagemapMagic, func(entry []byte) error {
		if first {
			first = false
			id := int64(-1)
			err := fields(entry, func(field protowire.Number, number int64, _ []byte) error {
				if field == headPagesID {
					id = number
				}
				return nil
			})
			if err != nil || id < 0 || id > 1<<32 {
				return errDamaged
			}
			p.id, p.path = id, pagesPath("", id)
			return nil
		}
		return p.add(entry, page)
	})
	if err == nil && first {
		err = errDamaged
	}
	if err != nil {
		return nil, err
	}
	p.Size = int64(len(p.blocks)) * blockSize
	return p, nil
}

// add adds a run of pages from its message.
func (p *Pages) add(entry []byte, page int64) error {
	address, count, flags, inParent := int64(-1), int64(-1), int64(flagPresent), false
	err := fields(entry, func(field protowire.Number, number int64, _ []byte) error {
		switch field {
		case runAddress:
			address = number
		case runPagesShort:
			if count < 0 {
				count = number
			}
		case runPages:
			count = number
		case runInParent:
			inParent = number != 0
		case runFlags:
			flags = number
		}
		return nil
	})
	if err != nil || address < 0 || address > highestAddress || address%page != 0 || count < 1 || count > maxPages-p.length/page {
		return errDamaged
	}
	if inParent || flags&flagPresent == 0 {
		p.others = true
		return nil
	}
	r := run{address: address, length: count * page, offset: p.length, flags: flags}
	if n := len(p.runs); n > 0 && address < p.runs[n-1].address+p.runs[n-1].length {
		return errDamaged // not in order
	}
	if count*page/p.size > maxBlocks-int64(len(p.blocks))-2 {
		return errDamaged
	}
	for at := address - address%p.size; at < address+r.length; at += p.size {
		if n := len(p.blocks); n == 0 || p.blocks[n-1].address != at {
			p.blocks = append(p.blocks, block{at, len(p.runs)})
		}
	}
	p.runs = append(p.runs, r)
	p.length += r.length
	return nil
}

// Open opens the file, to be read and used up: ReadAt frees its room on the disk. In Dump.Still it opens the memory itself.
func (p *Pages) Open() (err error) {
	if leads(p.path) {
		if pid, process := processOf(p.Name); process {
			if p.memory, err = p.of(pid); err == nil {
				p.file, err = os.Open(fmt.Sprintf("/proc/%d/mem", pid))
			}
			return err
		}
		p.file, err = os.Open(p.path)
		p.live = true
		return err
	}
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != p.length {
		err = fmt.Errorf("%s has %d bytes, and should have %d", p.path, info.Size(), p.length)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	p.file = f
	return nil
}

// Make makes the file, all zero. In memory there is a link to it in its folder, as long as it is not closed.
func (p *Pages) Make(inMemory bool) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make %s: %w", p.path, err), p.Close())
		}
	}()
	if !inMemory || p.length == 0 {
		if p.file, err = os.OpenFile(p.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return err
		}
		return p.file.Truncate(p.length)
	}
	fd, err := unix.MemfdCreate(filepath.Base(p.path), unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	p.file = os.NewFile(uintptr(fd), p.path)
	if err := p.file.Truncate(p.length); err != nil {
		return err
	}
	if p.mapped, err = unix.Mmap(fd, 0, int(p.length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	return os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), p.path)
}

// Length is how many bytes the file has.
func (p *Pages) Length() int64 { return p.length }

// Close closes the file.
func (p *Pages) Close() error {
	var err error
	if p.mapped != nil {
		err = unix.Munmap(p.mapped)
		p.mapped = nil
	}
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
		p.file = nil
	}
	if p.memory != nil {
		p.memory.Close()
		p.memory = nil
	}
	return err
}

// Remove closes the file and removes it.
func (p *Pages) Remove() error { return errors.Join(p.Close(), os.Remove(p.path)) }

// ReadAt reads blocks, each once: what it has read is gone from the file.
func (p *Pages) ReadAt(b []byte, offset int64) (int, error) {
	clear(b)
	if p.memory != nil || p.live {
		return p.each(b, offset, func(b []byte, _ run, address int64) error {
			if p.memory != nil {
				return p.memory.all(b, address, unix.ProcessVMReadv, p.file.ReadAt)
			}
			n, err := p.file.ReadAt(b, address)
			if errors.Is(err, io.EOF) {
				err = p.behind(b[n:], address+int64(n))
			}
			return err
		})
	}
	return p.inFile(b, offset, func(b []byte, at int64) error {
		if _, err := p.file.ReadAt(b, at); err != nil {
			return err
		}
		err := unix.Fallocate(int(p.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, int64(len(b)))
		if errors.Is(err, unix.EOPNOTSUPP) { // then it is there until it is removed
			err = nil
		}
		return err
	})
}

// behind reads what is behind the end of memory that processes share, in its last page: it need not end where a page does, and
// who has mapped it has all of that page.
func (p *Pages) behind(b []byte, address int64) error {
	page := int64(os.Getpagesize())
	inside := address % page
	if inside == 0 || int64(len(b)) > page-inside {
		return fmt.Errorf("%s at %#x: %w", p.path, address, io.ErrUnexpectedEOF)
	}
	last, err := unix.Mmap(int(p.file.Fd()), address-inside, int(page), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s at %#x: %w", p.path, address-inside, err)
	}
	copy(b, last[inside:])
	return unix.Munmap(last)
}

// WriteAt writes blocks. What they have where there is no page is lost.
func (p *Pages) WriteAt(b []byte, offset int64) (int, error) {
	return p.inFile(b, offset, func(b []byte, at int64) error {
		if p.mapped != nil {
			copy(p.mapped[at:], b)
			return nil
		}
		_, err := p.file.WriteAt(b, at)
		return err
	})
}

// Wants says whether the file has any of so many bytes of blocks from an offset on.
func (p *Pages) Wants(offset, length int64) bool { return p.wants(offset, length, false) }

func (p *Pages) wants(offset, length int64, direct bool) bool {
	for i := offset / p.size; i < int64(len(p.blocks)) && i*p.size < offset+length; i++ {
		one := p.blocks[i]
		for _, r := range p.runs[one.run:] {
			if r.address >= one.address+p.size {
				break
			}
			if r.direct == direct {
				return true
			}
		}
	}
	return false
}

// inFile is each for what is in the file, and where it is there.
func (p *Pages) inFile(b []byte, offset int64, with func(b []byte, at int64) error) (done int, err error) {
	return p.each(b, offset, func(b []byte, r run, address int64) error {
		if r.direct {
			return nil
		}
		if err := with(b, r.offset+address-r.address); err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		return nil
	})
}

// each calls a function with the parts of b that are pages when it is at an offset among the blocks, the run that each is of,
// and its address.
func (p *Pages) each(b []byte, offset int64, with func(b []byte, r run, address int64) error) (done int, err error) {
	if offset < 0 || offset > p.Size {
		return 0, fmt.Errorf("%s: offset %d: it has %d bytes of blocks", p.path, offset, p.Size)
	}
	for len(b) > 0 {
		if offset == p.Size {
			return done, io.EOF
		}
		one, inside := p.blocks[offset/p.size], offset%p.size
		part := b[:min(int64(len(b)), p.size-inside)]
		from := one.address + inside
		to := from + int64(len(part))
		for _, r := range p.runs[one.run:] {
			if r.address >= to {
				break
			}
			begin, end := max(from, r.address), min(to, r.address+r.length)
			if begin >= end {
				continue
			}
			if err := with(part[begin-from:end-from], r, begin); err != nil {
				return done, err
			}
		}
		done += len(part)
		offset += int64(len(part))
		b = b[len(part):]
	}
	return done, nil
}
