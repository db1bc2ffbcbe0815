package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/kube/claim"
)

// claims is a template of claims for a part of a device, with some more of lgpu's configuration.
func claims(name, memory string, units int, config ...string) string {
	return fmt.Sprintf(`
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: %s}
spec:
  spec:%s
`, name, strings.ReplaceAll(wish(memory, units, config), "\n", "\n  "))
}

// oneClaim is a claim that several pods may use, for what a template of claims could be for.
func oneClaim(name, memory string, units int, config ...string) string {
	return fmt.Sprintf(`
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s}
spec:%s
`, name, wish(memory, units, config))
}

// wish is what a claim says that it is for.
func wish(memory string, units int, config []string) string {
	text := fmt.Sprintf(`
  devices:
    requests: [{name: gpu, exactly: {deviceClassName: lgpu, capacity: {requests: {memory: %s, units: "%d"}}}}]`, memory, units)
	for _, c := range config {
		text += "\n    config: [{opaque: {driver: lgpu.io, parameters: {apiVersion: lgpu.io/v1, kind: LgpuConfig, " + c + "}}}]"
	}
	return text
}

// pod has a container for each of its claims, which are made of templates; without any it has one, for no claim.
func pod(name, restart, command string, templates ...string) string {
	return podWith(name, restart, command, "resourceClaimTemplateName", templates)
}

// podOf has a container for a claim that is there.
func podOf(name, restart, command, claim string) string {
	return podWith(name, restart, command, "resourceClaimName", []string{claim})
}

// podWith has a container for each of its claims. source is the field that says where they come from.
func podWith(name, restart, command, source string, names []string) string {
	var claims, containers strings.Builder
	for _, n := range names {
		fmt.Fprintf(&claims, "  - {name: %s, %s: %[1]s}\n", n, source)
		containers.WriteString(container(n, command, "claims: [{name: "+n+"}]"))
	}
	if len(names) == 0 {
		containers.WriteString(container("bare", command, ""))
	}
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 1
  restartPolicy: %s
  resourceClaims:
%s  containers:
%s`, name, restart, &claims, &containers)
}

// container is one of a pod, of the image that all have.
func container(name, command, resources string) string {
	return fmt.Sprintf("  - {name: %s, image: localhost/app:1, imagePullPolicy: Never, command: [sh, -c, %q],\n"+
		"     resources: {%s}}\n", name, command, resources)
}

// idle is the command of a container that others enter.
const idle = "exec sleep 1000000"

// space is a namespace of a test, which is gone after it, and with it all that it has made on the node.
type space struct {
	*node
	name string
}

// begun makes a test's namespace.
func begun(t testing.TB) *space {
	t.Helper()
	s := &space{node: whole(t), name: strings.ToLower(t.Name())}
	_, err := s.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(t) })
	err = until(t.Context(), "the namespace has its service account", func(ctx context.Context) (bool, error) {
		_, err := s.CoreV1().ServiceAccounts(s.name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// end removes the namespace and fails the test unless nothing stays on the node.
func (s *space) end(t testing.TB) {
	ctx := context.Background()
	if err := s.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
		return
	}
	err := until(ctx, "the test's namespace is gone", func(ctx context.Context) (bool, error) {
		_, err := s.CoreV1().Namespaces().Get(ctx, s.name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if err != nil {
		t.Error(err)
		return
	}
	s.nothing(t)
}

// nothing waits until nothing of the test's pods stays on the node.
func (s *space) nothing(t testing.TB) {
	t.Helper()
	var left []string
	err := until(context.Background(), "nothing of the test's pods stays on the node", func(context.Context) (bool, error) {
		left = s.left(t)
		return len(left) == 0, nil
	})
	if err != nil {
		t.Errorf("%v: %s", err, strings.Join(left, "\n"))
	}
}

// remove removes a pod, and waits until it is gone.
func (s *space) remove(t testing.TB, name string) {
	t.Helper()
	pods := s.CoreV1().Pods(s.name)
	if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := until(t.Context(), "pod "+name+" is gone", func(ctx context.Context) (bool, error) {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// left is what is on the node of claims and of pods that are not lgpu's own.
func (s *space) left(t testing.TB) []string {
	var left []string
	for _, d := range snapshot(t).GetDirectories() {
		if strings.HasPrefix(d.GetPath(), claim.Group+"/") {
			left = append(left, "lgpu "+d.GetPath())
		}
	}
	specs, _ := filepath.Glob("/var/run/cdi/*")
	for _, f := range specs {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), `"kube:`) {
			left = append(left, "specification "+f)
		}
	}
	for _, f := range doors() {
		if !slices.Contains(s.doors, f) {
			left = append(left, "folder "+f)
		}
	}
	known := s.known(t)
	for _, m := range mounts(t) {
		if strings.HasPrefix(m, "/run/netns/") { // lgpu's pod has the node's network
			left = append(left, "mount "+m)
		}
		for _, folder := range []string{"/var/lib/kubelet/pods/", "/run/containerd/io.containerd."} {
			below, ok := strings.CutPrefix(m, folder)
			if ok && !slices.ContainsFunc(known, func(id string) bool { return strings.Contains(below, id) }) {
				left = append(left, "mount "+m)
			}
		}
	}
	return append(left, processes(t)...)
}

