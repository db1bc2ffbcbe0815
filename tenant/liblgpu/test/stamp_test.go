package test

import (
	"os/exec"
	"testing"
)

// TestStamp: what a launcher writes into the library goes before the environment, and no stamp is read beyond its end.
func TestStamp(t *testing.T) {
	bin := program(t, "stamp_test", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	if out, err := exec.Command(bin).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
