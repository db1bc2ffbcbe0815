// Package gpu says which devices a machine has and their present state, for every vendor. Packages nvidia and sim
// implement Inventory, gputest has a fake; choosing devices by what a user typed is the same for all and is here.
package gpu

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Inventory is a source of devices. One goroutine at a time may use it.
type Inventory interface {
	// Devices returns the devices: GPUs in the order of their index, each followed by its MIG instances. It may be
	// called again to see changes.
	Devices() ([]Device, error)
	// Facts says what the driver knows about a device now. An error means that the device cannot be reached, or is none
	// of this inventory's (ErrUnknownDevice).
	Facts(UUID) (Facts, error)
	// Describe says what a device is like, beside what programs need to use it. An error means that the device cannot be
	// reached, or is none of this inventory's (ErrUnknownDevice); what a driver does not say is left out.
	Describe(UUID) (Description, error)
	// Energy is what a device has drawn since its counter began, in millijoules. The counter begins anew with the driver.
	// An error wraps errors.ErrUnsupported where there is none.
	Energy(UUID) (uint64, error)
	// Meter begins to note whose work a device runs. The caller closes it; other methods may be called meanwhile, by
	// other goroutines. An error that wraps errors.ErrUnsupported says why nobody notes that here.
	Meter(UUID) (Meter, error)
	// Close ends the use of the driver. Devices returned before stay valid.
	Close() error
}

// Device is one physical or software GPU, or a MIG instance of one.
type Device struct {
	UUID   UUID
	Index  int    // in the vendor's own numbering; of a MIG instance: among those of its Parent
	Name   string // product name
	Memory uint64 // bytes
	Units  int    // compute units (SMs); 0 where the driver does not say
	PCI    string // PCI address, such as 0000:1b:00.0
	Node   string // major and minor number of the device node, such as 195:0; empty where it has none of its own
	// Parent is the GPU that this is a MIG instance of, and ParentIndex its index; zero for a whole GPU.
	Parent      UUID
	ParentIndex int
	// GPUInstance and ComputeInstance are the numbers of a MIG instance, for its device files; -1 where the driver does not say.
	GPUInstance, ComputeInstance int
	// Partitioned: a GPU in MIG mode. Programs use its instances and never itself.
	Partitioned bool
}

// MIG reports whether d is a MIG instance rather than a GPU.
func (d Device) MIG() bool { return d.Parent != UUID{} }

// Identity is the text of d's UUID as the vendor writes it: GPU-… or MIG-…; ParseUUID reads both.
func (d Device) Identity() string {
	if d.MIG() {
		return "MIG-" + strings.TrimPrefix(d.UUID.String(), "GPU-")
	}
	return d.UUID.String()
}

// Ordinal is d's index as people write it: 0, or 0:1 for MIG instance 1 of GPU 0.
func (d Device) Ordinal() string {
	if d.MIG() {
		return strconv.Itoa(d.ParentIndex) + ":" + strconv.Itoa(d.Index)
	}
	return strconv.Itoa(d.Index)
}

// Names are what d is called.
func (d Device) Names() Names { return Names{Ordinal: d.Ordinal(), UUID: d.Identity(), Node: d.Node} }

// Short is as much of Identity as tells the devices of a machine apart; Select takes it too.
func (d Device) Short() string { return d.Identity()[:len("GPU-00112233")] }

// Key is how lgpu files name d: by its device node, or by Identity where it has none of its own.
func (d Device) Key() string {
	if d.Node != "" {
		return d.Node
	}
	return d.Identity()
}

// Facts are what a driver knows about a device at one moment. A percentage of -1 is one that it does not know.
type Facts struct {
	MemoryUsed        uint64 // bytes, everybody's and the driver's own
	Utilisation       int    // percent of the last sample in which a kernel ran
	MemoryUtilisation int    // percent of the last sample in which memory was read, written or copied
	Processes         []Process
	Power             *uint32 // milliwatts; nil where the driver does not say, as the next two
	Energy            *uint64 // millijoules, as Inventory.Energy
	Temperature       *int32  // °C
	// Fault is what the driver has reported of the device itself, such as an error that ends its use; empty if nothing.
	Fault string
	// Namespaced: this process is in a PID namespace of its own, and the numbers of Processes may be those of another.
	Namespaced bool
}

// Process is one process that has a context on a device.
type Process struct {
	PID         int    // in the PID namespace of the driver's answer, which is the initial one for NVIDIA
	Memory      uint64 // bytes of device memory; 0 where the driver does not say
	Utilisation int    // percent of the last sample in which its kernels ran; -1 where the driver does not say
}

