package test

import "testing"

// residenceProgram is testdata/residence_test.c with the lock.
func residenceProgram(t *testing.T, sanitizer string) string {
	return program(t, "residence_test", "residence/lock.c", "residence/drain.c", "-fsanitize="+sanitizer, "-fno-sanitize-recover=all")
}

// The lock alone, with a driver and a gate of the test's own.
func TestResidenceLock(t *testing.T) {
	for _, sanitizer := range []string{"address,undefined", "thread"} {
		bin := residenceProgram(t, sanitizer)
		for _, name := range []string{"hammer", "crowd", "nest", "dead", "leader", "fork", "kill", "capture", "busy"} {
			t.Run(name+"/"+sanitizer, func(t *testing.T) {
				mustRun(t, []string{"TSAN_OPTIONS=die_after_fork=0", "ASAN_OPTIONS=detect_leaks=0"}, bin, name)
			})
		}
	}
}
