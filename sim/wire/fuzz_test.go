package wire_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/lgpu/lgpu/sim/driver"
	"github.com/lgpu/lgpu/sim/hw"
	"github.com/lgpu/lgpu/sim/kernels"
	"github.com/lgpu/lgpu/sim/wire"
)

// program is a process whose memory is all zeros, and which ends when its time is over: no call waits for longer.
type program struct{ gone chan struct{} }

func (p *program) Invoke(wire.InvokeKind, wire.HostAddr, wire.HostAddr, wire.HostAddr, wire.HostAddr) error {
	return nil
}
func (p *program) ReadHost(_ wire.HostAddr, b []byte) error { clear(b); return nil }
func (p *program) WriteHost(wire.HostAddr, []byte) error    { return nil }
func (p *program) Gone() <-chan struct{}                    { return p.gone }

// FuzzCalls sends requests of any content to the real driver and its management, several in a row from one process that
// has a context, a module and some memory: every one must be answered, and the process's end must clean up after all.
func FuzzCalls(f *testing.F) {
	machine, err := hw.NewMachine(hw.Config{Memory: 64 << 20, Units: 2, Virtual: true, Workers: 1})
	if err != nil {
		f.Fatal(err)
	}
	defer machine.Close()
	d, err := driver.New(machine, driver.Options{ContextBytes: 2 << 20})
	if err != nil {
		f.Fatal(err)
	}
	defer d.Close()
	for op := range wire.Messages {
		var p []byte
		for _, w := range []uint64{0, 1, 2, 16, 1 << 20, 1<<63 | 64, 0x1000, ^uint64(0)} {
			p = binary.LittleEndian.AppendUint64(p, w)
		}
		f.Add(append([]byte{byte(op), byte(op >> 8)}, p...))
		f.Add(append([]byte{byte(op), byte(op >> 8)}, make([]byte, 400)...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		host := &program{gone: make(chan struct{})}
		process, err := d.Connect(wire.Peer{PID: 1, Host: host})
		if err != nil {
			t.Fatal(err)
		}
		end := time.AfterFunc(2*time.Second, func() { close(host.gone); process.Close() })
		defer func() {
			if end.Stop() {
				close(host.gone)
			}
			process.Close()
			if free, total := machine.Devices[0].Memory.Free(), machine.Devices[0].Memory.Total(); free != total {
				t.Errorf("%d bytes are left behind by a dead process", total-free)
			}
		}()
		call := func(ctx wire.CUcontext) *wire.Call { return wire.NewCall(ctx, 1, host) }
		if r := process.Init(call(0), 0, 0, "", "", ""); r != wire.CUDA_SUCCESS {
			t.Fatal("init", r)
		}
		ctx, r := process.DevicePrimaryCtxRetain(call(0), 0)
		if r != wire.CUDA_SUCCESS {
			t.Fatal("context", r)
		}
		process.MemAlloc(call(ctx), 4096)
		process.ModuleLoadData(call(ctx), kernels.Linear, nil, nil, 0, 0)
		for range 8 {
			if len(data) < 2 {
				return
			}
			op, n := int(binary.LittleEndian.Uint16(data))%wire.Messages, min(len(data)-2, 448)
			wire.Dispatch(process, d, call(ctx), op, data[2:2+n])
			data = data[2+n:]
		}
	})
}
