package igpu

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lgpu/lgpu/sim/igpu/device"
	"github.com/lgpu/lgpu/sim/igpu/host"
	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// checker holds the machine against what must be true after every step. It looks at the hardware itself, at each guest's
// own entries and way to memory, and at who owns which memory; it does not believe the mediator.
//
// What is true stays true until something it depends on is written. So the checker watches the bus, the guests' entries
// and their ways to memory (watch.go), and looks at all that was written, and at what depends on it, since it last found
// everything true. A checker that was just made knows nothing and looks at everything.
type checker struct {
	device *device.Device
	memory *host.Memory
	pooled bool // fences lie in the pool, which nothing but fences leads to: gScale
	guests []*watched

	clock   int           // a time that passes with each check
	written [blocks]int   // when an entry of a block of the hardware's table was written
	low     []vgpu.Range  // entries written since the last check, of the part that the aperture shows
	reach   []reached     // by whom each page of the aperture is reached
	reaches int           // how many are
	fences  fenceRegister // of the hardware, as they were found right
	moved   bool          // the guests' ways to memory have changed since
}

type fenceRegister [register.Fences]uint64

// block is how many entries have a time in common.
const (
	block  = 512
	blocks = register.Entries / block
)

// reached says which page of which guest's aperture leads to a page of the device's.
type reached struct {
	guest *watched // nil: none
	page  int
}

// watched is a guest, and what the checker knows of it.
type watched struct {
	*vgpu.VGPU
	written [blocks]int  // when one of its entries in a block was written
	right   [blocks]int  // when the hardware's were found to be the same in its turn
	entries []vgpu.Range // its entries, and
	ways    []vgpu.Range // pages of its aperture, that are to be looked at
	through []int        // of each page of its aperture: the page of the device's that it leads to, plus 1; 0: none
	fences  fenceRegister
}

// newChecker knows nothing of these guests yet.
func newChecker(d *device.Device, m *host.Memory, pooled bool, guests []*vgpu.VGPU) *checker {
	c := &checker{device: d, memory: m, pooled: pooled, reach: make([]reached, register.LowEntries)}
	for _, g := range guests {
		c.guests = append(c.guests, &watched{VGPU: g, through: make([]int, register.LowEntries)})
	}
	c.forget()
	return c
}

// forget makes the next check look at everything.
func (c *checker) forget() {
	c.moved = true
	for _, g := range c.guests {
		g.entries, g.ways = []vgpu.Range{g.Low, g.High}, []vgpu.Range{{Pages: register.LowEntries}}
		g.right = [blocks]int{}
	}
}

// check says what is not true; current is who has the GPU, if anybody has.
func (c *checker) check(current *vgpu.VGPU) error {
	if err := c.ways(); err != nil {
		return err
	}
	for _, g := range c.guests {
		if err := c.entries(g); err != nil {
			return err
		}
	}
	if err := c.aperture(); err != nil {
		return err
	}
	if err := c.registers(); err != nil {
		return err
	}
	if err := c.display(); err != nil {
		return err
	}
	if current != nil {
		if err := c.turn(current); err != nil {
			return err
		}
	}
	for _, g := range c.guests {
		g.entries, g.ways = g.entries[:0], g.ways[:0]
	}
	c.low, c.moved = c.low[:0], false
	c.clock++
	return nil
}

// ways follows where the processors' ways lead now: none to where another's does, and none but in a guest's own part.
func (c *checker) ways() error {
	for _, g := range c.guests {
		for i := range pages(g.ways) {
			if j := g.through[i] - 1; j >= 0 {
				c.reach[j], g.through[i], c.reaches = reached{}, 0, c.reaches-1
			}
		}
	}
	for _, g := range c.guests {
		for i := range pages(g.ways) {
			page, ok := g.EPT.Translate(register.ApertureBase + uint32(i))
			if ok && !g.Low.Has(i) {
				return fmt.Errorf("the aperture of guest %d leads to %#x at page %d, outside of the guest's part", g.ID, page, i)
			}
			j := int(page) - int(register.ApertureBase)
			if !ok || j < 0 || g.through[i] == j+1 {
				continue
			}
			if j >= register.LowEntries {
				return fmt.Errorf("the aperture of guest %d leads beyond the GPU's at page %d", g.ID, i)
			}
			if other := c.reach[j]; other.guest != nil {
				return fmt.Errorf("page %d of the aperture is reached by guests %d and %d", j, g.ID, other.guest.ID)
			}
			c.reach[j], g.through[i], c.reaches = reached{g, i}, j+1, c.reaches+1
		}
	}
	return nil
}

