package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lgpu/lgpu/daemon/cdi"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/fence"
	"github.com/lgpu/lgpu/policy/limits"
	"github.com/lgpu/lgpu/sim/wire"
)

// Containers says how lgpus are offered to container runtimes.
type Containers struct {
	// Specs is where the specifications are; without its Dir none is written, and no lgpu has a socket for containers.
	Specs cdi.Folder
	// Hook is the command that a runtime runs before a container starts, and its arguments.
	Hook []string
	// Interposer and Sim are the interposer, and the folder with the driver's libraries of a software GPU.
	Interposer, Sim string
	// Libraries is the folder for the interposer's copies that containers have. It is created.
	Libraries string
}

// containers offers each named lgpu to container runtimes: a specification, and a socket by which the container's programs
// come. The specifications are those of the lgpus that there are, whenever nothing has changed for a moment.
type containers struct {
	Containers
	daemon  *Daemon
	changed chan struct{} // holds a token when lgpus or devices may have changed
	count   atomic.Int64  // of offered

	mu      sync.Mutex            // guards the fields below
	doors   map[uint64]bool       // the lgpus that have a socket
	offered map[uint64]cdi.Device // as written
	refused map[uint64]string     // why an lgpu is not offered, where that has been said
	failed  bool                  // the last sync could not write a specification
}

func newContainers(n *Daemon) *containers {
	return &containers{Containers: n.config.Containers, daemon: n, changed: make(chan struct{}, 1),
		doors: map[uint64]bool{}, offered: map[uint64]cdi.Device{}, refused: map[uint64]string{}}
}

// notice has the offers looked at. It does not wait, and may be called with any lock held.
func (c *containers) notice() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// retry is when a specification that could not be written is tried again: the disk may have been full, and nothing tells when it
// is not.
const retry = 2 * time.Second

// keep keeps the offers true until ctx ends.
func (c *containers) keep(ctx context.Context) {
	timer := time.NewTimer(retry) // for what begin could not write
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-timer.C:
			if !c.unwritten() {
				continue
			}
		}
		c.sync()
		if c.unwritten() {
			timer.Reset(retry)
		}
	}
}

// unwritten reports whether the last sync could not write a specification.
func (c *containers) unwritten() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// begin offers what there is, and withdraws what a daemon before had offered beyond it.
func (c *containers) begin() {
	if c.Specs.Dir == "" {
		return
	}
	c.sync()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Specs.Keep(slices.Collect(maps.Keys(c.offered))); err != nil {
		c.daemon.log.Warn("specifications of forgotten lgpus stay", "error", err)
	}
}

// sync makes the offers those of the lgpus that there are. Called without a lock of the daemon's.
func (c *containers) sync() {
	if c.Specs.Dir == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.daemon.lgpus.life.Lock() // one that is being created has what it is to have
	all := c.daemon.tree.Directories()
	c.daemon.lgpus.life.Unlock()
	c.failed = false
	offered, exist, kits := map[uint64]cdi.Device{}, map[uint64]bool{}, map[string]*kit{}
	for _, dir := range all {
		exist[dir.ID] = true
		if dir.Path == limits.Root || dir.Temporary || len(dir.Children) > 0 {
			continue
		}
		d, err := c.describe(dir, kits)
		if old, known := c.offered[dir.ID]; err == nil && (!known || !reflect.DeepEqual(old, d)) {
			err = c.Specs.Write(dir.ID, d)
			c.failed = c.failed || err != nil
		}
		if err == nil {
			offered[dir.ID] = d
		}
		c.say(dir, err)
	}
	for id := range c.offered {
		if _, stays := offered[id]; stays {
			continue
		}
		if err := c.Specs.Remove(id); err != nil {
			c.daemon.log.Warn("an lgpu that is gone is still offered to containers", "id", id, "error", err)
		}
	}
	// The door of an lgpu that cannot be offered stays: there may be containers that have it.
	for id := range c.doors {
		if exist[id] {
			continue
		}
		if err := c.daemon.tenants.CloseDoor(id); err != nil {
			c.daemon.log.Warn("the folder of an lgpu that is gone stays", "id", id, "error", err)
		}
		delete(c.doors, id)
		delete(c.refused, id)
	}
	c.offered = offered
	if before := c.count.Swap(int64(len(offered))); before > 0 && len(offered) == 0 {
		c.daemon.presence.used() // it was needed until now
	}
}

// say logs once why an lgpu is not offered. Called with mu held.
func (c *containers) say(dir limits.Directory, err error) {
	if err == nil {
		delete(c.refused, dir.ID)
		return
	}
	if c.refused[dir.ID] != err.Error() {
		c.daemon.log.Warn("containers cannot have an lgpu", "path", dir.Path, "error", err)
		c.refused[dir.ID] = err.Error()
	}
}

