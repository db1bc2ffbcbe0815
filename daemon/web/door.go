package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of one port. A visitor is a user of this machine, as far as the kernel tells whose a connection is, and
// otherwise an address.
const (
	// maxVisits is the number of connections at once, maxVisitsEach that of one visitor. When there are too many the
	// oldest connection of the visitor who has most makes room.
	maxVisits     = 128
	maxVisitsEach = 32
	// Times that a visitor may take: to say what it wants, all of it, and to take the answer; and to say nothing between
	// two requests. Streams have their own (stalled).
	headerTime  = 5 * time.Second
	requestTime = 10 * time.Second
	answerTime  = 30 * time.Second
	idleTime    = 30 * time.Second
	// maxHeader is in bytes.
	maxHeader = 16 << 10
	// A visitor's requests are answered requestsAtOnce at once, which is more than a page and its first answers are, and
	// then one in every requestPeriod; what comes faster waits. An answer takes up to 2 ms of a processor, so that one
	// visitor has a tenth of one, whether it reads the answers or not.
	requestsAtOnce = 64
	requestPeriod  = 20 * time.Millisecond
)

// door is a listener that bounds connections.
type door struct {
	net.Listener
	who func(net.Conn) origin

	mu     sync.Mutex
	visits []*visit             // guarded by mu; oldest first
	paid   map[string]time.Time // guarded by mu; by visitor: when it may have requestsAtOnce at once again
}

// visit is a connection of a visitor.
type visit struct {
	net.Conn
	origin
	door *door
}

// origin is who is at the other end of a connection.
type origin struct {
	visitor string // a name for counting
	uid     uint32 // where known
	known   bool   // it is a user of this machine
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &visit{Conn: c, origin: d.who(c), door: d}
		if d.enter(v) {
			return v, nil
		}
		c.Close()
	}
}

// enter lets a visit in, for which another may have to go, or reports that there is no room.
func (d *door) enter(v *visit) bool {
	d.mu.Lock()
	counts, most := map[string]int{}, v.visitor
	for _, other := range d.visits {
		counts[other.visitor]++
	}
	for visitor, n := range counts {
		if n > counts[most] {
			most = visitor
		}
	}
	var out *visit
	switch {
	case counts[v.visitor] >= maxVisitsEach, len(d.visits) >= maxVisits && most == v.visitor:
		d.mu.Unlock()
		return false
	case len(d.visits) >= maxVisits:
		i := slices.IndexFunc(d.visits, func(other *visit) bool { return other.visitor == most })
		out = d.visits[i]
		d.visits = slices.Delete(d.visits, i, i+1)
	}
	d.visits = append(d.visits, v)
	d.mu.Unlock()
	if out != nil {
		out.Conn.Close()
	}
	return true
}

// Close implements net.Conn.
func (v *visit) Close() error {
	v.door.mu.Lock()
	v.door.visits = slices.DeleteFunc(v.door.visits, func(other *visit) bool { return other == v })
	v.door.mu.Unlock()
	return v.Conn.Close()
}

// turn returns how long the next request of a visitor has to wait, and counts it.
func (d *door) turn(visitor string, now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.paid) > maxVisits { // most of them are of visitors who have gone
		maps.DeleteFunc(d.paid, func(_ string, at time.Time) bool { return !at.After(now) })
	}
	if d.paid == nil {
		d.paid = map[string]time.Time{}
	}
	at := d.paid[visitor]
	if at.Before(now) {
		at = now
	}
	at = at.Add(requestPeriod)
	d.paid[visitor] = at
	return max(at.Sub(now)-requestsAtOnce*requestPeriod, 0)
}

// paced has a visitor's requests wait for their turn.
func paced(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v, ok := r.Context().Value(visitKey{}).(*visit); ok {
			if wait := v.door.turn(v.visitor, time.Now()); wait > 0 {
				select {
				case <-time.After(wait):
				case <-r.Context().Done():
					return
				}
			}
		}
		h.ServeHTTP(w, r)
	})
}

// visitorOf finds who is at the other end of a connection.
func visitorOf(c net.Conn) origin {
	near, nearErr := netip.ParseAddrPort(c.LocalAddr().String())
	far, farErr := netip.ParseAddrPort(c.RemoteAddr().String())
	if nearErr != nil || farErr != nil {
		return origin{visitor: c.RemoteAddr().String()}
	}
	if uid, ok := ownerOf(far, near); ok {
		return origin{fmt.Sprintf("user %d", uid), uid, true}
	}
	return origin{visitor: far.Addr().Unmap().WithZone("").String()}
}

// visitKey is that of the visit in the context of a request.
type visitKey struct{}

// visitor names who sent a request.
func visitor(r *http.Request) string {
	if v, ok := r.Context().Value(visitKey{}).(*visit); ok {
		return v.visitor
	}
	return r.RemoteAddr
}

// ServeHTTP serves what comes through l, which is Listen's, until ctx ends; then it returns nil. Requests for a host that
// is not this one's get an error (see Guard).
func ServeHTTP(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: paced(h),
		// Streams end with the server rather than hold it up.
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if v, ok := c.(*visit); ok {
				return context.WithValue(ctx, visitKey{}, v)
			}
			return ctx
		},
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       requestTime,
		WriteTimeout:      answerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := context.AfterFunc(ctx, func() { server.Close() })
	err := server.Serve(l)
	if !stopped() || errors.Is(err, http.ErrServerClosed) {
		return nil // ctx has ended
	}
	return fmt.Errorf("serve %s: %w", l.Addr(), err)
}

// Guard refuses requests for another host than this one, since a name of somebody else that leads here (DNS rebinding)
// would let that somebody's page read what h says: their Host must be an address, localhost, the machine's name, or one
// of hosts.
func Guard(h http.Handler, hosts []string) http.Handler {
	if name, err := os.Hostname(); err == nil {
		hosts = append(slices.Clone(hosts), name)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !known(r.Host, hosts) {
			http.Error(w, "this is not the host you are looking for", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// known reports whether a request's host is one of ours. An address always is: what a name that is not ours leads to
// never has an address as its Host.
func known(host string, hosts []string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return strings.EqualFold(name, "localhost") ||
		slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, name) })
}
