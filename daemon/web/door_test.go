package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"testing"
	"time"
)

// TestDoor: no visitor has all connections, and who has most makes room.
func TestDoor(t *testing.T) {
	d := &door{}
	var other []net.Conn // the visitors' ends
	enter := func(visitor string) bool {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close(); far.Close() })
		other = append(other, far)
		return d.enter(&visit{Conn: near, origin: origin{visitor: visitor}, door: d})
	}
	for i := range maxVisitsEach {
		if !enter("greedy") {
			t.Fatalf("no room for connection %d of one visitor", i)
		}
	}
	if enter("greedy") {
		t.Errorf("one visitor has more than %d connections", maxVisitsEach)
	}
	for i := maxVisitsEach; i < maxVisits; i++ {
		if !enter(fmt.Sprint(i)) {
			t.Fatalf("no room for connection %d", i)
		}
	}
	if !enter("late") {
		t.Error("another visitor has no room though one has many")
	}
	if _, err := other[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest connection of who has most: %v", err)
	}
	d.visits[0].Close()
	if len(d.visits) != maxVisits-1 || !enter("later") {
		t.Errorf("%d connections after one has ended", len(d.visits))
	}
	d.visits = nil
	for i := range maxVisits {
		enter(fmt.Sprint(i))
	}
	if enter("0") {
		t.Error("somebody had to go for a visitor who has as many")
	}
}

// TestTurns: a visitor who asks without end is answered at a bounded pace, and nobody waits for another.
func TestTurns(t *testing.T) {
	d := &door{}
	now := time.Unix(1000, 0)
	for i := range requestsAtOnce {
		if wait := d.turn("greedy", now); wait != 0 {
			t.Fatalf("request %d waits %v", i, wait)
		}
	}
	for i := range 100 {
		if wait, want := d.turn("greedy", now), time.Duration(i+1)*requestPeriod; wait != want {
			t.Fatalf("request %d beyond those at once waits %v, want %v", i, wait, want)
		}
	}
	if wait := d.turn("other", now); wait != 0 {
		t.Errorf("another visitor waits %v", wait)
	}
	now = now.Add((requestsAtOnce + 100) * requestPeriod)
	if wait := d.turn("greedy", now); wait != 0 {
		t.Errorf("who has asked for nothing for long waits %v", wait)
	}
	for i := range 3 * maxVisits {
		d.turn(fmt.Sprint(i), now)
		now = now.Add(2 * requestPeriod)
	}
	if len(d.paid) > maxVisits+1 {
		t.Errorf("%d visitors are remembered", len(d.paid))
	}
}

// TestPaced: requests wait for their turn.
func TestPaced(t *testing.T) {
	answered := 0
	h := paced(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { answered++ }))
	v := &visit{origin: origin{visitor: "greedy"}, door: &door{paid: map[string]time.Time{"greedy": time.Now().Add(time.Hour)}}}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), visitKey{}, v))
	cancel() // it goes before its turn comes
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	if answered != 0 {
		t.Error("a request was answered before its turn")
	}
	v.door.paid = nil
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil).WithContext(context.WithValue(t.Context(), visitKey{}, v)))
	if answered != 1 {
		t.Error("a request was not answered in its turn")
	}
}

// TestVisitors: a connection of this machine is its user's, and one visitor's idle ones leave room.
func TestVisitors(t *testing.T) {
	l, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, visitor(r)) })
	go func() { served <- ServeHTTP(t.Context(), l, handler, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	var idle []net.Conn
	for range 3 * maxVisitsEach {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	refused := idle[len(idle)-1]
	refused.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := refused.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection too many: %v", err)
	}
	near, far := l.Addr().(*net.TCPAddr).AddrPort(), idle[0].LocalAddr().(*net.TCPAddr).AddrPort()
	if uid, ok := ownerOf(far, near); !ok {
		t.Log("the kernel does not tell whose sockets are")
	} else if int(uid) != os.Getuid() {
		t.Errorf("a socket of user %d is said to be of user %d", os.Getuid(), uid)
	}
	if uid, ok := ownerOf(netip.MustParseAddrPort("127.0.0.1:1"), near); ok {
		t.Errorf("a socket that is none is of user %d", uid)
	}
}

// TestGuard: what the metrics' port says is not for a page of somebody else.
func TestGuard(t *testing.T) {
	h := Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), []string{"gpu.example"})
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"localhost:9464": 200, "127.0.0.1:9464": 200, "[::1]:9464": 200, "GPU.example": 200, name + ":9464": 200,
		"evil.example": 421, "evil.example:9464": 421, "": 421,
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("Host %q: status %d, want %d", host, w.Code, want)
		}
	}
}
