package web

import (
	"testing"

	"github.com/lgpu/lgpu/daemon/view"
	"github.com/lgpu/lgpu/policy/limits"
)

// TestSince: events of others, which somebody does not see, bring her no message either.
func TestSince(t *testing.T) {
	tree := limits.New(limits.Options{Rights: limits.Rights{Others: limits.OthersNone}})
	s, _ := unserved(t, Options{Tree: tree})
	hers := s.look(limits.Author{UID: 4242}) // of the source's events she sees the first, of the daemon
	for _, c := range []struct {
		look view.Look
		told uint64
		want bool
	}{
		{view.Everything, 0, true}, {view.Everything, 4, true}, {view.Everything, 5, false},
		{hers, 0, true}, {hers, 1, false}, {hers, 4, false},
	} {
		if got := s.since(c.look, c.told); got != nil != c.want {
			t.Errorf("after %d: %v", c.told, got)
		}
	}
}
