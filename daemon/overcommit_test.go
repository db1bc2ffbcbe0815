package daemon

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// The least bound of a cgroup and those above it holds.
func TestCgroupBound(t *testing.T) {
	root := t.TempDir()
	for at, most := range map[string]string{
		"memory.max": "", "system.slice/memory.max": "8589934592\n", "system.slice/lgpud.service/memory.max": "max\n",
		"user.slice/memory.max": "max\n", "small/memory.max": "4096\n", "small/large/memory.max": "8192\n", "odd/memory.max": "much\n",
	} {
		if most == "" {
			continue // the root has none
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, at)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, at), []byte(most), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]uint64{
		"0::/system.slice/lgpud.service\n": 8 << 30,
		"0::/user.slice\n":                 math.MaxUint64,
		"0::/small/large\n":                4096,
		"0::/\n":                           math.MaxUint64,
		"0::/odd\n":                        math.MaxUint64,
		"0::/../small\n":                   math.MaxUint64, // outside of what is mounted
		"12:memory:/small\n1:name=systemd:/user.slice\n": math.MaxUint64,
		"0::small\n": math.MaxUint64,
		"":           math.MaxUint64,
	} {
		if got := cgroupBound(root, text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
