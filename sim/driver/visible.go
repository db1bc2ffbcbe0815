package driver

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/lgpu/lgpu/sim/wire"
)

// visibleDevices are the devices that CUDA_VISIBLE_DEVICES lets a process see, in its order: ordinals, or UUIDs or what
// begins just one of them. The list ends before the first entry that names no device, or one that came before. A MIG instance
// is seen alone: the list ends after it, and before it if it is not the first.
func (d *Driver) visibleDevices(list string) []*device {
	visible := []*device{}
	for _, entry := range strings.Split(list, ",") {
		dev := d.named(strings.TrimSpace(entry))
		if dev == nil || slices.Contains(visible, dev) || len(visible) > 0 && dev.instance != nil {
			break
		}
		visible = append(visible, dev)
		if dev.instance != nil {
			break
		}
	}
	return visible
}

// named is the device that one entry of CUDA_VISIBLE_DEVICES names, or nil.
func (d *Driver) named(entry string) *device {
	if ordinal, err := strconv.Atoi(entry); err == nil {
		if ordinal < 0 || ordinal >= len(d.shown) {
			return nil
		}
		return d.shown[ordinal]
	}
	digits, mig := strings.CutPrefix(entry, "MIG-")
	ok := mig
	if !mig {
		digits, ok = strings.CutPrefix(entry, "GPU-")
	}
	digits = strings.ToLower(strings.ReplaceAll(digits, "-", ""))
	var found *device
	for _, dev := range d.devices {
		if len(dev.instances) > 0 || mig != (dev.instance != nil) {
			continue // a GPU in MIG mode is not to be used
		}
		if ok && digits != "" && strings.HasPrefix(hex.EncodeToString(dev.uuid[:]), digits) {
			if found != nil {
				return nil
			}
			found = dev
		}
	}
	return found
}

// device finds a device by its ordinal.
func (p *Process) device(dev wire.CUdevice) (*device, Result) {
	visible := *p.visible.Load()
	if dev < 0 || int(dev) >= len(visible) {
		return nil, errInvalidDevice
	}
	return visible[dev], success
}

// ordinal is the number under which the process sees d. Memory of a device that it does not see can come to it by IPC.
func (p *Process) ordinal(d *device) wire.CUdevice {
	return wire.CUdevice(slices.Index(*p.visible.Load(), d))
}
