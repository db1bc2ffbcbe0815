package test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/lgpu/lgpu/kube/slice"
)

// patience bounds what no test measures: how long another program may take on a busy machine.
const patience = 3 * time.Minute

// class is the name of the device class of all tests.
const class = "lgpu"

var background = metav1.DeletePropagationBackground

// now deletes without waiting for a kubelet that is not there.
func now() metav1.DeleteOptions {
	zero := int64(0)
	return metav1.DeleteOptions{GracePeriodSeconds: &zero, PropagationPolicy: &background}
}

// addNode makes a Node that is ready for pods, and goes with the test.
func (c *cluster) addNode(t testing.TB, name string) {
	t.Helper()
	if err := c.makeNode(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CoreV1().Nodes().Delete(context.Background(), name, now()) })
}

// makeNode makes a Node that is ready for pods.
func (c *cluster) makeNode(ctx context.Context, name string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	node, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100"),
		corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("500")}
	node.Status.Allocatable = node.Status.Capacity
	node.Status.NodeInfo.ContainerRuntimeVersion = "containerd://2.4.2"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test",
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	_, err = c.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// addNamespace makes a namespace that goes with the test, with all that is in it.
func (c *cluster) addNamespace(t testing.TB) string {
	t.Helper()
	name := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.awaitAccount(t, name)
	t.Cleanup(func() {
		c.CoreV1().Pods(name).DeleteCollection(context.Background(), now(), metav1.ListOptions{})
		c.CoreV1().Namespaces().Delete(context.Background(), name, now())
	})
	return name
}

// awaitAccount waits until pods can be made in a namespace: a controller has given it its service account.
func (c *cluster) awaitAccount(t testing.TB, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := c.CoreV1().ServiceAccounts(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if a, ok := e.Object.(*corev1.ServiceAccount); ok && a.Name == "default" {
			return
		}
	}
	t.Fatalf("namespace %s has no service account", namespace)
}

// addClass makes the device class, which goes with the test.
func (c *cluster) addClass(t testing.TB, extended string) {
	t.Helper()
	one := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "` + slice.Driver + `"`}}}}}
	if extended != "" {
		one.Spec.ExtendedResourceName = &extended
	}
	if _, err := c.ResourceV1().DeviceClasses().Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.ResourceV1().DeviceClasses().Delete(context.Background(), class, now()) })
}

// part is a request of so much of a device.
func part(memory, units string) *resourceapi.ExactDeviceRequest {
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	if memory != "" {
		requests[slice.Memory] = resource.MustParse(memory)
	}
	if units != "" {
		requests[slice.Units] = resource.MustParse(units)
	}
	return &resourceapi.ExactDeviceRequest{DeviceClassName: class, Capacity: &resourceapi.CapacityRequirements{Requests: requests}}
}

// addClaim makes a claim of some requests, with lgpu's configuration where text is not empty.
func (c *cluster) addClaim(t testing.TB, namespace, name, text string, requests ...resourceapi.DeviceRequest) {
	t.Helper()
	one := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	one.Spec.Devices.Requests = requests
	if text != "" {
		one.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: slice.Driver, Parameters: runtime.RawExtension{Raw: []byte(text)}}}}}
	}
	if _, err := c.ResourceV1().ResourceClaims(namespace).Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// exactly is a request by its name.
func exactly(name string, e *resourceapi.ExactDeviceRequest) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: e}
}

// podOf is a pod that has a claim, for a Node or, with an empty name, for any.
func podOf(name, node, claim string) *corev1.Pod {
	no := false
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{AutomountServiceAccountToken: &no,
		Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	if node != "" {
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	if claim != "" {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	return p
}

// template makes a template of claims for a part of a device.
func (c *cluster) template(t testing.TB, namespace, name string, e *resourceapi.ExactDeviceRequest) {
	t.Helper()
	one := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	one.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{exactly("gpu", e)}
	if _, err := c.ResourceV1().ResourceClaimTemplates(namespace).Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// podOfTemplate is a pod with a claim of its own, made of a template.
func podOfTemplate(name, template string) *corev1.Pod {
	p := podOf(name, "", "")
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	return p
}

func (c *cluster) addPod(t testing.TB, namespace string, p *corev1.Pod) {
	t.Helper()
	if _, err := c.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// endPod removes a pod as a kubelet does that has ended it.
func (c *cluster) endPod(t testing.TB, namespace, name string) {
	t.Helper()
	if err := c.CoreV1().Pods(namespace).Delete(t.Context(), name, now()); err != nil {
		t.Fatal(err)
	}
}

// awaitPod waits until a pod is as it should be, and returns it.
func (c *cluster) awaitPod(t testing.TB, namespace, name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	w, err := c.CoreV1().Pods(namespace).Watch(ctx, only)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last *corev1.Pod
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok {
			if last = p; is(p) {
				return p
			}
		}
	}
	t.Fatalf("pod %s is not %s: %+v", name, what, last.Status.Conditions)
	return nil
}

// bound waits until the scheduler has given a pod a node, and returns its claim as the kubelet names it and as it is.
func (c *cluster) bound(t testing.TB, namespace, name string) (*drapb.Claim, *resourceapi.ResourceClaim) {
	t.Helper()
	p := c.awaitPod(t, namespace, name, "bound", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
	claim := ""
	switch {
	case len(p.Spec.ResourceClaims) > 0:
		claim = *p.Spec.ResourceClaims[0].ResourceClaimName
	case p.Status.ExtendedResourceClaimStatus != nil:
		claim = p.Status.ExtendedResourceClaimStatus.ResourceClaimName
	default:
		t.Fatalf("pod %s has no claim", name)
	}
	r, err := c.ResourceV1().ResourceClaims(namespace).Get(t.Context(), claim, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &drapb.Claim{Namespace: namespace, Name: claim, Uid: string(r.UID)}, r
}

// refused waits until the scheduler has said that a pod does not fit, and returns its words.
func (c *cluster) refused(t testing.TB, namespace, name string) string {
	t.Helper()
	var said string
	c.awaitPod(t, namespace, name, "refused", func(p *corev1.Pod) bool {
		for _, condition := range p.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				said = condition.Message
				return true
			}
		}
		return false
	})
	return said
}

// awaitSlices waits until the slices of a node are as they should be.
func (c *cluster) awaitSlices(t testing.TB, node, what string, is func([]resourceapi.Device) bool) []resourceapi.Device {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := c.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	slices := map[string]*resourceapi.ResourceSlice{}
	for e := range w.ResultChan() {
		s, ok := e.Object.(*resourceapi.ResourceSlice)
		if !ok || s.Spec.NodeName == nil || *s.Spec.NodeName != node {
			continue
		}
		slices[s.Name] = s
		if e.Type == "DELETED" {
			delete(slices, s.Name)
		}
		var devices []resourceapi.Device
		for _, s := range slices {
			devices = append(devices, s.Spec.Devices...)
		}
		if is(devices) {
			return devices
		}
	}
	t.Fatalf("the slices of %s are not %s: %+v", node, what, slices)
	return nil
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }
