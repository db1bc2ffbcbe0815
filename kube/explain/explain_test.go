package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lgpu/lgpu/kube/slice"
)

type quantities = map[resourceapi.QualifiedName]resource.Quantity

func of(memory, units string) quantities {
	q := quantities{}
	for name, text := range map[resourceapi.QualifiedName]string{slice.Memory: memory, slice.Units: units} {
		if text != "" {
			q[name] = resource.MustParse(text)
		}
	}
	return q
}

// node is a slice of devices of 16Gi and 4 units; those named bad have a taint.
func node(name string, devices ...string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	s.Spec.Driver, s.Spec.Pool.Name = slice.Driver, name
	for _, d := range devices {
		one := resourceapi.Device{Name: d, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}}
		for n, q := range of("16Gi", "4") {
			one.Capacity[n] = resourceapi.DeviceCapacity{Value: q}
		}
		if d == "bad" {
			one.Taints = []resourceapi.DeviceTaint{{Key: slice.TaintFault}}
		}
		s.Spec.Devices = append(s.Spec.Devices, one)
	}
	return s
}

// given is a claim that was allocated so much of a device of n0.
func given(device, memory, units string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Driver: slice.Driver, Pool: "n0", Device: device, ConsumedCapacity: of(memory, units)}}}}
	return c
}

func wanted(requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "u"}}
	c.Spec.Devices.Requests = requests
	return c
}

func exactly(class, memory, units string, count int64) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: count,
		Capacity: &resourceapi.CapacityRequirements{Requests: of(memory, units)}}}
}

func either(memories ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: "gpu"}
	for _, m := range memories {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: "m" + m, DeviceClassName: "lgpu",
			Capacity: &resourceapi.CapacityRequirements{Requests: of(m, "1")}})
	}
	return r
}

// a has 6Gi and 1 unit left, b 2Gi and 4, and bad is not given.
func TestReason(t *testing.T) {
	devices := Devices([]*resourceapi.ResourceSlice{node("n0", "a", "b", "bad")},
		[]*resourceapi.ResourceClaim{given("a", "8Gi", "2"), given("a", "2Gi", "1"), given("b", "14Gi", "0"), given("gone", "1Gi", "1"), {}})
	for want, c := range map[string]*resourceapi.ResourceClaim{
		"request gpu: memory: 7Gi is free on 0 of 3 devices, at most 6Gi on one; 1 do not work": wanted(exactly("lgpu", "7Gi", "1", 1)),
		"request gpu: units: 5 is free on 0 of 3 devices, at most 4 on one; 1 do not work":      wanted(exactly("lgpu", "1Gi", "5", 1)),
		"request gpu: memory: 3Gi is free on 1 of 3 devices, at most 6Gi on one; units: 2 is free on 1 of 3 devices, at most 4 on one; " +
			"both on 0; 1 do not work": wanted(exactly("lgpu", "3Gi", "2", 1)),
		"request gpu: memory: all is free on 0 of 3 devices, at most 6Gi on one; 1 do not work": wanted(exactly("lgpu", "", "1", 0)),
		"request gpu: 3 devices are wanted; memory: 1Gi is free on 2 of 3 devices, at most 6Gi on one; " +
			"units: 1 is free on 2 of 3 devices, at most 4 on one; 1 do not work": wanted(exactly("lgpu", "1Gi", "1", 3)),
		"request gpu/m9Gi: memory: 9Gi is free on 0 of 3 devices, at most 6Gi on one; 1 do not work; " +
			"request gpu/m7Gi: memory: 7Gi is free on 0 of 3 devices, at most 6Gi on one; 1 do not work": wanted(either("9Gi", "7Gi")),
	} {
		if got := Reason(c, devices, map[string]bool{"lgpu": true}); got != want {
			t.Errorf("%s\nnot %s", got, want)
		}
	}
	for what, c := range map[string]*resourceapi.ResourceClaim{"what fits": wanted(exactly("lgpu", "6Gi", "1", 1)),
		"an alternative that fits": wanted(either("9Gi", "2Gi")), "another driver's": wanted(exactly("other", "9Gi", "1", 1))} {
		if got := Reason(c, devices, map[string]bool{"lgpu": true}); got != "" {
			t.Errorf("%s is explained: %s", what, got)
		}
	}
	if got := Reason(wanted(exactly("lgpu", "1Gi", "1", 1)), nil, map[string]bool{"lgpu": true}); got != "request gpu: no device is offered" {
		t.Errorf("without devices: %s", got)
	}
}

// A claim that waits has an event once, as has the pod that it was made for; one that fits, or has just come, has none.
func TestWatcher(t *testing.T) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "lgpu"}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "lgpu.io"`}}}
	waits := wanted(exactly("lgpu", "17Gi", "1", 1))
	waits.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	waits.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: types.UID("pu")}}
	fits := wanted(exactly("lgpu", "1Gi", "1", 1))
	fits.Name, fits.UID, fits.CreationTimestamp = "fits", "f", waits.CreationTimestamp
	fresh := wanted(exactly("lgpu", "17Gi", "1", 1))
	fresh.Name, fresh.UID, fresh.CreationTimestamp = "fresh", "n", metav1.NewTime(time.Now().Add(time.Hour))
	kube := fake.NewClientset(class, node("n0", "a"), waits, fits, fresh)
	events, err := kube.CoreV1().Events("team").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	go New(kube, 10*time.Millisecond).Run(t.Context())
	got := map[string]string{}
	for len(got) < 2 {
		e, ok := (<-events.ResultChan()).Object.(*corev1.Event)
		if !ok {
			t.Fatal("the events have ended")
		}
		got[e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name] = e.Message
	}
	if !strings.Contains(got["ResourceClaim/c"], "memory: 17Gi is free on 0 of 1 devices, at most 16Gi") || !strings.Contains(got["Pod/p"], "claim c: ") {
		t.Errorf("events %v", got)
	}
	if old := waiting([]*resourceapi.ResourceClaim{fresh, waits, given("a", "1Gi", "1")}, time.Now()); len(old) != 1 || old[0] != waits {
		t.Errorf("claims that wait: %v", old)
	}
}
