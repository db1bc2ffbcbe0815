package cuda

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// Attribute is a CUdevice_attribute.
type Attribute int32

// Attributes, numbered as the driver's header does.
const (
	MaxThreadsPerBlock            Attribute = 1
	ClockRate                     Attribute = 13
	MultiprocessorCount           Attribute = 16
	UnifiedAddressing             Attribute = 41
	ComputeCapabilityMajor        Attribute = 75
	ComputeCapabilityMinor        Attribute = 76
	HostNativeAtomicSupported     Attribute = 86
	CanUseHostPointerRegistered   Attribute = 91
	CanUseStreamMemOpsV1          Attribute = 92
	CanUse64BitStreamMemOpsV1     Attribute = 93
	CooperativeLaunch             Attribute = 95
	MaxSharedMemoryPerBlockOptin  Attribute = 97
	CanFlushRemoteWrites          Attribute = 98
	HostRegisterSupported         Attribute = 99
	VirtualMemoryManagement       Attribute = 102
	HandleTypePosixFileDescriptor Attribute = 103
	GPUDirectRDMASupported        Attribute = 116
	GPUDirectRDMAWritesOrdering   Attribute = 118
	DMABufSupported               Attribute = 124
	CanUse64BitStreamMemOps       Attribute = 122
	GPUDirectRDMAWithVMMSupported Attribute = 110
)

// WritesOrderingOwner is the least value of GPUDirectRDMAWritesOrdering at which the GPU itself sees inbound writes in
// order.
const WritesOrderingOwner = 100

// P2PAttribute is a CUdevice_P2PAttribute.
type P2PAttribute int32

// Attributes of a pair of devices.
const (
	PerformanceRank       P2PAttribute = 1
	AccessSupported       P2PAttribute = 2
	NativeAtomicSupported P2PAttribute = 3
)

// devices are the calls about devices.
type devices struct{ *library }

// DeviceCount is the number of devices that this process sees.
func (d *devices) DeviceCount() (int, error) {
	var n int32
	err := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// DeviceGet returns the handle of the device with that ordinal; handles and ordinals are the same numbers in every
// driver so far, but that is not promised.
func (d *devices) DeviceGet(ordinal int) (int32, error) {
	var dev int32
	err := d.call(cuDeviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	return dev, err
}

// DeviceName returns the model.
func (d *devices) DeviceName(device int32) (string, error) {
	b := make([]byte, 128)
	if err := d.call(cuDeviceGetName, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(device)); err != nil {
		return "", err
	}
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text), nil
}

// DeviceUUID returns the device's identity.
func (d *devices) DeviceUUID(device int32) (uuid [16]byte, err error) {
	out := new([16]byte)
	err = d.call(cuDeviceGetUuid, uintptr(unsafe.Pointer(out)), uintptr(device))
	return *out, err
}

// DevicePCI returns domain<<16 | bus<<8 | device.
func (d *devices) DevicePCI(device int32) (uint64, error) {
	b := make([]byte, 32)
	if err := d.call(cuDeviceGetPCIBusId, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(device)); err != nil {
		return 0, err
	}
	text, _, _ := strings.Cut(string(b), "\x00")
	var domain, bus, dev uint64
	if _, err := fmt.Sscanf(text, "%x:%x:%x", &domain, &bus, &dev); err != nil {
		return 0, fmt.Errorf("PCI address %q of device %d: %w", text, device, err)
	}
	return domain<<16 | bus<<8 | dev, nil
}

// DeviceAttribute returns an attribute.
func (d *devices) DeviceAttribute(a Attribute, device int32) (int, error) {
	var v int32
	err := d.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(device))
	return int(v), err
}

// DeviceMemory is the size of a device's memory in bytes, which in an lgpu is the lgpu's.
func (d *devices) DeviceMemory(device int32) (uint64, error) {
	var v uint64
	err := d.call(cuDeviceTotalMem, uintptr(unsafe.Pointer(&v)), uintptr(device))
	return v, err
}

// CanAccessPeer says whether device can map the memory of peer.
func (d *devices) CanAccessPeer(device, peer int32) (bool, error) {
	var v int32
	err := d.call(cuDeviceCanAccessPeer, uintptr(unsafe.Pointer(&v)), uintptr(device), uintptr(peer))
	return v != 0, err
}

// P2P returns an attribute of the link from one device to another.
func (d *devices) P2P(a P2PAttribute, from, to int32) (int, error) {
	var v int32
	err := d.call(cuDeviceGetP2PAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(from), uintptr(to))
	return int(v), err
}

// Context is a CUDA context that the holder may use.
type Context struct {
	D      *Driver
	Handle uintptr
	Device int32
	owned  bool // a reference on the primary context
}

// Current is the context of the calling thread, nil if it has none.
func (d *Driver) Current() (*Context, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var h uintptr
	if err := d.call(cuCtxGetCurrent, uintptr(unsafe.Pointer(&h))); err != nil || h == 0 {
		return nil, err
	}
	var dev int32
	if err := d.call(cuCtxGetDevice, uintptr(unsafe.Pointer(&dev))); err != nil {
		return nil, err
	}
	return &Context{D: d, Handle: h, Device: dev}, nil
}

// Primary retains the primary context of a device.
func (d *Driver) Primary(device int32) (*Context, error) {
	var h uintptr
	if err := d.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&h)), uintptr(device)); err != nil {
		return nil, err
	}
	return &Context{D: d, Handle: h, Device: device, owned: true}, nil
}

// Release gives back the reference that Primary took; for other contexts it does nothing.
func (c *Context) Release() error {
	if c == nil || !c.owned {
		return nil
	}
	c.owned = false
	return c.D.call(cuDevicePrimaryCtxRelease, uintptr(c.Device))
}

// Entered is what Enter did, for Leave.
type Entered struct{ pushed bool }

// Enter binds the goroutine to its thread and makes the context current there, which costs one driver call where it is
// already. Leave undoes both; each Enter that succeeds needs its Leave.
func (c *Context) Enter() (Entered, error) {
	runtime.LockOSThread()
	s := scratch.Get().(*[2]uintptr)
	r := c.D.result(cuCtxGetCurrent, uintptr(unsafe.Pointer(&s[0])))
	current := s[0]
	scratch.Put(s)
	if r == Success && current == c.Handle {
		return Entered{}, nil
	}
	if r := c.D.result(cuCtxPushCurrent, c.Handle); r != Success {
		runtime.UnlockOSThread()
		return Entered{}, c.D.fail(cuCtxPushCurrent, r)
	}
	return Entered{pushed: true}, nil
}

// Leave undoes Enter.
func (c *Context) Leave(e Entered) {
	if e.pushed {
		s := scratch.Get().(*[2]uintptr)
		c.D.result(cuCtxPopCurrent, uintptr(unsafe.Pointer(&s[0])))
		scratch.Put(s)
	}
	runtime.UnlockOSThread()
}

// Do runs f with the context current.
func (c *Context) Do(f func() error) error {
	e, err := c.Enter()
	if err != nil {
		return err
	}
	defer c.Leave(e)
	return f()
}

// Synchronize waits for all work of the current context.
func (d *Driver) Synchronize() error { return d.call(cuCtxSynchronize) }

// EnablePeerAccess lets the current context use allocations (not VMM memory) of another device's context. That it does
// so already is no error.
func (d *Driver) EnablePeerAccess(peer uintptr) error {
	err := d.call(cuCtxEnablePeerAccess, peer, 0)
	if Code(err) == PeerAccessEnabled {
		return nil
	}
	return err
}
