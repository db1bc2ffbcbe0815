package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ebitengine/purego"

	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/nvidia"
	"github.com/lgpu/lgpu/gpu/nvidia/ctxswitch"
)

// lookDriver asks the kernel module and NVML. Unlike gpu/nvidia, which wants all of NVML or nothing, it takes what
// there is.
func lookDriver() Driver {
	d := Driver{}
	if text, err := os.ReadFile("/proc/driver/nvidia/version"); err == nil {
		d.Module = moduleVersion(string(text))
	}
	n, err := openNVML()
	if err != nil {
		d.Err = err
		return d
	}
	defer n.close()
	d.Version, d.NVML = n.text("nvmlSystemGetDriverVersion"), n.text("nvmlSystemGetNVMLVersion")
	d.Devices = n.devices()
	describe(d.Devices)
	return d
}

// moduleVersion takes the version out of the kernel module's own line, such as
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Mon …".
func moduleVersion(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	for _, word := range strings.Fields(line) {
		if major(word) > 0 && strings.Contains(word, ".") {
			return word
		}
	}
	return strings.TrimSpace(line)
}

// nvml is the management library, each function looked for when it is needed.
type nvml struct{ library uintptr }

func openNVML() (*nvml, error) {
	path := os.Getenv("LGPU_REAL_LIBNVML")
	if path == "" {
		path = "libnvidia-ml.so.1"
	}
	library, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", nvidia.ErrNoDriver, err)
	}
	n := &nvml{library}
	var start func() int32
	if !n.bind("nvmlInit_v2", &start) {
		purego.Dlclose(library)
		return nil, fmt.Errorf("%s is not NVML: it has no nvmlInit_v2", path)
	}
	if result := start(); result != 0 {
		err := fmt.Errorf("nvmlInit: %w", n.failure(result))
		if result == 9 || result == 12 { // driver not loaded, library not found
			err = fmt.Errorf("%w: %w", nvidia.ErrNoDriver, err)
		}
		purego.Dlclose(library)
		return nil, err
	}
	return n, nil
}

func (n *nvml) close() {
	var stop func() int32
	if n.bind("nvmlShutdown", &stop) {
		stop()
	}
	purego.Dlclose(n.library)
}

// bind makes the function that f points to call symbol, if the library has it.
func (n *nvml) bind(symbol string, f any) bool {
	address, err := purego.Dlsym(n.library, symbol)
	if err != nil {
		return false
	}
	purego.RegisterFunc(f, address)
	return true
}

func (n *nvml) failure(result int32) error {
	var text func(int32) string
	if n.bind("nvmlErrorString", &text) {
		return fmt.Errorf("%s (NVML error %d)", text(result), result)
	}
	return fmt.Errorf("NVML error %d", result)
}

// text calls one of the functions that fill a buffer, and is empty where that fails.
func (n *nvml) text(symbol string) string {
	var get func(*byte, uint32) int32
	var buffer [96]byte
	if !n.bind(symbol, &get) || get(&buffer[0], uint32(len(buffer))) != 0 {
		return ""
	}
	return cString(buffer[:])
}

func (n *nvml) devices() []Device {
	var count func(*uint32) int32
	var open func(uint32, *uintptr) int32
	var total uint32
	if !n.bind("nvmlDeviceGetCount_v2", &count) || !n.bind("nvmlDeviceGetHandleByIndex_v2", &open) || count(&total) != 0 {
		return nil
	}
	devices := make([]Device, total)
	for i := range devices {
		var handle uintptr
		if result := open(uint32(i), &handle); result != 0 {
			devices[i] = Device{Index: i, Err: n.failure(result), Compute: ModeUnknown, Minor: -1}
			continue
		}
		devices[i] = n.device(i, handle)
	}
	return devices
}

func (n *nvml) device(index int, handle uintptr) Device {
	d := Device{Index: index, Compute: ModeUnknown, Minor: -1}
	var name func(uintptr, *byte, uint32) int32
	var buffer [96]byte
	if !n.bind("nvmlDeviceGetName", &name) {
		d.Err = errors.New("NVML has no nvmlDeviceGetName")
		return d
	}
	if result := name(handle, &buffer[0], uint32(len(buffer))); result != 0 {
		d.Err = n.failure(result)
		return d
	}
	d.Name = cString(buffer[:])
	d.UUID, _ = gpu.ParseUUID(n.deviceText("nvmlDeviceGetUUID", handle)) // the driver finds none of another one
	value := func(symbol string) (int32, bool) {
		var get func(uintptr, *int32) int32
		var v int32
		if !n.bind(symbol, &get) || get(handle, &v) != 0 {
			return 0, false
		}
		return v, true
	}
	if v, known := value("nvmlDeviceGetMinorNumber"); known {
		d.Minor = int(v)
	}
	if v, known := value("nvmlDeviceGetComputeMode"); known {
		d.Compute = Mode(v)
	}
	if v, known := value("nvmlDeviceGetPersistenceMode"); known {
		d.Persistence = position(v)
	}
	var mig func(uintptr, *uint32, *uint32) int32
	var now, next uint32
	if n.bind("nvmlDeviceGetMigMode", &mig) && mig(handle, &now, &next) == 0 {
		d.MIG, d.MIGAfterReset = position(int32(now)), position(int32(next))
	}
	d.Switches = lookSwitches(d)
	return d
}

// deviceText calls one of the functions that fill a buffer for a device, and is empty where that fails.
func (n *nvml) deviceText(symbol string, handle uintptr) string {
	var get func(uintptr, *byte, uint32) int32
	var buffer [96]byte
	if !n.bind(symbol, &get) || get(handle, &buffer[0], uint32(len(buffer))) != 0 {
		return ""
	}
	return cString(buffer[:])
}

// lookSwitches tries to read the log of a device that NVML has started.
func lookSwitches(d Device) Switches {
	device := gpu.Device{UUID: d.UUID, Index: d.Index, Name: d.Name, Partitioned: d.MIG == On}
	if d.Minor >= 0 {
		device.Node = fmt.Sprintf("195:%d", d.Minor)
	}
	t, err := ctxswitch.Open(device)
	if err != nil {
		return Switches{Err: err}
	}
	own := !t.AllUsers()
	_, err = t.Turns(nil)
	return Switches{Err: errors.Join(err, t.Close()), OwnUser: own}
}

func position(v int32) Switch {
	if v == 0 {
		return Off
	}
	return On
}

func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// describe adds what devices are like.
func describe(devices []Device) {
	inventory, err := nvidia.Open()
	if err != nil {
		return // which the check of the driver tells
	}
	defer inventory.Close()
	if _, err := inventory.Devices(); err != nil {
		return // so does the check of the device
	}
	for i := range devices {
		if about, err := inventory.Describe(devices[i].UUID); err == nil {
			devices[i].About = &about
		}
	}
}
