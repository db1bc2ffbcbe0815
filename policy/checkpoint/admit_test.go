package checkpoint

import (
	"errors"
	"strings"
	"testing"
)

func TestAdmit(t *testing.T) {
	if err := Admit(nil, nil, []Room{{"host memory", 5 << 30, 5 << 30}, {"disk", 0, 0}}); err != nil {
		t.Errorf("what fits is refused: %v", err)
	}
	err := Admit([]int{7}, []Found{{100, IPC, ""}, {101, OpenFile, "/tmp/log"}}, []Room{{"host memory", 5 << 30, 3 << 30}, {"disk", 1, 2}})
	want := []string{
		"refused: 7 is a thread; name its process",
		"refused: process 100 shares memory or events by CUDA IPC; end the processes that it shares them with",
		"refused: process 101 has a file, pipe or socket that leads out of it (/tmp/log); close it",
		"refused: it takes 5 GiB of host memory, and 3 GiB is free; make room for 2 GiB more",
	}
	if err == nil || !errors.Is(err, ErrRefused) || err.Error() != strings.Join(want, "\n") {
		t.Errorf("refused with\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
}

// TestHindrances: each is named and comes with an advice.
func TestHindrances(t *testing.T) {
	for h := range hindrances {
		if text := hindranceTexts[h]; text.what == "" || text.advice == "" || h.String() != text.what {
			t.Errorf("hindrance %d: %q, %q", int(h), text.what, text.advice)
		}
	}
	if err := Admit(nil, []Found{{1, hindrances, ""}}, nil); !errors.Is(err, ErrRefused) {
		t.Errorf("one that is not known is let pass: %v", err)
	}
}
