package ibgda

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/shmem/layout"
	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
	"github.com/lgpu/lgpu/shmem/verbs"
	"github.com/lgpu/lgpu/shmem/verbs/verbstest"
)

// onMLX5 makes PEs use the NICs of a machine.
func onMLX5(t testing.TB, f *verbstest.Fake) options {
	return func(c *Config) {
		p, err := verbs.Open(f.Options())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		c.Provider = p
	}
}

// The mlx5 provider carries data: the stand-in for its library executes what is posted to the queue pairs it was told
// to make.
func TestMovesDataThroughMLX5(t *testing.T) {
	for _, ethernet := range []bool{false, true} {
		for _, handler := range []Handler{HandlerGPU, HandlerHost} {
			t.Run(fmt.Sprintf("Ethernet %v, %v handler", ethernet, handler), func(t *testing.T) {
				f := verbstest.New(t, verbstest.Machine{NICs: 3, Ethernet: ethernet})
				j := newJob(t, 2, onMLX5(t, f), withSettings(func(s *Settings) { s.Handler, s.MaxNICs, s.QueuesPerPE = handler, 2, 3 }))
				exchange(t, j)
				if err := j.grow(4); err != nil {
					t.Fatal(err)
				}
				if err := j[0].put(1, 1, 4<<testShift, 0, 100); err != nil {
					t.Error(err)
				}
				for _, m := range j {
					if err := m.Detach(4); err != nil {
						t.Error(err)
					}
				}
				for _, m := range j {
					if err := m.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// noRegisters is a platform whose device cannot map registers, as GPUs in most containers.
type noRegisters struct{ *Processor }

func (noRegisters) MapRegister(uint64, uint64) (uint64, error) { return 0, os.ErrPermission }

// unordered is one whose device sees a NIC's writes late.
type unordered struct{ *Processor }

func (unordered) WritesOrdered() bool { return false }

func TestWhoPosts(t *testing.T) {
	for _, c := range []struct {
		what     string
		platform Platform
		set      func(*Settings)
		lacks    verbstest.Lack
		name     string // of the transport, or what the error has
		flags    uint32
	}{
		{"mapped registers", NewProcessor(), func(*Settings) {}, 0, "ibgda", 0},
		{"queues in host memory", NewProcessor(), func(s *Settings) { s.Queues = QueuesHost }, 0, "ibgda", layout.QueueHostMemory},
		{"late writes", unordered{NewProcessor()}, func(*Settings) {}, 0, "ibgda", layout.QueueFlush},
		{"no registers", noRegisters{NewProcessor()}, func(*Settings) {}, 0, "proxy", layout.QueueHostMemory | layout.QueueHostPosts},
		{"a host thread wanted", NewProcessor(), func(s *Settings) { s.Handler = HandlerHost }, 0, "proxy",
			layout.QueueHostMemory | layout.QueueHostPosts},
		{"the GPU wanted, no registers", noRegisters{NewProcessor()}, func(s *Settings) { s.Handler = HandlerGPU }, 0, "LSHMEM_NIC_HANDLER", 0},
		{"a host thread, queues in GPU memory", NewProcessor(), func(s *Settings) { s.Handler, s.Queues = HandlerHost, QueuesGPU }, 0, "LSHMEM_QUEUE_MEMORY", 0},
		{"no masked atomics", NewProcessor(), func(*Settings) {}, verbstest.LackMaskedAtomics, "masked atomic", 0},
		{"no collapsed queues", NewProcessor(), func(*Settings) {}, verbstest.LackOverrunIgnore, "collapsed", 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			f := verbstest.New(t, verbstest.Machine{NICs: 1, Lacks: c.lacks})
			j, err := openJob(t, 1, onMLX5(t, f), withSettings(c.set), func(k *Config) { k.Platform = c.platform })
			if err == nil {
				defer j[0].Close()
				err = j.connect()
			}
			if err == nil {
				err = j.grow(0)
			}
			if err != nil {
				if !strings.Contains(err.Error(), c.name) {
					t.Fatal(err)
				}
				return
			}
			if j[0].Name() != c.name || j[0].queue(0, 0).Flags != c.flags {
				t.Errorf("%s with flags %#x, expected %s with %#x", j[0].Name(), j[0].queue(0, 0).Flags, c.name, c.flags)
			}
			if err := j[0].put(0, 1, 4096, 0, 8); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each call of the libraries fails once, under the whole transport: an error, and nothing is left.
func TestEveryFailureOfMLX5(t *testing.T) {
	f := verbstest.New(t, verbstest.Machine{NICs: 2, Ethernet: true})
	attempt := func() error {
		p, err := verbs.Open(f.Options())
		if err != nil {
			return err
		}
		defer p.Close()
		j, err := openJob(t, 2, func(c *Config) { c.Provider, c.MaxNICs = p, 2 })
		defer func() {
			for _, m := range j {
				m.Close()
			}
		}()
		if err == nil {
			err = j.connect()
		}
		if err == nil {
			err = j.grow(0)
		}
		if err == nil {
			_, err = j[0].RegisterLocal(addressOf(make([]byte, 64)), 64)
		}
		for _, m := range j {
			if err == nil {
				err = m.Detach(0)
			}
		}
		for _, m := range j {
			if err == nil {
				err = m.Close()
			}
		}
		return err
	}
	f.FailAt(0)
	if err := attempt(); err != nil {
		t.Fatal(err)
	}
	calls := f.Calls()
	for k := 1; k <= calls; k += 1 + k%3 { // two thirds of them, to save time
		f.FailAt(k)
		err := attempt()
		if n := f.Live(); n != 0 {
			t.Fatalf("call %d of %d failed (%v): %d objects are left", k, calls, err, n)
		}
	}
}

var _ nic.NIC = (*verbs.NIC)(nil)
