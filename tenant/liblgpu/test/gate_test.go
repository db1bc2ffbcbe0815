package test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// Over any history an lgpu gets its cap, give or take the burst and one step, and pays debts at the capped rate.
func TestCredit(t *testing.T) {
	mustRun(t, nil, program(t, "credit_test", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
}

// Who waits knows a daemon that hangs from one that lives, and from a stop of its own.
func TestBeat(t *testing.T) {
	mustRun(t, nil, program(t, "beat_test", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
}

// Processes take turns: one at a time, none left out, though one dies while it has the turn.
func TestTurns(t *testing.T) {
	bin := program(t, "turn_stress", "alone/turn.c", "testdata/leases.c", "-DLGPU_CUDA_PLAIN", "-DLGPU_NVML_PLAIN", "-I../abi/include")
	for _, processes := range []int{2, 8, 40} {
		const turns = 200
		out, err := exec.Command(bin, t.TempDir(), fmt.Sprint(processes), fmt.Sprint(turns)).CombinedOutput()
		if err != nil {
			t.Fatalf("%d processes: %v\n%s", processes, err, out)
		}
		want := "violations 0 failed 0 had 200 1" + strings.Repeat(" 200", processes-2) + "\n"
		if string(out) != want {
			t.Errorf("%d processes: %s, want %s", processes, out, want)
		}
	}
}