// describe makes the specification of an lgpu, which has its socket then. kits are those of this look.
func (c *containers) describe(dir limits.Directory, kits map[string]*kit) (cdi.Device, error) {
	name, err := cdi.Name(dir.Path)
	if err != nil {
		return cdi.Device{}, err
	}
	folder, err := c.daemon.tenants.OpenDoor(dir.ID)
	if err != nil {
		return cdi.Device{}, err
	}
	c.doors[dir.ID] = true
	devices, shape, err := c.devices(dir.ID, dir.Path)
	if err != nil {
		return cdi.Device{}, err
	}
	k := kits[shape]
	if k == nil {
		k = c.outfit(devices[0])
		kits[shape] = k
	}
	if k.err != nil {
		return cdi.Device{}, k.err
	}
	edits := cdi.Edits{
		Mounts: append([]cdi.Mount{cdi.ReadOnly(folder, contain.SocketDir)}, k.mounts...),
		Hooks:  []cdi.Hook{{Name: cdi.CreateContainer, Path: c.Hook[0], Args: c.Hook}},
	}
	if shape == "" {
		if edits.Nodes, err = nodesOf(devices); err != nil {
			return cdi.Device{}, err
		}
	}
	return cdi.Device{Name: name, Edits: edits}, nil
}

// kit is what all lgpus on the machine's devices, or on a software GPU, need of the machine's files.
type kit struct {
	mounts []cdi.Mount
	err    error
}

// outfit finds the kit of a device.
func (c *containers) outfit(d *device) *kit {
	k := &kit{mounts: []cdi.Mount{{Host: "tmpfs", Container: contain.CacheDir, Type: "tmpfs",
		Options: []string{"nosuid", "nodev", "mode=755", "size=64m"}}}}
	driver, stamp := map[string]string{}, map[string]string{}
	if d.origin.shape != "" {
		socket := d.origin.socket.Load()
		if socket == nil {
			return &kit{err: errors.New("its software GPU does not run")}
		}
		stamp[wire.Environment] = contain.SimSocket
		k.mounts = append(k.mounts, cdi.ReadOnly(*socket, contain.SimSocket))
		for _, soname := range contain.Sonames() {
			driver[soname] = filepath.Join(c.Sim, soname)
		}
	} else {
		if driver, k.err = contain.Driver(c.Interposer); k.err != nil {
			return k
		}
		if _, err := os.Stat(tool); err == nil {
			k.mounts = append(k.mounts, cdi.ReadOnly(tool, tool))
		}
	}
	for _, soname := range slices.Sorted(maps.Keys(driver)) {
		k.mounts = append(k.mounts, cdi.ReadOnly(driver[soname], filepath.Join(contain.DriverDir, soname)))
	}
	library, err := contain.Library(c.Interposer, c.Libraries, stamp)
	k.mounts, k.err = append(k.mounts, cdi.ReadOnly(library, contain.LibraryDir)), err
	return k
}

// tool is the driver's, which people look for in a container.
const tool = "/usr/bin/nvidia-smi"

// devices are those that an lgpu has or will have, and its software GPU's shape.
func (c *containers) devices(id uint64, path string) (devices []*device, shape string, err error) {
	record, _ := c.daemon.lgpus.record(id)
	shape = record.Sim
	for _, d := range c.daemon.inventory.present() {
		if d.origin.shape != shape || d.Partitioned || len(record.Devices) > 0 && !slices.Contains(record.Devices, d.UUID) {
			continue
		}
		devices = append(devices, d)
	}
	if len(devices) == 0 {
		return nil, "", fmt.Errorf("its devices are not there: %w", ErrNoDevice)
	}
	all := make([]gpu.Device, len(devices))
	for i, d := range devices {
		all[i] = d.Device
	}
	if gpu.Together(all) != nil {
		return nil, "", oneInstance(path)
	}
	return devices, shape, nil
}

// oneInstance is for who wants to use an lgpu that was given no device and could have several, among them a MIG instance.
func oneInstance(path string) error {
	return fmt.Errorf("%w; give the lgpu one of its devices: lgpu run --group %s --name %s --device DEVICE -- true", gpu.ErrInstances,
		filepath.Dir(path), nameOf(path))
}

// common are the driver's device files that every CUDA program needs.
var common = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}

// nodesOf are the device files that a container needs to use some devices and no others.
func nodesOf(devices []*device) ([]cdi.Node, error) {
	var nodes []cdi.Node
	for _, path := range common {
		if _, err := os.Stat(path); err == nil {
			nodes = append(nodes, cdi.Node{Path: path})
		}
	}
	for _, d := range devices {
		paths, err := deviceFiles(d.Device)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			nodes = append(nodes, cdi.Node{Path: path})
		}
	}
	return nodes, nil
}

// deviceFiles are the device files of a device, beside common: of a MIG instance its GPU's, and those that give access to it.
func deviceFiles(d gpu.Device) ([]string, error) {
	if !d.MIG() {
		path, err := deviceFile(d)
		return []string{path}, err
	}
	if d.GPUInstance < 0 || d.ComputeInstance < 0 {
		return nil, fmt.Errorf("device %s: the driver does not say which MIG instance it is, and so which files are its", d.Short())
	}
	paths, err := fence.Own(fence.Owned{GPU: d.Parent.String(),
		Instance: &fence.Instance{GPU: uint32(d.GPUInstance), Compute: uint32(d.ComputeInstance)}})
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", d.Short(), err)
	}
	return paths, nil
}

// deviceFile is the device file of a GPU.
func deviceFile(d gpu.Device) (string, error) {
	_, minor, found := strings.Cut(d.Node, ":")
	path := "/dev/nvidia" + minor
	if !found {
		return "", fmt.Errorf("device %s has no device file", d.Short())
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("device %s: %w", d.Short(), err)
	}
	return path, nil
}
