package test

import (
	"testing"
)

// Sixty-four processes take and give back random amounts, a million times in all: never a byte over the limit, seen by
// an observer that looks all the time, and nothing left at the end.
func TestCounterNeverExceedsItsLimit(t *testing.T) {
	bin := program(t, "counter_test", "process/counter.c", "testdata/fault.c", "-DLGPU_FAULT_POINTS", "-O2")
	mustRun(t, nil, bin, "stress", "64", "1000000")
}

// A process killed at any step leaves an account that can be settled exactly, even by one that is killed while it does.
func TestCounterSurvivesDeathAtEveryStep(t *testing.T) {
	bin := program(t, "counter_test", "process/counter.c", "testdata/fault.c", "-DLGPU_FAULT_POINTS", "-O2")
	mustRun(t, nil, bin, "crash")
}

func TestCounterUnderSanitizers(t *testing.T) {
	bin := program(t, "counter_test", "process/counter.c", "testdata/fault.c", "-DLGPU_FAULT_POINTS", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all")
	env := []string{"ASAN_OPTIONS=detect_leaks=1:abort_on_error=0"}
	mustRun(t, env, bin, "stress", "8", "40000")
	mustRun(t, env, bin, "crash")
}
