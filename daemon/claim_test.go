package daemon

import (
	"errors"
	"strings"
	"testing"

	"github.com/lgpu/lgpu/daemon/claim"
	"github.com/lgpu/lgpu/gpu"
)

// A device that another user's daemon manages is left out, and who asks for one hears why.
func TestDevicesOfAnotherDaemon(t *testing.T) {
	config := Config{Claim: true, System: "/nowhere/lgpud.sock"}
	first := start(t, config)
	if len(first.Snapshot().Devices) == 0 {
		t.Fatal("it has no device")
	}
	second := start(t, config)
	if got := second.Snapshot().Devices; len(got) != 0 {
		t.Errorf("both have %v", got)
	}
	_, err := second.Attach(t.Context(), AttachSpec{Launcher: self()})
	var held *claim.Held
	if !errors.Is(err, ErrNoDevice) || !errors.As(err, &held) || !strings.Contains(err.Error(), "is managed by the daemon of user") {
		t.Errorf("%v", err)
	}
	first.inventory.claims.Close()
	if err := second.inventory.refresh(); err != nil || len(second.Snapshot().Devices) == 0 {
		t.Errorf("when it was given back: %v", err)
	}
	third := start(t, Config{Inventories: []gpu.Inventory{}})
	if _, err := third.Attach(t.Context(), AttachSpec{Launcher: self()}); !errors.Is(err, ErrNoDevice) || errors.As(err, &held) {
		t.Errorf("without a GPU: %v", err)
	}
}
