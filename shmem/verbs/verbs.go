// Package verbs drives mlx5 NICs through libibverbs and libmlx5, which are loaded at run time: the same build works
// where they are not installed, and says "no mlx5 device". It makes queue pairs by commands of the device's own
// interface (DevX), since only they let the caller choose the memory of queues, records and completions, such as a
// GPU's.
//
//	p, err := verbs.Open(verbs.Options{})
//	ports, err := p.NICs()          // errors.Is(err, nic.ErrNoDevice): none
//	n, err := p.Open(ports[0])
//
// # What is tested
//
// No test machine of this project has had such a NIC. Commands are checked bit by bit against the public layouts by a
// library that stands in for rdma-core and carries out what they ask for with the software HCA; use with hardware is
// unverified.
//
// # Sources
//
// Functions and structs are those of rdma-core's infiniband/verbs.h and mlx5dv.h; commands those of
// include/linux/mlx5/mlx5_ifc.h.
//
// # Concurrency
//
// As package nic says: one goroutine at a time for each NIC and what belongs to it, but Queue.Ring.
package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/lgpu/lgpu/shmem/transport/ibgda/nic"
)

// Options are what a user can choose about NICs of this kind. Numbers are those of ibgda's settings.
type Options struct {
	Verbs, MLX5 string // libraries; "": libibverbs.so.1 and libmlx5.so.1
	Sysfs       string // "": /sys

	GIDIndex     int          // -1: choose
	RoCEVersion  int          // 1 or 2, of a chosen GID
	IPv6         bool         // prefer a GID with an IPv6 address
	Range        netip.Prefix // of a chosen GID; the zero value: any
	TrafficClass int
	ServiceLevel int
	PartitionKey int
	Retries      int
	AckTimeout   int
	Reads        int // outstanding reads and atomics of a queue pair, a power of two

	Log func(format string, args ...any)
}

// Provider is the mlx5 NICs of this machine. It implements nic.Provider.
type Provider struct {
	o   Options
	lib *library
}

var _ nic.Provider = (*Provider)(nil)

