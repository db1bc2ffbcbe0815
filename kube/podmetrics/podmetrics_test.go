package podmetrics

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/lgpu/lgpu/kube/claim"
	"github.com/lgpu/lgpu/kube/slice"
)

// kubelet is a stand-in for the kubelet's list of pods.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []*podresources.PodResources
	err  error
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, k.err
}

// has is what a container has of a claim with a UID, on some devices.
func has(name, uid, driver string, devices ...string) *podresources.DynamicResource {
	r := &podresources.DynamicResource{ClaimName: name, ClaimNamespace: "team"}
	for _, d := range devices {
		r.ClaimResources = append(r.ClaimResources, &podresources.ClaimResource{DriverName: driver, DeviceName: d,
			CdiDevices: []*podresources.CDIDevice{{Name: claim.CDI(uid)}}})
	}
	return r
}

func pod(name string, of ...*podresources.DynamicResource) *podresources.PodResources {
	return &podresources.PodResources{Name: name, Namespace: "team", Containers: []*podresources.ContainerResources{
		{Name: "train", DynamicResources: of}, {Name: "idle"}}}
}

// A container that has an lgpu has a line, once for all its devices; what others gave is not shown, and a kubelet that does not
// answer is no kubelet without pods.
func TestMetrics(t *testing.T) {
	const a, b = "0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000002"
	k := &kubelet{pods: []*podresources.PodResources{pod("two", has("shared", a, slice.Driver, "gpu0")),
		pod(`one"`, has("shared", a, slice.Driver, "gpu0", "gpu1"), has("own", b, slice.Driver, "gpu1")),
		pod("other", has("x", b, "other.example.test", "gpu0")), pod("odd", has("x", "../..", slice.Driver, "gpu0"))}}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	go server.Serve(l)
	defer server.Stop()
	client, closed, err := Kubelet(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closed()
	web := httptest.NewServer(Handler(client))
	defer web.Close()
	get := func() (int, string) {
		r, err := http.Get(web.URL + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(text)
	}
	const want = "# HELP lgpu_claim_info A container that has the lgpu of a claim, always 1.\n# TYPE lgpu_claim_info gauge\n" +
		`lgpu_claim_info{path="/kube/` + a + `",namespace="team",pod="one\"",container="train",claim="shared"} 1` + "\n" +
		`lgpu_claim_info{path="/kube/` + a + `",namespace="team",pod="two",container="train",claim="shared"} 1` + "\n" +
		`lgpu_claim_info{path="/kube/` + b + `",namespace="team",pod="one\"",container="train",claim="own"} 1` + "\n"
	if status, got := get(); status != http.StatusOK || got != want {
		t.Errorf("%d\n%s\nnot\n%s", status, got, want)
	}
	k.err = errors.New("busy")
	if status, got := get(); status != http.StatusServiceUnavailable || !strings.Contains(got, "busy") {
		t.Errorf("%d %s", status, got)
	}
}
