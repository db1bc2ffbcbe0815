package driver

import (
	"testing"

	"github.com/lgpu/lgpu/sim/wire"
)

// big has a variable of 8 MiB.
var big = []byte(`.version 6.0
.target sm_70
.address_size 64
.visible .global .align 4 .b8 table[8388608];
.visible .entry none() { ret; }
`)

// TestLibraryMemory loads a library, whose variables take memory of a context once it is used there, or from the start
// where everything is loaded eagerly.
func TestLibraryMemory(t *testing.T) {
	for _, eager := range []bool{false, true} {
		b := newBench(t, 2, 64<<20)
		c := b.connect()
		c.want(c.Init(c.call, 0, map[bool]uint32{true: 4}[eager], "", "", ""), success)
		before := c.free()
		l, _, _, res := c.LibraryLoadData(c.call, big, nil, nil, nil, nil, 0, 0)
		c.want(res, success)
		taken := before - c.free()
		if eager != (taken > 8<<20) || !eager && taken != 0 {
			t.Errorf("eager %v: loading takes %d bytes", eager, taken)
		}
		_, size, res := c.LibraryGetGlobal(c.call, l, "table")
		c.want(res, success)
		if taken := before - c.free(); size != 8<<20 || taken < size {
			t.Errorf("eager %v: %d bytes of a variable of %d are taken by its use", eager, taken, size)
		}
		first := c.call
		c.use(1)
		if _, total, _ := c.MemGetInfo(c.call); eager != (total-c.free() > 12<<20) {
			t.Errorf("eager %v: a new context takes %d bytes", eager, total-c.free())
		}
		c.call = first
		if eager {
			c.alloc(c.free() - 4<<20)
			_, _, _, res = c.LibraryLoadData(c.call, big, nil, nil, nil, nil, 0, 0)
			c.want(res, errOutOfMemory)
		}
		c.want(c.LibraryUnload(c.call, l), success)
		c.want(c.LibraryUnload(c.call, l), errInvalidHandle)
		if !eager && c.free() != before {
			t.Errorf("%d bytes are not back after the library is unloaded", before-c.free())
		}
		_, res = c.LibraryGetModule(c.call, wire.CUlibrary(l))
		c.want(res, errInvalidHandle)
		c.Close()
	}
}
