package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// up is the command of a container that says when it runs, and ends when it is told to.
const up = "trap exit TERM; echo up; sleep 1000000 & wait"

// started are the times of a pod since it was created.
type started struct {
	first time.Duration // until its program said something, by the clock of the container runtime's log
	shown time.Duration // until the API server said that its container runs
}

// BenchmarkStart starts pods with a claim of their own and pods without one, in turn, of the same image, and removes each before
// the next.
//
//	go test -C kube -run '^$' -bench Start -benchtime 60x -timeout 30m ./e2e
func BenchmarkStart(b *testing.B) {
	s := begun(b)
	s.apply(b, claims("part", "1Gi", 4))
	kinds := map[string]*corev1.Pod{"bare": manifest(b, pod("bare", "Never", up)),
		"claim": manifest(b, pod("claim", "Never", up, "part"))}
	for _, p := range kinds { // the image is unpacked, and what the claim needs is there
		s.starts(b, p)
	}
	all := map[string][]started{}
	for b.Loop() {
		for kind, p := range kinds {
			all[kind] = append(all[kind], s.starts(b, p))
		}
	}
	b.ReportMetric(0, "ns/op") // it has the time of removing pods
	for kind, times := range all {
		for what, of := range map[string]func(started) time.Duration{
			"first": func(t started) time.Duration { return t.first }, "shown": func(t started) time.Duration { return t.shown }} {
			sorted := make([]time.Duration, len(times))
			for i, t := range times {
				sorted[i] = of(t)
			}
			slices.Sort(sorted)
			for name, part := range map[string]float64{"p50": 0.50, "p99": 0.99} {
				at := sorted[int(part*float64(len(sorted)-1)+0.5)]
				b.ReportMetric(float64(at.Milliseconds()), strings.Join([]string{kind, what, name, "ms"}, "-"))
			}
		}
	}
}

// manifest is the pod of a text.
func manifest(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	var p corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return &p
}

// starts creates a pod, waits until its container runs, removes the pod, and returns how long the start took.
func (s *space) starts(t testing.TB, p *corev1.Pod) started {
	t.Helper()
	pods := s.CoreV1().Pods(s.name)
	w, err := pods.Watch(t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", p.Name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	begin := time.Now()
	if p, err = pods.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var all started
	for all.shown == 0 {
		select {
		case e := <-w.ResultChan():
			now, ok := e.Object.(*corev1.Pod)
			if ok && now.UID == p.UID && len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].State.Running != nil {
				all.shown = time.Since(begin)
			}
		case <-time.After(patience):
			t.Fatalf("pod %s does not run", p.Name)
		}
	}
	s.said(t, p, 1, "up")
	all.first = s.spoke(t, p).Sub(begin)
	s.remove(t, p.Name)
	return all
}

// spoke is when the container of a pod said its first line.
func (s *space) spoke(t testing.TB, p *corev1.Pod) time.Time {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join("/var/log/pods", s.name+"_"+p.Name+"_"+string(p.UID), "*", "*.log"))
	if len(files) != 1 {
		t.Fatalf("pod %s has the logs %q", p.Name, files)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(data), " ")
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
