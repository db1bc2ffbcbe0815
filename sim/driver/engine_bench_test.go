package driver

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/kernels"
	"github.com/lgpu/lgpu/sim/wire"
)

// BenchmarkEngine runs a kernel that keeps all units busy in real time and reports how much of the device's time the
// host kept up with: 1 is a device as fast as its clock says.
func BenchmarkEngine(b *testing.B) {
	for _, tc := range []struct {
		units int
		slice time.Duration // no step is longer
	}{{8, 0}, {16, 0}, {32, 0}, {8, 100 * time.Microsecond}, {8, 50 * time.Microsecond}, {8, 20 * time.Microsecond}} {
		units := tc.units
		b.Run(fmt.Sprintf("units=%d,slice=%v", units, tc.slice), func(b *testing.B) {
			m, err := hw.NewMachine(hw.Config{Memory: 64 << 20, Units: units, Slice: tc.slice})
			if err != nil {
				b.Fatal(err)
			}
			d, err := New(m, Options{ContextBytes: 2 << 20})
			if err != nil {
				b.Fatal(err)
			}
			p, err := d.Connect(wire.Peer{PID: 1, Host: newProgram()})
			if err != nil {
				b.Fatal(err)
			}
			ctx, _ := p.DevicePrimaryCtxRetain(wire.NewCall(0, 1, nil), 0)
			call := wire.NewCall(ctx, 1, nil)
			mod, _, _, _ := p.ModuleLoadData(call, kernels.Compute, nil, nil, 0, 0)
			f, _ := p.ModuleGetFunction(call, mod, "compute")
			out, _ := p.MemAlloc(call, 1<<20)
			params := binary.LittleEndian.AppendUint64([]byte{0, 1, 0, 0, 0, 0, 0, 0}, uint64(out)) // 256 rounds
			b.ResetTimer()
			start, t0 := time.Now(), d.devices[0].hw.Clock.Now()
			for range b.N {
				res := p.Launch(call, &wire.Launch{Function: f, Grid: [3]uint32{uint32(units), 1, 1}, Block: [3]uint32{256, 1, 1}}, 0, params, nil)
				if res != success {
					b.Fatal(res)
				}
			}
			if res := p.CtxSynchronize(call); res != success {
				b.Fatal(res)
			}
			device := d.devices[0].hw.Clock.Now() - t0
			b.ReportMetric(float64(device)/float64(time.Since(start)), "device/wall")
			d.Close()
			if err := m.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
