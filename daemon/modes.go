package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/mps"
	"github.com/lgpu/lgpu/gpu"
)

// modeTime is how long somebody waits for devices to come into a mode. MPS takes seconds to begin or to end.
const modeTime = 15 * time.Second

// modeOf is the mode that an lgpu's devices are in.
func modeOf(spatial bool) mps.Mode {
	if spatial {
		return mps.Spatial
	}
	return mps.Temporal
}

// wantMode brings a device into the mode that an lgpu needs. It waits for a switch that is under way.
func (v *inventory) wantMode(ctx context.Context, d gpu.Device, spatial bool) error {
	mode := modeOf(spatial)
	if v.daemon.modes.Settled(d.UUID, mode) {
		return nil
	}
	err := v.setMode(ctx, d.UUID, mode)
	if errors.Is(err, unix.EBUSY) {
		return &Error{Class: ErrBusy, Reason: err.Error(), Cause: err}
	}
	return err
}

// setMode brings a device into a mode and tells the tree and the policy.
func (v *inventory) setMode(ctx context.Context, uuid gpu.UUID, mode mps.Mode) error {
	d := v.device(uuid)
	if d == nil {
		return fmt.Errorf("device %s: %w", uuid, ErrNoDevice)
	}
	release, err := v.claim(d.Device, d.origin.shape)
	if err != nil {
		return err
	}
	defer release()
	err = v.daemon.modes.SetMode(ctx, mps.Device{UUID: uuid, Software: d.origin.shape != ""}, mode)
	v.claimMode(d.Device, d.origin.shape)
	if err != nil {
		return err
	}
	return v.publish()
}

// modeEvent passes on what package mps tells.
func (v *inventory) modeEvent(e mps.Event) {
	uuid := e.Device
	event := Event{Kind: Kind(e.Kind), Device: &uuid, PID: e.PID, Text: "MPS control daemon: " + e.Kind}
	if e.Err != nil {
		event.Text += ": " + e.Err.Error()
	}
	v.daemon.journal.emit(event)
}
