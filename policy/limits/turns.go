package limits

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Files of the turns that lgpus take whose memory does not fit together.
const (
	fileSliceMin     = "slice.min"
	fileSliceMax     = "slice.max"
	fileSliceLatency = "slice.latency"
)

// Bounds of what those files may say.
const (
	leastSlice = 10 * time.Millisecond
	mostSlice  = 24 * time.Hour
)

// Turns are the bounds of turns; 0 is the default.
type Turns struct {
	Least time.Duration `json:"min,omitempty"`
	Most  time.Duration `json:"max,omitempty"`
	// Latency is how long an lgpu is to wait for its turn at most; 0 is any time.
	Latency time.Duration `json:"latency,omitempty"`
}

// DefaultTurns are the bounds where nothing was written.
var DefaultTurns = Turns{Least: time.Second, Most: 30 * time.Second}

// turnFiles are the files of turns.
func turnFiles() []*file {
	of := func(name string, at func(*Turns) *time.Duration) *file {
		return &file{name: name, root: true,
			read: func(_ *Tree, s *state, _ *directory) string {
				turns := s.turns()
				return turnWord(*at(&turns)) + "\n"
			},
			write: single(func(n *directory, value string) error {
				d, err := parseTurn(value)
				if err != nil {
					return err
				}
				turns := n.Turns
				*at(&turns) = d
				if t := turns.complete(); t.Least > t.Most {
					return fmt.Errorf("%s (%v) would be above %s (%v)", fileSliceMin, t.Least, fileSliceMax, t.Most)
				}
				n.Turns = turns
				return nil
			})}
	}
	return []*file{
		of(fileSliceMin, func(t *Turns) *time.Duration { return &t.Least }),
		of(fileSliceMax, func(t *Turns) *time.Duration { return &t.Most }),
		of(fileSliceLatency, func(t *Turns) *time.Duration { return &t.Latency }),
	}
}

// complete fills in defaults.
func (t Turns) complete() Turns {
	if t.Least == 0 {
		t.Least = DefaultTurns.Least
	}
	if t.Most == 0 {
		t.Most = max(DefaultTurns.Most, t.Least)
	}
	return t
}

func (s *state) turns() Turns { return s.root.Turns.complete() }

// Turns returns the bounds of turns, with defaults filled in.
func (t *Tree) Turns() Turns { return t.state.Load().turns() }

// parseTurn reads a time, such as 500ms, or default, which is 0.
func parseTurn(value string) (time.Duration, error) {
	if value == wordDefault {
		return 0, nil
	}
	d, err := time.ParseDuration(strings.Join(strings.Fields(value), ""))
	if err != nil {
		return 0, errors.New("a time is a number with a unit, such as 500ms or 2s, or default")
	}
	if d < leastSlice || d > mostSlice {
		return 0, invalid{syscall.ERANGE, fmt.Sprintf("a time here is from %v to %v", leastSlice, mostSlice), ""}
	}
	return d, nil
}

// turnWord is a time as the files have it.
func turnWord(d time.Duration) string {
	if d == 0 {
		return wordDefault
	}
	return d.String()
}