// entries: what a guest's entries say leads to its own memory, and its processor reaches the same.
func (c *checker) entries(g *watched) error {
	for i := range pages(g.entries) {
		if g.Low.Has(i) {
			if err := c.way(g, i); err != nil {
				return err
			}
		}
		page, valid := register.Page(g.Shadow[i])
		if owner := c.memory.Owner(page); !valid || owner != g.ID {
			return fmt.Errorf("entry %d of guest %d leads to memory of %d", i, g.ID, owner)
		}
	}
	for i := range pages(g.ways) {
		if g.Low.Has(i) {
			if err := c.way(g, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// aperture: what was written to the part of the table that the aperture shows is what those who reach it expect.
func (c *checker) aperture() error {
	for j := range pages(c.low) {
		if r := c.reach[j]; r.guest != nil {
			if err := c.way(r.guest, r.page); err != nil {
				return err
			}
		}
	}
	return nil
}

// way: at a page of its aperture a guest's processor reaches the memory that the guest's entry names, whoever runs.
func (c *checker) way(g *watched, i int) error {
	page, ok := g.EPT.Translate(register.ApertureBase + uint32(i))
	if !ok {
		return fmt.Errorf("the aperture of guest %d leads nowhere at page %d", g.ID, i)
	}
	if page >= register.ApertureBase {
		page, ok = register.Page(c.device.Table()[page-register.ApertureBase])
	}
	if want, _ := register.Page(g.Shadow[i]); page != want || !ok {
		return fmt.Errorf("the aperture of guest %d leads to memory %d at page %d, not %d", g.ID, page, i, want)
	}
	return nil
}

// registers looks at the fences if one of the hardware's or of a guest's, or a way to memory, is another.
func (c *checker) registers() error {
	if now := fenceRegister(c.device.FenceRegisters()); now != c.fences {
		c.fences, c.moved = now, true
	}
	for _, g := range c.guests {
		for f := range g.Fences {
			if now := g.Fence(f); now != g.fences[f] {
				g.fences[f], c.moved = now, true
			}
		}
	}
	if !c.moved {
		return nil
	}
	return c.checkFences()
}

// checkFences: each fence of the hardware is the fence of a guest, at the pages that the guest's processor reaches by those
// of its own fence, and each guest's fence has one. They do not overlap, and lie in the pool where there is one, to which
// nothing else leads.
func (c *checker) checkFences() error {
	var used []vgpu.Range
	covered := 0
	for i, value := range c.fences {
		first, last, _, valid := register.FenceBounds(value)
		if !valid {
			continue
		}
		r := vgpu.Range{First: int(first), Pages: int(last) - int(first) + 1}
		if last < first || int(last) >= register.LowEntries || c.pooled && (r.First < register.PoolFirst || int(last) >= register.ReservedLow) {
			return fmt.Errorf("fence %d lies at pages %d to %d, outside of where fences may be", i, first, last)
		}
		for _, u := range used {
			if r.First < u.First+u.Pages && u.First < r.First+r.Pages {
				return fmt.Errorf("fence %d overlaps another at pages %d to %d", i, first, last)
			}
		}
		if err := c.fence(i, r); err != nil {
			return err
		}
		used, covered = append(used, r), covered+r.Pages
	}
	wanted := 0
	for _, g := range c.guests {
		for f := range g.Fences {
			wanted += int(g.fences[f] & 1)
		}
	}
	if wanted != len(used) {
		return fmt.Errorf("guests have %d fences, and the GPU %d", wanted, len(used))
	}
	if c.pooled && c.reaches != covered {
		return fmt.Errorf("guests reach %d pages by the GPU's aperture, of which fences cover %d", c.reaches, covered)
	}
	return nil
}

// fence: a fence of the hardware over these pages is a guest's.
func (c *checker) fence(i int, r vgpu.Range) error {
	begin := c.reach[r.First]
	for n := range r.Pages {
		if at := c.reach[r.First+n]; at.guest == nil || at != (reached{begin.guest, begin.page + n}) {
			return fmt.Errorf("fence %d covers page %d, which is not the next of a guest's", i, r.First+n)
		}
	}
	// Of the value only the bounds may be others: bits 31:12 and 63:44.
	const attributes = 0xfff<<32 | 0xfff
	want := uint64(begin.page+r.Pages-1)<<44 | uint64(begin.page)<<12 | c.fences[i]&attributes
	if !slices.Contains(begin.guest.fences[:begin.guest.Fences], want) {
		return fmt.Errorf("fence %d is %#x, which none of guest %d's is", i, c.fences[i], begin.guest.ID)
	}
	return nil
}

// display: the host's picture is shown, whoever runs.
func (c *checker) display() error {
	shown := c.device.Scan()
	for i := range uint32(screen) {
		if int(i) >= len(shown) || shown[i] != picture(i) {
			return fmt.Errorf("the display does not show the host's pixel %d", i)
		}
	}
	return nil
}

// turn: what the running guest can reach by the table is what its own entries say, which leads to its own memory; and what
// it can reach by per-process tables is its own memory.
func (c *checker) turn(current *vgpu.VGPU) error {
	g := c.guests[slices.IndexFunc(c.guests, func(g *watched) bool { return g.VGPU == current })]
	table := c.device.Table()
	for _, r := range []vgpu.Range{g.Low, g.High} {
		for from := r.First; from < r.First+r.Pages; {
			b := from / block
			to := min((b+1)*block, r.First+r.Pages)
			if c.written[b] >= g.right[b] || g.written[b] >= g.right[b] {
				for i := from; i < to; i++ {
					if table[i] != g.Shadow[i] {
						return fmt.Errorf("entry %d is %#x in the turn of guest %d, whose is %#x", i, table[i], g.ID, g.Shadow[i])
					}
				}
			}
			from = to
		}
	}
	for _, r := range []vgpu.Range{g.Low, g.High} {
		for b := r.First / block; b*block < r.First+r.Pages; b++ {
			g.right[b] = c.clock + 1
		}
	}
	return c.perProcess(g)
}

// perProcess: the per-process tables that the hardware uses are the mediator's, and lead to memory of the running guest.
func (c *checker) perProcess(g *watched) error {
	directory := c.device.Directory()
	if directory == 0 {
		return nil
	}
	for table := range entriesOf(c.memory.Page(directory)) {
		if owner := c.memory.Owner(table); owner != vgpu.Mediator {
			return fmt.Errorf("a per-process table of guest %d is memory of %d", g.ID, owner)
		}
		for page := range entriesOf(c.memory.Page(table)) {
			if owner := c.memory.Owner(page); owner != g.ID {
				return fmt.Errorf("a per-process table of guest %d leads to memory of %d", g.ID, owner)
			}
		}
	}
	return nil
}

// entriesOf are the pages that valid entries in a page of a table name.
func entriesOf(table []byte) func(yield func(page uint32) bool) {
	return func(yield func(uint32) bool) {
		for i := 0; i+4 <= len(table); i += 4 {
			if page, valid := register.Page(binary.LittleEndian.Uint32(table[i:])); valid && !yield(page) {
				return
			}
		}
	}
}

// pages are the pages in ranges.
func pages(ranges []vgpu.Range) func(yield func(page int) bool) {
	return func(yield func(int) bool) {
		for _, r := range ranges {
			for i := r.First; i < r.First+r.Pages; i++ {
				if !yield(i) {
					return
				}
			}
		}
	}
}
