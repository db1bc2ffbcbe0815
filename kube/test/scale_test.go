package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/slice"
)

// envScale is NODESxPODS of TestScale, such as 1000x5000.
const envScale = "LGPU_TEST_KUBE_SCALE"

// A node of the test has so many devices, of so much memory and compute units.
const (
	devicesPerNode = 8
	deviceMemory   = 128 << 30
	deviceUnits    = 128
)

// parts are the parts of a device that pods ask for in turn: a half, a quarter, an eighth. small is what fills the default
// number of nodes to the last unit, so that the pods beyond are refused.
var (
	parts = []int64{2, 4, 8}
	small = []int64{4}
)

// inventory are the devices of a node, as the driver publishes them of a daemon's snapshot.
func inventory(node int) []resourceapi.Device {
	s := &api.Snapshot{Directories: []*api.Directory{{Path: "/"}}}
	for i := range devicesPerNode {
		s.Devices = append(s.Devices, &api.Device{Uuid: fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", node, i), Index: int32(i),
			Name: "NVIDIA H200", MemoryTotal: deviceMemory, Units: deviceUnits, Mode: api.Device_TEMPORAL})
	}
	var all []resourceapi.Device
	for _, d := range slice.Devices(s, "") {
		all = append(all, d.Resource())
	}
	return all
}

// many calls do for each of n numbers, by several goroutines, and returns an error of one.
func many(n int, do func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// furnish makes nodes with devices, which go with the test, and waits until their kubelets say that they are ready.
func (c *cluster) furnish(t *testing.T, nodes int) {
	t.Helper()
	c.kubelets(t)
	t.Cleanup(func() {
		ctx := context.Background()
		c.ResourceV1().ResourceSlices().DeleteCollection(ctx, now(), metav1.ListOptions{})
		c.CoreV1().Nodes().DeleteCollection(ctx, now(), metav1.ListOptions{})
	})
	begun := time.Now()
	err := many(nodes, func(i int) error {
		name := fmt.Sprintf("scale-%d", i)
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: slice.Driver, NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
			Devices: inventory(i)}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, played: "true"}}}
		_, err := c.ResourceV1().ResourceSlices().Create(t.Context(), s, metav1.CreateOptions{})
		_, other := c.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		return errors.Join(err, other)
	})
	if err != nil {
		t.Fatal(err)
	}
	c.awaitReady(t, nodes)
	t.Logf("%d nodes are ready after %.1f s", nodes, time.Since(begun).Seconds())
}

func nameOf(part int64) string { return "part-" + strconv.FormatInt(part, 10) }

func partOf(n int64) *resourceapi.ExactDeviceRequest {
	return part(strconv.FormatInt(deviceMemory/n, 10), strconv.FormatInt(deviceUnits/n, 10))
}

// The stock scheduler gives many pods their parts of many devices, and no device more than it has: a program that knows nothing
// of lgpu or Kubernetes' libraries adds up what was allocated. kwok plays the kubelets, so that the pods run. How long it takes
// is said, and is no condition.
func TestScale(t *testing.T) {
	c := plane(t)
	nodes, pods, kinds := 10, 10*devicesPerNode*4+5, small
	if said := os.Getenv(envScale); said != "" {
		if _, err := fmt.Sscanf(said, "%dx%d", &nodes, &pods); err != nil {
			t.Fatalf("%s=%q: %v", envScale, said, err)
		}
		kinds = parts
	}
	fit := pods
	if len(kinds) == 1 {
		fit = nodes * devicesPerNode * int(kinds[0])
	}
	ns := c.addNamespace(t)
	c.addClass(t, "")
	c.furnish(t, nodes)
	for _, p := range kinds {
		c.template(t, ns, nameOf(p), partOf(p))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*patience)
	defer cancel()
	changes := c.podsOf(ctx, t, ns)
	begun := time.Now()
	created := make(chan error, 1)
	go func() { created <- many(pods, func(i int) error { return c.addPart(ctx, ns, i, kinds) }) }()
	bound, runs, refused := map[string]bool{}, map[string]bool{}, map[string]bool{}
	var scheduled time.Duration
	for len(runs) < fit || len(runs)+len(refused) < pods {
		var p *corev1.Pod
		select {
		case p = <-changes:
		case err := <-created:
			if err != nil {
				t.Fatal(err)
			}
			created = nil
			continue
		case <-ctx.Done():
			t.Fatalf("of %d pods %d are bound, %d run and %d are refused", pods, len(bound), len(runs), len(refused))
		}
		switch {
		case p.Spec.NodeName == "" && unschedulable(p):
			refused[p.Name] = true
		case p.Spec.NodeName != "" && !bound[p.Name]:
			bound[p.Name], scheduled = true, time.Since(begun)
			delete(refused, p.Name)
		}
		if p.Status.Phase == corev1.PodRunning {
			runs[p.Name] = true
		}
	}
	t.Logf("%d nodes x %d devices: %d pods are bound after %.1f s, %.0f a second, and run after %.1f s; %d are refused", nodes,
		devicesPerNode, len(bound), scheduled.Seconds(), float64(len(bound))/scheduled.Seconds(), time.Since(begun).Seconds(), len(refused))
	c.addUp(t, len(bound))
}

// podsOf returns a channel of the pods of a namespace, as they change.
func (c *cluster) podsOf(ctx context.Context, t *testing.T, namespace string) <-chan *corev1.Pod {
	t.Helper()
	changes := make(chan *corev1.Pod, 100)
	tell := func(object any) {
		select {
		case changes <- object.(*corev1.Pod):
		case <-ctx.Done():
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace(namespace))
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, object any) { tell(object) }})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	return changes
}

// addPart makes the pod of a number, with a claim of its own.
func (c *cluster) addPart(ctx context.Context, namespace string, i int, kinds []int64) error {
	p := podOfTemplate(fmt.Sprintf("pod-%d", i), nameOf(kinds[i%len(kinds)]))
	_, err := c.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// unschedulable reports whether the scheduler has refused a pod.
func unschedulable(p *corev1.Pod) bool {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
			return true
		}
	}
	return false
}

// addUp has another program add up what was allocated of each device.
func (c *cluster) addUp(t *testing.T, claims int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.json")
	text := tool(t.Context(), t, "kubectl", "--kubeconfig", c.kubeconfig, "get", "resourceslices,resourceclaims", "--all-namespaces", "-o", "json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "python3", "capacity.py", file).CombinedOutput()
	if err != nil {
		t.Fatalf("capacity.py: %v\n%s", err, out)
	}
	var sums struct{ Claims, Devices, Used int }
	if err := json.Unmarshal(out, &sums); err != nil || sums.Claims != claims {
		t.Errorf("%v: %d claims are allocated to %d bound pods: %s", err, sums.Claims, claims, out)
	}
	t.Logf("capacity.py: %s", out)
}
