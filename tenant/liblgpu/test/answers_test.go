package test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// said are the lines that the program of testdata/answers.c prints for a seed.
func said(t *testing.T, c *client, order string, between func()) []string {
	t.Helper()
	c.order("%s", order)
	var lines []string
	for {
		select {
		case line, ok := <-c.lines:
			if !ok {
				t.Fatalf("the program ended after %d answers, the last of which is %q", len(lines), slices.Concat([]string{""}, lines)[len(lines)])
			}
			lines = append(lines, line)
			if line == order+": 0" {
				return lines
			}
			if len(lines)%25 == 0 && between != nil {
				between()
			}
		case <-time.After(patience):
			t.Fatalf("no answer after %q", slices.Concat([]string{""}, lines)[len(lines)])
		}
	}
}

// Random calls on memory are answered as the driver answers them, while the memory leaves and comes back. LGPU_SEED names
// one seed to try.
func TestMovableAnswers(t *testing.T) {
	seeds, steps := []uint64{1, 2, 3, 4, 5, 6, 7, 8}, 700
	if text, ok := os.LookupEnv("LGPU_SEED"); ok {
		seed, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	} else if testing.Short() {
		seeds = seeds[:2]
	}
	for _, seed := range seeds {
		devices := 1 + int(seed%2)
		k := managedProgram(t, devices, "testdata/answers.c")
		native := startClient(t, k.dev.env, simProgram(t, "testdata/answers.c", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN"))
		native.do("init %d", devices)
		native.do("wild")
		k.c.do("wild")
		order := fmt.Sprintf("go %d %d", seed, steps)
		want := said(t, native, order, nil)
		for i := range devices {
			k.store(uint32(i), storeBytes)
		}
		have := said(t, k.c, order, func() {
			for i := range devices {
				k.suspend(uint32(i))
			}
			for i := range devices {
				k.send(uint32(i), 512*mib, false)
			}
		})
		for i := range min(len(want), len(have)) {
			if want[i] != have[i] {
				t.Fatalf("seed %d, answer %d: with memory.overcommit\n%s\nwithout it\n%s\nbefore it:\n%q", seed, i, have[i], want[i],
					have[max(0, i-8):i])
			}
		}
		if len(want) != len(have) {
			t.Errorf("seed %d: %d answers, without memory.overcommit %d", seed, len(have), len(want))
		}
	}
}

// Pools keep the order of streams, with memory.overcommit as without.
func TestMovableOrder(t *testing.T) {
	k := managedProgram(t, 1, "testdata/ordered.c")
	native := startClient(t, k.dev.env, k.c.cmd.Path)
	native.do("init 1")
	native.do("ordered")
	k.c.do("ordered")
	k.store(0, storeBytes)
	k.suspend(0)
	k.resume(0)
}
