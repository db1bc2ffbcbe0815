package driver

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lgpu/lgpu/sim/kernels"
	"github.com/lgpu/lgpu/sim/ptx"
	"github.com/lgpu/lgpu/sim/wire"
)

// hostile makes arguments that a program could send: numbers that matter, and handles of all kinds, right or wrong.
type hostile struct {
	r       *rand.Rand
	handles []uint64
}

func (h *hostile) number() uint64 {
	switch h.r.IntN(8) {
	case 0:
		return 0
	case 1:
		return 1
	case 2:
		return h.r.Uint64()
	case 3:
		return ^uint64(0) >> h.r.IntN(64)
	case 4:
		return 1 << h.r.IntN(24)
	case 5:
		return uint64(h.r.IntN(10))
	}
	if len(h.handles) == 0 {
		return 2
	}
	return h.handles[h.r.IntN(len(h.handles))] + uint64(h.r.IntN(2)*h.r.IntN(3)*8)
}

func (h *hostile) value(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(h.number())
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(h.number()))
	case reflect.String:
		v.SetString([]string{"", "store", "saxpy", "0000:01:00.0", "::", "counter"}[h.r.IntN(6)])
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && h.r.IntN(2) == 0 {
			v.SetBytes([][]byte{store, kernels.Linear, nil, make([]byte, 64), linkedImage([]ptx.Unit{{Source: store}}), big}[h.r.IntN(6)])
			break
		}
		n := h.r.IntN(4)
		v.Set(reflect.MakeSlice(t, n, n))
		for i := range n {
			v.Index(i).Set(h.value(t.Elem()))
		}
	case reflect.Array:
		for i := range t.Len() {
			v.Index(i).Set(h.value(t.Elem()))
		}
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).IsExported() {
				v.Field(i).Set(h.value(t.Field(i).Type))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(h.value(t.Elem()))
	}
	return v
}

// keep remembers handles and addresses that calls give.
func (h *hostile) keep(out []reflect.Value) {
	for _, v := range out {
		if v.Kind() == reflect.Uint64 && v.Uint() != 0 && len(h.handles) < 200 {
			h.handles = append(h.handles, v.Uint())
		}
	}
}

// call makes a random call and returns its name; none whose name has one of those words.
func (h *hostile) call(c *client, not ...string) string {
	iface := reflect.TypeFor[wire.Driver]()
	m := iface.Method(h.r.IntN(iface.NumMethod()))
	if m.Name == "Close" || m.Name == "ThreadExit" ||
		slices.ContainsFunc(not, func(word string) bool { return strings.Contains(m.Name, word) }) {
		return ""
	}
	args := []reflect.Value{}
	for i := range m.Type.NumIn() {
		if in := m.Type.In(i); in == reflect.TypeFor[*wire.Call]() {
			args = append(args, reflect.ValueOf(c.call))
		} else {
			args = append(args, h.value(in))
		}
	}
	h.keep(reflect.ValueOf(c.Process).MethodByName(m.Name).Call(args))
	if f := c.call.GivenFile(); f != nil {
		f.Close()
	}
	return m.Name
}

// waits are words of calls that may wait for what never comes, or copy for hours.
var waits = []string{"Drain", "WaitValue", "Batch", "Memcpy", "Copy"}

// TestHostileCalls makes every call of the protocol with arguments of a hostile program: whatever they are, calls
// return, and the end of the process frees everything (the fixture checks).
func TestHostileCalls(t *testing.T) {
	b := newBench(t, 2, 64<<20)
	rounds := 60
	if testing.Short() {
		rounds = 5
	}
	for seed := range rounds {
		c := b.connect()
		h := &hostile{r: rand.New(rand.NewPCG(uint64(seed), 7))}
		f := c.kernel(store, "store")
		h.handles = append(h.handles, uint64(c.ctx), uint64(f), c.alloc(4096), c.alloc(4<<20), uint64(c.stream(0)), uint64(c.event(0)))
		var trace []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 400 {
				trace = append(trace, h.call(c))
			}
		}()
		// A wait for a value that never comes is the program's own doing: its end ends it.
		within(t, "hostile program", func() {
			select {
			case <-done:
			case <-idle(b.d, c.Process):
				close(c.prog.goneCh)
				<-done
			}
		})
		c.Close()
		if t.Failed() {
			t.Fatalf("seed %d, calls %v", seed, trace)
		}
	}
}

