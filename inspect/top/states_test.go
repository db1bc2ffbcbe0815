package top

import (
	"strings"
	"testing"

	"github.com/lgpu/lgpu/api"
)

// Every state of lgpus has its word, and its place in their order.
func TestStates(t *testing.T) {
	for n, name := range api.State_name {
		s := api.State(n)
		if word, _ := words(s); word != strings.ToLower(name) {
			t.Errorf("%v is called %q", s, word)
		}
		if busy(s) < 0 {
			t.Errorf("%v has no place in the order of states", s)
		}
	}
}
