package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/lgpu/lgpu/gpu"
)

// architectures are NVML's NVML_DEVICE_ARCH_…, by their number.
var architectures = map[uint32]string{
	2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell",
}

// Describe returns what NVML and the kernel know about one of the devices that Devices returned last. A MIG instance is
// where its GPU is, and has no links.
func (i *Inventory) Describe(uuid gpu.UUID) (gpu.Description, error) {
	h, known := i.handles[uuid]
	if !known {
		return gpu.Description{}, fmt.Errorf("GPU %s: %w", uuid, gpu.ErrUnknownDevice)
	}
	d := gpu.Description{NUMA: -1}
	var version [80]byte
	if i.driverVersion(&version[0], uint32(len(version))) == success {
		d.Driver = text(version[:])
	}
	for _, own := range i.devices {
		if own.UUID != uuid {
			continue
		}
		d.NUMA = numaNode("/sys/bus/pci/devices", own.PCI)
		whole := h
		if own.MIG() {
			whole = i.handles[own.Parent]
		}
		i.describeChip(whole, &d)
		if !own.MIG() {
			d.Links = i.links(h, own)
			d.MIG = i.profiles(h)
		}
	}
	return d, nil
}

// describeChip adds what is so of all devices of a kind.
func (i *Inventory) describeChip(h handle, d *gpu.Description) {
	var architecture uint32
	var major, minor int32
	if i.architecture(h, &architecture) == success {
		d.Architecture = architectures[architecture]
	}
	if i.computeCapability(h, &major, &minor) == success {
		d.Capability = fmt.Sprintf("%d.%d", major, minor)
	}
}

// numaNode reads what the kernel says of a PCI device, by NVML's address of it; -1 where it does not know.
func numaNode(devices, address string) int {
	domain, rest, found := strings.Cut(strings.ToLower(address), ":")
	if !found {
		return -1
	}
	if n, err := strconv.ParseUint(domain, 16, 32); err == nil {
		domain = fmt.Sprintf("%04x", n)
	}
	data, err := os.ReadFile(filepath.Join(devices, domain+":"+rest, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// paths are NVML's nvmlGpuTopologyLevel_t in the words of nvidia-smi; two GPUs of one board count as behind one switch.
var paths = map[uint32]string{0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

// Numbers of NVML.
const (
	maxNVLinks   = 18 // NVML_NVLINK_MAX_LINKS
	remoteGPU    = 0  // NVML_NVLINK_DEVICE_TYPE_GPU
	remoteSwitch = 2  // NVML_NVLINK_DEVICE_TYPE_SWITCH
	viaNVLink    = 2  // NVML_P2P_CAPS_INDEX_NVLINK
)

// links are those of a GPU to all others.
func (i *Inventory) links(h handle, own gpu.Device) (links []gpu.Link) {
	direct, switched := i.nvlinks(h)
	for _, peer := range i.devices {
		if peer.UUID == own.UUID || peer.MIG() {
			continue
		}
		l := gpu.Link{Peer: peer.UUID}
		var level uint32
		if i.ancestor(h, i.handles[peer.UUID], &level) == success {
			l.Path = paths[level]
		}
		l.NVLinks = direct[strings.ToLower(peer.PCI)]
		var status uint32
		if l.NVLinks == 0 && switched > 0 && i.p2p(h, i.handles[peer.UUID], viaNVLink, &status) == success && status == 0 {
			l.NVLinks = switched
		}
		if l.NVLinks > 0 {
			l.Path = "NV"
		}
		if l.Path != "" {
			links = append(links, l)
		}
	}
	return links
}

// nvlinks counts the NVLinks of a GPU that are up: those to other GPUs by their PCI addresses, and those to switches.
func (i *Inventory) nvlinks(h handle) (direct map[string]int, switched int) {
	direct = map[string]int{}
	for link := range uint32(maxNVLinks) {
		var up, kind uint32
		if i.nvlinkState(h, link, &up) != success || up == 0 || i.nvlinkKind(h, link, &kind) != success {
			continue
		}
		var pci pciInfo
		switch {
		case kind == remoteSwitch:
			switched++
		case kind == remoteGPU && i.nvlinkPCI(h, link, &pci) == success:
			direct[strings.ToLower(text(pci.BusID[:]))]++
		}
	}
	return direct, switched
}

// profileInfo is NVML's nvmlGpuInstanceProfileInfo_v2_t.
type profileInfo struct {
	Version, ID, P2P, Slices, Instances, Multiprocessors uint32
	CopyEngines, Decoders, Encoders, JPEG, OFA           uint32
	MemoryMiB                                            uint64
	Name                                                 [96]byte
}

// placement is NVML's nvmlGpuInstancePlacement_t, in slices of memory.
type placement struct{ Start, Size uint32 }

// Bounds of what NVML is asked for, beyond what it has.
const (
	maxProfiles   = 32
	maxPlacements = 64
)

// profiles are the sizes of instances that a GPU offers; none where it cannot be divided.
func (i *Inventory) profiles(h handle) (profiles []gpu.Profile) {
	for number := range uint32(maxProfiles) {
		info := profileInfo{Version: uint32(unsafe.Sizeof(profileInfo{})) | 2<<24}
		if i.migProfile(h, number, &info) != success {
			continue
		}
		p := gpu.Profile{Name: strings.TrimPrefix(text(info.Name[:]), "MIG "), ID: int(info.ID), Memory: info.MemoryMiB << 20,
			Units: int(info.Multiprocessors), Count: int(info.Instances)}
		var places [maxPlacements]placement
		count := uint32(len(places))
		if i.migPlacements(h, info.ID, &places[0], &count) == success {
			for _, at := range places[:min(count, maxPlacements)] {
				p.Placements, p.Size = append(p.Placements, int(at.Start)), int(at.Size)
			}
		}
		profiles = append(profiles, p)
	}
	return profiles
}
