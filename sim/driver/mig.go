package driver

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lgpu/lgpu/sim/hw"
)

// A GPU in MIG mode is divided into instances, each of which is a device of its own in the machine: it has its own memory and
// its own units, and nothing that runs on one is felt on another. The GPU itself is there to be asked about, and has no
// contexts. A program sees one instance at most, as with the real driver.

// A GPU has so many compute slices and memory slices to divide. They are those of NVIDIA's data-centre GPUs.
const (
	computeSlices = 7
	memorySlices  = 8
)

// memoryOf is how many memory slices an instance with so many compute slices has; the sizes that are not there do not exist.
var memoryOf = [computeSlices + 1]int{1: 1, 2: 2, 3: 4, 4: 4, 7: 8}

// Division says which MIG instances a GPU has: the compute slices of each, in order, and zeros. The zero Division is that of a
// GPU that is not in MIG mode.
type Division [computeSlices]int

// ParseDivision reads what String writes, such as 3g+1g+1g. An error says which part of it no GPU can have.
func ParseDivision(text string) (Division, error) {
	var d Division
	parts := strings.Split(text, "+")
	if len(parts) > len(d) {
		return Division{}, fmt.Errorf("%d instances; a GPU has at most %d", len(parts), len(d))
	}
	compute, memory := 0, 0
	for i, part := range parts {
		n, err := strconv.Atoi(strings.TrimSuffix(part, "g"))
		if err != nil || n < 1 || n > computeSlices || memoryOf[n] == 0 || part != strconv.Itoa(n)+"g" {
			return Division{}, fmt.Errorf("%q is no MIG instance; there are 1g, 2g, 3g, 4g and 7g", part)
		}
		d[i] = n
		compute, memory = compute+n, memory+memoryOf[n]
	}
	if compute > computeSlices || memory > memorySlices {
		return Division{}, fmt.Errorf("instances with %d compute slices and %d memory slices; a GPU has %d and %d", compute, memory,
			computeSlices, memorySlices)
	}
	return d, nil
}

// String returns the text that ParseDivision reads; empty for the zero Division.
func (d Division) String() string {
	var parts []string
	for _, n := range d.instances() {
		parts = append(parts, strconv.Itoa(n)+"g")
	}
	return strings.Join(parts, "+")
}

// instances are the compute slices of the instances that there are.
func (d Division) instances() []int {
	for i, n := range d {
		if n == 0 {
			return d[:i]
		}
	}
	return d[:]
}

// Check reports why a GPU with so much memory, in bytes, and so many units cannot be divided so that each instance has more
// than a context takes, in bytes.
func (d Division) Check(memory uint64, sms int, context uint64) error {
	for _, n := range d.instances() {
		if sms < computeSlices {
			return fmt.Errorf("MIG instances of a GPU with %d units; it must have at least %d", sms, computeSlices)
		}
		if part := memory / memorySlices * uint64(memoryOf[n]); context >= part {
			return fmt.Errorf("a context of %d MiB on a MIG instance %dg of %d MiB", context>>20, n, part>>20)
		}
	}
	return nil
}

// Configs are the devices of a machine with one GPU: the GPU as whole says, and its instances.
func (d Division) Configs(whole hw.Config) []hw.Config {
	all := []hw.Config{whole}
	for _, n := range d.instances() {
		part := whole
		part.Memory = whole.Memory / memorySlices * uint64(memoryOf[n])
		part.Units = whole.Units * n / computeSlices
		all = append(all, part)
	}
	return all
}

// instance is what a device is that is a MIG instance.
type instance struct {
	of      *device // the GPU
	number  int     // among those of the GPU
	compute int     // compute slices
}

// profile is the instance's size as the driver calls it: its compute slices, and its memory in GiB.
func (i *instance) profile(memory uint64) string {
	return fmt.Sprintf("%dg.%dgb", i.compute, max((memory+1<<29)>>30, 1))
}

// arrange makes the devices of a machine: GPUs, each followed by its instances. An error says that the machine has others.
func arrange(m *hw.Machine, o *Options) (devices []*device, err error) {
	parts := o.Division.instances()
	each := 1 + len(parts)
	if len(m.Devices) == 0 || len(m.Devices)%each != 0 {
		return nil, fmt.Errorf("driver: machine has %d devices, not some of %d", len(m.Devices), each)
	}
	for first := 0; first < len(m.Devices); first += each {
		whole := newDevice(m.Devices[first], first, first/each, o)
		devices = append(devices, whole)
		for number, compute := range parts {
			d := newDevice(m.Devices[first+1+number], first+1+number, whole.gpu, o)
			d.instance = &instance{whole, number, compute}
			d.name += " MIG " + d.instance.profile(d.hw.Memory.Total())
			d.uuid = uuidOf(fmt.Sprintf("%s %d instance %d", o.Seed, whole.gpu, number))
			whole.instances = append(whole.instances, d)
			devices = append(devices, d)
		}
		whole.hw.Divide(m.Devices[first+1 : first+each])
	}
	return devices, nil
}

// enumerated are the devices that a program sees that names none: the GPUs, or where all are in MIG mode the first instance.
func enumerated(devices []*device) []*device {
	var whole []*device
	for _, d := range devices {
		if d.instance == nil && len(d.instances) == 0 {
			whole = append(whole, d)
		}
	}
	if len(whole) == 0 {
		return devices[1:2]
	}
	return whole
}
