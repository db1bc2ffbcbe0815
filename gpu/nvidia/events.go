package nvidia

import (
	"fmt"

	"github.com/lgpu/lgpu/gpu"
)

// Kinds of NVML's events that are about a device's health.
const (
	doubleBitError = 1 << 1 // nvmlEventTypeDoubleBitEccError
	criticalXid    = 1 << 3 // nvmlEventTypeXidCriticalError
)

// eventData is NVML's nvmlEventData_t.
type eventData struct {
	Device                       handle
	Kind, Data                   uint64
	GPUInstance, ComputeInstance uint32
}

// ofPrograms are the Xids that a program's own fault causes, by NVIDIA's list of them: they say nothing of the device.
var ofPrograms = map[uint64]bool{13: true, 31: true, 43: true, 45: true, 68: true, 109: true}

// maxEvents bounds how many events are taken at once.
const maxEvents = 64

// listen asks for the events of GPUs, each once. A driver that has none leaves every device well.
func (i *Inventory) listen() {
	if i.events == 0 && i.newEvents(&i.events) != success {
		i.events = 0
		return
	}
	for _, d := range i.devices {
		if h := i.handles[d.UUID]; !d.MIG() && !i.heard[d.UUID] {
			i.heard[d.UUID] = i.register(h, doubleBitError|criticalXid, i.events) == success
		}
	}
}

// hear notes what has happened to devices since it was last called.
func (i *Inventory) hear() {
	if i.events == 0 {
		return
	}
	for range maxEvents {
		var e eventData
		if i.waitEvent(i.events, &e, 0) != success {
			return
		}
		fault := ""
		switch {
		case e.Kind == criticalXid && !ofPrograms[e.Data]:
			fault = fmt.Sprintf("the driver reports Xid %d", e.Data)
		case e.Kind == doubleBitError:
			fault = "the driver reports an error in its memory that cannot be corrected"
		}
		for uuid, h := range i.handles {
			if h == e.Device && fault != "" {
				i.faults[uuid] = fault
			}
		}
	}
}

// fault is what was heard of a device, or of the GPU that it is an instance of.
func (i *Inventory) fault(uuid gpu.UUID) string {
	for _, d := range i.devices {
		if d.UUID == uuid && d.MIG() {
			return i.faults[d.Parent]
		}
	}
	return i.faults[uuid]
}
