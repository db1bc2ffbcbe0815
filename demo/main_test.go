package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A limit that did not hold on a busy machine is said with the load; nothing else is.
func TestBusy(t *testing.T) {
	broken := fmt.Errorf("%w: red got 55.7%% of the device, not 60%%", errBroken)
	if err := busy(broken, 1000); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "a load of 1000.0 on ") {
		t.Errorf("on a busy machine: %v", err)
	}
	if err := busy(broken, 0); err != broken {
		t.Errorf("on an idle machine: %v", err)
	}
	other := errors.New("no such file")
	if err := busy(other, 1000); err != other {
		t.Errorf("another error: %v", err)
	}
	if err := busy(nil, 1000); err != nil {
		t.Errorf("without an error: %v", err)
	}
}
