// Package web is the daemon's page: devices with their lgpus, who had which device when, and the limits, to look at and
// with a token to edit. It is plain files without a build step and asks nothing of any other host.
//
//	s, err := web.New(web.Of(node), web.Options{Dir: dir, Write: write, Metrics: collector.Handler()})
//	l, err := web.Listen("127.0.0.1:9464", false)
//	fmt.Println("page at", s.URL(l.Addr()))
//	err = s.Serve(ctx, l)
package web

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/lgpu/lgpu/node"
)

// ErrNotLoopback: the address can be reached from other machines, which must be asked for.
var ErrNotLoopback = errors.New("not a loopback address")

// Source is the daemon, as far as the page shows it.
type Source interface {
	Snapshot() node.Snapshot
	Recent() []node.Event
	// Slices returns a feed of the turns to come, which the caller closes.
	Slices() Feed
	// Use keeps the daemon from leaving until release is called.
	Use() (release func())
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

// Options say what the page may do.
type Options struct {
	// Dir is the runtime folder; the token is written there to the file web.token, for its owner only.
	Dir string
	// Write writes files of a node of the tree, all of them or none: path is that of the node, and files are names such as
	// memory.max with what to write. nil makes the page read-only, and no token is made.
	Write func(ctx context.Context, path string, files map[string]string) error
	// Metrics is served at /metrics; nil leaves it out.
	Metrics http.Handler
	// Hosts are names beside localhost and the loopback addresses that requests may give as their Host.
	Hosts []string
}

// Server is the page. Its methods may be called by any number of goroutines.
type Server struct{}

// New makes a page of what source shows, and the token.
func New(source Source, o Options) (*Server, error) { return nil, errors.ErrUnsupported }

// Listen opens address, such as 127.0.0.1:9464. Unless remote is set the host must be a loopback address or localhost;
// otherwise the error wraps ErrNotLoopback.
func Listen(address string, remote bool) (net.Listener, error) { return nil, errors.ErrUnsupported }

// URL returns the page's address for people, with the token, for a listener's address.
func (s *Server) URL(address net.Addr) string { return "" }

// Serve serves l until ctx ends, which returns nil, and removes the token's file.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return errors.ErrUnsupported }

// ServeHTTP serves one request, without regard to where it was received.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {}
