package metrics

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/lgpu/lgpu/daemon"
)

// unready says why programs cannot be served now, nothing if they can: the daemon has its tree and at least one device
// that works. A device that does not work beside others is an alert's business.
func unready(s daemon.Snapshot) (reasons []string) {
	if s.Daemon.NotReady != "" {
		reasons = append(reasons, "the daemon does not serve: "+s.Daemon.NotReady)
	}
	if len(s.Devices) == 0 {
		return append(reasons, "there is no device")
	}
	var faults []string
	for i := range s.Devices {
		d := &s.Devices[i]
		if d.Healthy {
			return reasons
		}
		faults = append(faults, fmt.Sprintf("device %s (%s) does not work: %s", d.Ordinal(), d.Identity(), d.Fault))
	}
	return append(reasons, faults...)
}

// report answers who asks for a state: 200, or 503 with the reasons, each on a line.
func report(w http.ResponseWriter, reasons []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	text := "ok"
	if len(reasons) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = strings.Join(reasons, "\n")
	}
	// The client is gone where this fails, and there is nobody to tell.
	_, _ = io.WriteString(w, text+"\n")
}
