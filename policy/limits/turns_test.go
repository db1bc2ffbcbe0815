package limits

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTurns(t *testing.T) {
	tr := residenceTree(t, Options{})
	read := func(file string) string {
		text, err := tr.Read("/", file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(text)
	}
	if read("slice.min") != "1s" || read("slice.max") != "30s" || read("slice.latency") != "default" || tr.Turns() != DefaultTurns {
		t.Errorf("defaults are %s, %s and %s", read("slice.min"), read("slice.max"), read("slice.latency"))
	}
	for _, c := range []struct {
		file, text string
		errno      syscall.Errno
	}{
		{"slice.min", "500 ms", 0}, {"slice.max", "400ms", syscall.EINVAL}, {"slice.max", "2s", 0}, {"slice.min", "3s", syscall.EINVAL},
		{"slice.min", "1", syscall.EINVAL}, {"slice.min", "max", syscall.EINVAL}, {"slice.min", "1ms", syscall.ERANGE},
		{"slice.max", "25h", syscall.ERANGE}, {"slice.latency", "10s", 0}, {"slice.latency", "", syscall.EINVAL},
	} {
		err := tr.Write("/", c.file, c.text)
		if c.errno == 0 && err != nil {
			t.Errorf("%s %q: %v", c.file, c.text, err)
		} else if c.errno != 0 {
			wantErrno(t, err, c.errno)
		}
	}
	want := Turns{Least: 500 * time.Millisecond, Most: 2 * time.Second, Latency: 10 * time.Second}
	if tr.Turns() != want || read("slice.min") != "500ms" {
		t.Errorf("%+v", tr.Turns())
	}
	again := New(Options{})
	if problems := again.Load(tr.State()); len(problems) != 0 || again.Turns() != want {
		t.Errorf("loaded: %v, %+v", problems, again.Turns())
	}
	for _, file := range []string{"slice.min", "slice.max", "slice.latency"} {
		if err := tr.Write("/", file, "default"); err != nil {
			t.Error(err)
		}
	}
	if tr.Turns() != DefaultTurns {
		t.Errorf("%+v", tr.Turns())
	}
	if err := tr.Write("/", "slice.min", "40s"); err != nil || tr.Turns().Most != 40*time.Second {
		t.Errorf("%v, %+v", err, tr.Turns()) // the default of the other one is not in its way
	}
}
