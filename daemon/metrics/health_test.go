package metrics

import (
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/lgpu/lgpu/daemon"
)

// TestHealth: a daemon that answers is well; it is ready if it serves and has a device that works, and says why it is
// not.
func TestHealth(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*daemon.Snapshot)
		status int
		ready  string
	}{
		"one device works": {func(*daemon.Snapshot) {}, 200, "ok\n"},
		"no device works": {func(s *daemon.Snapshot) { s.Devices = s.Devices[1:] }, 503,
			"device 0:1 (" + machine().snapshot.Devices[1].Identity() + ") does not work: lost\n"},
		"it has begun": {func(s *daemon.Snapshot) { s.Daemon.NotReady, s.Devices = "it has just begun", nil }, 503,
			"the daemon does not serve: it has just begun\nthere is no device\n"},
		"it ends": {func(s *daemon.Snapshot) { s.Daemon.NotReady = "it is about to end" }, 503,
			"the daemon does not serve: it is about to end\n"},
	} {
		f := machine()
		f.snapshot.Devices[1].Index = 1
		test.change(&f.snapshot)
		h := New(f, Options{}).Handler()
		ask := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			return w
		}
		if w := ask("/healthz"); w.Code != 200 || w.Body.String() != "ok\n" {
			t.Errorf("%s: health is %d %q", name, w.Code, w.Body)
		}
		if w := ask("/readyz"); w.Code != test.status || w.Body.String() != test.ready {
			t.Errorf("%s: readiness is %d %q", name, w.Code, w.Body)
		}
		if w := ask("/"); w.Code != 404 {
			t.Errorf("there is something else: %d", w.Code)
		}
	}
}

// rule is an alert as Prometheus reads it.
type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// TestAlerts: alerts.yaml is a file of rules that Prometheus takes, and asks for nothing that is not served: neither
// metrics, nor labels, nor kinds of events.
func TestAlerts(t *testing.T) {
	file, err := os.Open("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var rules struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	d := yaml.NewDecoder(file)
	d.KnownFields(true)
	if err := d.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	served := map[string][]string{} // labels by metric
	for _, f := range families {
		served[f.name] = f.labels
		if f.kind == prometheus.UntypedValue {
			served[f.name+"_bucket"], served[f.name+"_sum"], served[f.name+"_count"] = f.labels, f.labels, f.labels
			delete(served, f.name)
		}
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if seen[r.Alert] || !regexp.MustCompile(`^Lgpu[A-Za-z]+$`).MatchString(r.Alert) {
				t.Errorf("alert %q", r.Alert)
			}
			seen[r.Alert] = true
			if row := "| `" + r.Alert + "` | " + r.Labels["severity"] + " |"; !strings.Contains(string(page), row) {
				t.Errorf("docs/metrics.md has no %s", row)
			}
			r.check(t, served)
		}
	}
	if rows := strings.Count(string(page), "\n| `Lgpu"); rows != len(seen) || rows < 10 {
		t.Errorf("%d alerts, of which docs/metrics.md has %d", len(seen), rows)
	}
}

// check checks one alert against the metrics that are served, with their labels.
func (r rule) check(t *testing.T, served map[string][]string) {
	if s := r.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
		t.Errorf("%s: severity %q", r.Alert, s)
	}
	if r.Annotations["summary"] == "" || r.For != "" && !regexp.MustCompile(`^[0-9]+m$`).MatchString(r.For) {
		t.Errorf("%s: summary %q, for %q", r.Alert, r.Annotations["summary"], r.For)
	}
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(r.Expr, pair[:1]) != strings.Count(r.Expr, pair[1:]) {
			t.Errorf("%s: %q has %s that do not match", r.Alert, r.Expr, pair)
		}
	}
	labels := map[string]bool{"instance": true}
	selectors := regexp.MustCompile(`\b(lgpu_\w+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(r.Expr, -1)
	if len(selectors) == 0 {
		t.Errorf("%s asks for nothing: %q", r.Alert, r.Expr)
	}
	for _, s := range selectors {
		has, known := served[s[1]]
		if !known {
			t.Errorf("%s asks for %s, which is not served", r.Alert, s[1])
		}
		own := map[string]bool{}
		for _, l := range has {
			own[l], labels[l] = true, true
		}
		for _, m := range regexp.MustCompile(`(\w+)=~?"([^"]*)"`).FindAllStringSubmatch(s[2], -1) {
			if !own[m[1]] {
				t.Errorf("%s: %s has no label %s", r.Alert, s[1], m[1])
			}
			for _, kind := range strings.Split(m[2], "|") {
				if s[1] == events.name && !isKind(kind) {
					t.Errorf("%s: there are no events of kind %q", r.Alert, kind)
				}
			}
		}
	}
	for name, text := range r.Annotations {
		for _, l := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
			if !labels[l[1]] {
				t.Errorf("%s: its %s has the label %s, which it has not", r.Alert, name, l[1])
			}
		}
	}
}

// isKind reports whether events of a kind are counted from the start, so that the first is a rise.
func isKind(name string) bool { return slices.Contains(daemon.Kinds(), daemon.Kind(name)) }
