package sim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/lgpu/lgpu/gpu"
	gpusim "github.com/lgpu/lgpu/gpu/sim"
	"github.com/lgpu/lgpu/sim"
)

func TestInventory(t *testing.T) {
	shape := sim.Shape{Devices: 2, Memory: 512 << 20, Units: 4, MHz: 1, Slice: 2 * time.Millisecond, Link: 4e9,
		Context: 16 << 20}
	dir := t.TempDir()
	listener, err := sim.Listen(sim.SocketPath(dir, shape))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sim.Serve(t.Context(), listener, shape, sim.ServeOptions{}) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	hardware, err := sim.Start(shape, sim.StartOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	i := gpusim.New(hardware)
	devices, err := i.Devices()
	if err != nil || len(devices) != 2 {
		t.Fatalf("%v, %v", devices, err)
	}
	for n, d := range devices {
		if d.Index != n || d.Memory != shape.Memory || d.Units != shape.Units || d.MIG() || d.Node != "" ||
			d.Key() != d.UUID.String() {
			t.Errorf("device %d is %+v", n, d)
		}
		f, err := i.Facts(d.UUID)
		if err != nil || f.MemoryUsed > shape.Memory || f.Utilisation != 0 || len(f.Processes) != 0 {
			t.Errorf("device %d: %+v, %v", n, f, err)
		}
		if *f.Power != 40_000 || *f.Temperature != 30 {
			t.Errorf("device %d draws %d mW and has %d °C", n, *f.Power, *f.Temperature)
		}
		if mj, err := i.Energy(d.UUID); mj < *f.Energy || err != nil {
			t.Errorf("the counter of device %d is %d mJ after %d, %v", n, mj, *f.Energy, err)
		}
	}
	if _, err := i.Facts(gpu.UUID{1}); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("an unknown device: %v", err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Facts(devices[0].UUID); err == nil {
		t.Error("facts after the end")
	}
}
