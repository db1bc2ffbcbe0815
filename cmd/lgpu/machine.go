package main

import (
	"errors"

	"github.com/lgpu/lgpu/assets"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/gpu/nvidia"
)

// machine is where a program's devices come from.
type machine struct {
	devices []gpu.Device
	env     func(libs assets.Libraries, env []string) map[string]string // what the program needs to reach them
	close   func() error
}

// openNvidia returns the GPUs of NVIDIA's driver.
func openNvidia() (*machine, error) {
	inventory, err := nvidia.Open()
	if err != nil {
		e := &exit{status: statusFailed, err: err}
		if errors.Is(err, nvidia.ErrNoDriver) {
			e.hint = "a software GPU works on any machine: lgpu run --sim -- CMD"
		}
		return nil, e
	}
	devices, err := inventory.Devices()
	if err = errors.Join(err, inventory.Close()); err != nil {
		return nil, failed(err)
	}
	return &machine{
		devices: devices,
		env:     func(assets.Libraries, []string) map[string]string { return nil },
		close:   func() error { return nil },
	}, nil
}
