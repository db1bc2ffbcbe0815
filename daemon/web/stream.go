package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/policy/limits"
)

// Bounds of streams.
const (
	maxStreams = 32
	maxEach    = 8                      // of one visitor
	backlog    = 32                     // messages kept for a browser that is slow
	gathering  = 100 * time.Millisecond // turns are sent together
	stalled    = 10 * time.Second       // a browser that takes nothing for so long is let go
)

// message is one event of a stream.
type message struct {
	name string
	data []byte
}

// reader is whose a stream is: who is counted, and in whose name it reads.
type reader struct {
	visitor string
	by      limits.Author
}

// hub gives messages to streams and waits for none of them. The zero value is ready.
type hub struct {
	mu      sync.Mutex
	streams map[chan message]reader // guarded by mu
	woken   chan struct{}           // guarded by mu; closed when the first stream opens; nil while nobody waits
}

// open adds a stream of a visitor. The error says that there are too many.
func (h *hub) open(visitor string, by limits.Author) (messages chan message, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := 0
	for _, whose := range h.streams {
		if whose.visitor == visitor {
			own++
		}
	}
	if own >= maxEach {
		return nil, fmt.Errorf("%d browsers of yours are watching, which is all there may be", maxEach)
	}
	if len(h.streams) >= maxStreams {
		return nil, fmt.Errorf("%d browsers are watching, which is all there may be", maxStreams)
	}
	if h.streams == nil {
		h.streams = map[chan message]reader{}
	}
	messages = make(chan message, backlog)
	h.streams[messages] = reader{visitor, by}
	if h.woken != nil {
		close(h.woken)
		h.woken = nil
	}
	return messages, nil
}

func (h *hub) close(messages chan message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, messages)
}

// watched returns a channel that is closed when there is a stream.
func (h *hub) watched() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.streams) > 0 {
		open := make(chan struct{})
		close(open)
		return open
	}
	if h.woken == nil {
		h.woken = make(chan struct{})
	}
	return h.woken
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.streams)
}

// publish gives each stream the message for its reader; one that has no room misses it. An empty message is none.
func (h *hub) publish(of func(by limits.Author) message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for messages, whose := range h.streams {
		m := of(whose.by)
		if m.data == nil {
			continue
		}
		select {
		case messages <- m:
		default:
		}
	}
}

// publish sends each stream what its reader sees, nothing where that is nil. Who sees everything, and streams of one user,
// share one message.
func (s *Server) publish(name string, of func(view.Look) any) {
	var all message
	own := map[uint32]message{}
	s.hub.publish(func(by limits.Author) message {
		look := s.look(by)
		if look.All() {
			if all.data == nil {
				all = s.encode(name, of(look))
			}
			return all
		}
		m, made := own[by.UID]
		if !made {
			m = s.encode(name, of(look))
			own[by.UID] = m
		}
		return m
	})
}

// watch feeds history and streams until ctx ends.
func (s *Server) watch(ctx context.Context) {
	var turns sync.WaitGroup
	turns.Go(func() { s.watchTurns(ctx) })
	defer turns.Wait()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var told uint64 // the newest event that streams were given
	for {
		snapshot := s.source.Snapshot()
		s.history.add(&snapshot)
		if s.hub.count() > 0 {
			s.publish("state", func(l view.Look) any { return document(l.Snapshot(snapshot)) })
			if events := s.recent(view.Everything); len(events) > 0 && events[0].Seq != told {
				s.publish("events", func(l view.Look) any { return s.since(l, told) })
				told = events[0].Seq
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// watchTurns sends turns while there are streams. Without one it does not subscribe, so that nobody collects turns in
// vain.
func (s *Server) watchTurns(ctx context.Context) {
	for {
		select {
		case <-s.hub.watched():
		case <-ctx.Done():
			return
		}
		subscription := s.source.Slices()
		err := s.sendTurns(ctx, subscription)
		subscription.Close()
		if err != nil {
			return // the daemon ends, or ctx has
		}
	}
}

// turns is what the page reads: who had which device from when to when.
type turns struct {
	Devices []string `json:"devices"`
	IDs     []string `json:"ids"`
	// Turns are [index of device, index of ID, start, length], in µs; starts are Unix time.
	Turns [][4]int64 `json:"turns"`
	Lost  uint64     `json:"lost"`
}

// sendTurns sends what comes through subscription until nobody is watching.
func (s *Server) sendTurns(ctx context.Context, subscription daemon.SliceSubscription) error {
	for s.hub.count() > 0 {
		slices, lost, err := subscription.Next(ctx)
		if err != nil {
			return err
		}
		names := s.names()
		s.publish("turns", func(l view.Look) any {
			if seen, missed, some := l.Turns(slices, lost); some {
				return pack(seen, missed, names)
			}
			return nil // even an empty message would say that others have turns
		})
		select {
		case <-time.After(gathering):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// names are the devices' UUIDs as the page knows them.
func (s *Server) names() map[gpu.UUID]string {
	snapshot := s.source.Snapshot()
	names := map[gpu.UUID]string{}
	for i := range snapshot.Devices {
		names[snapshot.Devices[i].UUID] = snapshot.Devices[i].Identity()
	}
	return names
}

func pack(slices []daemon.Slice, lost uint64, names map[gpu.UUID]string) turns {
	out := turns{Devices: []string{}, IDs: []string{}, Turns: make([][4]int64, len(slices)), Lost: lost}
	devices, ids := map[gpu.UUID]int64{}, map[uint64]int64{}
	for i, t := range slices {
		d, known := devices[t.Device]
		if !known {
			d = int64(len(out.Devices))
			devices[t.Device] = d
			out.Devices = append(out.Devices, names[t.Device])
		}
		id, known := ids[t.ID]
		if !known {
			id = int64(len(out.IDs))
			ids[t.ID] = id
			out.IDs = append(out.IDs, identifier(t.ID))
		}
		out.Turns[i] = [4]int64{d, id, t.Start.UnixMicro(), t.End.Sub(t.Start).Microseconds()}
	}
	return out
}

func (s *Server) encode(name string, v any) message {
	if v == nil {
		return message{}
	}
	data, err := json.Marshal(v)
	if err != nil {
		s.o.Log.Error("a message to browsers cannot be written", "message", name, "error", err)
	}
	return message{name, data}
}

// getStream sends states, events and turns as server-sent events until the browser goes.
func (s *Server) getStream(w http.ResponseWriter, r *http.Request) {
	by, _ := s.who(r)
	messages, err := s.hub.open(visitor(r), by)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer s.hub.close(messages)
	defer s.source.Use()()
	w.Header().Set("Content-Type", "text/event-stream")
	connection := http.NewResponseController(w)
	send := func(m message) error {
		if err := connection.SetWriteDeadline(time.Now().Add(stalled)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", m.name, m.data); err != nil {
			return err
		}
		return connection.Flush()
	}
	look := s.look(by)
	if send(s.encode("events", s.recent(look))) != nil {
		return
	}
	next := s.encode("state", document(look.Snapshot(s.source.Snapshot())))
	for {
		if send(next) != nil {
			return
		}
		select {
		case next = <-messages:
		case <-r.Context().Done():
			return
		}
	}
}

// pace is the time between two states, and between two values of the history.
const pace = time.Second
