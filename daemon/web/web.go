// Package web is the daemon's page: devices with their lgpus, who had which device when, and the limits, to look at and
// with a token to edit. It is plain files without a build step and asks nothing of any other host.
//
//	s, err := web.New(daemon, web.Options{Keys: dir, Tree: daemon.Tree(), Write: write, Metrics: collector.Handler()})
//	l, err := web.Listen("127.0.0.1:9464", false)
//	fmt.Println("page at", s.URL(l.Addr(), uid))
//	err = s.Serve(ctx, l)
//
// A request is made in somebody's name: by a token, which lgpu page prints, behind the # of the address, so that browsers
// keep it to themselves; or, on this machine, by what the kernel says of the connection. The tree's rights say what she
// sees and may change. Requests for another host than this one are refused, since a name of somebody else that leads here
// (DNS rebinding) would give that somebody's page the rights of this one.
package web

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/policy/limits"
)

// ErrNotLoopback: the address can be reached from other machines, which must be asked for.
var ErrNotLoopback = errors.New("not a loopback address")

// Source is the daemon, a *daemon.Daemon, as far as the page shows it.
type Source interface {
	Snapshot() daemon.Snapshot
	Recent() []daemon.Event
	// Slices returns a subscription to the turns to come, which the caller closes.
	Slices() daemon.SliceSubscription
	// Use keeps the daemon from leaving until release is called.
	Use() (release func())
}

// Options say what the page may do.
type Options struct {
	// Keys is the folder of the daemon's state, where the key of the tokens is, the file web.key.
	Keys string
	// Tree has the rights of users; without one everybody sees everything, and nobody is known without a token.
	Tree *limits.Tree
	// Write writes files of a directory of the tree in somebody's name, all of them or none: path is that of the directory,
	// and files are names such as memory.max with what to write. nil makes the page read-only. Errors are shown to the
	// user.
	Write func(ctx context.Context, by limits.Author, path string, files map[string]string) error
	// Metrics is served at /metrics, /healthz and /readyz; nil leaves them out.
	Metrics http.Handler
	// Hosts are names, beside localhost and addresses, that requests may give as their Host.
	Hosts []string
	// Log is where changes are written down; the default discards them.
	Log *slog.Logger
}

// Server is the page. Its methods may be called by any number of goroutines.
type Server struct {
	source  Source
	o       Options
	tokens  tokens
	members members
	mux     *http.ServeMux
	guarded http.Handler // mux
	hub     hub
	history history
}

// New makes a page of what source shows, and the token.
func New(source Source, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{source: source, o: o, mux: http.NewServeMux()}
	s.guarded = Guard(s.mux, o.Hosts)
	var err error
	if s.tokens, err = openTokens(o.Keys); err != nil {
		return nil, fmt.Errorf("tokens of the page: %w", err)
	}
	if err := s.static(); err != nil {
		return nil, fmt.Errorf("files of the page: %w", err)
	}
	s.mux.HandleFunc("GET /api/state", s.getState)
	s.mux.HandleFunc("GET /api/events", s.getEvents)
	s.mux.HandleFunc("GET /api/history", s.getHistory)
	s.mux.HandleFunc("GET /api/session", s.getSession)
	s.mux.HandleFunc("GET /api/stream", s.getStream)
	s.mux.HandleFunc("POST /api/write", s.postWrite)
	if o.Metrics != nil {
		s.measure(s.mux, o.Metrics)
	}
	return s, nil
}

// Listen opens address, such as 127.0.0.1:9464. Unless remote is set the host must be a loopback address or a name of
// one; otherwise the error wraps ErrNotLoopback. One visitor's connections leave room for others'.
func Listen(address string, remote bool) (net.Listener, error) {
	resolved, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	if !remote && !resolved.IP.IsLoopback() {
		return nil, fmt.Errorf("address %q: %w", address, ErrNotLoopback)
	}
	l, err := net.ListenTCP("tcp", resolved)
	if err != nil {
		return nil, err // which says what for and where
	}
	return &door{Listener: l, who: visitorOf}, nil
}

// URL returns the page's address for a user, with her token, for a listener's address.
func (s *Server) URL(address net.Addr, uid uint32) string {
	host := address.String()
	if at, err := netip.ParseAddrPort(host); err == nil && at.Addr().IsUnspecified() {
		host = fmt.Sprintf("localhost:%d", at.Port())
	}
	return "http://" + host + "/#token=" + s.tokens.of(forAll, uid)
}

// Serve serves l until ctx ends, which returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		s.watch(ctx)
	}()
	err := ServeHTTP(ctx, l, s, s.o.Log)
	cancel()
	<-watching
	if err != nil {
		return fmt.Errorf("the page: %w", err)
	}
	return nil
}

// ServeHTTP serves one request, wherever it was received.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	s.guarded.ServeHTTP(w, r)
}

//go:embed page
var page embed.FS

// types are those of the page's files, so that they don't depend on the machine's mime tables.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// static serves the files of the page.
func (s *Server) static() error {
	return fs.WalkDir(page, "page", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := page.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		tag, mime := `"`+hex.EncodeToString(sum[:8])+`"`, types[filepath.Ext(path)]
		route := "GET /" + strings.TrimPrefix(path, "page/")
		if entry.Name() == "index.html" {
			route = "GET /{$}"
		}
		s.mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", mime)
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("ETag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			// The client is gone where this fails, and there is nobody to tell.
			_, _ = w.Write(data)
		})
		return nil
	})
}
