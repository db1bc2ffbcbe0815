// Package driver is the DRA driver of a node: it offers the daemon's devices to the scheduler, and makes one lgpu for each
// claim that the kubelet prepares. It keeps no state: what is prepared is the daemon's tree, which is on disk before a call
// returns and has the claim's UID as the name.
package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"sync"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/claim"
	"github.com/lgpu/lgpu/kube/cri"
	"github.com/lgpu/lgpu/kube/slice"
)

// Options say what a driver is for.
type Options struct {
	// Node is the name of the Node.
	Node string
	// Sim is the shape of the software GPU that it offers; empty for the machine's own devices.
	Sim string
	// TrustRuntime takes it that the Node's container runtime reads CDI. Without it the runtime's version says so.
	TrustRuntime bool
}

// Driver prepares the claims of a node.
type Driver struct {
	Options
	daemon *api.Conn
	kube   kubernetes.Interface
	fatal  func(error)

	// mu is held from looking for room until it is taken.
	mu sync.Mutex
}

var _ kubeletplugin.DRAPlugin = (*Driver)(nil)

// New returns a driver. fatal is called once publishing cannot go on.
func New(daemon *api.Conn, kube kubernetes.Interface, o Options, fatal func(error)) *Driver {
	return &Driver{Options: o, daemon: daemon, kube: kube, fatal: fatal}
}

// Begin makes the group of the claims' lgpus, and with it a software GPU that is to be offered.
func (d *Driver) Begin(ctx context.Context) error {
	_, err := d.daemon.Create(ctx, &api.CreateRequest{Path: claim.Group, Sim: d.Sim})
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the group of claims: %w", err)
	}
	return nil
}

// Publish publishes the devices, and again whenever what the scheduler sees of them changes, until ctx or the daemon ends.
func (d *Driver) Publish(ctx context.Context, publish func(context.Context, resourceslice.DriverResources) error) error {
	watch, err := d.daemon.Watch(ctx, &api.WatchRequest{})
	if err != nil {
		return fmt.Errorf("watch the devices: %w", err)
	}
	var before resourceslice.DriverResources
	var refused map[string]string
	for {
		s, err := watch.Recv()
		if err != nil {
			return fmt.Errorf("watch the devices: %w", err)
		}
		if all := slice.Refused(s, d.Sim); !maps.Equal(all, refused) {
			for uuid, why := range all {
				klog.FromContext(ctx).Info("a device is not offered", "uuid", uuid, "reason", why)
			}
			refused = all
		}
		now := d.resources(s)
		if reflect.DeepEqual(now, before) {
			continue
		}
		if err := publish(ctx, now); err != nil {
			return fmt.Errorf("publish the devices: %w", err)
		}
		before = now
	}
}

// resources are the node's pool, in slices of the sizes that the API takes: devices first, of which there may be none, and then
// counters.
func (d *Driver) resources(s *api.Snapshot) resourceslice.DriverResources {
	devices := slice.Devices(s, d.Sim)
	all := []resourceslice.Slice{{}}
	for chunk := range slices.Chunk(devices, slice.PerSlice) {
		if len(all[len(all)-1].Devices) > 0 {
			all = append(all, resourceslice.Slice{})
		}
		last := &all[len(all)-1]
		for _, device := range chunk {
			last.Devices = append(last.Devices, rooted(device.Resource(), device.PCI()))
		}
	}
	for chunk := range slices.Chunk(slice.Counters(devices), slice.CountersPerSlice) {
		all = append(all, resourceslice.Slice{SharedCounters: chunk})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.Node: {Slices: all}}}
}

