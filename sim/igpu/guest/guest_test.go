package guest

import (
	"testing"

	"github.com/lgpu/lgpu/sim/igpu/device"
	"github.com/lgpu/lgpu/sim/igpu/host"
	"github.com/lgpu/lgpu/sim/igpu/register"
)

// bare is the device itself as a guest's machine: nothing in between.
type bare struct {
	*device.Device
	memory *host.Memory
}

func (b bare) Read(offset uint32) uint32 {
	switch offset {
	case register.InfoLowPages:
		return 64 * register.PagesPerMiB
	case register.InfoHighFirst:
		return register.LowEntries
	case register.InfoHighPages:
		return register.Entries - register.LowEntries
	}
	return b.Device.Read(offset)
}

func (b bare) Load(address uint64, data []byte) bool  { return b.access(address, data, false) }
func (b bare) Store(address uint64, data []byte) bool { return b.access(address, data, true) }

func (b bare) access(address uint64, data []byte, write bool) bool {
	for len(data) > 0 {
		page, offset := uint32(address/register.PageSize), int(address%register.PageSize)
		part := data[:min(len(data), register.PageSize-offset)]
		if page >= register.ApertureBase {
			if !b.Access(page-register.ApertureBase, offset, part, write) {
				return false
			}
		} else if write {
			copy(b.memory.Page(page)[offset:], part)
		} else {
			copy(part, b.memory.Page(page)[offset:])
		}
		address, data = address+uint64(len(part)), data[len(part):]
	}
	return true
}

// TestBare: the drivers draw right on the device itself, so what they get elsewhere can be blamed on what lies between.
func TestBare(t *testing.T) {
	for _, kind := range []Kind{{}, {ThreeD: true}, {Windows: true}, {ThreeD: true, Windows: true}} {
		m := bare{memory: host.NewMemory(Memory)}
		if _, err := m.memory.Allocate(1, Memory); err != nil {
			t.Fatal(err)
		}
		m.Device = device.New(m.memory)
		d := Start(m, kind, 5)
		for range 40 {
			d.Submit()
			if m.Run() == 0 {
				t.Fatalf("%+v: the GPU had nothing to do", kind)
			}
			for range Queue {
				d.Done()
			}
		}
		if d.Wrong != nil || d.Frames != 40*Queue {
			t.Errorf("%+v: %d frames, %v", kind, d.Frames, d.Wrong)
		}
	}
}
