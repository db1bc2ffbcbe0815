package checkpoint

import (
	"errors"
	"maps"
	"testing"
)

func TestDevices(t *testing.T) {
	type names = []string
	type pairs = map[string]string
	for what, try := range map[string]struct {
		before, now names
		wanted      pairs
		want        pairs // nil: themselves
		fails       bool
	}{
		"the same":                 {names{"a", "b"}, names{"b", "a"}, nil, nil, false},
		"the same, asked for":      {names{"a", "b"}, names{"a", "b"}, pairs{"a": "a"}, nil, false},
		"one for another":          {names{"a", "b"}, names{"a", "b"}, pairs{"a": "b"}, pairs{"a": "b", "b": "a"}, false},
		"the others stay":          {names{"a", "b", "c"}, names{"a", "b", "c"}, pairs{"a": "c"}, pairs{"a": "c", "b": "b", "c": "a"}, false},
		"another machine":          {names{"a", "b"}, names{"x", "y"}, nil, pairs{"a": "x", "b": "y"}, false},
		"another machine, crossed": {names{"a", "b"}, names{"x", "y"}, pairs{"a": "y"}, pairs{"a": "y", "b": "x"}, false},
		"fewer":                    {names{"a", "b"}, names{"a"}, nil, nil, true},
		"one that is not here":     {names{"a"}, names{"a"}, pairs{"a": "x"}, nil, true},
		"one that was not there":   {names{"a"}, names{"a"}, pairs{"x": "a"}, nil, true},
		"two in one place":         {names{"a", "b"}, names{"a", "b"}, pairs{"a": "b", "b": "b"}, nil, true},
		"named twice":              {names{"a", "a"}, names{"a", "b"}, nil, nil, false},
	} {
		got, err := Devices(try.before, try.now, try.wanted)
		if errors.Is(err, ErrDevices) != try.fails || !maps.Equal(got, try.want) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
}