// rooted is a device with the attribute that says which root of PCI Express it is below, by which a claim can have a network card
// beside it. The node's kernel knows that of what has an address on the bus, and a software GPU has none.
func rooted(d resourceapi.Device, pci string, of ...deviceattribute.MachineModifier) resourceapi.Device {
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(pci, of...); err == nil {
		d.Attributes[root.Name] = root.Value
	}
	return d
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	unread := d.reads(ctx)
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var devices []kubeletplugin.Device
		err := unread
		if err == nil {
			devices, err = d.prepare(ctx, c)
		}
		if err != nil {
			err = fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
		}
		results[c.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

// reads returns why the Node's container runtime would not give containers what is prepared. It may be replaced at any time.
func (d *Driver) reads(ctx context.Context) error {
	if d.TrustRuntime {
		return nil
	}
	node, err := d.kube.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("ask which container runtime the Node has: %w", err)
	}
	return cri.Reads(node.Status.NodeInfo.ContainerRuntimeVersion)
}

// prepare makes the lgpu of a claim, or makes sure that it is as it was allocated.
func (d *Driver) prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.daemon.Snapshot(ctx, &api.SnapshotRequest{})
	if err != nil {
		return nil, err
	}
	l, err := claim.Of(c, d.Node, slice.Devices(s, d.Sim))
	if err != nil {
		return nil, err
	}
	if err := l.Room(s); err != nil {
		return nil, err
	}
	request := &api.CreateRequest{Path: l.Path, Sim: d.Sim, Files: l.Files()}
	var devices []kubeletplugin.Device
	for _, share := range l.Shares {
		request.Devices = append(request.Devices, share.UUID)
		devices = append(devices, kubeletplugin.Device{Requests: []string{share.Result.Request}, PoolName: share.Result.Pool,
			DeviceName: share.Result.Device, ShareID: share.Result.ShareID, CDIDeviceIDs: []string{claim.CDI(string(c.UID))}})
	}
	switch _, err := d.daemon.Create(ctx, request); {
	case errors.Is(err, fs.ErrExist):
		// Prepared before. Its devices stay as they are, and its limits are what the allocation says.
		if _, err := d.daemon.Write(ctx, &api.WriteRequest{Path: l.Path, Files: request.Files}); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	if err := d.tell(ctx, c, l); err != nil {
		klog.FromContext(ctx).Error(err, "the claim does not say what it was given", "claim", klog.KObj(c))
	}
	return devices, nil
}

// given is what a claim's status says of a device.
type given struct {
	Lgpu   string `json:"lgpu"`   // path in the node's tree
	UUID   string `json:"uuid"`   // of the device
	Memory uint64 `json:"memory"` // bytes
	Units  uint64 `json:"units"`
}

// tell writes into the claim's status what it was given. Devices of other drivers stay as they are.
func (d *Driver) tell(ctx context.Context, c *resourceapi.ResourceClaim, l claim.Lgpu) error {
	c = c.DeepCopy()
	var all []resourceapi.AllocatedDeviceStatus
	for _, other := range c.Status.Devices {
		if other.Driver != slice.Driver {
			all = append(all, other)
		}
	}
	for _, share := range l.Shares {
		data, err := json.Marshal(given{l.Path, share.UUID, share.Memory, share.Units})
		if err != nil {
			return err
		}
		own := resourceapi.AllocatedDeviceStatus{Driver: slice.Driver, Pool: share.Result.Pool, Device: share.Result.Device,
			Data: &runtime.RawExtension{Raw: data}, Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue,
				Reason: "Prepared", LastTransitionTime: metav1.Now()}}}
		if share.Result.ShareID != nil {
			id := string(*share.Result.ShareID)
			own.ShareID = &id
		}
		all = append(all, own)
	}
	c.Status.Devices = all
	_, err := d.kube.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
	return err
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, c := range claims {
		results[c.UID] = d.unprepare(ctx, string(c.UID))
	}
	return results, nil
}

// unprepare removes the lgpu of a claim. While processes still leave it, it is busy: the kubelet tries again.
func (d *Driver) unprepare(ctx context.Context, uid string) error {
	path, err := claim.Path(uid)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err = d.daemon.Remove(ctx, &api.RemoveRequest{Path: path})
	if errors.Is(err, syscall.EBUSY) {
		// The pod's containers have ended: what is left was forgotten.
		kill := []*api.File{{Name: "procs.kill", Data: []byte("1\n")}}
		if _, killed := d.daemon.Write(ctx, &api.WriteRequest{Path: path, Files: kill}); killed != nil {
			err = errors.Join(err, killed)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *Driver) HandleError(ctx context.Context, err error, msg string) {
	utilruntime.HandleErrorWithContext(ctx, err, msg)
	var dropped *resourceslice.DroppedFieldsError
	if errors.As(err, &dropped) {
		err = fmt.Errorf("the cluster does not share devices, and every claim would take a whole one: "+
			"switch the feature gate DRAConsumableCapacity on: %w", err)
	}
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fatal(fmt.Errorf("%s: %w", msg, err))
	}
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin. The health of devices is told by taints.
func (d *Driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
