package test

import (
	"context"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lgpu/lgpu/kube/driver"
	"github.com/lgpu/lgpu/kube/kubetest"
	"github.com/lgpu/lgpu/kube/slice"
)

// heard is a driver that passes on what goes wrong in the background.
type heard struct {
	*driver.Driver
	said chan string
}

func (h heard) HandleError(ctx context.Context, err error, msg string) {
	h.Driver.HandleError(ctx, err, msg)
	select {
	case h.said <- err.Error():
	default: // nobody waits for more
	}
}

// A slice that the API server refuses ends nothing: the driver says why, and publishes it once it is taken.
func TestSliceRefused(t *testing.T) {
	c := plane(t)
	const name, reason = "unwanted", "no devices of this node today"
	c.addNode(t, name)
	remove := c.refuseSlices(t, name, reason)
	dir := kubetest.Folder(t)
	_, daemon := kubetest.Daemon(t, dir)
	d := driver.New(daemon, c, driver.Options{Node: name, Sim: shape}, func(err error) { t.Errorf("the driver ends: %v", err) })
	if err := d.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := heard{d, make(chan string, 1)}
	_, helper := kubetest.Kubelet(t, h, c, name, dir)
	go func() {
		if err := d.Publish(t.Context(), helper.PublishResources); t.Context().Err() == nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case said := <-h.said:
		if !strings.Contains(said, reason) {
			t.Errorf("the driver says %q", said)
		}
	case <-ctx.Done():
		t.Fatal("the driver says nothing of a slice that was refused")
	}
	remove()
	c.awaitSlices(t, name, "two devices", func(d []resourceapi.Device) bool { return len(d) == 2 })
}

// refuseSlices has the API server refuse the slices of a node, until remove is called. It returns once that is so.
func (c *cluster) refuseSlices(t *testing.T, node, reason string) (remove func()) {
	t.Helper()
	api := c.AdmissionregistrationV1()
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule: admissionv1.Rule{APIGroups: []string{"resource.k8s.io"}, APIVersions: []string{"*"},
						Resources: []string{"resourceslices"}}}}}},
			Validations: []admissionv1.Validation{{Expression: `object.spec.?nodeName.orValue("") != "` + node + `"`, Message: reason}}}}
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: node,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	remove = func() {
		api.ValidatingAdmissionPolicyBindings().Delete(context.Background(), node, now())
		api.ValidatingAdmissionPolicies().Delete(context.Background(), node, now())
	}
	t.Cleanup(remove)
	try := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "try-"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: slice.Driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1}}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for { // no event says that a policy is in force
		_, err := c.ResourceV1().ResourceSlices().Create(ctx, try, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil && strings.Contains(err.Error(), reason) {
			return remove
		}
		if ctx.Err() != nil {
			t.Fatalf("the API server does not refuse the slice: %v", err)
		}
	}
}
