package daemon

import "github.com/lgpu/lgpu/daemon/tenant"

func (f *fakeTenants) OpenDoor(uint64) (string, error) { return "", nil }
func (f *fakeTenants) CloseDoor(uint64) error          { return nil }

func (f *fakeTenants) Observe(pid int) (tenant.Evidence, error) {
	return tenant.Observe(pid, func(p tenant.Process) uint64 {
		for _, c := range f.Clients() {
			if c.Peer.Process == p {
				return c.LGPU
			}
		}
		return 0
	})
}
