package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/explain"
	"github.com/lgpu/lgpu/kube/kubetest"
	"github.com/lgpu/lgpu/kube/slice"
)

const (
	chart     = "../deploy/chart"
	manifests = "../deploy/lgpu.yaml"
	system    = "lgpu-system" // the namespace of the manifests
)

// rendered is what the chart makes of some values.
func rendered(t *testing.T, values ...string) string {
	t.Helper()
	args := []string{"template", "lgpu", chart, "--namespace", system, "--set", "namespace.create=true"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return tool(t.Context(), t, "helm", args...)
}

// The manifests are the chart's, with its own values.
func TestManifestsAreTheChart(t *testing.T) {
	plane(t)
	data, err := os.ReadFile(manifests)
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "\n")
	if text != rendered(t) {
		t.Errorf("%s is stale; run: make kube-manifests", manifests)
	}
}

// The chart takes its values to where they belong, refuses those that it does not have, and the API server takes what it makes.
func TestChart(t *testing.T) {
	c := plane(t)
	tool(t.Context(), t, "helm", "lint", "--strict", chart)
	text := rendered(t, "image.repository=example.test/lgpu-kube", "image.tag=v7", "sim=2x16GiB\\,sms=4", "kubeletDir=/k",
		"daemon.args={--police=stop}", "daemon.bin=/opt/lgpu", "deviceClass.name=shared", "deviceClass.extendedResourceName=",
		"driver.metrics=:9466", "nodeSelector.gpu=yes", "imagePullSecrets[0].name=secret")
	for _, want := range []string{"image: example.test/lgpu-kube:v7\n", "- --sim=2x16GiB,sms=4\n", "--kubelet-dir=/k\n", "path: /k/plugins,",
		`- "--police=stop"`, "- --bin=/opt/lgpu\n", "- --metrics=:9466\n", "name: shared\n", `gpu: "yes"`, "name: secret\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the chart has lost %q", want)
		}
	}
	if strings.Contains(text, "extendedResourceName") {
		t.Error("the chart has an extended resource that nobody has asked for")
	}
	file := filepath.Join(t.TempDir(), "chart.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.install(t, manifests) // a dry run does not make the namespace that the rest is in
	tool(t.Context(), t, "kubectl", "--kubeconfig", c.kubeconfig, "apply", "--dry-run=server", "--validate=strict", "-f", file)
	bad := exec.Command("../../build/kube/helm", "template", chart, "--set", "daemon.arg=x")
	if out, err := bad.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("arg")) {
		t.Errorf("a value that there is not: %v, %s", err, out)
	}
}

// install applies manifests, which go with the test.
func (c *cluster) install(t *testing.T, file string) {
	t.Helper()
	tool(t.Context(), t, "kubectl", "--kubeconfig", c.kubeconfig, "apply", "--validate=strict", "-f", file)
	t.Cleanup(func() { c.uninstall(t, file) })
}

