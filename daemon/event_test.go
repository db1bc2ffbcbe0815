package daemon

import (
	"strings"
	"testing"
	"time"
)

// A program that runs out of memory for ever is told of once in a while, with how often, and does not make others'
// events disappear; all of its own are counted.
func TestEndlessEvents(t *testing.T) {
	j := journal{feed: source[Event]{limit: 1024}}
	now := time.Unix(1000, 0)
	told := func(kind Kind, id uint64, after time.Duration) (string, bool) {
		e, told := j.add(Event{Kind: kind, ID: id, Time: now.Add(after), Text: "denied"})
		return e.Text, told
	}
	told(LgpuCreated, 1, 0)
	for i := range 2 * kept {
		if text, told := told(OutOfMemory, 1, time.Duration(i)*time.Microsecond); told != (i == 0) || text != "denied" {
			t.Fatalf("event %d is told: %v, %q", i, told, text)
		}
	}
	for range 20 {
		if _, told := told(ClientLeft, 1, 0); !told {
			t.Fatal("the end of a client is not told")
		}
	}
	if e := j.recent()[0]; e.Kind != LgpuCreated || e.Seq != 1 {
		t.Errorf("the oldest event is %+v", e)
	}
	if n := j.of(1)[OutOfMemory]; n != 2*kept || j.counted()[OutOfMemory] != n {
		t.Errorf("%d of them are counted", n)
	}
	if text, told := told(OutOfMemory, 3, time.Second); !told || text != "denied" {
		t.Errorf("of another node: %v, %q", told, text)
	}
	if text, told := told(OutOfMemory, 1, quiet); !told || !strings.HasPrefix(text, "denied (and 511 more times since ") {
		t.Errorf("later: %v, %q", told, text)
	}
	if text, told := told(OutOfMemory, 1, 2*quiet); !told || text != "denied" {
		t.Errorf("later, alone: %v, %q", told, text)
	}
}