// doors are the folders of sockets that containers may have.
func doors() []string {
	all, _ := filepath.Glob("/run/lgpu/containers/*")
	return all
}

// known are the ids of lgpu's own pods and containers.
func (s *space) known(t testing.TB) []string {
	t.Helper()
	ctx := context.Background()
	out, err := s.ctr(ctx, "containers", "ls", "-q", `labels."io.kubernetes.pod.namespace"==`+system)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(out)
	pods, err := s.CoreV1().Pods(system).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		all = append(all, string(p.UID))
	}
	return all
}

// snapshot is what the daemon of the node says.
func snapshot(t testing.TB) *api.Snapshot {
	t.Helper()
	var s *api.Snapshot
	err := until(context.Background(), "the daemon answers", func(ctx context.Context) (bool, error) {
		c, err := api.Dial(ctx, api.Options{Socket: api.System})
		if err != nil {
			return false, nil
		}
		defer c.Close()
		s, err = c.Snapshot(ctx, &api.SnapshotRequest{})
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// apply makes objects of the test's namespace.
func (s *space) apply(t testing.TB, manifests ...string) {
	t.Helper()
	text := strings.Join(manifests, "")
	if _, err := s.kubectl(t.Context(), text, "-n", s.name, "apply", "--validate=strict", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// awaitPod waits until a pod is as it should be, also beside an API server that comes and goes.
func (s *space) awaitPod(t testing.TB, name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var last *corev1.Pod
	err := until(t.Context(), "pod "+name+" "+what, func(ctx context.Context) (bool, error) {
		p, err := s.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		last = p
		return is(p), nil
	})
	if err != nil {
		events, _ := s.kubectl(context.Background(), "", "-n", s.name, "get", "events")
		t.Fatalf("%v\n%+v\n%s", err, last.Status, events)
	}
	return last
}

// runs waits until all containers of a pod run.
func (s *space) runs(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	return s.awaitPod(t, name, "runs", func(p *corev1.Pod) bool { return running(p) })
}

func running(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.ContainersReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// exec runs a program in a container of a pod, as an administrator does.
func (s *space) exec(t testing.TB, pod, container string, command ...string) string {
	t.Helper()
	args := append([]string{"-n", s.name, "exec", "-i", pod, "-c", container, "--"}, command...)
	out, err := s.kubectl(t.Context(), "", args...)
	if err != nil {
		t.Error(err)
	}
	return out
}

// memory is how much device memory the program tenant says that it got, in bytes.
func memory(said string) (uint64, error) {
	for _, line := range lines(said) {
		var got uint64
		if n, _ := fmt.Sscanf(line, "memory %d CUDA_ERROR_OUT_OF_MEMORY", &got); n == 1 {
			return got, nil
		}
	}
	return 0, fmt.Errorf("the program does not say how much memory it got: %q", said)
}

// bounded fails the test unless a program got the memory of its limit, in bytes, but for the little that its context takes.
func bounded(t testing.TB, what, said string, limit uint64) {
	t.Helper()
	if got, err := memory(said); err != nil || got > limit || got < limit/2 {
		t.Errorf("%s: of %d bytes it got %d, %v", what, limit, got, err)
	}
}

// mounts are the places of this namespace where something is mounted.
func mounts(t testing.TB) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, line := range lines(string(data)) {
		all = append(all, strings.Fields(line)[4])
	}
	return all
}

// processes are those of the node's pods that are not lgpu's own: they have the test's programs.
func processes(t testing.TB) []string {
	t.Helper()
	var all []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		exe, _ := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if exe == "/tenant" || strings.HasPrefix(exe, "/usr/bin/sleep") || exe == "/bin/sleep" || exe == "/bin/sh" {
			all = append(all, "process "+e.Name()+" "+exe)
		}
	}
	return all
}
