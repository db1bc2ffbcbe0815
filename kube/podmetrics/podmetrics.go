// Package podmetrics tells Prometheus which pods the lgpus of claims are for: lgpu_claim_info, whose label path is that of the
// daemon's metrics. The kubelet is asked at every scrape, so what it says is true also after a restart of the driver.
package podmetrics

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/lgpu/lgpu/kube/claim"
	"github.com/lgpu/lgpu/kube/slice"
)

// Name is the metric's name.
const Name = "lgpu_claim_info"

// patience is how long the kubelet may take to answer, and the bytes that its answer may have.
const (
	patience   = 5 * time.Second
	mostAnswer = 64 << 20
)

// Kubelet connects to the kubelet's list of pods at a socket, once it is asked for.
func Kubelet(socket string) (podresources.PodResourcesListerClient, func() error, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostAnswer)))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the kubelet: %w", err)
	}
	return podresources.NewPodResourcesListerClient(conn), conn.Close, nil
}

// Handler serves /metrics from what the kubelet says. While the kubelet does not answer, it answers 503 with the reason.
func Handler(kubelet podresources.PodResourcesListerClient) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		list, err := kubelet.List(ctx, &podresources.ListPodResourcesRequest{})
		if err != nil {
			http.Error(w, fmt.Sprintf("ask the kubelet for its pods: %v", err), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(text(list)) // who has asked may be gone
	})
	return mux
}

// text is the metric in Prometheus' format: a line for each container that has an lgpu.
func text(list *podresources.ListPodResourcesResponse) []byte {
	var lines []string
	for _, pod := range list.GetPodResources() {
		for _, c := range pod.GetContainers() {
			for _, r := range c.GetDynamicResources() {
				if path := pathOf(r); path != "" {
					lines = append(lines, fmt.Sprintf("%s{path=%s,namespace=%s,pod=%s,container=%s,claim=%s} 1\n", Name, label(path),
						label(pod.GetNamespace()), label(pod.GetName()), label(c.GetName()), label(r.GetClaimName())))
				}
			}
		}
	}
	slices.Sort(lines)
	var b bytes.Buffer
	fmt.Fprintf(&b, "# HELP %s A container that has the lgpu of a claim, always 1.\n# TYPE %[1]s gauge\n", Name)
	for _, line := range slices.Compact(lines) {
		b.WriteString(line)
	}
	return b.Bytes()
}

// pathOf is the path of the lgpu that a claim has given a container, empty if it is of another driver.
func pathOf(r *podresources.DynamicResource) string {
	for _, one := range r.GetClaimResources() {
		for _, device := range one.GetCdiDevices() {
			if path, ok := claim.OfCDI(device.GetName()); ok && one.GetDriverName() == slice.Driver {
				return path
			}
		}
	}
	return ""
}

// label is the value of a label, in quotes.
func label(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(value) + `"`
}