// idle is closed when the process has done nothing for a while.
func idle(d *Driver, p *Process) <-chan struct{} {
	out := make(chan struct{})
	go func() {
		defer close(out)
		last, same := uint64(0), 0
		for same < 200 {
			tick()
			d.mu.Lock()
			now := p.handles.next + d.ids
			if p.closed {
				same = 200
			}
			d.mu.Unlock()
			if now == last {
				same++
			} else {
				last, same = now, 0
			}
		}
	}()
	return out
}

// TestManyProcesses has processes come, work at random and die at any point, and checks that they get right results and
// leave nothing (the fixture checks).
func TestManyProcesses(t *testing.T) {
	b := newBench(t, 2, 128<<20)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for range 6 {
				g := newProgram()
				p, err := b.d.Connect(wire.Peer{PID: i, Host: g})
				if err != nil {
					t.Error(err)
					return
				}
				randomWork(t, p, g, r)
				p.Close()
			}
		}()
	}
	wg.Wait()
}

// randomWork does random things in a process.
func randomWork(t *testing.T, p *Process, g *program, r *rand.Rand) {
	ctx, res := p.DevicePrimaryCtxRetain(wire.NewCall(0, 1, g), wire.CUdevice(r.IntN(2)))
	if res != success {
		t.Errorf("context: %d", res)
		return
	}
	call := wire.NewCall(ctx, 1, g)
	m, _, _, res := p.ModuleLoadData(call, store, nil, nil, 0, 0)
	if res != success {
		t.Errorf("module: %d", res)
		return
	}
	f, _ := p.ModuleGetFunction(call, m, "store")
	c := &client{Process: p, t: t, prog: g, call: call, ctx: ctx}
	s := c.stream(uint32(r.IntN(2)))
	type piece struct {
		addr  wire.CUdeviceptr
		async bool
		word  uint32
	}
	var live []piece
	for i := range 60 {
		switch r.IntN(6) {
		case 0, 1, 2:
			size := uint64(1) << (8 + r.IntN(15))
			q := piece{async: r.IntN(2) == 0}
			if q.async {
				q.addr, res = p.MemAllocAsync(call, size, s)
			} else {
				q.addr, res = p.MemAlloc(call, size)
			}
			if res == errOutOfMemory {
				continue
			}
			if res != success {
				t.Errorf("allocate %d bytes: %d", size, res)
				return
			}
			live = append(live, q)
		case 3:
			for j := range live {
				live[j].word = uint32(i*1000 + j)
				l := &wire.Launch{Function: f, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}}
				if res := p.Launch(call, l, s, c.pack(f, uint64(live[j].addr), uint64(4), live[j].word), nil); res != success {
					t.Errorf("launch: %d", res)
					return
				}
			}
		case 4:
			if res := p.CtxSynchronize(call); res != success {
				t.Errorf("synchronize: %d", res)
				return
			}
			for _, q := range live {
				if got := c.word(uint64(q.addr)); q.word != 0 && got != q.word {
					t.Errorf("%#x holds %d, want %d", q.addr, got, q.word)
				}
			}
		case 5:
			if len(live) == 0 {
				continue
			}
			q := live[len(live)-1]
			live = live[:len(live)-1]
			if q.async {
				res = p.MemFreeAsync(call, q.addr, s)
			} else {
				res = p.MemFree(call, q.addr)
			}
			if res != success {
				t.Errorf("free: %d", res)
				return
			}
		}
	}
}