// uninstall removes manifests, and waits until their namespace is gone. Pods that are on a Node wait for a kubelet.
func (c *cluster) uninstall(t *testing.T, file string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tool(ctx, t, "kubectl", "--kubeconfig", c.kubeconfig, "delete", "-f", file, "--wait=false")
	for {
		_, err := c.CoreV1().Namespaces().Get(ctx, system, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if err == nil {
			err = c.CoreV1().Pods(system).DeleteCollection(ctx, now(), metav1.ListOptions{})
		}
		if err != nil {
			t.Errorf("the namespace of the manifests stays: %v", err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// placed waits for the pod of the driver on a node.
func (c *cluster) placed(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := c.CoreV1().Pods(system).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Spec.NodeName == node && p.Spec.HostPID {
			return p
		}
	}
	t.Fatalf("no pod of the driver comes to %s", node)
	return nil
}

// as returns the configuration of a client with the rights of a service account of the manifests, as a pod has them; nil is none.
func (c *cluster) as(t *testing.T, account string, p *corev1.Pod) *rest.Config {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if p != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}
	}
	token, err := c.CoreV1().ServiceAccounts(system).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token.Status.Token
	return config
}

// kubeconfigOf writes the kubeconfig of a client.
func kubeconfigOf(t *testing.T, config *rest.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n"+
		"clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}]\nusers: [{name: x, user: {token: %q}}]\n",
		config.Host, config.BearerToken)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// lgpuKube starts a command of lgpu-kube, which is told to end with the test and must not have lacked a right.
func lgpuKube(t *testing.T, node string, args ...string) {
	t.Helper()
	command := exec.Command("../../bin/lgpu-kube", args...)
	command.Env = append(os.Environ(), "NODE_NAME="+node)
	var said bytes.Buffer
	command.Stderr, command.SysProcAttr = &said, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatalf("%v; run: make kube", err)
	}
	t.Cleanup(func() {
		command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil || strings.Contains(strings.ToLower(said.String()), "forbidden") {
			t.Errorf("lgpu-kube %s ended with %v, and said %s", args, err, &said)
		}
	})
}

// drive starts the driver as its container does, with the rights of a pod and a daemon of the test. It returns the kubelet's end.
func (c *cluster) drive(t *testing.T, p *corev1.Pod) (drapb.DRAPluginClient, *api.Conn) {
	t.Helper()
	dir := kubetest.Folder(t)
	_, daemon := kubetest.Daemon(t, dir)
	if err := os.MkdirAll(filepath.Join(dir, "plugins_registry"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := kubeconfigOf(t, c.as(t, p.Spec.ServiceAccountName, p))
	lgpuKube(t, p.Spec.NodeName, "--kubeconfig", file, "--kubelet-dir", dir, "--socket", filepath.Join(dir, api.Socket), "--sim", shape)
	c.awaitSlices(t, p.Spec.NodeName, "two devices", func(d []resourceapi.Device) bool { return len(d) == 2 })
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "plugins", slice.Driver, "dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return drapb.NewDRAPluginClient(conn), daemon
}

// The API server takes the manifests; the controller of daemon sets makes the driver's pod on a labelled node; and the driver's
// command does all its work with that pod's rights, which are no more than that.
func TestManifests(t *testing.T) {
	c := plane(t)
	for _, name := range []string{"deployed", "neighbour"} {
		c.addNode(t, name)
	}
	label := []byte(`{"metadata":{"labels":{"lgpu.io/node":"true"}}}`)
	_, err := c.CoreV1().Nodes().Patch(t.Context(), "deployed", "application/merge-patch+json", label, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.install(t, manifests)
	pod := c.placed(t, "deployed")
	kubelet, daemon := c.drive(t, pod)

	ns := c.addNamespace(t)
	c.addClaim(t, ns, "a", "", exactly("gpu", part("5Gi", "2")))
	c.addPod(t, ns, podOf("a", "deployed", "a"))
	one, _ := c.bound(t, ns, "a")
	n := &node{name: "deployed", daemon: daemon, kubelet: kubelet}
	n.prepared(t, one)
	c.says(t, ns, "a", 5<<30, 2)
	kubetest.Unprepare(t, kubelet, one)

	lgpuKube(t, "", "explain", "--period", "100ms", "--kubeconfig", kubeconfigOf(t, c.as(t, "lgpu-explain", nil)))
	c.template(t, ns, "large", part("20Gi", "1"))
	c.addPod(t, ns, podOfTemplate("large", "large"))
	if said := c.event(t, ns, "large", explain.EventReason); !strings.Contains(said, "memory: 20Gi is free on 0 of 2 devices, at most 16Gi") {
		t.Errorf("the pod's event is %q", said)
	}
	c.bounds(t, c.as(t, pod.Spec.ServiceAccountName, pod), ns)
}

// event waits for an event of a pod, and returns its words.
func (c *cluster) event(t *testing.T, namespace, pod, reason string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := c.CoreV1().Events(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e, ok := e.Object.(*corev1.Event); ok && e.InvolvedObject.Kind == "Pod" && e.InvolvedObject.Name == pod && e.Reason == reason {
			return e.Message
		}
	}
	t.Fatalf("pod %s has no event %s", pod, reason)
	return ""
}

// bounds fails the test unless the rights of the driver's pod end where they should.
func (c *cluster) bounds(t *testing.T, config *rest.Config, ns string) {
	t.Helper()
	driver, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	of := func(name, driver string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "forged-"}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &name, Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: 1}}}
	}
	slices := driver.ResourceV1().ResourceSlices()
	_, neighbours := slices.Create(t.Context(), of("neighbour", slice.Driver), metav1.CreateOptions{})
	_, others := slices.Create(t.Context(), of("deployed", "other.example.test"), metav1.CreateOptions{})
	_, secrets := driver.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{})
	claim, err := driver.ResourceV1().ResourceClaims(ns).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Status.ReservedFor = nil
	_, reservation := driver.ResourceV1().ResourceClaims(ns).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	for what, err := range map[string]error{"devices of another node": neighbours, "devices of another driver": others,
		"secrets": secrets, "who has a claim": reservation} {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("the driver may change or see %s: %v", what, err)
		}
	}
}
