package test

import (
	"path/filepath"
	"strings"
	"testing"
)

// The conformance suite of the driver API passes on the software GPU, and just so inside an lgpu: nothing that the
// suite looks at changes, with limits that it does not reach.
func TestConformance(t *testing.T) {
	kernels, err := filepath.Abs("../sim/kernels")
	if err != nil {
		t.Fatal(err)
	}
	for name, prefix := range map[string][]string{
		"device":         {"--contain=off", "--", "env", "-u", "LD_PRELOAD", "-u", "LGPU_SOCKET"},
		"lgpu":           {"--"},
		"lgpu of a part": {"--memory", "15GiB", "--compute", "90", "--host-memory", "8GiB", "--"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			args := append([]string{"run", "--sim=2x16GiB,sms=32"}, prefix...)
			c := p.command("lgpu", append(args, "suite", kernels)...)
			out, err := c.CombinedOutput()
			if err != nil {
				t.Errorf("%v", err)
				for _, line := range strings.Split(string(out), "\n") {
					if !strings.HasPrefix(line, "ok ") {
						t.Log(line)
					}
				}
			}
		})
	}
}
