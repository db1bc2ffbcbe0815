package node

import (
	"testing"
	"time"
)

// A program that runs out of memory for ever does not make others' events disappear; all of its own are counted.
func TestEndlessEvents(t *testing.T) {
	j := journal{feed: source[Event]{limit: 1024}}
	now := time.Unix(1000, 0)
	j.add(Event{Kind: LgpuCreated, ID: 1, Time: now})
	for i := range 2 * kept {
		told := j.add(Event{Kind: OutOfMemory, ID: 1, Time: now.Add(time.Duration(i) * time.Microsecond)})
		if told != (i < tellable) {
			t.Fatalf("event %d is told: %v", i, told)
		}
	}
	for range 2 * tellable {
		if !j.add(Event{Kind: ClientLeft, ID: 1, Time: now}) {
			t.Fatal("the end of a client is not told")
		}
	}
	if e := j.recent()[0]; e.Kind != LgpuCreated || e.Seq != 1 {
		t.Errorf("the oldest event is %+v", e)
	}
	if n := j.of(1)[OutOfMemory]; n != 2*kept || j.counted()[OutOfMemory] != n {
		t.Errorf("%d of them are counted", n)
	}
	if !j.add(Event{Kind: OutOfMemory, ID: 1, Time: now.Add(time.Second)}) ||
		!j.add(Event{Kind: OutOfMemory, ID: 3, Time: now}) {
		t.Error("later, or of another node, it is not told")
	}
}