// UUID identifies a device for good.
type UUID [16]byte

// Errors that Select wraps, and that of Together.
var (
	ErrUnknownDevice = errors.New("no such device")
	ErrTwice         = errors.New("device is listed twice")
	ErrInstances     = errors.New("a program can use one MIG instance and nothing beside it")
)

// ParseUUID reads the form that String writes; the prefix may be missing, or be a MIG instance's.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	digits := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(s, "GPU-"), "MIG-"), "-", "")
	if n, err := hex.Decode(u[:], []byte(digits[:min(len(digits), 32)])); err != nil || n != len(u) ||
		len(digits) != 32 {
		return UUID{}, fmt.Errorf("%q is not a device UUID; one looks like GPU-00112233-4455-6677-8899-aabbccddeeff", s)
	}
	return u, nil
}

// String writes u as NVIDIA's tools do.
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// Short is as much of u's text as tells the devices of a machine apart; Select takes it too.
func (u UUID) Short() string { return u.String()[:len("GPU-00112233")] }

// Usable returns the devices that programs can use: all but GPUs in MIG mode, whose instances count instead.
func Usable(devices []Device) []Device {
	var usable []Device
	for _, d := range devices {
		if !d.Partitioned {
			usable = append(usable, d)
		}
	}
	return usable
}

// Together returns why a program cannot use devices at once, which is ErrInstances, or nil. The driver shows a program one
// instance, or GPUs that are not in MIG mode.
func Together(devices []Device) error {
	if len(devices) > 1 && slices.ContainsFunc(devices, Device.MIG) {
		return ErrInstances
	}
	return nil
}

// Names are what a device is called. Wherever people name one, all of them are understood: Find is the one reader.
type Names struct {
	Ordinal string // its index, or GPU:INSTANCE of a MIG instance; empty if it has none
	UUID    string // as the vendor writes it
	Node    string // MAJ:MIN of the device node; empty if it has none of its own
}

// String names a device for people, by what they can type: "0 (GPU-00112233)".
func (n Names) String() string {
	short := n.UUID[:min(len(n.UUID), len("GPU-00112233"))]
	if n.Ordinal == "" {
		return short
	}
	return n.Ordinal + " (" + short + ")"
}

// Find returns which device a token names: by its index, its device node, its UUID in either case, or the beginning of
// a UUID that only one has. An error wraps ErrUnknownDevice, names the token and says which devices there are.
func Find(devices []Names, token string) (int, error) {
	var found []int
	for i, d := range devices {
		if token != "" && (token == d.Ordinal || token == d.Node) {
			found = append(found, i)
		}
	}
	how := "have that index"
	if len(found) == 0 && len(token) > len("GPU-") {
		how = "have a UUID that begins so"
		for i, d := range devices {
			if len(token) <= len(d.UUID) && strings.EqualFold(token, d.UUID[:len(token)]) {
				found = append(found, i)
			}
		}
	}
	switch len(found) {
	case 0:
		return 0, fmt.Errorf("device %q: %w; %s", token, ErrUnknownDevice, there(devices))
	case 1:
		return found[0], nil
	}
	return 0, fmt.Errorf("device %q: %w; %d %s; %s", token, ErrUnknownDevice, len(found), how, there(devices))
}

// listed is how many devices a text names at most.
const listed = 16

// there says which devices there are.
func there(devices []Names) string {
	var names []string
	for _, d := range devices[:min(len(devices), listed)] {
		names = append(names, d.String())
	}
	switch more := len(devices) - listed; {
	case len(names) == 0:
		return "there is none"
	case more > 0:
		return fmt.Sprintf("devices are %s and %d more", strings.Join(names, ", "), more)
	case len(names) == 1:
		return "the only one is " + names[0]
	}
	return "devices are " + strings.Join(names, ", ")
}

// Select returns the devices that tokens name, as Find does, in the tokens' order. An error wraps ErrUnknownDevice or
// ErrTwice and names the token.
func Select(devices []Device, tokens []string) ([]Device, error) {
	names := make([]Names, len(devices))
	for i, d := range devices {
		names[i] = d.Names()
	}
	var chosen []Device
	seen := map[UUID]bool{}
	for _, token := range tokens {
		i, err := Find(names, strings.TrimSpace(token))
		if err != nil {
			return nil, err
		}
		d := devices[i]
		if seen[d.UUID] {
			return nil, fmt.Errorf("device %q: %w", token, ErrTwice)
		}
		seen[d.UUID] = true
		chosen = append(chosen, d)
	}
	return chosen, nil
}
