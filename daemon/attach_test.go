package daemon

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Who is refused an lgpu is told of, once at first however often she tries.
func TestRefusedAttachIsTold(t *testing.T) {
	r := start(t, Config{})
	events := r.events(t)
	for range 3 {
		if _, err := r.Attach(t.Context(), AttachSpec{Path: "/team", Launcher: self(), Limits: memory(20 << 30)}); err == nil {
			t.Fatal("20 GiB of a device of 16")
		}
	}
	e := events.await(t, LgpuRefused)
	if e.Path != "/team" || e.By == nil || e.By.PID != os.Getpid() || !strings.Contains(e.Text, "was refused /team: ") ||
		!strings.Contains(e.Text, "20 GiB") {
		t.Errorf("%+v", e)
	}
	if told := slices.DeleteFunc(r.Recent(), func(e Event) bool { return e.Kind != LgpuRefused }); len(told) != 1 {
		t.Errorf("%d events at once", len(told))
	}
	if n := r.journal.counted()[LgpuRefused]; n != 3 {
		t.Errorf("%d are counted", n)
	}
}
