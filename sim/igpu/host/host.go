// Package host is the machine around the GPU: its memory in pages, which are made when they are first used, and for each
// virtual machine the table by which the processor translates its addresses (EPT).
package host

import (
	"errors"
	"fmt"

	"github.com/lgpu/lgpu/sim/igpu/register"
)

// ErrFull is wrapped where the machine has no memory left.
var ErrFull = errors.New("the machine has no memory left")

// Memory is the machine's memory. Each page has one owner. It is for one goroutine at a time.
type Memory struct {
	pages  [][]byte
	owners []int
	next   uint32
}

// Nobody owns pages that were not allocated; 0 is the mediator.
const Nobody = -1

// NewMemory makes a memory of so many pages, at most what an entry can name (2^20).
func NewMemory(pages int) *Memory {
	return &Memory{pages: make([][]byte, pages), owners: make([]int, pages)}
}

// Allocate gives an owner pages, and returns the first.
func (m *Memory) Allocate(owner, pages int) (first uint32, err error) {
	if pages > len(m.pages)-int(m.next) {
		return 0, fmt.Errorf("%d pages for %d: %w", pages, owner, ErrFull)
	}
	first = m.next
	for i := range pages {
		m.owners[int(first)+i] = owner
	}
	m.next += uint32(pages)
	return first, nil
}

// Owner is who owns a page.
func (m *Memory) Owner(page uint32) int {
	if page >= m.next {
		return Nobody
	}
	return m.owners[page]
}

// Page is the memory of a page; nil where there is none.
func (m *Memory) Page(page uint32) []byte {
	if page >= m.next {
		return nil
	}
	if m.pages[page] == nil {
		m.pages[page] = make([]byte, register.PageSize)
	}
	return m.pages[page]
}

// EPT says to which page of the machine each page of a virtual machine leads: its memory, from 0 on, and the aperture, at
// register.ApertureBase as in the machine itself.
type EPT struct {
	Base, Pages uint32                 // its memory
	Watch       func(first, pages int) // is told of pages of the aperture that lead elsewhere now; may be nil
	aperture    []uint32
}

// NewEPT makes a table in which the aperture leads nowhere.
func NewEPT(base uint32, pages int) *EPT {
	return &EPT{Base: base, Pages: uint32(pages), aperture: make([]uint32, register.LowEntries)}
}

// Map lets a page of the aperture lead to a page of the machine.
func (e *EPT) Map(aperture int, page uint32) {
	e.aperture[aperture] = page + 1
	e.watched(aperture, 1)
}

// Unmap lets pages of the aperture lead nowhere.
func (e *EPT) Unmap(first, pages int) {
	clear(e.aperture[first : first+pages])
	e.watched(first, pages)
}

func (e *EPT) watched(first, pages int) {
	if e.Watch != nil {
		e.Watch(first, pages)
	}
}

// Translate is the page of the machine that a page of the virtual machine leads to.
func (e *EPT) Translate(page uint32) (machine uint32, ok bool) {
	if page < e.Pages {
		return e.Base + page, true
	}
	if i := page - register.ApertureBase; page >= register.ApertureBase && i < uint32(len(e.aperture)) && e.aperture[i] != 0 {
		return e.aperture[i] - 1, true
	}
	return 0, false
}
