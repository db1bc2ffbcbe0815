package daemon

import (
	"errors"

	"github.com/lgpu/lgpu/daemon/claim"
	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/gpu"
)

// claim claims a device until release. There is nothing to claim of a software GPU, which the daemon has made, and where
// all devices are the daemon's. An error of a device that another daemon has is an *Error of the class ErrBusy, and wraps
// a *claim.Held.
func (v *inventory) claim(d gpu.Device, shape string) (release func(), err error) {
	if v.claims == nil || shape != "" {
		return func() {}, nil
	}
	release, err = v.claims.Take(d.Identity())
	var held *claim.Held
	if errors.As(err, &held) {
		return nil, &Error{Class: ErrBusy, Field: "devices", Value: d.Identity(), Reason: held.Error(), Remedy: held.Hint(), Cause: err}
	}
	return release, err
}

// claims are what gives devices back that were claimed. nil has none.
type claims []func()

func (c claims) release() {
	for _, give := range c {
		give()
	}
}

// claimAll claims devices, all or none.
func (v *inventory) claimAll(devices []gpu.Device, shape string) (all claims, err error) {
	for _, d := range devices {
		give, err := v.claim(d, shape)
		if err != nil {
			all.release()
			return nil, err
		}
		all = append(all, give)
	}
	return all, nil
}

// claimFree claims those of some devices that no other daemon has. If there is none, the error says who has the last of
// them.
func (v *inventory) claimFree(devices []gpu.Device, shape string) (free []gpu.Device, all claims, err error) {
	for _, d := range devices {
		give, failed := v.claim(d, shape)
		if failed != nil {
			err = failed
			continue
		}
		free, all = append(free, d), append(all, give)
	}
	if len(free) == 0 {
		return nil, nil, err
	}
	return free, all, nil
}

// claimFor claims the devices of a record, and keeps them in the mode that it needs, or in any.
func (v *inventory) claimFor(record store.Lgpu, anyMode bool) (all claims, err error) {
	defer func() {
		if err != nil {
			all.release()
			all = nil
		}
	}()
	for _, uuid := range record.Devices {
		if d := v.device(uuid); d != nil { // else there is nothing to use
			release, err := v.claim(d.Device, d.origin.shape)
			if err != nil {
				return all, err
			}
			all = append(all, release)
		}
		release, err := v.daemon.modes.Use(uuid)
		if errors.Is(err, mps.ErrSwitching) {
			return all, errAgain
		}
		if err != nil {
			return all, err
		}
		all = append(all, release)
		if !anyMode && v.daemon.modes.Mode(uuid) != modeOf(record.Spatial) {
			return all, errAgain
		}
	}
	return all, nil
}

// claimMode keeps a device claimed while it is in spatial mode, with an lgpu or without: its MPS daemon goes on.
func (v *inventory) claimMode(d gpu.Device, shape string) {
	var release func()
	if v.daemon.modes.Mode(d.UUID) == mps.Spatial {
		var err error
		if release, err = v.claim(d, shape); err != nil {
			v.daemon.log.Warn("a device in spatial mode is another daemon's", "device", d.Identity(), "error", err)
		}
	}
	v.mu.Lock()
	before := v.spatial[d.UUID]
	delete(v.spatial, d.UUID)
	if release != nil {
		v.spatial[d.UUID] = release
	}
	v.mu.Unlock()
	if before != nil {
		before()
	}
}

// manages reports whether a device is the daemon's to look after. One that another daemon may have claimed is not: its
// programs are no strangers there.
func (v *inventory) manages(d *device) bool {
	return v.claims == nil || d.origin.shape != "" || v.claims.Has(d.Identity())
}
