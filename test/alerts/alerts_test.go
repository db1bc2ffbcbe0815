// Package alerts has Prometheus take the alert rules of an install, scrape a daemon, and raise an alert. It is a module of
// its own, since Prometheus needs more modules than lgpu does; of Prometheus it has what scrapes, stores and evaluates.
package alerts

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/tsdb"
)

// patience bounds every wait.
const patience = 2 * time.Minute

// file is where make install has the rules from.
const file = "../../daemon/metrics/alerts.yaml"

// TestRules is what promtool check rules does.
func TestRules(t *testing.T) {
	groups, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	names := map[string]bool{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if names[r.Alert] {
				t.Errorf("%s is there twice", r.Alert)
			}
			names[r.Alert] = true
		}
	}
	if len(names) < 10 {
		t.Errorf("only %d rules", len(names))
	}
}

// lgpu runs the command in a runtime folder.
func lgpu(dir string, args ...string) *exec.Cmd {
	c := exec.Command("../../bin/lgpu", args...)
	c.Env = append(os.Environ(), "LGPU_RUNTIME_DIR="+dir, "LGPU_LIBDIR="+filepath.Join(dir, "lib"))
	return c
}

// serve starts a daemon with metrics and returns their address.
func serve(t *testing.T, dir string) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	daemon := lgpu(dir, "daemon", "--metrics", address, "--mount", "off")
	if err := daemon.Start(); err != nil {
		t.Fatalf("make build first: %v", err)
	}
	t.Cleanup(func() {
		if out, err := lgpu(dir, "daemon", "stop").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if err := daemon.Wait(); err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
	})
	if out, err := lgpu(dir, "daemon", "status", "--wait", patience.String()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return address
}

// watch has Prometheus scrape an address and evaluate the rules until the test ends. It has scraped what is there.
func watch(t *testing.T, address string) *rules.Manager {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	db, err := tsdb.Open(t.TempDir(), log, nil, tsdb.DefaultOptions(), nil)
	must(err)
	t.Cleanup(func() { must(db.Close()) })
	said, err := config.Load("scrape_configs: [{job_name: lgpu, scrape_interval: 200ms, scrape_timeout: 200ms}]", log)
	must(err)
	scraper, err := scrape.NewManager(&scrape.Options{DiscoveryReloadInterval: model.Duration(50 * time.Millisecond)}, log, nil, nil, db, prometheus.NewRegistry())
	must(err)
	must(scraper.ApplyConfig(said))
	targets := make(chan map[string][]*targetgroup.Group, 1)
	targets <- map[string][]*targetgroup.Group{"lgpu": {{Source: "test", Targets: []model.LabelSet{{model.AddressLabel: model.LabelValue(address)}}}}}
	scraped := make(chan error, 1)
	go func() { scraped <- scraper.Run(targets) }()
	t.Cleanup(func() { scraper.Stop(); must(<-scraped) })
	parse := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{Logger: log, MaxSamples: 1e6, Timeout: patience, Parser: parse})
	manager := rules.NewManager(&rules.ManagerOptions{
		Context: t.Context(), Queryable: db, AppendableV2: db, QueryFunc: rules.EngineQueryFunc(engine, db), Logger: log, Parser: parse,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, ExternalURL: &url.URL{}, Registerer: prometheus.NewRegistry(),
		DefaultRuleQueryOffset: func() time.Duration { return 0 },
	})
	must(manager.Update(200*time.Millisecond, []string{file}, labels.EmptyLabels(), "", nil))
	until(t, func() string { // else what happens first is no increase
		found, err := rules.EngineQueryFunc(engine, db)(t.Context(), "lgpu_events_total", time.Now())
		must(err)
		if len(found) == 0 {
			return "nothing has been scraped"
		}
		return ""
	})
	go manager.Run()
	t.Cleanup(manager.Stop)
	return manager
}

// TestFires: a program that is refused memory raises an alert, and no other alert about somebody's work is raised; every
// rule can be evaluated on what the daemon serves.
func TestFires(t *testing.T) {
	dir, err := os.MkdirTemp("", "lgpu-alerts-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a software GPU, which outlives the daemon for a moment, may write there yet
		until(t, func() string {
			if err := os.RemoveAll(dir); err != nil {
				return err.Error()
			}
			return ""
		})
	})
	manager := watch(t, serve(t, dir))
	evaluated := func() string {
		for _, r := range manager.AlertingRules() {
			if r.LastError() != nil {
				t.Fatalf("%s: %v", r.Name(), r.LastError())
			}
			if r.GetEvaluationTimestamp().IsZero() {
				return r.Name() + " has not been evaluated"
			}
		}
		return ""
	}
	until(t, evaluated)
	if alerts := firing(manager); len(alerts) > 0 {
		t.Fatalf("at first: %v", alerts)
	}
	run := lgpu(dir, "run", "--sim=1x1GiB,sms=2", "--memory", "256MiB", "--", "../../build/demo/tenant", "../../sim/kernels/compute.ptx")
	if out, err := run.CombinedOutput(); err != nil || !strings.Contains(string(out), "CUDA_ERROR_OUT_OF_MEMORY") {
		t.Fatalf("%v: %s", err, out)
	}
	until(t, func() string {
		alerts := firing(manager)
		if !slices.Contains(alerts, "LgpuOutOfMemory warning") {
			return fmt.Sprintf("memory was refused, and these alerts fire: %v", alerts)
		}
		if slices.ContainsFunc(alerts, func(a string) bool { return strings.HasSuffix(a, " critical") }) {
			t.Fatalf("these alerts fire: %v", alerts)
		}
		return ""
	})
	until(t, evaluated)
}

// firing are the alerts that fire, with their severity.
func firing(manager *rules.Manager) (alerts []string) {
	for _, r := range manager.AlertingRules() {
		for _, a := range r.ActiveAlerts() {
			if a.State == rules.StateFiring {
				alerts = append(alerts, r.Name()+" "+a.Labels.Get("severity"))
			}
		}
	}
	return alerts
}

// until waits until a function says nothing.
func until(t *testing.T, says func() string) {
	t.Helper()
	said := says()
	for start := time.Now(); said != "" && time.Since(start) < patience; said = says() {
		time.Sleep(50 * time.Millisecond)
	}
	if said != "" {
		t.Fatal(said)
	}
}
