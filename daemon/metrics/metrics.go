// Package metrics shows the daemon's state to Prometheus: as lgpu_* metrics, and on request under HAMi's names, so that
// dashboards made for HAMi keep working. docs/metrics.md lists the names, which are promises.
//
//	c := metrics.New(metrics.Of(daemon), metrics.Options{})
//	go c.Run(ctx)
//	http.ListenAndServe("127.0.0.1:9464", c.Handler())
//
// Beside /metrics the handler answers /healthz and /readyz, for who keeps the daemon running. alerts.yaml has rules for
// Prometheus, and grafana.json a dashboard.
package metrics

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lgpu/lgpu/daemon"
)

// Source is what metrics are made of: a *daemon.Daemon.
type Source interface {
	Snapshot() daemon.Snapshot
	Counters() daemon.Counters
	// Slices returns a subscription to the turns to come, which the caller closes.
	Slices() daemon.SliceSubscription
}

// Options say what is shown.
type Options struct {
	// HAMi adds the metrics of HAMi's monitor.
	HAMi bool
	// Host is the value of HAMi's label node; the default is the host's name.
	Host string
	// MaxDirectories bounds the number of directories that have metrics of their own, and so the number of time series:
	// those that stay come first, then the older ones. The default is 1000.
	MaxDirectories int
}

// Collector implements prometheus.Collector. It may be used by any number of goroutines.
type Collector struct {
	source Source
	o      Options
	turns  *turns
}

// New returns a collector of what source shows.
func New(source Source, o Options) *Collector {
	if o.MaxDirectories <= 0 {
		o.MaxDirectories = 1000
	}
	if o.Host == "" {
		if name, err := os.Hostname(); err == nil {
			o.Host = name
		}
	}
	return &Collector{source: source, o: o, turns: newTurns()}
}

// Run counts turns until ctx ends or the daemon does, and returns why. Without it they stay at zero.
func (c *Collector) Run(ctx context.Context) error {
	subscription := c.source.Slices()
	defer subscription.Close()
	for {
		slices, lost, err := subscription.Next(ctx)
		if err != nil {
			return fmt.Errorf("count turns: %w", err)
		}
		c.turns.add(slices, lost)
	}
}

// Handler serves /metrics: these, and the process's own (go_*, process_*), in the format that the client asks for; and
// whether the daemon is well (/healthz) and ready (/readyz).
func (c *Collector) Handler() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { report(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { report(w, unready(c.source.Snapshot())) })
	return mux
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, f := range families {
		descriptions <- f.desc
	}
	if c.o.HAMi {
		for _, f := range hamiFamilies {
			descriptions <- f.desc
		}
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	s := c.source.Snapshot()
	e := newEmitter(metrics, s.Devices)
	e.daemon(&s, c.source.Counters())
	for i := range s.Devices {
		e.device(&s.Devices[i])
	}
	shown, omitted := choose(s.Directories, c.o.MaxDirectories)
	e.emit(nodesOmitted, float64(omitted))
	for _, n := range shown {
		e.node(n)
	}
	c.turns.collect(e, shown)
	if c.o.HAMi {
		e.hami(s.Devices, shown, c.o.Host)
	}
}

// choose returns the directories to show, in their order, and how many more there are.
func choose(nodes []daemon.Directory, most int) (shown []*daemon.Directory, omitted int) {
	order := make([]*daemon.Directory, len(nodes))
	for i := range nodes {
		order[i] = &nodes[i]
	}
	if len(order) <= most {
		return order, 0
	}
	slices.SortStableFunc(order, func(a, b *daemon.Directory) int {
		if a.Persistent != b.Persistent {
			if a.Persistent {
				return -1
			}
			return 1
		}
		return a.Created.Compare(b.Created)
	})
	shown = order[:most]
	slices.SortFunc(shown, func(a, b *daemon.Directory) int { return strings.Compare(a.Path, b.Path) })
	return shown, len(order) - most
}
