package nvidia

import (
	"errors"
	"testing"
)

func TestNoDriver(t *testing.T) {
	t.Setenv("LGPU_REAL_LIBNVML", "/nonexistent/libnvidia-ml.so.1")
	if i, err := Open(); !errors.Is(err, ErrNoDriver) {
		t.Errorf("Open() = %v, %v; want ErrNoDriver", i, err)
	}
}

// A library that is not NVML is refused by the name of what it lacks, not called.
func TestOtherLibrary(t *testing.T) {
	t.Setenv("LGPU_REAL_LIBNVML", "libc.so.6")
	if i, err := Open(); err == nil {
		t.Errorf("Open() = %v with libc for NVML", i)
	}
}
