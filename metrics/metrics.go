// Package metrics shows the daemon's state to Prometheus: as lgpu_* metrics, and on request under HAMi's names, so that
// dashboards made for HAMi keep working. docs/metrics.md lists the names, which are promises.
//
//	c := metrics.New(metrics.Of(node), metrics.Options{})
//	go c.Run(ctx)
//	http.Handle("/metrics", c.Handler())
package metrics

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lgpu/lgpu/node"
)

// Source is what metrics are made of.
type Source interface {
	Snapshot() node.Snapshot
	Counters() node.Counters
	// Slices returns a feed of the turns to come, which the caller closes.
	Slices() Feed
}

// Feed is a stream of turns, as node.Feed describes it.
type Feed interface {
	Next(context.Context) (turns []node.Slice, lost uint64, err error)
	Close()
}

// Of makes a daemon a Source.
func Of(n *node.Node) Source { return daemon{n} }

type daemon struct{ *node.Node }

func (d daemon) Slices() Feed { return d.Node.Slices() }

// Options say what is shown.
type Options struct {
	// HAMi adds the metrics of HAMi's monitor.
	HAMi bool
	// Host is the value of HAMi's label node; the default is the host's name.
	Host string
}

// Collector implements prometheus.Collector. It may be used by any number of goroutines.
type Collector struct {
	source Source
}

// New returns a collector of what source shows.
func New(source Source, o Options) *Collector { return &Collector{source: source} }

// Run counts turns until ctx ends or the daemon does, and returns why. Without it, metrics of turns are missing.
func (c *Collector) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Handler serves the metrics, and the process's own (go_*, process_*), in the format that the client asks for.
func (c *Collector) Handler() http.Handler { return http.NotFoundHandler() }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(chan<- prometheus.Metric) {}
