package igpu

import (
	"fmt"
	"slices"

	"github.com/lgpu/lgpu/sim/igpu/register"
	"github.com/lgpu/lgpu/sim/igpu/vgpu"
)

// check holds the machine against what must be true after every step. It looks at the hardware itself and at who owns which
// memory; it does not believe the mediator.
func (w *world) check(current *running) error {
	for _, g := range w.guests {
		if g.driver.Wrong != nil {
			return fmt.Errorf("guest %d: %w", g.ID, g.driver.Wrong)
		}
	}
	if current != nil {
		if err := w.checkTable(current); err != nil {
			return err
		}
	}
	if w.report.Steps%16 != 1 && !w.config.Thorough { // what follows changes when guests write entries or fences, which is seldom
		return nil
	}
	for _, g := range w.guests {
		if err := w.checkAperture(g); err != nil {
			return err
		}
	}
	if err := w.checkDisplay(); err != nil {
		return err
	}
	return w.checkFences()
}

// checkDisplay: the host's picture is shown, whoever runs.
func (w *world) checkDisplay() error {
	shown := w.device.Scan()
	for i := range screen {
		want := uint32(0)
		for b := range 4 {
			want |= uint32((4*i+b)%251) << (8 * b)
		}
		if i >= len(shown) || shown[i] != want {
			return fmt.Errorf("the display does not show the host's pixel %d", i)
		}
	}
	return nil
}

// checkTable: what the running guest can reach by the table is its own memory, and what its own entries say.
func (w *world) checkTable(g *running) error {
	table := w.device.Table()
	for _, r := range []vgpu.Range{g.Low, g.High} {
		if slices.Equal(table[r.First:r.First+r.Pages], g.Shadow[r.First:r.First+r.Pages]) && w.report.Steps%64 != 1 && !w.config.Thorough {
			continue // its own entries, which were held against the owners of memory before
		}
		for i := r.First; i < r.First+r.Pages; i++ {
			page, valid := register.Page(table[i])
			if owner := w.memory.Owner(page); !valid || owner != g.ID {
				return fmt.Errorf("entry %d leads to memory of %d in the turn of guest %d", i, owner, g.ID)
			}
			if table[i] != g.Shadow[i] {
				return fmt.Errorf("entry %d of guest %d is stale", i, g.ID)
			}
		}
	}
	return nil
}

// checkAperture: the processor of a guest reaches by its aperture the memory that the guest's entries name, whoever runs.
func (w *world) checkAperture(g *running) error {
	for i := g.Low.First; i < g.Low.First+g.Low.Pages; i++ {
		page, ok := g.EPT.Translate(register.ApertureBase + uint32(i))
		if !ok {
			return fmt.Errorf("the aperture of guest %d leads nowhere at page %d", g.ID, i)
		}
		if page >= register.ApertureBase {
			page, _ = register.Page(w.device.Table()[page-register.ApertureBase])
		}
		if want, _ := register.Page(g.Shadow[i]); page != want {
			return fmt.Errorf("the aperture of guest %d leads to memory %d at page %d, not %d", g.ID, page, i, want)
		}
	}
	return nil
}

// checkFences: the fences of the hardware do not overlap, and lie in the pool with gScale.
func (w *world) checkFences() error {
	var used [][2]uint32
	for i, value := range w.device.FenceRegisters() {
		first, last, _, valid := register.FenceBounds(value)
		if !valid {
			continue
		}
		if w.table != nil && (first < register.PoolFirst || last >= register.ReservedLow) {
			return fmt.Errorf("fence %d lies at pages %d to %d, outside of the pool", i, first, last)
		}
		for _, u := range used {
			if first <= u[1] && u[0] <= last {
				return fmt.Errorf("fence %d overlaps another at pages %d to %d", i, first, last)
			}
		}
		used = append(used, [2]uint32{first, last})
	}
	return nil
}
