package daemon

import (
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/tenant/region"
)

// request is what a launcher asks of the tree, for the devices that were chosen.
func (s AttachSpec) request(devices []gpu.Device) limits.Request {
	r := s.Limits
	r.Gang, r.Devices = s.Gang, nil
	for _, d := range devices {
		r.Devices = append(r.Devices, d.Identity())
	}
	return r
}

// toRegion is a limit as regions have it.
func toRegion(b limits.Bytes) uint64 { return b.Or(region.NoLimit) }

// fromRegion is the opposite of toRegion.
func fromRegion(bytes uint64) limits.Bytes {
	if bytes == region.NoLimit {
		return limits.Bytes{}
	}
	return limits.AtMost(bytes)
}
