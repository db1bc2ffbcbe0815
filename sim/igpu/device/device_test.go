package device

import (
	"encoding/binary"
	"testing"

	"github.com/lgpu/lgpu/sim/igpu/host"
	"github.com/lgpu/lgpu/sim/igpu/register"
)

// newDevice is a device with memory, the first pages of which its table shows at the same numbers.
func newDevice(t *testing.T) (*Device, *host.Memory) {
	m := host.NewMemory(64)
	if _, err := m.Allocate(1, 64); err != nil {
		t.Fatal(err)
	}
	d := New(m)
	for i := range uint32(64) {
		d.Write(register.Table+4*i, register.Entry(i))
	}
	d.Write(register.RingControl, 1)
	return d, m
}

func submit(d *Device, m *host.Memory, words ...uint32) {
	for i, w := range words {
		binary.LittleEndian.PutUint32(m.Page(0)[4*i:], w)
	}
	d.Write(register.RingTail, 4*uint32(len(words)))
}

// TestErrors: a wrong command stops the ring where it is, and a reset starts it.
func TestErrors(t *testing.T) {
	fill := register.Command(register.Fill, 0, 8*register.PageSize, 4, 7)
	for _, test := range []struct {
		name  string
		words []uint32
		want  register.ErrorCode
	}{
		{"right", fill, register.NoError},
		{"no command", []uint32{0xff << 24}, register.BadCommand},
		{"wrong length", []uint32{uint32(register.Fill)<<24 | 2, 0, 0, 0}, register.BadCommand},
		{"beyond the table", register.Command(register.Store, 0, 1<<32-4, 1), register.BadAddress},
		{"no entry", register.Command(register.Store, 0, 64*register.PageSize, 1), register.BadAddress},
		{"across pages", register.Command(register.Fill, 0, 63*register.PageSize, 1025, 1), register.BadAddress},
		{"not aligned", register.Command(register.Store, 0, 2, 1), register.BadAddress},
		{"batch in itself", register.Command(register.Batch, 0, 0), register.BadCommand},
		{"no per-process tables", register.Command(register.Batch, register.PerProcess, 8*register.PageSize), register.BadAddress},
	} {
		d, m := newDevice(t)
		submit(d, m, test.words...)
		d.Run()
		if got := register.ErrorCode(d.Read(register.Error)); got != test.want {
			t.Errorf("%s: code %d, not %d", test.name, got, test.want)
		}
		d.Write(register.Reset, 1)
		d.Write(register.RingControl, 1)
		submit(d, m, fill...)
		if d.Run() == 0 || d.Read(register.Error) != 0 || d.Read(register.RingHead) != 4*uint32(len(fill)) {
			t.Errorf("%s: the ring does not run after a reset", test.name)
		}
	}
}

// TestEndless: a batch without an end, and one command after the other for ever, come to an end.
func TestEndless(t *testing.T) {
	d, m := newDevice(t)
	for i := range uint32(64) { // all of graphics memory is one page of Noops
		d.Write(register.Table+4*i, register.Entry(1))
	}
	for i := uint32(64); i < register.Entries; i++ {
		d.Write(register.Table+4*i, register.Entry(1))
	}
	d.Write(register.Table, register.Entry(0))
	submit(d, m, register.Command(register.Batch, 0, register.PageSize)...)
	d.Run()
	if d.Read(register.Error) == 0 {
		t.Error("an endless batch has ended well")
	}
}

// TestDisplay: the display reads by the same table.
func TestDisplay(t *testing.T) {
	d, m := newDevice(t)
	if d.Scan() != nil {
		t.Error("a display that is off shows something")
	}
	binary.LittleEndian.PutUint32(m.Page(9), 42)
	d.Write(register.DisplayStart, 5*register.PageSize)
	d.Write(register.DisplaySize, 4)
	d.Write(register.DisplayOn, 1<<31)
	d.Write(register.Table+4*5, register.Entry(9))
	if p := d.Scan(); len(p) != 4 || p[0] != 42 {
		t.Errorf("the display shows %v", p)
	}
	d.Write(register.Table+4*5, 0)
	if d.Scan() != nil {
		t.Error("the display shows what has no entry")
	}
}

// TestFence: the processor sees a surface in tiles as rows, and memory has tiles.
func TestFence(t *testing.T) {
	d, m := newDevice(t)
	value := register.FenceValue(8, 15, 2*register.TileRow)
	d.Write(register.Fence+8*3+4, uint32(value>>32))
	d.Write(register.Fence+8*3, uint32(value))
	// The second tile of the first row of tiles begins at 512 bytes of a row; its page is the next one.
	if !d.Access(8, register.TileRow, []byte{1, 2}, true) || m.Page(9)[0] != 1 || m.Page(9)[1] != 2 {
		t.Errorf("the tile has %v", m.Page(9)[:2])
	}
	var got [2]byte
	if !d.Access(8, register.TileRow, got[:], false) || got != [2]byte{1, 2} {
		t.Errorf("the processor sees %v", got)
	}
	if first, last, pitch, valid := register.FenceBounds(value); first != 8 || last != 15 || pitch != 1024 || !valid {
		t.Errorf("%d %d %d %v", first, last, pitch, valid)
	}
}
