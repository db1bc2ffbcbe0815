package daemon

import (
	"context"
	"slices"
	"sync"

	"github.com/lgpu/lgpu/daemon/tenant"
	"github.com/lgpu/lgpu/tenant/region"
)

// fakeTenants is a tenants' door that keeps what it is told.
type fakeTenants struct {
	observer tenant.Observer
	closed   chan struct{}

	mu      sync.Mutex
	lgpus   map[uint64]tenant.LGPU
	clients []tenant.Client
	usage   map[uint64]region.State
	budgets []tenant.Budget
	denies  error           // of AddLGPU
	removed func(id uint64) // is told of each that RemoveLGPU has removed, before that returns; nil for nobody
}

func newFakeTenants(c tenant.Config) *fakeTenants {
	return &fakeTenants{
		observer: c.Observer, closed: make(chan struct{}), lgpus: map[uint64]tenant.LGPU{},
		usage: map[uint64]region.State{},
	}
}

func (f *fakeTenants) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-f.closed:
	}
	return nil
}

func (f *fakeTenants) Close() error { close(f.closed); return nil }

func (f *fakeTenants) AddLGPU(l tenant.LGPU) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, exists := f.lgpus[l.ID]; exists {
		return tenant.ErrExists
	}
	if f.denies != nil {
		return f.denies
	}
	f.lgpus[l.ID] = l
	f.usage[l.ID] = region.State{Devices: make([]region.DeviceUse, len(l.Devices))}
	return nil
}

func (f *fakeTenants) RemoveLGPU(id uint64) error {
	removed, err := f.remove(id)
	if err == nil && removed != nil {
		removed(id)
	}
	return err
}

func (f *fakeTenants) remove(id uint64) (removed func(id uint64), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, exists := f.lgpus[id]; !exists {
		return nil, tenant.ErrUnknown
	}
	for _, c := range f.clients {
		if c.LGPU == id {
			return nil, tenant.ErrInUse
		}
	}
	delete(f.lgpus, id)
	return f.removed, nil
}

func (f *fakeTenants) SetLimits(id uint64, l tenant.Limits) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	known, exists := f.lgpus[id]
	if !exists {
		return tenant.ErrUnknown
	}
	known.Limits = l
	f.lgpus[id] = known
	return nil
}

func (f *fakeTenants) SetBudgets(b []tenant.Budget) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.budgets = b
	return nil
}

func (f *fakeTenants) Exports([16]byte) tenant.Exports         { return tenant.Exports{} }
func (f *fakeTenants) ReleaseExports([16]byte, uint64, uint64) {}

func (f *fakeTenants) Clients() []tenant.Client {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.clients)
}

func (f *fakeTenants) Usage(id uint64) (region.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, exists := f.lgpus[id]; !exists {
		return region.State{}, tenant.ErrUnknown
	}
	return f.usage[id], nil
}

// deny makes AddLGPU fail from now on, or no more.
func (f *fakeTenants) deny(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denies = err
}

func (f *fakeTenants) limits(id uint64) tenant.Limits {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lgpus[id].Limits
}

func (f *fakeTenants) join(c tenant.Client) {
	f.mu.Lock()
	f.clients = append(f.clients, c)
	f.mu.Unlock()
	f.observer.Joined(c)
}

func (f *fakeTenants) leave(pid int) {
	f.mu.Lock()
	i := slices.IndexFunc(f.clients, func(c tenant.Client) bool { return c.Peer.PID == pid })
	c := f.clients[i]
	f.clients = slices.Delete(f.clients, i, i+1)
	f.mu.Unlock()
	f.observer.Left(c)
}

func (f *fakeTenants) setUsage(id uint64, s region.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usage[id] = s
}
