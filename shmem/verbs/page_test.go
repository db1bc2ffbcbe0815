package verbs

import "testing"

// TestLogPage: a machine of 64 KiB pages registers queues in those.
func TestLogPage(t *testing.T) {
	for size, want := range map[int]uint64{4 << 10: 0, 16 << 10: 2, 64 << 10: 4} {
		if got := logPage(size); got != want {
			t.Errorf("pages of %d bytes are %d to a queue, want %d", size, got, want)
		}
	}
}
