package meminfo

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]Info{
		"MemTotal:       1024 kB\nMemFree:   1 kB\nMemAvailable:    512 kB\n": {Total: 1 << 20, Available: 512 << 10},
		"": {}, "MemTotal:\nMemAvailable: many kB\n": {}, "MemTotal: 99999999999999999999 kB": {},
	} {
		if got := parse(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
	if i := Read(); i.Total == 0 || i.Available > i.Total {
		t.Errorf("this machine: %+v", i)
	}
}
