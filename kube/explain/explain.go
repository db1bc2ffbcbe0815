// Package explain says which capacity a claim lacks that the scheduler gives no device: the scheduler itself only says that it
// "cannot allocate all claims".
//
// Reason is the policy, and pure. Watcher asks it for the claims of a cluster that wait, and makes its answers events.
package explain

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lgpu/lgpu/kube/slice"
)

// Device is one that claims can have a part of, and what of it is given.
type Device struct {
	has   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
	given map[resourceapi.QualifiedName]*resource.Quantity
	fault bool // no claim gets it
}

// Devices are those of the driver's slices, less what claims were allocated of them.
func Devices(published []*resourceapi.ResourceSlice, claims []*resourceapi.ResourceClaim) []Device {
	type key struct{ pool, device string }
	index := map[key]int{}
	var all []Device
	for _, s := range published {
		if s.Spec.Driver != slice.Driver {
			continue
		}
		for _, d := range s.Spec.Devices {
			index[key{s.Spec.Pool.Name, d.Name}] = len(all)
			all = append(all, Device{has: d.Capacity, given: map[resourceapi.QualifiedName]*resource.Quantity{}, fault: len(d.Taints) > 0})
		}
	}
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			at, there := index[key{r.Pool, r.Device}]
			if r.Driver != slice.Driver || !there {
				continue
			}
			for name, amount := range r.ConsumedCapacity {
				if all[at].given[name] == nil {
					all[at].given[name] = &resource.Quantity{}
				}
				all[at].given[name].Add(amount)
			}
		}
	}
	return all
}

// free is what of a capacity of a device is not given.
func (d Device) free(name resourceapi.QualifiedName) resource.Quantity {
	free := d.has[name].Value.DeepCopy()
	if given := d.given[name]; given != nil {
		free.Sub(*given)
	}
	return free
}

// Reason is why no device fits a request of a claim now, empty if each finds one, or if classes does not have its class: then it
// is for another driver. The selectors and constraints of a claim, and the nodes that its pod can be on, are not looked at: by
// these more may be lacking.
func Reason(c *resourceapi.ResourceClaim, devices []Device, classes map[string]bool) string {
	var reasons []string
	for _, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil && classes[r.Exactly.DeviceClassName] {
			if why := lack(devices, r.Exactly.Capacity, max(r.Exactly.Count, 1)); why != "" {
				reasons = append(reasons, fmt.Sprintf("request %s: %s", r.Name, why))
			}
		}
		var alternatives []string
		for _, s := range r.FirstAvailable {
			why := ""
			if classes[s.DeviceClassName] {
				why = lack(devices, s.Capacity, max(s.Count, 1))
			}
			if why == "" { // this one may fit, or is not ours to judge
				alternatives = nil
				break
			}
			alternatives = append(alternatives, fmt.Sprintf("request %s/%s: %s", r.Name, s.Name, why))
		}
		reasons = append(reasons, alternatives...)
	}
	return strings.Join(reasons, "; ")
}

// dimension is what a request wants of a capacity, and how the devices are off for it.
type dimension struct {
	name resourceapi.QualifiedName
	want resource.Quantity // as requested; zero for all of a device
	fit  int               // devices on which so much is free
	most resource.Quantity // free on any
}

// lack is why fewer devices than count fit a request, empty if enough do.
func lack(devices []Device, capacity *resourceapi.CapacityRequirements, count int64) string {
	all := dimensions(capacity)
	fit, faults := int64(0), 0
	for _, d := range devices {
		if d.fault {
			faults++
			continue
		}
		fits := true
		for i := range all {
			fits = all[i].look(d) && fits
		}
		if fits {
			fit++
		}
	}
	if fit >= count {
		return ""
	}
	return tell(all, len(devices), faults, fit, count)
}

// dimensions are the driver's capacities, with what is requested of each.
func dimensions(capacity *resourceapi.CapacityRequirements) []dimension {
	all := []dimension{{name: slice.Memory}, {name: slice.Units}}
	for i := range all {
		if capacity != nil {
			all[i].want = capacity.Requests[all[i].name]
		}
	}
	return all
}

// look counts a device, and reports whether enough of the capacity is free on it.
func (m *dimension) look(d Device) bool {
	free, want := d.free(m.name), m.want
	if want.IsZero() {
		want = d.has[m.name].Value
	}
	if free.Cmp(m.most) > 0 {
		m.most = free
	}
	if free.Cmp(want) < 0 {
		return false
	}
	m.fit++
	return true
}

// tell puts a lack into words.
func tell(all []dimension, devices, faults int, fit, count int64) string {
	if devices == 0 {
		return "no device is offered"
	}
	var words []string
	lacking := func(m dimension) bool { return int64(m.fit) < count }
	for _, m := range all {
		if slices.ContainsFunc(all, lacking) && !lacking(m) {
			continue // another one is what is lacking
		}
		want := m.want.String()
		if m.want.IsZero() {
			want = "all"
		}
		words = append(words, fmt.Sprintf("%s: %s is free on %d of %d devices, at most %s on one", m.name, want, m.fit, devices, m.most.String()))
	}
	text := strings.Join(words, "; ")
	if !slices.ContainsFunc(all, lacking) {
		text += fmt.Sprintf("; both on %d", fit)
	}
	if count > 1 {
		text = fmt.Sprintf("%d devices are wanted; %s", count, text)
	}
	if faults > 0 {
		text += fmt.Sprintf("; %d do not work", faults)
	}
	return text
}