// Open loads the libraries. Without them the error is nic.ErrNoDevice.
func Open(o Options) (*Provider, error) {
	if o.Verbs == "" {
		o.Verbs = "libibverbs.so.1"
	}
	if o.MLX5 == "" {
		o.MLX5 = "libmlx5.so.1"
	}
	if o.Sysfs == "" {
		o.Sysfs = "/sys"
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	lib, err := load(o.Verbs, o.MLX5)
	if err != nil {
		return nil, err
	}
	return &Provider{o: o, lib: lib}, nil
}

// Name implements nic.Provider.
func (p *Provider) Name() string { return "mlx5" }

// Close implements nic.Provider.
func (p *Provider) Close() error { return p.lib.close() }

// NICs implements nic.Provider. A NIC that cannot be opened is left out, with a word to the log.
func (p *Provider) NICs() ([]nic.Info, error) {
	var list []nic.Info
	var errs []error
	err := p.each(func(name string, device uintptr) bool {
		ports, err := p.look(name, device)
		if err != nil {
			p.o.Log("verbs: %s is left out: %v", name, err)
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		list = append(list, ports...)
		return true
	})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no mlx5 device: %w", errors.Join(append([]error{nic.ErrNoDevice}, errs...)...))
	}
	return list, nil
}

// each calls f with every mlx5 device, while the list that they are in exists, until it returns false.
func (p *Provider) each(f func(name string, device uintptr) bool) error {
	var count int32
	devices, err := call(p.lib.getDeviceList, uintptr(unsafe.Pointer(&count)))
	if devices == 0 {
		return fmt.Errorf("no mlx5 device: %w: list of devices: %w", nic.ErrNoDevice, err)
	}
	defer call(p.lib.freeDeviceList, devices)
	for _, device := range unsafe.Slice(at[uintptr](devices), max(0, count)) {
		if supported, _ := call(p.lib.isSupported, device); supported&0xff == 0 { // a C bool
			continue
		}
		name, _ := call(p.lib.getDeviceName, device)
		if !f(cString(name), device) {
			break
		}
	}
	return nil
}

// look opens a device for as long as it takes to ask for its ports.
func (p *Provider) look(name string, device uintptr) ([]nic.Info, error) {
	context, err := p.openDevice(device)
	if err != nil {
		return nil, err
	}
	defer call(p.lib.closeDevice, context)
	var list []nic.Info
	for port := 1; port <= p.ports(name); port++ {
		info, err := p.port(context, name, port)
		if err != nil {
			return list, fmt.Errorf("port %d: %w", port, err)
		}
		list = append(list, info)
	}
	return list, nil
}

func (p *Provider) openDevice(device uintptr) (uintptr, error) {
	attr := contextAttr{flags: contextDevX}
	context, err := call(p.lib.openDevice, device, uintptr(unsafe.Pointer(&attr)))
	if context == 0 {
		return 0, fmt.Errorf("open with DevX: %w", err)
	}
	return context, nil
}

// folder is a device's in sysfs.
func (p *Provider) folder(name string, more ...string) string {
	return filepath.Join(append([]string{p.o.Sysfs, "class/infiniband", name}, more...)...)
}

// ports is the number of a device's ports.
func (p *Provider) ports(name string) int {
	entries, err := os.ReadDir(p.folder(name, "ports"))
	if err != nil {
		return 1 // a container may hide it; every device has one
	}
	return len(entries)
}

// port asks for one port.
func (p *Provider) port(context uintptr, name string, port int) (nic.Info, error) {
	var a portAttr
	if err := status(p.lib.queryPort, context, uintptr(port), uintptr(unsafe.Pointer(&a))); err != nil {
		return nic.Info{}, fmt.Errorf("query: %w", err)
	}
	info := nic.Info{Name: name, Port: port, NUMA: -1, Up: a.state == portActive, Link: nic.InfiniBand, LID: a.lid, MTU: 128 << min(a.activeMTU, 5),
		GIDIndex: max(0, p.o.GIDIndex), Mbps: mbps(a.speed, a.width)}
	if a.link == linkEthernet {
		info.Link = nic.Ethernet
	}
	if path, err := filepath.EvalSymlinks(p.folder(name, "device")); err == nil {
		info.Path, info.PCI = path, filepath.Base(path)
	}
	if text, err := os.ReadFile(p.folder(name, "device", "numa_node")); err == nil {
		if node, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			info.NUMA = node
		}
	}
	if !info.Up {
		return info, nil // its table may be empty
	}
	if info.Link == nic.Ethernet && p.o.GIDIndex < 0 {
		index, err := p.chooseGID(context, name, port, int(a.gids))
		if err != nil {
			return nic.Info{}, err
		}
		info.GIDIndex = index
	}
	if err := status(p.lib.queryGID, context, uintptr(port), uintptr(info.GIDIndex), uintptr(unsafe.Pointer(&info.GID))); err != nil {
		return nic.Info{}, fmt.Errorf("GID %d: %w", info.GIDIndex, err)
	}
	return info, nil
}

// chooseGID picks the GID of a RoCE port: the first of the wanted version, family and range.
func (p *Provider) chooseGID(context uintptr, name string, port, count int) (int, error) {
	for index := range count {
		kind, err := os.ReadFile(p.folder(name, "ports", strconv.Itoa(port), "gid_attrs", "types", strconv.Itoa(index)))
		if err != nil {
			continue // an empty entry has no type
		}
		if version2 := strings.Contains(string(kind), "RoCE v2"); version2 != (p.o.RoCEVersion == 2) {
			continue
		}
		var gid [16]byte
		if status(p.lib.queryGID, context, uintptr(port), uintptr(index), uintptr(unsafe.Pointer(&gid))) != nil {
			continue
		}
		if address := netip.AddrFrom16(gid).Unmap(); gid != [16]byte{} && !address.IsLinkLocalUnicast() && address.Is4() != p.o.IPv6 &&
			(!p.o.Range.IsValid() || p.o.Range.Contains(address)) {
			return index, nil
		}
	}
	return 0, fmt.Errorf("none of %d GIDs is of RoCE version %d in the wanted family and range: set LSHMEM_IB_GID_INDEX", count, p.o.RoCEVersion)
}

// mbps is the speed of a link, from the codes of ibv_port_attr.
func mbps(speed, width uint8) int {
	lane := map[uint8]int{1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000, 32: 25000, 64: 50000, 128: 100000}[speed]
	lanes := map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	return lane * lanes
}

// Open implements nic.Provider.
func (p *Provider) Open(info nic.Info) (nic.NIC, error) {
	var opened *NIC
	var failure error
	found := false
	err := p.each(func(name string, device uintptr) bool {
		if name != info.Name {
			return true
		}
		found = true
		opened, failure = p.open(info, device)
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, fmt.Errorf("%w: %s", nic.ErrNoDevice, info.Name)
	case failure != nil:
		return nil, failure
	}
	return opened, nil
}
